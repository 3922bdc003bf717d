# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run --resize`: another amount of memory for a command that runs, on the same cards.

Within the store's lock, so that no other run is given the same memory meanwhile. The limits are changed in place, then
the record when a run shrinks, before them when it grows: whoever reads in between sees the larger amount. A run that
uses more than the new amount stays as it is: what it uses cannot be taken away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isolation.contract import abi
from isolation.contract.host_allocation import dump
from isolation.contract.quantity import gib, show_bytes
from isolation.files import replace_file
from isolation.host.feed import region_of, uuid_of
from isolation.lib import files
from isolation.run.allocate import CapacityError
from isolation.run.launch import LIMITS
from isolation.run.store import RECORD, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.model import Card
    from isolation.run.store import AllocationStore, StoredAllocation


def resize(store: AllocationStore, name: str, units: int, cards: Sequence[Card]) -> StoredAllocation:
    """
    Give the run of this name or id so many GiB over all its cards; StoreError, CapacityError.

    CapacityError: another time it may work, since cards are full or the run uses more.
    """
    with store.locked():
        living = store.list_living()
        held = _find(living, name)
        count = len(held.entry.slices)
        if units % count:
            raise StoreError(
                f"--gpu-mem {units} does not split evenly over {count} cards: request a multiple of {count}"
            )
        each = gib(units) // count
        slices = tuple(replace(part, bytes=each) for part in held.entry.slices)
        grows = each > held.entry.slices[0].bytes
        if grows:
            _check_room(held, living, each, {card.uuid: card for card in cards})
        elif held.entry.enforced:
            _check_use(held, each)
        made = replace(held, entry=replace(held.entry, slices=slices))
        try:
            if grows:
                replace_file(held.folder / RECORD, dump(made.entry))
            if held.entry.enforced:
                _limit(held, each)
            if not grows:
                replace_file(held.folder / RECORD, dump(made.entry))
        except (OSError, abi.AbiError) as exc:
            raise StoreError(f"cannot change allocation {held.entry.id}: {exc}") from None
        return made


def _find(living: Sequence[StoredAllocation], name: str) -> StoredAllocation:
    found = [one for one in living if name in (one.entry.id, one.entry.name)]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(one.entry.id for one in found)
    why = f"several runs are named {name!r} ({ids}): name one by its id" if found else f"no run is named {name!r}"
    raise StoreError(f"{why}; see gpushare run --list")


def _check_room(held: StoredAllocation, living: Sequence[StoredAllocation], each: int, cards: dict[str, Card]) -> None:
    for part in held.entry.slices:
        card = cards.get(part.uuid)
        if card is None:
            raise StoreError(f"card {part.uuid} of the run is not in this machine any more")
        others = sum(
            other.bytes
            for one in living
            if one.folder != held.folder
            for other in one.entry.slices
            if other.uuid == part.uuid
        )
        free = card.allocatable_bytes - others
        if each > card.allocatable_bytes:
            raise StoreError(f"card {part.uuid} offers {show_bytes(card.allocatable_bytes)} in all: request less")
        if each > free or not card.healthy:
            raise CapacityError(
                f"card {part.uuid} has {show_bytes(max(0, free))} for this run, {show_bytes(each)} are wanted"
            )


def _check_use(held: StoredAllocation, each: int) -> None:
    books = {book.uuid: book.used_bytes for book in files.read_cards(region_of(held.folder, held.entry))}
    for part in held.entry.slices:
        used = books.get(uuid_of(part.uuid), 0)
        if used > each:
            raise CapacityError(
                f"the run uses {show_bytes(used)} of card {part.uuid}, more than {show_bytes(each)}: what it uses "
                "cannot be taken away"
            )


def _limit(held: StoredAllocation, each: int) -> None:
    """In place: the library reads it within 50 ms."""
    path = held.folder / LIMITS
    old = abi.unpack_limits(path.read_bytes())
    cards = tuple(replace(card, memory_bytes=each) for card in old.cards)
    files.write_limits(path, replace(old, generation=old.generation + 1, cards=cards))
