# SPDX-License-Identifier: Apache-2.0
"""Where the replicas of one owner are: as a plain dictionary says, whatever came and went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isolation.placement.replicas import Replicas

CHANGES = st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 4), st.integers(1, 15))
"""Put or drop, which replica, the row, and its cards as bits."""


@given(st.lists(CHANGES, max_size=60))
def test_rows_and_masks_are_those_of_who_is_there(changes):
    """
    Each row with a replica stands once, with the cards of all of its replicas; a copy goes its own way.
    """
    made, model = Replicas(), {}
    for put, uid, row, mask in changes:
        if put and uid not in model:
            made.put(str(uid), row, mask)
            model[uid] = row, mask
        elif not put:
            at, _ = model.pop(uid, (row, 0))
            made.drop(str(uid), at)
        twin = made.copy()
        twin.put("other", 9, 1)

        expected: dict[int, int] = {}
        for at, cards in model.values():
            expected[at] = expected.get(at, 0) | cards
        assert sorted(expected.items()) == sorted(zip(made.rows, made.masks, strict=True))
