# SPDX-License-Identifier: Apache-2.0
"""Nobody's patience begins anew because the agent was replaced: what is kept of it, and what comes of that."""

from __future__ import annotations

import json

import pytest
from support.agent_story import run, started, ticks

from isolation.node.book import Entry, dump, load
from isolation.node.keeper import FRESH_SECONDS, LONGEST_SECONDS
from isolation.node.waits import KEY, Waits, record, revived
from isolation.node.world import Moment, NotYetError

BEFORE = Moment(now=500.0, wall=1_800_000_000.0, boot="one")


@pytest.fixture
def node():
    return started()


def blocked(node):
    """A pod whose devices are those of a force-deleted one that lives on; its PreStart, which says so."""
    node.bind("old", main=(0, 8))
    run(node.admit("old"))
    run(node.start("old", "main"))
    gone = node.force_delete("old")
    node.bind("new", main=(0, 8))
    ids = run(node.admit("new"))["main"]
    assert gone.uid in node.processes

    def prestart():
        with pytest.raises(NotYetError, match="still has devices"):
            run(node.agent.prestart(sorted(ids)))

    prestart()
    return prestart


def replaced(node, seconds=6, *, boot="boot 1"):
    """The agent is away for so long, and another comes."""
    node.time += seconds
    node.boot = boot
    node.restart_agent()
    run(node.agent.start())


@pytest.mark.parametrize("boot", ["boot 1", "boot 2"])
def test_a_wait_counts_on_over_restarts_of_the_agent_and_of_the_machine(node, boot):
    """
    Replaced twice while a pod waits for somebody's end: deleted in its time, no restart gives it another forty seconds.
    """
    prestart = blocked(node)
    began = node.time
    for _ in range(2):
        ticks(node, 9)
        replaced(node, boot=boot)
        prestart()
    assert [] == node.deleted
    while not node.deleted and node.time < began + 100:
        ticks(node, 1)

    assert ["new"] == [name for name, _ in node.deleted]
    assert node.time - began <= LONGEST_SECONDS + 8.0  # of which six are PreStart's own patience


def test_who_comes_back_late_looks_around_before_it_deletes(node):
    """
    Away for longer than anybody may wait: what was in the way may have gone meanwhile.
    """
    prestart = blocked(node)
    ticks(node, 2)
    replaced(node, 90)
    prestart()
    ticks(node, 1)
    assert [] == node.deleted

    ticks(node, FRESH_SECONDS + 1)
    assert ["new"] == [name for name, _ in node.deleted]


def test_a_wait_that_came_to_its_end_is_forgotten(node):
    """
    The pod starts; if it has to wait again after a restart, that is another wait.
    """
    blocked(node)
    ticks(node, 5)
    node.processes.clear()
    run(node.start("new", "main"))
    ticks(node, 2)

    said = json.loads(node.text)
    assert {} == said.get(KEY, {}).get("blocked", {})


def test_the_book_is_read_with_and_without_what_lies_beside_it():
    """
    An older agent reads the newer text, and the newer one the older text.
    """
    entries = [Entry(frozenset({"GPU-0-_-1"}), "u", "ml", "a", "main", made=1)]
    book = load(dump(load(json.dumps({"format": 1, "entries": []}))))
    book.claim(entries[0])
    text = dump(book, record(Waits({"u": 499.0}, {}), BEFORE))

    assert entries == list(load(text))
    assert dump(book) == dump(load(text), record(Waits(), BEFORE))
    assert Waits() == revived(dump(book), BEFORE)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (Moment(510.0, 9e9, "one"), 490.0),  # the wall clock was set: the same boot does not ask it
        (Moment(20.0, 1_800_000_015.0, "two"), -5.0),  # ten seconds before, fifteen since: 25 in all
        (Moment(20.0, 1_700_000_000.0, "two"), 10.0),  # the wall clock went back: the ten that are sure
        (Moment(480.0, 1_800_000_000.0, "one"), 480.0),  # nothing began later than now
        (Moment(20.0, 1_800_000_015.0, ""), -5.0),
    ],
    ids=["same boot", "reboot", "reboot and a clock set back", "from the future", "no boot id"],
)
def test_seconds_are_compared_within_one_boot_and_by_the_wall_clock_over_two(at, expected):
    """
    A moment of another boot means nothing by itself.
    """
    text = dump(load('{"format":1,"entries":[]}'), record(Waits({"u": 490.0}, {"u": 490.0}), BEFORE))

    assert Waits({"u": expected}, {"u": expected}) == revived(text, at)


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "now",
        {},
        {"boot": "one", "now": 1, "wall": 1, "seen": [], "blocked": {}},
        {"boot": "one", "now": 1, "wall": 1, "seen": {"u": "x"}, "blocked": {}},
        {"boot": "two", "now": 1e999, "wall": 1, "seen": {"u": 1}, "blocked": {}},
    ],
    ids=["null", "list", "text", "empty", "no map", "no number", "endless"],
)
def test_what_cannot_be_read_is_nobodys_wait(said):
    """
    The book beside it is believed all the same.
    """
    text = json.dumps({"format": 1, "entries": [], KEY: said})

    assert Waits() == revived(text, BEFORE)
    assert 0 == len(load(text))
