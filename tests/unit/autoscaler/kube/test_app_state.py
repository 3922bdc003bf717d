# SPDX-License-Identifier: Apache-2.0
"""What outlives the autoscaler: written, read back, and believed only as far as it can be true."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import Nomination
from autoscaler.core.rightsizing.trial import Trial, TrialState
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.state import MAX_TEXT, ControllerState, decode, encode, merge_memories
from autoscaler.kube.state_store import KEY, Saved, StateConfigMap, StateStore
from isolation.contract.codec.cursor import CodecError
from isolation.kube.core.errors import RefusedError

NOW = 1_800_000_000.0
TIMES = st.floats(0, NOW, allow_nan=False).map(lambda at: round(at, 3))
NAMES = st.text(min_size=1, max_size=30)
RESTS = st.dictionaries(
    NAMES, st.builds(lambda at, for_: Backoff(round(at + for_, 3), for_), TIMES, st.integers(1, 1800).map(float))
)
AMOUNTS = st.integers(0, 1 << 45)
TRIALS = st.builds(
    Trial, NAMES, NAMES, NAMES, AMOUNTS, AMOUNTS, AMOUNTS, TIMES, st.just(0.0), st.integers(0, 9), st.integers(0, 9)
).map(lambda trial: replace(trial, until=trial.began + 600.0, peak_bytes=trial.to_bytes, cards=2, node="n"))
KEPT_TRIALS = st.lists(TRIALS, max_size=3).map(lambda trials: {trial.key: trial for trial in trials})
MEMORIES = st.builds(
    AutoscalerState,
    unneeded=st.dictionaries(NAMES, TIMES, max_size=5),
    last_add=st.just(float("-inf")) | TIMES,
    moves=st.lists(TIMES, max_size=5).map(tuple),
    moved=st.dictionaries(NAMES, TIMES, max_size=5),
    backoffs=RESTS,
    refused=RESTS,
    hot=st.dictionaries(NAMES, TIMES, max_size=5),
    defragmenting=st.booleans(),
    trials=st.builds(
        TrialState, KEPT_TRIALS, KEPT_TRIALS, KEPT_TRIALS, st.lists(st.tuples(TIMES, NAMES), max_size=3).map(tuple)
    ),
)


class Maps:
    """One namespace's ConfigMaps as the API server keeps them: versions grow, and a write under an old one is 409."""

    def __init__(self):
        self.stored = {}
        self._version = 0

    async def send(self, method, path, body=None, kind="json", seconds=None):  # noqa: ARG002 (Access's signature)
        """As `Access.send`."""
        name = unquote(path.rpartition("/")[2]) if method != "POST" else body["metadata"]["name"]
        found = self.stored.get(name)
        if method == "POST" and found is not None:
            raise RefusedError(409, "AlreadyExists")
        if method != "POST" and found is None:
            raise RefusedError(404, "NotFound")
        if method == "GET":
            return json.dumps(found).encode()
        if method == "PATCH" and body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict")
        self.put(name, {**(found or {"data": {}})["data"], **body["data"]})
        return json.dumps(self.stored[name]).encode()

    def put(self, name, data):
        """By anybody."""
        self._version += 1
        self.stored[name] = {"metadata": {"name": name, "resourceVersion": str(self._version)}, "data": data}


@given(MEMORIES, st.integers(0, 1 << 40))
def test_what_is_written_is_read_back(memory, epoch):
    """
    Everything that outlives a turn, but the last answer to waiting pods, which the next turn gives again.
    """
    machine = PoolMachine("n", "p", MachineState.BOOTING, 17.0)
    found = decode(encode(ControllerState(memory, {"n": machine}, epoch=epoch)), NOW)

    assert (memory, epoch, {"n": machine}) == (found.memory, found.epoch, dict(found.machines))


def test_times_of_a_clock_that_was_ahead_are_now():
    """
    A time in the future would keep a node superfluous for ever, or a pool closed for days.
    """
    ahead = AutoscalerState(
        unneeded={"n": NOW + 9e5}, last_add=NOW + 9e5, moves=(NOW + 9e5,), backoffs={"p": Backoff(NOW + 9e5, 300.0)}
    )
    found = decode(encode(ControllerState(ahead, {"n": PoolMachine("n", "p", MachineState.BOOTING, NOW + 9e5)})), NOW)

    assert ({"n": NOW}, NOW, (NOW,)) == (found.memory.unneeded, found.memory.last_add, found.memory.moves)
    assert {"p": Backoff(NOW + 300, 300.0)} == found.memory.backoffs
    assert NOW == found.machines["n"].since


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "memory": []}',
        '{"version": 1, "memory": {"moves": [-1]}}',
        '{"version": 1, "memory": {"moves": [NaN]}}',
        '{"version": 1, "memory": {"moves": ["now"]}}',
        '{"version": 1, "memory": {"last_add": true}}',
        '{"version": 1, "memory": {"closed": {"p": [1]}}}',
        '{"version": 1, "memory": {"unneeded": {"n": 1e999}}}',
        '{"version": 1, "epoch": -1}',
        f'{{"version": 1, "memory": {{"moves": [{"1," * 20_000}1]}}}}',
        "[" * 100_000,
        " " * (MAX_TEXT + 1),
    ],
    ids=range(16),
)
def test_what_is_broken_is_said(text):
    """
    Never believed in part, never a crash.
    """
    with pytest.raises(CodecError):
        decode(text, NOW)


def test_a_fleet_too_large_for_a_config_map_keeps_what_matters_most():
    """
    Who cannot deliver and who was moved is kept in any case; who waits for which machine is found again.
    """
    homes = {f"{i:06}-{'x' * 300}": Nomination("late", (0,)) for i in range(4_000)}
    late = {"late": PoolMachine("late", "p", MachineState.BOOTING, 2.0)}
    text = encode(ControllerState(AutoscalerState(moves=(5.0,)), late, homes))
    found = decode(text, NOW)

    assert len(text) <= MAX_TEXT
    assert ((5.0,), late, {}) == (found.memory.moves, dict(found.machines), dict(found.homes))


def test_nobodys_write_is_overwritten_unseen():
    """
    A write over another version is a conflict and changes nothing; read again, the next one succeeds.
    """

    async def story():
        maps = Maps()
        ours = StateConfigMap(maps, "s", "state")
        first = await ours.load(NOW), await ours.save(ControllerState(AutoscalerState(moves=(1.0,))))
        same = await ours.save(ControllerState(AutoscalerState(moves=(1.0,))))
        other = StateConfigMap(maps, "s", "state")
        found = await other.load(NOW)
        stolen = await other.save(ControllerState(AutoscalerState(moves=(2.0,))))
        late = await ours.save(ControllerState(AutoscalerState(moves=(3.0,))))
        after = await ours.load(NOW)
        again = await ours.save(ControllerState(AutoscalerState(moves=(3.0,))))
        return first, same, found.memory.moves, stolen, late, after.memory.moves, again

    first, same, found, stolen, late, after, again = asyncio.run(story())
    assert ((None, Saved.DONE), Saved.SAME, (1.0,), Saved.DONE) == (first, same, found, stolen)
    assert (Saved.CONFLICT, (2.0,), Saved.DONE) == (late, after, again)


def test_two_that_find_nothing_do_not_both_begin():
    """
    Of two that would create it, the second is reported; one that was deleted meanwhile is a conflict too.
    """

    async def story():
        maps = Maps()
        one, two = StateConfigMap(maps, "s", "state"), StateConfigMap(maps, "s", "state")
        await one.load(NOW)
        await two.load(NOW)
        made = await one.save(ControllerState()), await two.save(ControllerState())
        del maps.stored["state"]
        return made, await one.save(ControllerState(AutoscalerState(moves=(1.0,))))

    assert ((Saved.DONE, Saved.CONFLICT), Saved.CONFLICT) == asyncio.run(story())


@pytest.mark.parametrize("data", [{"theirs": "x"}, {KEY: "no JSON"}, {KEY: '{"version": 9}'}], ids=range(3))
def test_a_config_map_of_somebody_elses_is_said_and_can_be_replaced(data):
    """
    Its own keys stay.
    """

    async def story():
        maps = Maps()
        maps.put("state", data)
        store = StateConfigMap(maps, "s", "state")
        with pytest.raises(CodecError):
            await store.load(NOW)
        return await store.save(ControllerState()), maps.stored["state"]["data"]

    saved, after = asyncio.run(story())
    assert (Saved.DONE, {*data, KEY}) == (saved, set(after))


def test_after_a_conflict_both_memories_count():
    """
    Moves of either side use up the hour, and a rest ends at the later end.
    """
    ours = AutoscalerState(moves=(1.0, 3.0), moved={"a": 3.0}, backoffs={"p": Backoff(10.0, 5.0)}, last_add=4.0)
    theirs = AutoscalerState(
        moves=(2.0, 3.0), moved={"a": 2.0, "b": 2.0}, backoffs={"p": Backoff(20.0, 9.0)}, unneeded={"n": 1.0}
    )

    both = merge_memories(ours, theirs)

    assert ((1.0, 2.0, 3.0), {"a": 3.0, "b": 2.0}) == (both.moves, both.moved)
    assert ({"p": Backoff(20.0, 9.0)}, 4.0, {"n": 1.0}) == (both.backoffs, both.last_add, both.unneeded)


def test_after_a_conflict_resizes_of_both_count():
    """Trials of either side go on."""
    first, second = (Trial(uid, "main", "o", 2, 1, 2, 0.0, 9.0) for uid in "ab")
    ours = AutoscalerState(trials=TrialState({first.key: first}, resized=((1.0, "o"),)))
    theirs = AutoscalerState(trials=TrialState({second.key: second}, resized=((1.0, "o"), (2.0, "p"))))
    both = merge_memories(ours, theirs).trials
    assert ({first.key, second.key}, ((1.0, "o"), (2.0, "p"))) == (both.trials.keys(), both.resized)


def test_what_was_written_over_and_what_was_lost_keep_it_still_for_a_while():
    """
    A conflict is read again and both count; what cannot be believed is replaced, with no drain for a while; a server
    that does not answer is asked again, and nothing is done meanwhile.
    """
    late = {"late": PoolMachine("late", "p", MachineState.BOOTING, 2.0)}

    async def story():
        maps, clock = Maps(), [0.0]
        store = StateStore(StateConfigMap(maps, "s", "state"), lambda: clock[0])
        first = store.trouble(), await store.load(3, ControllerState(), NOW), store.epoch
        await store.save(ControllerState(AutoscalerState(moves=(1.0,))), 20.0)
        maps.put("state", {KEY: encode(ControllerState(AutoscalerState(moves=(2.0,))))})
        outcome = await store.save(ControllerState(AutoscalerState(moves=(1.0, 3.0))), 20.0)
        during = store.epoch, store.trouble()
        both = await store.load(3, ControllerState(AutoscalerState(moves=(1.0, 3.0)), late), NOW)
        still = store.trouble()
        clock[0] = 21.0
        over = store.trouble()
        maps.put("state", {KEY: "hello"})
        lost = await store.load(4, ControllerState(AutoscalerState(moves=(1.0,)), late), NOW)
        return first, outcome, during, both, still, over, lost, store.trouble()

    first, outcome, during, both, still, over, lost, quiet = asyncio.run(story())
    assert ("", None, 3) == first
    assert ("conflict", None) == (outcome, during[0])
    assert "another client wrote saved state ConfigMap s/state" in during[1]
    assert ((1.0, 2.0, 3.0), late) == (both.memory.moves, both.machines)
    assert (during[1], "") == (still, over)
    assert ControllerState(AutoscalerState(last_add=NOW)) == lost
    assert "no actions are taken for 60 s" in quiet
