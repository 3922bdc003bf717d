# SPDX-License-Identifier: Apache-2.0
"""Reservations: there and back, whom they serve, and what is refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pod import seconds_of, time_of
from isolation.contract.model import Placement, Pod, Request, Slice
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation, manifest_of, reservation_of

KEPT = Reservation("move-1", "u1", Placement("n1", (Slice("GPU-a", 0, 2 * GIB, 30),)), 1_800_000_000.0, "ml", "move")


BOUGHT = replace(
    KEPT, placement=Placement("", (Slice("", 3, 2 * GIB, 30),)), pool="gpu-a", planned_node="l1", reason="purchase"
)


@given(st.integers(0, 253_402_300_799))
def test_a_time_is_written_as_kubernetes_reads_it(seconds):
    """Against the standard library, and there and back."""
    text = time_of(seconds)
    assert dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0") == text
    assert seconds == seconds_of(At(text))


def test_a_reservation_is_read_as_it_was_written():
    """The manifest holds all of it but the UID, which the server gives."""
    assert KEPT == reservation_of(manifest_of(KEPT))
    assert BOUGHT == reservation_of(manifest_of(BOUGHT))


@pytest.mark.parametrize("wrong", [{"node": "n1"}, {"pool": ""}, {"cards": [{"bytes": 1}]}])
def test_a_purchase_names_a_pool_and_no_node_and_cards_by_position(wrong):
    """One with a node besides would keep room in two places; by a card without a position nothing was counted."""
    thing = manifest_of(BOUGHT)
    thing["spec"] |= wrong
    with pytest.raises(CodecError):
        reservation_of(thing)


@pytest.mark.parametrize(
    ("pod", "serves"),
    [
        (Pod("u1", "a", request=Request(cards=1, card_bytes=2 * GIB)), True),
        (Pod("u2", "a", request=Request(cards=1, card_bytes=GIB, card_core=30), owner_uid="u1"), True),
        (Pod("u2", "a", request=Request(cards=1, card_bytes=GIB)), False),
        (Pod("u1", "a", request=Request(cards=1, card_bytes=3 * GIB)), False),
        (Pod("u1", "a", request=Request(cards=1, card_bytes=GIB, card_core=35)), False),
        (Pod("u1", "a", request=Request(cards=2, card_bytes=GIB)), False),
    ],
    ids=["the pod", "its controller's", "a stranger", "more memory", "more compute", "more cards"],
)
def test_it_serves_whom_it_was_made_for_and_no_more_than_it_keeps(pod, serves):
    """By UID of the pod or of its controller, and by what is asked of each card."""
    assert serves == KEPT.serves(pod)


@pytest.mark.parametrize("key", ["holder", "node", "expires", "cards"])
def test_what_lacks_a_part_is_no_reservation(key):
    """A broken object must not keep room, nor break its reader."""
    thing = manifest_of(KEPT)
    del thing["spec"][key]
    with pytest.raises(CodecError):
        reservation_of(thing)
