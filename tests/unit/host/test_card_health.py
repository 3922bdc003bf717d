# SPDX-License-Identifier: Apache-2.0
"""
Which alarms make a card sick, and what makes it well again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from isolation.host.card_events import Alarm, AlarmKind, Board
from isolation.host.core.card_health import (
    APPLICATION,
    FATAL,
    NEVER,
    SETTLE_SECONDS,
    HealthTerms,
    Reason,
    alarmed,
    looked,
    remembered,
)

TERMS = HealthTerms(well_after=600.0)
ONE, TWO = Board("GPU-1", ("GPU-1",)), Board("GPU-2", ("GPU-2",))
DIVIDED = Board("GPU-3", ("MIG-a", "MIG-b"))
BOARDS = {board.uuid: board for board in (ONE, TWO, DIVIDED)}


def after(*alarms, terms=TERMS, now=100.0):
    """What is known after these alarms."""
    ill = {}
    for alarm in alarms:
        ill = alarmed(ill, alarm, BOARDS, terms, now)
    return ill


def xid(number, board="GPU-1"):
    """One."""
    return Alarm(board, AlarmKind.XID, number)


@pytest.mark.parametrize("number", sorted({13, 31, 43, 45, 68, 109} | {8, 32, 69, 94, 63, 92, 137}))
def test_what_a_program_can_bring_about_never_makes_a_card_sick(number):
    """
    NVIDIA's plugin passes over the first six; the catalogue says of the others: restart the application, or ignore.
    """
    assert ({}, True) == (after(xid(number)), number in NEVER)


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 158, 99999])
def test_any_other_xid_makes_its_card_sick_and_no_other(number):
    """
    Also one that nobody has heard of.
    """
    ill = after(xid(number))
    reasons = {uuid: (one.reason, one.text) for uuid, one in ill.items()}
    assert {"GPU-1": (Reason.XID, f"XID {number}")} == reasons


def test_an_ecc_error_that_was_not_corrected_makes_the_card_sick():
    """
    Whatever XIDs are passed over.
    """
    ill = after(Alarm("GPU-2", AlarmKind.ECC), terms=HealthTerms(ignored=frozenset(range(200))))
    assert {"GPU-2": Reason.ECC} == {uuid: one.reason for uuid, one in ill.items()}


def test_xids_that_the_operator_passes_over_do_nothing():
    """
    Besides those of programs; others still count.
    """
    terms = HealthTerms(ignored=frozenset({74}))
    assert ([], ["GPU-1"]) == (list(after(xid(74), terms=terms)), list(after(xid(74), xid(79), terms=terms)))


def test_an_alarm_of_a_divided_card_concerns_all_its_instances():
    """
    They share its memory and its bus.
    """
    assert ("MIG-a", "MIG-b") == after(xid(79, "GPU-3"))["GPU-3"].cards


@pytest.mark.parametrize("board", ["", "GPU-9"])
def test_an_alarm_that_names_no_card_of_ours_concerns_none(board):
    """
    Else one word that fits nobody would take the whole node.
    """
    assert {} == after(xid(79, board), Alarm(board, AlarmKind.ECC))


def test_without_the_drivers_word_time_without_alarms_makes_it_well():
    """
    Counted from the last alarm, and told how long it was; who was sick since when is kept.
    """
    ill = alarmed(after(xid(48)), xid(79), BOARDS, TERMS, 500.0)
    assert (100.0, 500.0, "XID 79") == (ill["GPU-1"].since, ill["GPU-1"].last, ill["GPU-1"].text)
    assert (ill, {}) == looked(ill, [ONE], TERMS, 1099.0)
    assert ({}, {"GPU-1": "no error for 10 minutes"}) == looked(ill, [ONE], TERMS, 1100.0)


def test_without_the_drivers_word_and_without_a_time_it_stays_sick():
    """
    Until it is gone and back, or somebody says so.
    """
    terms, ill = replace(TERMS, well_after=0.0), after(xid(48))
    assert (ill, {}) == looked(ill, [ONE], terms, 1e9)
    gone, _ = looked(ill, [TWO], terms, 1e9)
    assert ({}, {"GPU-1": "it was lost and is back"}) == looked(gone, [ONE, TWO], terms, 1e9)


def test_a_card_that_does_not_answer_is_not_well_whatever_time_passes():
    """
    Nothing is known of it.
    """
    gone, well = looked(after(xid(79)), [], TERMS, 1e9)
    assert (["GPU-1"], {}, True) == (list(gone), well, gone["GPU-1"].gone)


def test_a_driver_that_wants_nothing_done_makes_it_well_a_while_after_the_alarm():
    """
    Its verdict may come later than the alarm; it goes before the longer time.
    """
    ill, fine = after(xid(48)), replace(ONE, action=0)
    assert (ill, {}) == looked(ill, [fine], TERMS, 100.0 + SETTLE_SECONDS - 1)
    assert ({}, {"GPU-1": "the driver requests no recovery action"}) == looked(
        ill, [fine], TERMS, 100.0 + SETTLE_SECONDS
    )


@pytest.mark.parametrize("action", [1, 2, 3, 4, 5, 6, 7, 99])
def test_what_the_driver_wants_done_makes_a_card_sick_without_any_alarm(action):
    """
    For as long as it wants it, and not longer.
    """
    ill, _ = looked({}, [replace(DIVIDED, action=action), replace(ONE, action=0)], TERMS, 100.0)
    assert [("GPU-3", Reason.DRIVER)] == [(uuid, one.reason) for uuid, one in ill.items()]
    assert ill["GPU-3"].text.startswith("the driver requests ")
    assert (ill, {}) == looked(ill, [replace(DIVIDED, action=action)], TERMS, 1e9)
    done = looked(ill, [replace(DIVIDED, action=0)], TERMS, 101.0)
    assert ({}, {"GPU-3": "the recovery action that the driver requested is done"}) == done


def test_an_xid_whose_reset_the_driver_wants_is_well_as_soon_as_it_is_done():
    """
    The reason that is told stays the XID; no time heals it before.
    """
    wants, done = replace(ONE, action=1), replace(ONE, action=0)
    ill, _ = looked(after(xid(119)), [wants], TERMS, 101.0)
    ill, well = looked(ill, [wants], TERMS, 1e9)
    assert ("XID 119", {}) == (ill["GPU-1"].text, well)
    assert ({}, ["GPU-1"]) == (looked(ill, [done], TERMS, 1e9)[0], list(looked(ill, [done], TERMS, 1e9)[1]))


def test_a_card_that_is_gone_and_back_is_sick_while_the_driver_wants_something():
    """
    The driver's word goes before what we infer.
    """
    gone, _ = looked(after(xid(79)), [], TERMS, 101.0)
    back, well = looked(gone, [replace(ONE, action=2)], TERMS, 102.0)
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
def test_after_a_restart_only_what_the_terms_still_call_sick_is_believed(terms, left):
    """
    So an operator's new word holds at once.
    """
    ill = after(xid(74), Alarm("GPU-2", AlarmKind.ECC))
    ill, _ = looked(ill, [ONE, TWO, replace(DIVIDED, action=2)], TERMS, 101.0)
    assert left == sorted(remembered(ill, terms))


def test_what_is_fatal_is_never_a_programs_own():
    """
    The XIDs that are told from the start are distinguished by the same definition; each fatal one makes a card sick.
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
    assert {} == alarmed({}, xid(154), {"GPU-1": asked}, TERMS, 0.0)
    assert {"GPU-1"} == after(xid(154)).keys()


def test_a_row_that_cannot_be_remapped_makes_the_card_sick_for_as_long_as_it_is_reported():
    """
    Whatever time has passed.
    """
    ill, _ = looked({}, [replace(ONE, remap_failed=True)], TERMS, 0.0)
    later, well = looked(ill, [replace(ONE, remap_failed=True)], TERMS, 10_000.0)
    assert (Reason.ROW_REMAP, {}) == (later["GPU-1"].reason, well)
    assert "remapping" in later["GPU-1"].text
    assert {} == looked(later, [ONE], TERMS, 20_000.0)[0]
