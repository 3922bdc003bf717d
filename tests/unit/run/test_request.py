# SPDX-License-Identifier: Apache-2.0
"""
Where a command goes on one machine, and what it is told when it goes nowhere.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.builders import card

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Card, CardChoice, Placement, Refusal, Slice, Why
from isolation.contract.quantity import GIB, MIB, gib
from isolation.run.core.request import PERMANENT, RunRequest, RunRequestError, choose_cards

PACK, SPREAD = CardChoice.BINPACK, CardChoice.SPREAD
FOUR = [card(i) for i in range(4)]


def held(*parts, ident="run-1", owner=""):
    """A hold on cards: (card index, GiB, percent)."""
    slices = tuple(Slice(f"GPU-n-{index}", index, gib(size), core) for index, size, core in parts)
    return HostAllocation(ident, ident, "b", 0.0, 0, Process(1, 1), ("x",), slices, "fixed", owner)


def landed(wanted, cards, holds=(), choice=PACK):
    """Card indices and GiB on each, or the code of the refusal."""
    found = choose_cards(wanted, cards, holds, choice)
    if isinstance(found, Refusal):
        return found.why
    assert isinstance(found, Placement)
    return [(part.index, part.bytes // GIB) for part in found.slices]


def test_a_v100_of_16_gib_sells_15_units():
    """
    Its driver keeps some, so the sixteenth unit could not be kept.
    """
    v100 = [Card("GPU-n-0", 0, 16161 * MIB, 306 * MIB)]

    assert [(0, 15)] == landed(RunRequest(15), v100)
    assert Why.CARD_TOO_SMALL == landed(RunRequest(16), v100)


def test_8_gib_over_4_cards_are_2_gib_on_each():
    """
    N units over M cards of one machine, the same on each.
    """
    assert [(0, 2), (1, 2), (2, 2), (3, 2)] == landed(RunRequest(8, 4), FOUR)


def test_a_second_command_gets_what_the_first_left():
    """
    5 and 10 fill a card of 15; the next goes to another one.
    """
    first = held((0, 5, 0))
    assert [(0, 10)] == landed(RunRequest(10), FOUR, [first])
    assert [(1, 11)] == landed(RunRequest(11), FOUR, [first])


@pytest.mark.parametrize(("choice", "expected"), [(PACK, [(0, 3)]), (SPREAD, [(1, 3)])])
def test_placement_chooses_between_cards_that_both_fit(choice, expected):
    """
    Binpack takes the busier card, spread the emptier.
    """
    assert expected == landed(RunRequest(3), FOUR[:2], [held((0, 5, 0))], choice)


def test_spread_keeps_runs_of_one_name_apart():
    """
    Also where the card without a replica is the fuller one.
    """
    holds = [held((0, 2, 0), owner="web"), held((1, 4, 0), ident="run-2")]
    assert [(1, 2)] == landed(RunRequest(2, owner="web"), FOUR[:2], holds, SPREAD)


def test_runs_with_and_without_a_compute_share_never_share_a_card():
    """
    Thirty percent cannot be kept beside a neighbour without limit.
    """
    free, bound = held((0, 5, 0)), held((0, 5, 30))

    assert [(1, 5)] == landed(RunRequest(5, core=30), FOUR, [free])
    assert [(0, 5)] == landed(RunRequest(5, core=70), FOUR, [bound])
    assert [(1, 5)] == landed(RunRequest(5, core=75), FOUR, [bound])
    assert [(1, 5)] == landed(RunRequest(5), FOUR, [bound])
    alone = choose_cards(RunRequest(5), FOUR[:1], [bound], PACK)
    assert (Why.CARDS, True) == (alone.why, "the two kinds never share a card" in alone.reason)


@pytest.mark.parametrize(
    ("wanted", "cards", "why", "words"),
    [
        (RunRequest(5), [], Why.NO_NODES, "no GPU card"),
        (RunRequest(16), FOUR, Why.CARD_TOO_SMALL, "largest card offers 15 GiB"),
        (RunRequest(32, 2), FOUR, Why.CARD_TOO_SMALL, "2 cards offer at most 15 GiB each"),
        (RunRequest(5, 5), FOUR, Why.TOO_FEW_CARDS, "lower --gpu-count to at most 4"),
        (RunRequest(2, 2), [card(0), card(1, healthy=False)], Why.TOO_FEW_CARDS, "excluding 1 unhealthy card"),
        (RunRequest(2), [card(0, healthy=False)], Why.NOT_READY, "no healthy card (1 card unhealthy)"),
    ],
)
def test_what_never_fits_is_said_to_never_fit(wanted, cards, why, words):
    """
    Nobody waits for a card that this machine does not have.
    """
    refusal = choose_cards(wanted, cards, [], PACK)
    assert (why, True) == (refusal.why, words in refusal.reason)
    assert refusal.why in PERMANENT


def test_a_full_machine_is_waited_for():
    """
    Room that others hold comes back; the reason counts the cards that have it.
    """
    refusal = choose_cards(RunRequest(30, 3), FOUR[:3], [held((0, 6, 0))], PACK)

    assert "not enough free capacity for 10 GiB on each of 3 cards: only 2 of 3 cards have enough" == refusal.reason
    assert refusal.why not in PERMANENT


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (RunRequest(6, 4), "request 4 or 8"),
        (RunRequest(3, 4), "request 4, or"),
        (RunRequest(4, 4, 30), "multiple of 4"),
        (RunRequest(4, 1, 101), "at most 100"),
    ],
)
def test_an_ask_that_contradicts_itself_is_bad_input(wanted, words):
    """
    With the nearest ask that does not.
    """
    with pytest.raises(RunRequestError, match=words):
        wanted.to_placement()


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 3)), max_size=30))
def test_no_order_of_asks_ever_oversells_a_card(asks):
    """
    Whatever is asked one after another, no card promises more than it offers.
    """
    holds: list[HostAllocation] = []
    for at, (count, each, core) in enumerate(asks):
        found = choose_cards(RunRequest(count * each, count, count * core * 25), FOUR, holds, PACK)
        if isinstance(found, Placement):
            holds.append(held(*((s.index, s.bytes // GIB, s.core) for s in found.slices), ident=f"run-{at}"))
    for one in FOUR:
        parts = [part for entry in holds for part in entry.slices if part.uuid == one.uuid]
        assert sum(part.bytes for part in parts) <= one.allocatable_bytes
        assert sum(part.core for part in parts) <= 100
        assert len({part.core > 0 for part in parts}) <= 1


def instances(number):
    """MIG instances of one card."""
    return [Card(f"MIG-{index}", 0, gib(9)) for index in range(number)]


def test_mig_instances_are_given_one_at_a_time():
    """
    CUDA opens one instance per process: more are refused for good, with what to ask for.
    """
    refused = choose_cards(RunRequest(8, 2), instances(7), [], PACK)

    assert [(0, 8)] == landed(RunRequest(8), instances(7))
    assert (Why.TOO_FEW_CARDS, True) == (refused.why, "--gpu-count 1" in refused.reason)
    assert refused.why in PERMANENT


def test_several_cards_never_include_an_instance():
    """
    Beside a divided card, two whole ones serve a command of two cards; three cannot be had.
    """
    mixed = [*instances(7), *FOUR[1:3]]

    assert [(1, 2), (2, 2)] == landed(RunRequest(4, 2), mixed)
    assert Why.TOO_FEW_CARDS == landed(RunRequest(6, 3), mixed)
