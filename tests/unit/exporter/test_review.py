# SPDX-License-Identifier: Apache-2.0
"""
What a review found the exporter to say although it could not tell, each in its smallest form.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cgroup_tree import CgroupTree
from support.hold_writer import HoldWriter
from support.node_facts import Node, hold, uuid

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.snapshot import CardSample, KernelSample, ProcessSample, SourceOutcome
from exporter.sources import promises
from exporter.sources.kernel import ENDED_SECONDS, KernelSource
from exporter.sources.nvml import source
from exporter.sources.nvml.library import CardGoneError
from exporter.sources.nvml.source import NvmlState, Session
from exporter.sources.promises import PromiseSource

UNITS = "aliyun.com/gpu-mem"


def attributed(snapshot):
    """Cards and containers of a snapshot."""
    return attribute(snapshot, list_allocations(snapshot), NodeLabels("n")).reading


def amounts(card):
    """What is told of a card's promises; None: it is not."""
    allocated = None if "allocated_bytes" in card.unknown else card.allocated_bytes
    return (allocated, card.largest_free_bytes, card.holders, card.exclusive)


def test_with_a_promise_that_cannot_be_read_nothing_is_called_free():
    """Its amounts may be on any card; promises that can be read are told all the same."""
    node = Node(cards=2, kubernetes=False).hold(hold("a")).process(1, 2, run="run-a")
    snapshot = node.snapshot()
    found = snapshot.promises.value
    torn = replace(snapshot, promises=SourceOutcome(replace(found, unreadable=1)))

    assert [(None, None, None, None)] * 2 == [amounts(card) for card in attributed(torn).cards]
    assert attributed(snapshot).containers == attributed(torn).containers
    assert (0, 0) == (amounts(attributed(snapshot).cards[1])[0], amounts(attributed(snapshot).cards[1])[2])


def test_units_of_memory_on_no_card_that_is_known_leave_none_called_free():
    """The plugin's IDs do not name the card: before the container's first process it may be any of two."""
    node = Node(cards=2).container("a").grant("a", [f"{uuid()}-_-{at}" for at in range(4)], resource=UNITS)
    assert [(None, None, None, None)] * 2 == [amounts(card) for card in attributed(node.snapshot()).cards]

    node.process(1, 1, pod="a", index=1)
    allocated = [amounts(card)[0] for card in attributed(node.snapshot()).cards]
    assert [0, 4 << 30] == allocated


def test_what_a_process_computed_before_it_ended_is_its_containers():
    """The driver still tells of it; its memory is nobody's any more."""
    node = Node(kubernetes=False).hold(hold("a")).process(1, 1, run="run-a").card(busy={1: 0.25, 2: 0.5, 3: 0.125})
    snapshot = node.snapshot()
    kernel = snapshot.kernel.value
    gone = ProcessSample(2, 2, 0, "python", hold="run-a")
    snapshot = replace(
        snapshot, kernel=SourceOutcome(KernelSample(kernel.processes, host_pids=True, live_pods=None, ended={2: gone}))
    )

    (one,) = attributed(snapshot).containers
    assert (1 << 30, 0.75) == (one.used_bytes, one.used_core_ratio)


def test_the_kernel_source_remembers_for_a_while_who_has_ended(tmp_path):
    """However often it is asked meanwhile; a pid that is used again is the new process's."""
    tree = CgroupTree(tmp_path)
    tree.process(41, start=100)
    tree.process(42, start=100)
    source = KernelSource(tree.proc, tree.cgroup)
    source.read(0.0, {41, 42})
    tree.exit(41)

    ended = [source.read(at, {41, 42}).ended for at in (2.0, 2.0, 4.0, 2.0 + ENDED_SECONDS)]
    assert [[41], [41], [41], []] == [sorted(one) for one in ended]

    tree.exit(42)
    tree.process(42, start=300)
    found = source.read(10.0, {42})
    assert (300, {}) == (found.processes[42].start_ticks, dict(found.ended))


@pytest.fixture
def writer(tmp_path):
    """Whoever writes promises."""
    made = HoldWriter(tmp_path)
    yield made
    made.close()


def source_on(writer, tmp_path):
    """The source on that book."""
    return PromiseSource([writer.book], writer.run_dir, writer.proc, tmp_path / "cgroup")


def names_of(facts):
    """Promise ids, and how many records were not reported."""
    return sorted(one.hold.id for one in facts.holds), facts.unreadable


def test_promises_of_more_cards_than_there_are_do_not_fill_the_page(writer, tmp_path, monkeypatch):
    """What is beyond is counted, so that nothing is called free."""
    monkeypatch.setattr(promises, "MAX_PARTS", 2)
    for ident in ("run-1", "run-2", "run-3"):
        writer.run(ident, policy="none")
    kept, beyond = names_of(source_on(writer, tmp_path).read(0.0))
    assert (2, 1) == (len(kept), beyond)


def test_entries_that_come_later_push_nobody_out_of_the_book(writer, tmp_path, monkeypatch):
    """Whatever they are called."""
    monkeypatch.setattr(promises, "MAX_HOLDS", 1)
    writer.run("run-5", policy="none")
    source = source_on(writer, tmp_path)
    assert (["run-5"], 0) == names_of(source.read(0.0))
    writer.run("run-1", policy="none")
    assert (["run-5"], 1) == names_of(source.read(2.0))


def test_a_driver_that_tells_nothing_has_failed_also_where_a_card_is_lost(monkeypatch):
    """Else what is left of the other cards would pass for healthy."""
    blank = CardSample("GPU-0", 0, "T4", 0, None, None, None, None)
    lost = replace(blank, uuid="GPU-1", index=1, unhealthy="lost", lost=True)

    class Mute:
        """A driver with two cards."""

        def __init__(self, _hardware):
            pass

        def ask(self, _model, name, *_arguments):
            """How many cards there are, and nothing else."""
            return 2 if name == "nvmlDeviceGetCount" else None

        def ask_again(self):
            """Nothing was refused."""

    monkeypatch.setattr(source, "Library", Mute)
    monkeypatch.setattr(Session, "_prepare", lambda _session, _now: None)
    monkeypatch.setattr(Session, "_read_slot", lambda _session, slot, *_: ((blank, lost)[slot.index], []))
    with pytest.raises(CardGoneError):
        Session(None, NvmlState()).read(0.0, 0)

    fine = replace(blank, free_bytes=1)
    monkeypatch.setattr(Session, "_read_slot", lambda _session, slot, *_: ((fine, lost)[slot.index], []))
    assert (fine, lost) == Session(None, NvmlState()).read(0.0, 0).cards
