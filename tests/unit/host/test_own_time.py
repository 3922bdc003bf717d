# SPDX-License-Identifier: Apache-2.0
"""Own GPU time where a sample has the whole card's busy time under anybody's name."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.host.core.own_time import SharedSamples, divide
from isolation.host.machine import Sample

SECOND = 1_000_000_000
PERIOD = 200_000
"""Microseconds."""


def turns(active, steps=200_000, seed=1):
    """(own, event) seconds by tenant of a card that takes turns; `active`: the part of time for which each has work."""
    chance = random.Random(seed)  # noqa: S311 (a draw, not a secret)
    own, event = [0.0] * len(active), [0.0] * len(active)
    for _ in range(steps):
        here = [at for at, part in enumerate(active) if chance.random() < part]
        for at in here:
            event[at] += 1 / steps
            own[at] += 1 / len(here) / steps
    return own, event


@pytest.mark.parametrize("active", [(0.9, 0.5), (0.3, 1.0), (1.0, 1.0), (0.2, 0.6, 1.0), (0.5, 0.5, 0.5, 0.5)])
def test_events_are_divided_as_the_card_took_turns(active):
    """The parts come to what each computed, within a point of the card."""
    own, event = turns(active)
    found = divide({str(at): int(part * SECOND) for at, part in enumerate(event)}, int(sum(own) * SECOND), SECOND)
    assert pytest.approx(own, abs=0.01) == [found[str(at)] / SECOND for at in range(len(active))]


@given(st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=12), st.integers(0, SECOND))
def test_nobody_is_given_more_than_its_events_and_all_get_what_there_was(events, busy):
    """Where events exceed the busy time they are cut to it, and never below an equal turn of each."""
    named = {str(at): event for at, event in enumerate(events)}
    found = divide(named, busy, SECOND)
    assert all(event / len(events) - 1 <= found[name] <= event + 1 for name, event in named.items())
    assert sum(found.values()) >= min(sum(events), busy) - len(events)


def test_two_that_computed_one_after_the_other_keep_their_events():
    """30 % and 60 % that never met: the card was busy for 90 %."""
    assert {"a": 0.3 * SECOND, "b": 0.6 * SECOND} == divide(
        {"a": 3 * SECOND // 10, "b": 6 * SECOND // 10}, 9 * SECOND // 10, SECOND
    )


def card(names, until=20, percent=99):
    """A card whose sample of each period has the next of these processes' names."""
    made = SharedSamples()
    made.see(Sample(names[at % len(names)], at * PERIOD + 1, percent) for at in range(until))
    return made


def test_samples_are_known_to_be_shared_by_other_names():
    """Alone on a card every sample is ours; once two have one of the same moment, each has its own."""
    assert not card([1]).is_shared(frozenset({1}), "a")
    assert card([1, 2]).is_shared(frozenset({1}), "a")
    apart = card([1, 2])
    apart.see([Sample(1, 30 * PERIOD, 30), Sample(2, 30 * PERIOD, 60)])
    assert not apart.is_shared(frozenset({1}), "a")


def test_a_neighbour_that_is_gone_is_forgotten():
    """After some seconds of samples that are all ours they are believed again."""
    made = card([1, 2])
    made.see(Sample(1, (20 + at) * PERIOD, 50) for at in range(30))
    assert not made.is_shared(frozenset({1}), "a")


def test_samples_in_our_name_alone_are_not_believed_while_others_compute():
    """The first samples may all name us; that nobody else computed is known by the ledgers."""
    made = card([1])
    made.read(PERIOD, {"a": 0, "b": 0})
    made.read(2 * PERIOD, {"a": PERIOD * 500, "b": 0})
    alone = made.is_shared(frozenset({1}), "a")
    made.read(3 * PERIOD, {"a": PERIOD * 1000, "b": PERIOD * 500})

    assert (False, True) == (alone, made.is_shared(frozenset({1}), "a"))


def test_until_samples_come_tenants_are_taken_to_compute_independently():
    """
    Of 0.5 and 0.8 of the time the card is busy for 0.9 and both have work for 0.4; twice a second, until samples come.
    """
    made, found = SharedSamples(), []
    for at in range(12):
        made.read((at + 1) * PERIOD // 2, {"a": at * PERIOD // 2 * 500, "b": at * PERIOD // 2 * 800})
        if at:
            found.append(made.divide("a"))
        else:
            made.start()
    parts = [one for one in found if one is not None]

    assert [500_000_000] * 2 == [one.covered_ns for one in parts]
    assert pytest.approx([0.3, 0.3], abs=0.01) == [one.own_ns / one.covered_ns for one in parts]


def test_what_was_counted_otherwise_is_not_divided_again():
    """Own samples count until others come; only what is after them is divided."""
    made = SharedSamples()
    for at in range(21):
        made.read((at + 1) * PERIOD, {"a": at * PERIOD * 1000, "b": at * PERIOD * 1000})
        made.see([Sample(1, at * PERIOD + 1, 100)])
        if at == 10:
            made.start(at * PERIOD + 1)
    found = made.divide("a")
    assert found is not None
    assert (10 * PERIOD * 1000, 20 * PERIOD + 1) == (found.covered_ns, found.at)


def test_what_is_never_divided_does_not_pile_up():
    """A card whose samples tell processes apart, or that only others use, keeps nothing of them."""
    apart, idle = SharedSamples(), SharedSamples()
    for at in range(5000):
        apart.see([Sample(1, at * PERIOD, 30), Sample(2, at * PERIOD, 60)])
        idle.see([Sample(2, at * PERIOD, 90)])
    assert (0, True) == (len(apart._busy), len(idle._busy) <= 100)


def test_a_window_is_divided_once_ledgers_reach_beyond_it():
    """Events of both are twice what they did; own time is told with the window's end, and once."""
    made = SharedSamples()
    for at in range(12):
        made.see([Sample(at % 2 + 1, at * PERIOD, 100)] if at else [])
        made.read(at * PERIOD + PERIOD // 2, {"a": at * PERIOD * 1000, "b": at * PERIOD * 1000})
    found = made.divide("a")
    assert found is not None
    assert (11 * PERIOD, found.covered_ns / 2) == (found.at, pytest.approx(found.own_ns, rel=0.02))
    assert made.divide("a") is None


def test_a_tenant_without_a_ledger_gets_nothing_said():
    """Cannot-tell is not 0 of somebody: others are divided without it."""
    made = SharedSamples()
    for at in range(1, 12):
        made.see([Sample(at % 2 + 1, at * PERIOD, 50)])
        made.read(at * PERIOD + 1, {"a": at * PERIOD * 500})
    assert made.divide("b") is None


@pytest.mark.parametrize("late", [0, 80_000])
def test_who_computed_before_the_others_came_waited_for_none_of_them(late):
    """One has the card for a second, then three share it for one; launches are booked as they end, so long each."""
    made, second = SharedSamples(), 1_000_000
    for at in range(0, 3 * second, second // 10):
        booked = max(0, at - second // 2)
        booked -= booked % late if late else 0
        alone, together = min(booked, second) * 1000, max(0, min(booked, 2 * second) - second) * 1000
        made.read(at, {"a": alone, "b": together, "c": together, "d": together})
    made.see(Sample(at % 4 + 1, second // 2 + at * PERIOD, 100) for at in range(11))
    found = [deepcopy(made).divide(name) for name in "abcd"]
    parts = [one.own_ns / SECOND for one in found if one is not None]
    assert pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3], abs=0.05) == parts


def test_a_lost_sample_leaves_no_hole_in_the_window():
    """The library compares what lies together: the period counts as busy as those that were sampled."""
    made = SharedSamples()
    for at in range(9):
        micros = (at + 1) * PERIOD
        made.read(micros, {"a": micros * 600, "b": micros * 600})
        made.see([] if at == 3 else [Sample(at % 2 + 1, micros, 80)])
    found = made.divide("a")
    assert found is not None
    assert (8 * PERIOD * 1000, 9 * PERIOD) == (found.covered_ns, found.at)
    assert pytest.approx(0.4 * found.covered_ns, rel=0.02) == found.own_ns
