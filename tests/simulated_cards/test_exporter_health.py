# SPDX-License-Identifier: Apache-2.0
"""A card's health: one definition for exporter and agent, kept over restarts, and gone with the boot or a reset."""

from __future__ import annotations

import os
import time

import pytest
from support.simbox import boxes

pytest.importorskip("pynvml")
from support.node_harness import exporter_node

from exporter.sources.nvml.health import AGENT_SECONDS, CardHealth
from exporter.sources.nvml.source import NvmlSource
from isolation.host.card_events import NvmlCardEvents
from isolation.host.core.card_health import HealthTerms
from isolation.host.health_record import RECORD, Record, load, save
from isolation.node.unhealthy_cards import HealthWatch
from isolation.simgpu.report import card_uuid


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What loads the simulated driver leaves nothing behind."""
    monkeypatch.setenv("GPUSHARE_SIMGPU", "")


@pytest.fixture
def box():
    """Two cards."""
    with boxes("t4", "a10") as made:
        yield made


class Exporter:
    """Its part that reads cards; `restart` as after a crash."""

    def __init__(self, box, tmp_path):
        self.box, self.own, self.agent, self.boot = box, tmp_path / "own" / RECORD, tmp_path / "run" / RECORD, "b"
        self.now, self.source = 1000.0, None
        self.restart()

    def restart(self):
        """All that is in memory is lost."""
        self.close()
        self.source = NvmlSource(self.box.path, beat=0, health=CardHealth(self.boot, self.own, self.agent))

    def why(self, *, after=2.0):
        """{index: why it is unhealthy}, of those that are."""
        self.now += after
        return {card.index: card.unhealthy for card in self.source.read(self.now).cards if card.unhealthy}

    def close(self):
        """The end."""
        if self.source is not None:
            self.source.close()


@pytest.fixture
def exporter(box, tmp_path):
    """One that has seen the cards."""
    made = Exporter(box, tmp_path)
    assert {} == made.why()
    yield made
    made.close()


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120, 140, *range(143, 151), 154])
def test_a_fatal_xid_outlives_a_restart_and_ends_with_the_boot(exporter, xid):
    """Nothing was reset when the exporter comes back: the card stays unhealthy; after a boot it is healthy."""
    exporter.box.inject(0, "xid", xid)
    assert {0: "xid"} == exporter.why()

    exporter.restart()
    assert {0: "xid"} == exporter.why()

    exporter.boot = "another"
    exporter.restart()
    assert {} == exporter.why()


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_a_programs_own_xid_makes_no_card_unhealthy(exporter, xid):
    """A tenant could take it from all the others."""
    exporter.box.inject(0, "xid", xid)

    assert {} == exporter.why()
    assert {xid: 1} == dict(exporter.source.read(exporter.now).cards[0].xids)


def test_a_lost_card_keeps_its_uuid_over_a_restart(exporter):
    """It does not answer when the exporter begins: its series go on under its name, and it is well once it is back."""
    uuid = card_uuid(exporter.box.cards()[1])
    exporter.box.inject(1, "lost", 1)
    assert {1: "lost"} == exporter.why()

    exporter.restart()
    (card,) = (card for card in exporter.source.read(exporter.now).cards if card.lost)
    assert uuid == card.uuid

    exporter.box.inject(1, "lost", 0)
    exporter.restart()
    assert {} == exporter.why()


def test_whoever_removes_the_record_declares_the_cards_healthy(exporter):
    """As with the agent's."""
    exporter.box.inject(0, "xid", 48)
    assert {0: "xid"} == exporter.why()
    exporter.own.unlink()

    assert {} == exporter.why()


def test_the_agents_word_decides_while_it_is_there(exporter):
    """An XID that its operator passes over makes no card unhealthy; once it is silent, what we heard counts as well."""
    save(exporter.agent, "b", Record())
    exporter.box.inject(0, "xid", 119)
    assert {} == exporter.why()

    old = time.time() - AGENT_SECONDS - 10
    os.utime(exporter.agent, (old, old))
    assert {0: "xid"} == exporter.why()


def test_exporter_and_agent_hear_the_same(exporter, box):
    """Both listen to one driver: the same cards, for the same reason; the agent ends, the exporter goes on."""
    events = NvmlCardEvents(box.path)
    watch = HealthWatch(events, HealthTerms(), exporter.agent, "b")
    watch.turn(exporter.now)
    box.inject(0, "xid", 95)
    deadline = time.monotonic() + 20
    while not watch.reasons() and time.monotonic() < deadline:
        watch.turn(exporter.now)
    events.close()

    theirs = {uuid: reason.value for uuid, reason in watch.reasons().items()}
    assert {card_uuid(box.cards()[0]): "xid"} == theirs
    assert {0: "xid"} == exporter.why()
    assert load(exporter.agent, "b").unhealthy.keys() == load(exporter.own, "b").unhealthy.keys()
    exporter.agent.unlink()
    exporter.restart()
    assert {0: "xid"} == exporter.why()


def test_the_page_says_why_and_a_restart_amid_an_xid_changes_nothing(tmp_path):
    """The whole exporter, twice on one node: unhealthy before and after, with the reason; the neighbour is healthy."""
    with exporter_node("t4", "t4", health_dir=tmp_path) as world:
        world.tree.proc.joinpath("sys/kernel/random/boot_id").write_text("boot-of-the-tree\n")
        world.run_once()
        world.box.inject(0, "xid", 48)
        world.run_once()

        def health():
            page = world.samples()
            healthy = {labels[0]: value for labels, value in page["gpushare_card_healthy"].items()}
            return healthy, [labels[2] for labels in page.get("gpushare_card_unhealthy_info", {})]

        assert ({"0": 0.0, "1": 1.0}, ["xid"]) == health()
        xids = {
            labels[3]: value
            for labels, value in world.samples()["gpushare_card_xid_errors_total"].items()
            if labels[0] == "0"
        }
        assert (1.0, 0.0, 0.0) == (xids["48"], xids["79"], xids["31"])
        world.again()
        world.run_once()
        assert ({"0": 0.0, "1": 1.0}, ["xid"]) == health()
