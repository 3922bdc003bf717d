# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is within a pod follows from what a kubelet hands on from container to container."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_story import run
from support.agent_world import AgentWorld
from support.device_books import Allocate, Box, DeviceBooks, Prefer

from isolation.node.book import Entry
from isolation.node.handed import Call, predecessors
from isolation.node.world import Bound, Wanted

MEMORY = "aliyun.com/gpu-mem"
SIZES = st.integers(1, 4)
INITS = st.lists(st.tuples(SIZES, st.booleans()), max_size=3)
STALE = st.lists(SIZES, max_size=3)


def ids(*numbers):
    """Device IDs of one card."""
    return frozenset(f"GPU-0-_-{number}" for number in numbers)


@given(inits=INITS, apps=st.lists(SIZES, min_size=1, max_size=2), stale=STALE, seed=st.integers(0, 9))
def test_each_call_of_an_admission_in_the_dark_names_its_container(inits, apps, stale, seed):
    """
    By the rule of the simulated kubelet: whatever the shape of the pod, and whatever stood as nobody's before.
    """
    dice = random.Random(seed)  # noqa: S311 (a test that can be run again)
    books = DeviceBooks(dice)
    boxes = [Box(f"i{at}", {MEMORY: units}, sidecar=side) for at, (units, side) in enumerate(inits)]
    mains = [Box(f"a{at}", {MEMORY: units}) for at, units in enumerate(apps)]
    plain = {box.name for box in boxes if not box.sidecar}
    wanted = tuple(Wanted(box.name, box.units[MEMORY], box.name in plain) for box in (*boxes, *mains))
    pod = Bound("u", "pod", "ml", wanted, None)
    entries = [Entry(frozenset(f"GPU-1-_-{at}-{n}" for n in range(units)), made=at) for at, units in enumerate(stale)]
    made: dict[str, Entry] = {}
    books.offer(MEMORY, {f"GPU-0-_-{number}" for number in range(32)})
    calls = books.admit("u", boxes, mains, lambda: ["u"])
    step = next(calls)
    while step is not None:
        call = (
            Call(step.size, frozenset(step.must))
            if isinstance(step, Prefer)
            else Call(len(step.ids), frozenset(step.ids))
        )
        shown = {name: entry for name, entry in made.items() if name not in plain}
        assert made == predecessors(pod, {}, shown, entries, call)
        answer = sorted(step.available)[: step.size] if isinstance(step, Prefer) else "given"
        if isinstance(step, Prefer):
            answer = [*step.must, *(one for one in answer if one not in step.must)][: step.size]
        if isinstance(step, Allocate):
            turn = wanted[len(made)]
            made[turn.name] = Entry(frozenset(step.ids), made=len(entries))
            entries.append(made[turn.name])
        try:
            step = calls.send(answer)
        except StopIteration:
            step = None


PREPARE, MAIN = Wanted("prepare", 4, init=True), Wanted("main", 4)
WARM, HELPER = Wanted("warm", 4, init=True), Wanted("helper", 4)
OLD, NEW = Entry(ids(3, 4, 5, 6), made=4), Entry(ids(0, 1, 2, 3), made=7)


@pytest.mark.parametrize(
    ("wanted", "known", "nobodys", "chosen", "expected"),
    [
        ((PREPARE, MAIN), {}, [OLD, NEW], NEW.ids, {"prepare": NEW}),
        ((PREPARE, MAIN), {}, [NEW, OLD], NEW.ids, {}),
        ((PREPARE, MAIN), {}, [], frozenset(), {}),
        ((WARM, HELPER, MAIN), {"warm": NEW.ids}, [OLD], NEW.ids, {}),
        ((WARM, HELPER, MAIN), {"warm": NEW.ids}, [], OLD.ids, None),
    ],
    ids=["what was given last went before", "an older one did not", "the first", "a sidecar", "nothing fits"],
)
def test_devices_that_merely_share_one_are_not_taken_for_a_neighbours(wanted, known, nobodys, chosen, expected):
    """
    What an earlier pod left stands as nobody's too; it is neither the last nor what was handed on.
    """
    pod = Bound("u", "pod", "ml", wanted, None)

    assert expected == predecessors(pod, known, {}, nobodys, Call(4, chosen))


def test_a_container_gets_its_name_though_an_earlier_pods_devices_are_nobodys():
    """
    The agent finds it through the whole: the init container's own devices, not those of the one before.
    """
    node = AgentWorld(cards=1, units=12)
    run(node.agent.start())
    pod = node.bind("a", init=("prepare",), watched=False, prepare=(0, 4), main=(0, 4))
    old, mine = node.ids(0, 3, 4, 5, 6), node.ids(0, 0, 1, 2, 3)
    for one in (old, mine):
        node.agent._ledger.claim(Entry(one, made=node.agent.book.next()))
    node.admitted[pod.uid] = {"prepare": mine}
    node.watched["a"] = pod

    run(node.agent.allocate([sorted(mine)]))

    assert {"prepare": mine, "main": mine} == {one.container: one.ids for one in node.agent.book.of(pod.uid)}
    assert [old] == [one.ids for one in node.agent.book if not one.uid]
