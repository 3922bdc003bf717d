# SPDX-License-Identifier: Apache-2.0
"""
Which events make a card unhealthy, and what makes it well again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from isolation.host.card_events import Board, CardEvent, CardEventKind
from isolation.host.core.card_health import (
    APPLICATION,
    FATAL,
    NEVER,
    SETTLE_SECONDS,
    HealthReason,
    HealthTerms,
    apply_boards,
    apply_event,
    remembered,
)

TERMS = HealthTerms(healthy_after=600.0)
ONE, TWO = Board("GPU-1", ("GPU-1",)), Board("GPU-2", ("GPU-2",))
DIVIDED = Board("GPU-3", ("MIG-a", "MIG-b"))
BOARDS = {board.uuid: board for board in (ONE, TWO, DIVIDED)}


def after(*events, terms=TERMS, now=100.0):
    """What is known after these events."""
    unhealthy = {}
    for event in events:
        unhealthy = apply_event(unhealthy, event, BOARDS, terms, now)
    return unhealthy


def xid(number, board="GPU-1"):
    """One."""
    return CardEvent(board, CardEventKind.XID, number)


@pytest.mark.parametrize("number", sorted({13, 31, 43, 45, 68, 109} | {8, 32, 69, 94, 63, 92, 137}))
def test_what_a_program_can_bring_about_never_makes_a_card_unhealthy(number):
    """
    NVIDIA's plugin passes over the first six; the catalogue says of the others: restart the application, or ignore.
    """
    assert ({}, True) == (after(xid(number)), number in NEVER)


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 158, 99999])
def test_any_other_xid_makes_its_card_unhealthy_and_no_other(number):
    """
    Also one that nobody has heard of.
    """
    unhealthy = after(xid(number))
    reasons = {uuid: (one.reason, one.text) for uuid, one in unhealthy.items()}
    assert {"GPU-1": (HealthReason.XID, f"XID {number}")} == reasons


def test_an_ecc_error_that_was_not_corrected_makes_the_card_unhealthy():
    """
    Whatever XIDs are passed over.
    """
    unhealthy = after(CardEvent("GPU-2", CardEventKind.ECC), terms=HealthTerms(ignored=frozenset(range(200))))
    assert {"GPU-2": HealthReason.ECC} == {uuid: one.reason for uuid, one in unhealthy.items()}


def test_xids_that_the_operator_passes_over_do_nothing():
    """
    Besides those of programs; others still count.
    """
    terms = HealthTerms(ignored=frozenset({74}))
    assert ([], ["GPU-1"]) == (list(after(xid(74), terms=terms)), list(after(xid(74), xid(79), terms=terms)))


def test_an_event_of_a_divided_card_concerns_all_its_instances():
    """
    They share its memory and its bus.
    """
    assert ("MIG-a", "MIG-b") == after(xid(79, "GPU-3"))["GPU-3"].cards


@pytest.mark.parametrize("board", ["", "GPU-9"])
def test_an_event_that_names_no_card_of_ours_concerns_none(board):
    """
    Else one word that fits nobody would take the whole node.
    """
    assert {} == after(xid(79, board), CardEvent(board, CardEventKind.ECC))


def test_without_the_drivers_word_time_without_events_makes_it_well():
    """
    Counted from the last event, and told how long it was; who was unhealthy since when is kept.
    """
    unhealthy = apply_event(after(xid(48)), xid(79), BOARDS, TERMS, 500.0)
    assert (100.0, 500.0, "XID 79") == (unhealthy["GPU-1"].since, unhealthy["GPU-1"].last, unhealthy["GPU-1"].text)
    assert (unhealthy, {}) == apply_boards(unhealthy, [ONE], TERMS, 1099.0)
    assert ({}, {"GPU-1": "no error for 10 minutes"}) == apply_boards(unhealthy, [ONE], TERMS, 1100.0)


def test_without_the_drivers_word_and_without_a_time_it_stays_unhealthy():
    """
    Until it is gone and back, or somebody says so.
    """
    terms, unhealthy = replace(TERMS, healthy_after=0.0), after(xid(48))
    assert (unhealthy, {}) == apply_boards(unhealthy, [ONE], terms, 1e9)
    gone, _ = apply_boards(unhealthy, [TWO], terms, 1e9)
    assert ({}, {"GPU-1": "it was lost and is back"}) == apply_boards(gone, [ONE, TWO], terms, 1e9)


def test_a_card_that_does_not_answer_is_not_well_whatever_time_passes():
    """
    Nothing is known of it.
    """
    gone, well = apply_boards(after(xid(79)), [], TERMS, 1e9)
    assert (["GPU-1"], {}, True) == (list(gone), well, gone["GPU-1"].gone)


def test_a_driver_that_wants_nothing_done_makes_it_well_a_while_after_the_event():
    """
    Its verdict may come later than the event; it goes before the longer time.
    """
    unhealthy, fine = after(xid(48)), replace(ONE, action=0)
    assert (unhealthy, {}) == apply_boards(unhealthy, [fine], TERMS, 100.0 + SETTLE_SECONDS - 1)
    assert ({}, {"GPU-1": "the driver requests no recovery action"}) == apply_boards(
        unhealthy, [fine], TERMS, 100.0 + SETTLE_SECONDS
    )


@pytest.mark.parametrize("action", [1, 2, 3, 4, 5, 6, 7, 99])
def test_what_the_driver_wants_done_makes_a_card_unhealthy_without_any_event(action):
    """
    For as long as it wants it, and not longer.
    """
    unhealthy, _ = apply_boards({}, [replace(DIVIDED, action=action), replace(ONE, action=0)], TERMS, 100.0)
    assert [("GPU-3", HealthReason.DRIVER)] == [(uuid, one.reason) for uuid, one in unhealthy.items()]
    assert unhealthy["GPU-3"].text.startswith("the driver requests ")
    assert (unhealthy, {}) == apply_boards(unhealthy, [replace(DIVIDED, action=action)], TERMS, 1e9)
    done = apply_boards(unhealthy, [replace(DIVIDED, action=0)], TERMS, 101.0)
    assert ({}, {"GPU-3": "the recovery action that the driver requested is done"}) == done


def test_an_xid_whose_reset_the_driver_wants_is_well_as_soon_as_it_is_done():
    """
    The reason that is told stays the XID; no time heals it before.
    """
    wants, done = replace(ONE, action=1), replace(ONE, action=0)
    unhealthy, _ = apply_boards(after(xid(119)), [wants], TERMS, 101.0)
    unhealthy, well = apply_boards(unhealthy, [wants], TERMS, 1e9)
    assert ("XID 119", {}) == (unhealthy["GPU-1"].text, well)
    assert ({}, ["GPU-1"]) == (
        apply_boards(unhealthy, [done], TERMS, 1e9)[0],
        list(apply_boards(unhealthy, [done], TERMS, 1e9)[1]),
    )


def test_a_card_that_is_gone_and_back_is_unhealthy_while_the_driver_wants_something():
    """
    The driver's word goes before what we infer.
    """
    gone, _ = apply_boards(after(xid(79)), [], TERMS, 101.0)
    back, well = apply_boards(gone, [replace(ONE, action=2)], TERMS, 102.0)
    assert (["GPU-1"], {}) == (list(back), well)


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        (TERMS, ["GPU-1", "GPU-2", "GPU-3"]),
        (HealthTerms(ignored=frozenset({74, 2})), ["GPU-2", "GPU-3"]),
        (HealthTerms(watched=False), []),
    ],
    ids=["same", "passed-over", "unwatched"],
)
def test_after_a_restart_only_what_the_terms_still_call_unhealthy_is_believed(terms, left):
    """
    So an operator's new word holds at once.
    """
    unhealthy = after(xid(74), CardEvent("GPU-2", CardEventKind.ECC))
    unhealthy, _ = apply_boards(unhealthy, [ONE, TWO, replace(DIVIDED, action=2)], TERMS, 101.0)
    assert left == sorted(remembered(unhealthy, terms))


def test_what_is_fatal_is_never_a_programs_own():
    """
    The XIDs that are told from the start are told apart by the same definition; each fatal one makes a card unhealthy.
    """
    assert (set(), set()) == (FATAL & NEVER, APPLICATION - NEVER)
    assert {140, *range(143, 151), 154} <= FATAL
    for number in FATAL:
        assert {"GPU-1"} == after(xid(number)).keys()


def test_a_changed_recovery_action_is_what_the_driver_says_it_is():
    """
    XID 154 says only that it changed: where the driver tells it, it decides; elsewhere something must be done.
    """
    asked = replace(ONE, action=0)
    assert {} == apply_event({}, xid(154), {"GPU-1": asked}, TERMS, 0.0)
    assert {"GPU-1"} == after(xid(154)).keys()


def test_a_row_that_cannot_be_remapped_makes_the_card_unhealthy_for_as_long_as_it_is_reported():
    """
    Whatever time has passed.
    """
    unhealthy, _ = apply_boards({}, [replace(ONE, remap_failed=True)], TERMS, 0.0)
    later, well = apply_boards(unhealthy, [replace(ONE, remap_failed=True)], TERMS, 10_000.0)
    assert (HealthReason.ROW_REMAP, {}) == (later["GPU-1"].reason, well)
    assert "remapping" in later["GPU-1"].text
    assert {} == apply_boards(later, [ONE], TERMS, 20_000.0)[0]
