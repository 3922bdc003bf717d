# SPDX-License-Identifier: Apache-2.0
"""
Which device IDs a container gets, and whether those it got are the right ones.

Pure. The record of the pod says the cards; the book says which units of them are free, the kubelet merely
what it offers. The answer has exactly the asked number of offered IDs, whatever else is wrong: a short,
repeated or unknown one makes the kubelet choose at random, an error fails the pod for good. What is wrong is
found again, and can be refused with less harm, when the container starts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from isolation.contract.quantity import show_bytes
from isolation.node.book import card_of, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from isolation.contract.model import Slice
    from isolation.node.world import Ask


def units_by_card(slices: Iterable[Slice], unit_bytes: int) -> dict[str, int]:
    """How many units of which card a part of a record is."""
    return {part.uuid: part.bytes // unit_bytes for part in slices}


def preferred(ask: Ask, wanted: Mapping[str, int], rank: Callable[[str], int]) -> list[str]:
    """
    The IDs for one container.

    `wanted`: units by card, empty where it is not known whose they are; then one card is best. `rank`: 0 or
    less for an ID that is free by the book, more the worse it would be to give it away.
    """
    chosen = list(dict.fromkeys(ask.must))[: ask.size]
    offered = [ident for ident in dict.fromkeys(ask.available) if ident not in set(chosen)]
    offered.sort(key=lambda ident: (rank(ident), card_of(ident), number_of(ident), ident))
    have = Counter(map(card_of, chosen))
    for card in wanted or _one_card(offered, chosen, ask.size, rank):
        most = wanted[card] - have[card] if wanted else ask.size
        mine = [ident for ident in offered if card_of(ident) == card]
        chosen += mine[: max(0, min(most, ask.size - len(chosen)))]
    if len(chosen) < ask.size:
        taken = set(chosen)
        rest = [ident for ident in offered if ident not in taken]
        rest.sort(key=lambda ident: (card_of(ident) not in wanted, rank(ident)))  # stable: one card after the other
        chosen += rest[: ask.size - len(chosen)]
    return chosen


def _one_card(offered: Sequence[str], chosen: Sequence[str], size: int, rank: Callable[[str], int]) -> list[str]:
    """Cards in the order in which to take from them: that of what must be there, then the fullest that suffices."""
    free = Counter(card_of(ident) for ident in offered if rank(ident) <= 0)
    lacking = size - len(chosen)
    cards = sorted(free, key=lambda card: (free[card] < lacking, free[card] if free[card] >= lacking else 0, card))
    first = [card for card in dict.fromkeys(map(card_of, chosen)) if card]
    return first + [card for card in cards if card not in first]


def mismatch(ids: Iterable[str], slices: Sequence[Slice], unit_bytes: int) -> str:
    """In which way IDs are not what the record promises; empty: in none."""
    have, wanted = Counter(map(card_of, ids)), units_by_card(slices, unit_bytes)
    if have == wanted:
        return ""
    if set(have) != set(wanted):
        return f"the kubelet allocated devices of {_names(have)}, but the pod was placed on {_names(wanted)}"
    card = next(card for card in wanted if have[card] != wanted[card])
    got, due = show_bytes(have[card] * unit_bytes), show_bytes(wanted[card] * unit_bytes)
    return f"the kubelet allocated {got} of {card}, but the pod was placed with {due}"


def _names(cards: Iterable[str]) -> str:
    return ", ".join(sorted(card or "an unknown card" for card in cards)) or "no card"
