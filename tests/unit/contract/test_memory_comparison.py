# SPDX-License-Identifier: Apache-2.0
"""
Who uses a card without being in the books, and who has more than they say.
"""

from __future__ import annotations

import pytest

from isolation.contract.abi import SlotReading
from isolation.contract.memory_comparison import CardUser, Comparison, compare
from isolation.contract.quantity import GIB, MIB


def slot(pid, *held, start=5, ghost=False):
    """A process as the region has it; bytes by card."""
    return SlotReading(0, pid, start, 1, "n", (*held, *[0] * (16 - len(held))), 0, ghost)


def user(pid, size=GIB, **more):
    """A process as the driver has it."""
    return CardUser(pid, size, **({"start_ticks": 5} | more))


def test_a_process_with_a_slot_is_seen():
    """
    By its pid inside the container and its start time, whatever number the host gives it.
    """
    assert Comparison((), 0) == compare([user(4711, inner_pid=7)], [slot(7, GIB)], 0)


@pytest.mark.parametrize(
    "slots",
    [
        [],
        [slot(8, GIB)],
        [slot(7, GIB, start=4)],
        [slot(7, GIB, ghost=True)],
    ],
)
def test_a_process_without_a_slot_is_uninstrumented(slots):
    """
    None at all, somebody else's, an earlier process of that pid, or what a dead one left.
    """
    unseen = user(4711, inner_pid=7)

    assert Comparison((unseen,), 0) == compare([unseen], slots, 0)


def test_what_cannot_be_told_accuses_nobody():
    """
    Without a start time the pid decides; without bytes nothing is hidden.
    """
    assert Comparison((), 0) == compare([user(7, start_ticks=None)], [slot(7, GIB)], 0)
    assert Comparison((), None) == compare([user(7, None)], [slot(7, 0)], 0)


@pytest.mark.parametrize(
    ("measured", "booked", "hidden"),
    [
        (GIB + 64 * MIB, GIB, 0),
        (GIB + 65 * MIB, GIB, 65 * MIB),
        (20 * GIB + 100 * MIB, 20 * GIB, 0),
        (21 * GIB, 20 * GIB, GIB),
        (GIB, 2 * GIB, 0),
        (GIB, -GIB, GIB),
    ],
)
def test_memory_beyond_the_books_is_hidden(measured, booked, hidden):
    """
    Past 64 MiB or one per cent, whichever is more; more in the books than on the card hides nothing, and
    a book below zero hides no more than there is.
    """
    assert hidden == compare([user(7, measured)], [slot(7, 0, booked)], 1).hidden_bytes


def test_a_dead_exporters_memory_is_in_the_books_of_its_importer():
    """
    The driver shows it with the process that maps it; the ghost's slot answers for it.
    """
    assert 0 == compare([user(7, 3 * GIB)], [slot(7, GIB), slot(9, 2 * GIB, ghost=True)], 0).hidden_bytes
