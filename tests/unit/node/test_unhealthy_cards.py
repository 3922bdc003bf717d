# SPDX-License-Identifier: Apache-2.0
"""
The watch for unhealthy cards: what it remembers, what it says, and that its trouble changes no card.
"""

from __future__ import annotations

import json
import logging
import threading

import pytest
from support.waiting import PATIENCE_SECONDS

from isolation.contract.model import Card, Mode
from isolation.contract.names import UNHEALTHY_CARDS
from isolation.contract.quantity import GIB
from isolation.host.card_events import Board, CardEvent, CardEventKind
from isolation.host.core.card_health import HealthReason, HealthTerms
from isolation.host.machine import MachineError
from isolation.kube.background import Background
from isolation.node.inventory import NodeInventory, Terms
from isolation.node.settings import Settings
from isolation.node.status import Said, amiss, wish
from isolation.node.unhealthy_cards import LOOK_SECONDS, HealthWatch

TERMS = HealthTerms(healthy_after=600.0)


class Driver:
    """A driver that says what the test wants; an exception instead of boards is raised."""

    def __init__(self, *events):
        self.events, self.found, self.why = list(events), [Board("GPU-1", ("GPU-1",)), Board("GPU-2", ("GPU-2",))], ""

    def boards(self):
        """Or the error."""
        if isinstance(self.found, Exception):
            raise self.found
        return tuple(self.found)

    def monitored(self):
        """All of them, unless there is a reason."""
        return 0 if self.why else len(self.found)

    def unmonitored(self):
        """As set."""
        return self.why

    def wait(self, seconds):
        """The next event; an error where it is one."""
        assert seconds > 0
        found = self.events.pop(0) if self.events else None
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def watch(tmp_path):
    """Makes watches that share one memory."""
    return lambda driver, terms=TERMS, boot="b": HealthWatch(
        driver, terms, tmp_path / "run" / "unhealthy-cards.json", boot
    )


def xid(number, board="GPU-1"):
    """One."""
    return CardEvent(board, CardEventKind.XID, number)


def test_an_unhealthy_card_is_reported_once_and_so_is_that_it_is_well(watch, caplog):
    """
    With the reason, and with what to do if it is wrong.
    """
    caplog.set_level(logging.INFO)
    made = watch(Driver(xid(79), xid(79), xid(13, "GPU-2")))
    for now in (0.0, 1.0, 2.0):
        made.turn(now)
    unhealthy = dict(made.unhealthy())
    made.turn(601.0 + LOOK_SECONDS)
    said = [record.message.split("; ")[0] for record in caplog.records]
    assert ({"GPU-1": "XID 79"}, {}) == (unhealthy, dict(made.unhealthy()))
    well = "card GPU-1 is healthy again (was: XID 79): no error for 10 minutes"
    assert ["card GPU-1 is unhealthy: XID 79", well] == said


def test_a_restart_of_the_agent_makes_no_card_well_and_a_reboot_does(watch):
    """
    As long as the time goes on; another boot starts over.
    """
    watch(Driver(xid(79), CardEvent("GPU-2", CardEventKind.ECC))).turn(0.0)
    made = watch(Driver())
    assert ({"GPU-1": HealthReason.XID}, {}) == (made.reasons(), watch(Driver(), boot="c").reasons())
    made.turn(599.0)
    assert ["GPU-1"] == list(made.unhealthy())
    made.turn(605.0)
    assert ({}, {}) == (made.unhealthy(), watch(Driver()).unhealthy())


def test_whoever_removes_the_memory_declares_the_cards_well(watch, tmp_path):
    """
    Without a restart, and also after one.
    """
    file = tmp_path / "run" / "unhealthy-cards.json"
    made = watch(Driver(xid(79), None, xid(48)))
    made.turn(0.0)
    file.unlink()
    made.turn(LOOK_SECONDS)
    well = dict(made.unhealthy())
    made.turn(2 * LOOK_SECONDS)
    again = watch(Driver())
    file.unlink()
    again.turn(0.0)
    assert ({}, ["GPU-1"], {}) == (well, list(made.unhealthy()), again.unhealthy())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1, "boot": "b"}',
        '{"format": 1, "boot": "b", "boards": {"GPU-1": {}}}',
        "[" * 9999,
    ],
    ids=["empty", "torn", "list", "null", "no-boards", "no-fault", "deep"],
)
def test_a_memory_that_is_none_is_left_aside(watch, tmp_path, text):
    """
    And written again with the next event.
    """
    file = tmp_path / "run" / "unhealthy-cards.json"
    file.parent.mkdir()
    file.write_text(text)
    made = watch(Driver(xid(79)))
    before = made.unhealthy()
    made.turn(0.0)
    assert ({}, ["GPU-1"]) == (before, list(json.loads(file.read_text())["boards"]))


def test_a_memory_that_cannot_be_written_changes_no_verdict(watch, tmp_path):
    """
    Its absence is nobody's word then.
    """
    (tmp_path / "run").write_text("no folder")
    made = watch(Driver(xid(79)))
    for now in (0.0, LOOK_SECONDS, 2 * LOOK_SECONDS):
        made.turn(now)
    assert ["GPU-1"] == list(made.unhealthy())


@pytest.mark.parametrize("how", ["boards", "wait", "unmonitored"])
def test_a_driver_that_cannot_tell_leaves_the_cards_as_they_were_and_is_reported_once(watch, caplog, how):
    """
    Who was unhealthy stays unhealthy, who was not is not, and the log is not filled.
    """
    driver = Driver(xid(79))
    made = watch(driver)
    made.turn(0.0)
    caplog.clear()
    if how == "boards":
        driver.found = MachineError("no driver")
    elif how == "wait":
        driver.events = [MachineError("no events") for _ in range(10)]
    else:
        driver.why = "card GPU-2: Not Supported"
    for turn in range(1, 9):
        made.turn(turn * LOOK_SECONDS)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (["GPU-1"], 1) == (list(made.unhealthy()), len(warned))
    assert {"boards": 0, "wait": 2, "unmonitored": 0}[how] == made.monitored


def test_the_thread_outlives_whatever_fails_and_tells_what_is_new(watch):
    """
    A fault of the driver's binding ends neither it nor the agent.
    """
    heard, broken = threading.Event(), RuntimeError("a binding's fault")
    driver = Driver(xid(79))
    driver.found = broken

    made, failed = watch(driver), threading.Event()

    def cycle():
        try:
            return made.cycle(heard.set)
        except RuntimeError:
            driver.found = [Board("GPU-1", ("GPU-1",))]
            failed.set()
            raise

    with Background().thread("card-events", cycle):
        assert heard.wait(PATIENCE_SECONDS)
    assert (True, {"GPU-1": "XID 79"}) == (failed.is_set(), made.unhealthy())


def test_all_xids_passed_over_means_that_nothing_is_watched(watch):
    """
    Not even asked, and nothing remembered is believed.
    """
    watch(Driver(xid(79))).turn(0.0)
    driver = Driver()
    driver.found = AssertionError("asked")
    made = watch(driver, HealthTerms(watched=False))
    assert (False, {}, None) == (made.watched, made.unhealthy(), made.monitored)


class Machine:
    """Two cards."""

    def cards(self):
        """Them."""
        return tuple(Card(f"GPU-{i}", i, 15 * GIB, model="Tesla T4") for i in (1, 2))


def test_an_unhealthy_card_is_not_healthy_and_says_why_until_it_is_well(tmp_path):
    """
    In the cards that the schedulers read, and in an annotation for people, which goes away again.
    """
    unhealthy = {}
    kept = NodeInventory(Machine(), Terms(GIB), tmp_path / "node.json", lambda: dict(unhealthy))
    first = kept.refresh(), kept.refresh()
    unhealthy["GPU-2"] = "XID 79"
    fell = kept.refresh(), [card.healthy for card in kept.cards()]
    said = wish(kept.cards(), Mode.CGPU, "ready", kept.unhealthy)
    unhealthy["GPU-2"] = "XID 95"
    other = kept.refresh(), kept.refresh()
    unhealthy.clear()
    well = kept.refresh(), [card.healthy for card in kept.cards()]
    now = wish(kept.cards(), Mode.CGPU, "ready", kept.unhealthy)
    assert ((True, False), (True, [True, False]), (True, False), (True, [True, True])) == (first, fell, other, well)
    assert "GPU-2: XID 79" == said.annotations[UNHEALTHY_CARDS]
    wrong = amiss(
        now, Said(now.resources, now.labels, {**now.annotations, UNHEALTHY_CARDS: "old"}), writes_anything=True
    )
    assert {UNHEALTHY_CARDS: None} == wrong.annotations


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("", HealthTerms()),
        ("48,79", HealthTerms(ignored=frozenset({48, 79}))),
        ("all", HealthTerms(watched=False)),
    ],
)
def test_the_operators_words_become_terms(words, terms):
    """
    Numbers with commas between, or all.
    """
    assert terms == Settings("n1", ignore_xids=words).health


@pytest.mark.parametrize("words", ["48;79", "xids", "48,", ",", "-1", "٣", "9" * 6, ",".join(["1"] * 101)])
def test_words_that_are_no_xids_are_refused_with_what_to_write(tmp_path, words):
    """
    At the start.
    """
    problems = list(Settings("n1", kubelet_dir=tmp_path, ignore_xids=words).problems())
    assert 1 == len(problems)
    assert "must be numbers with commas, as in 48,79, or all" in problems[0]
