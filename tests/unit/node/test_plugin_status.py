# SPDX-License-Identifier: Apache-2.0
"""
What a node says of itself: only what differs is written, and a node that serves no shares is left alone.
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from isolation.contract.codec import CodecError, decode_cards
from isolation.contract.model import Card, Mode
from isolation.contract.names import AGENT, CARD_COUNT, CARD_UNITS, CARDS
from isolation.contract.quantity import GIB
from isolation.host.machine import MachineError
from isolation.kube.core.errors import MalformedError, UnreachableError
from isolation.kube.writes import Outcome, WriteResult
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.status import NodeStatus, NodeWatch, Said, amiss, label_of, read, wish

COUNT, CORE, WHOLE = "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu"
MODEL, MEMORY = "aliyun.accelerator/nvidia_name", "aliyun.accelerator/nvidia_mem"
T4 = [Card(f"GPU-{i}", i, 15 * GIB, model="Tesla T4") for i in range(2)]


def node(name="n", mode="cgpu", **more):
    """A node's object."""
    status = more.pop("status", {})
    return {"metadata": {"name": name, "labels": {"ack.node.gpu.schedule": mode}, **more}, "status": status}


def after(thing, written):
    """The node's object once this was written."""
    made = json.loads(json.dumps(thing))
    meta = made["metadata"]
    meta["labels"] = {k: v for k, v in {**meta.get("labels", {}), **written.labels}.items() if v is not None}
    meta["annotations"] = {**meta.get("annotations", {}), **written.annotations}
    for part in ("capacity", "allocatable"):
        amounts = {name: str(amount) for name, amount in written.resources.items()}
        made["status"][part] = {**made["status"].get(part, {}), **amounts}
    return made


@pytest.mark.parametrize(("mode", "core"), [(Mode.SHARE, 0), (Mode.CGPU, 0), (Mode.CORE_MEM, 200)])
def test_a_shared_node_says_its_cards(mode, core):
    """
    Plain resources, labels for affinity, cards by UUID; compute only where it is shared.
    """
    said = wish(T4, mode, "ready")
    assert {COUNT: 2, CORE: core} == said.resources
    assert {CARD_UNITS: "15", CARD_COUNT: "2", MODEL: "Tesla-T4", MEMORY: "15360MiB"} == said.labels
    assert ("ready", [c.uuid for c in T4]) == (
        said.annotations[AGENT],
        [c.uuid for c in decode_cards(said.annotations[CARDS])],
    )


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.NONE])
def test_a_node_of_another_mode_says_that_it_has_nothing(mode):
    """
    And nothing at all is written to a node that never served shares.
    """
    said = wish(T4, mode, "ready")
    assert ({COUNT: 0, CORE: 0}, {None}) == (said.resources, set(said.labels.values()))
    assert Said() == amiss(said, read(node(mode=mode))[0], writes_anything=False)
    was = after(node(mode=mode), wish(T4, Mode.CGPU, "ready"))
    undone = amiss(said, read(was)[0], writes_anything=False)
    assert ({COUNT: 0}, {CARD_UNITS: None}) == (undone.resources, {CARD_UNITS: undone.labels[CARD_UNITS]})


def test_different_cards_have_no_model_in_common():
    """
    A label that speaks for all of them would be wrong of some.
    """
    mixed = [*T4, Card("GPU-9", 9, 40 * GIB, model="A100")]
    labels = wish(mixed, Mode.CGPU, "ready").labels
    assert (None, None, "40") == (labels[MODEL], labels[MEMORY], labels[CARD_UNITS])


@pytest.mark.parametrize(
    ("model", "label"),
    [("Tesla T4", "Tesla-T4"), ("  / ", None), ("NVIDIA H100 80GB HBM3 " + "x" * 80, 63), ("", None)],
)
def test_a_model_becomes_a_label_that_the_api_server_takes(model, label):
    """
    Letters that labels do not have are replaced, length is bounded, nothing stays nothing.
    """
    made = label_of(model)
    assert label == (len(made) if isinstance(label, int) else made)


def test_what_stands_there_is_not_written_again():
    """
    Written once, nothing is amiss; each piece that vanishes is written alone.
    """
    wanted = wish(T4, Mode.CORE_MEM, "ready")
    there = after(node(), amiss(wanted, read(node())[0], writes_anything=True))
    assert Said() == amiss(wanted, read(there)[0], writes_anything=True)
    del there["status"]["allocatable"][CORE]
    lost = amiss(wanted, read(there)[0], writes_anything=True)
    assert (Said({CORE: 200}), {}) == (lost, dict(lost.labels))


@pytest.mark.parametrize(
    "thing",
    [
        {"metadata": {"name": "n", "labels": {"a": 1}}},
        {"metadata": {"name": "n"}, "status": {"capacity": []}},
        {"metadata": {"name": "n"}, "status": 5},
        [],
    ],
    ids=["label", "capacity", "status", "list"],
)
def test_a_node_that_is_none_is_refused(thing):
    """
    And what was known stays.
    """
    with pytest.raises(CodecError):
        read(thing)


def test_odd_amounts_are_written_again():
    """
    What is no number, or differs between capacity and allocatable, does not stand.
    """
    odd = node(status={"capacity": {COUNT: "2", CORE: "x"}, "allocatable": {COUNT: "1", CORE: "x"}})
    said, mode, whole = read(odd)
    assert ({}, Mode.CGPU, False) == (dict(said.resources), mode, whole)
    assert read(node(status={"capacity": {WHOLE: "8"}}))[2]


class Machine:
    """Cards as the test says, or an error."""

    def __init__(self, cards):
        self.found = cards

    def cards(self):
        """Them."""
        if isinstance(self.found, Exception):
            raise self.found
        return tuple(self.found)


def inventory(tmp_path, machine, **terms):
    """An inventory with its file."""
    return NodeInventory(machine, Terms(GIB, **terms), tmp_path / "node.json")


def test_cards_and_mode_outlive_the_agent(tmp_path):
    """
    A new agent knows them at once; cards that cannot be read now are there and not healthy.
    """
    first = inventory(tmp_path, Machine(T4), reserved_bytes=GIB)
    assert (False, False) == (first.usable, first.told)
    first.refresh()
    assert first.serves(Mode.CORE_MEM, whole=False)
    again = inventory(tmp_path, Machine(MachineError("no driver")), reserved_bytes=GIB)
    assert (True, Mode.CORE_MEM, first.cards()) == (again.usable, again.mode(), again.cards())
    again.refresh()
    assert ("no driver", [False, False]) == (again.trouble, [card.healthy for card in again.cards()])
    assert {"GPU-0": "no driver", "GPU-1": "no driver"} == again.unhealthy, "the node's annotation and doctor say it"
    assert [14 * GIB] * 2 == [card.allocatable_bytes for card in again.cards()]


def test_a_card_that_is_gone_is_lost_and_one_in_its_place_is_new(tmp_path):
    """
    Known by UUID: lost while NVML does not tell of it, sound when it does again, forgotten when replaced.
    """
    machine = Machine(T4)
    kept = inventory(tmp_path, machine)
    kept.refresh()
    machine.found = [T4[0], Card("lost-1", 1, 0, healthy=False)]
    kept.refresh()
    lost = [(card.uuid, card.healthy, card.allocatable_bytes) for card in kept.cards()]
    assert {"GPU-1": "the driver does not report it any more"} == kept.unhealthy
    machine.found = T4
    kept.refresh()
    back = [card.healthy for card in kept.cards()]
    assert {} == kept.unhealthy
    machine.found = [T4[0], Card("GPU-new", 1, 15 * GIB, model="Tesla T4")]
    kept.refresh()
    assert [("GPU-0", True, 15 * GIB), ("GPU-1", False, 15 * GIB)] == lost
    assert ([True, True], ["GPU-0", "GPU-new"]) == (back, [card.uuid for card in kept.cards()])


def test_an_unhealthy_card_keeps_the_amounts_that_it_had(tmp_path):
    """
    It tells none; its pods' promises are still made on them.
    """
    machine = Machine(T4)
    kept = inventory(tmp_path, machine)
    kept.refresh()
    machine.found = [T4[0], Card("GPU-1", 1, 0, healthy=False)]
    assert kept.refresh()
    assert (15 * GIB, False) == (kept.cards()[1].total_bytes, kept.cards()[1].healthy)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "cards": "x", "mode": "cgpu"}', "9" * 99]
)
def test_a_file_that_is_none_is_left_aside(tmp_path, text):
    """
    Nothing is known then, and it is written again.
    """
    (tmp_path / "node.json").write_bytes(text.encode(errors="surrogateescape"))
    kept = inventory(tmp_path, Machine(T4))
    assert not kept.usable
    kept.refresh()
    kept.serves(Mode.CGPU, whole=False)
    assert inventory(tmp_path, Machine([])).usable


class Writer:
    """An API server that notes what is written, or does not answer."""

    def __init__(self):
        self.written, self.error, self.answer = [], None, WriteResult(Outcome.DONE)

    async def state_resources(self, name, amounts):
        """Note it."""
        return self._done((name, dict(amounts)))

    async def label_node(self, name, labels, annotations):
        """Note it."""
        return self._done((name, dict(labels), dict(annotations)))

    def _done(self, what):
        if self.error is not None:
            raise self.error
        self.written.append(what)
        return self.answer


def watched(tmp_path, thing):
    """A keeper whose node was reported."""
    kept = inventory(tmp_path, Machine(T4))
    kept.refresh()
    watch, writer = NodeWatch("n", kept), Writer()
    if thing is not None:
        watch.put(msgspec.Raw(json.dumps(thing).encode()))
    return NodeStatus(writer, "n", watch, kept), watch, writer


def test_a_turn_writes_what_is_amiss_and_the_next_nothing(tmp_path):
    """
    Two writes at first; none while nothing changes, whatever the watch repeats.
    """
    status, watch, writer = watched(tmp_path, node())
    assert asyncio.run(status.turn())
    first = len(writer.written)
    assert asyncio.run(status.turn())
    status.ready(yes=True)
    assert asyncio.run(status.turn())
    assert (2, 3, {AGENT: "ready"}) == (first, len(writer.written), writer.written[-1][2])
    watch.drop(msgspec.Raw(json.dumps(node()).encode()))
    assert not asyncio.run(status.turn())


@pytest.mark.parametrize("how", ["unreachable", "refused"])
def test_what_could_not_be_written_is_written_later(tmp_path, how):
    """
    The reason is kept for people.
    """
    status, _, writer = watched(tmp_path, node())
    writer.error = UnreachableError("nobody there") if how == "unreachable" else None
    writer.answer = WriteResult(Outcome.REFUSED, "not allowed")
    assert not asyncio.run(status.turn())
    trouble = status.trouble
    writer.error, writer.answer = None, WriteResult(Outcome.DONE)
    assert asyncio.run(status.turn())
    assert ("", True) == (status.trouble, trouble in ("nobody there", "not allowed"))


def test_a_node_that_cannot_be_read_changes_nothing(tmp_path):
    """
    The last picture stands.
    """
    _, watch, _ = watched(tmp_path, node())
    before = watch.said
    with pytest.raises(MalformedError):
        watch.put(msgspec.Raw(b'{"metadata": {"name": "n", "labels": []}}'))
    assert "other" == watch.put(msgspec.Raw(b'{"metadata": {"name": "other", "labels": []}}'))
    assert before is watch.said
