# SPDX-License-Identifier: Apache-2.0
"""
One card of one container, sampled: the ledger, the driver's figure, the ledger again.

A container that moves its ledger all the time is looked at a few times in a row; what remains unknown is decided by
`correction`. A process that ends is not counted: its slot may be given back before the driver has its memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from isolation.contract import abi
from isolation.host import process
from isolation.host.core.memory_correction import CardUser, Correction, LedgerSample, counted
from isolation.host.liveness import edge_locked
from isolation.lib import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from uuid import UUID

    from isolation.contract.abi import CardLedger, MemoryFeed
    from isolation.host.machine import Machine

TRIES: Final = 4


class CardWatch:
    """See the module; `at` counts as in the limits file."""

    def __init__(self, at: int, uuid: str, name: UUID) -> None:
        """`name`: `uuid` as the region has it."""
        self._at, self._uuid, self._name = at, uuid, name
        self._correction = Correction()
        self.used_bytes: int | None = None
        """The larger of the driver's figure and the ledger's, at the last look; None: cannot be told."""

    def look(self, machine: Machine, region: Path, belongs: Callable[[int], bool]) -> MemoryFeed | None:
        """One sample; None: nothing is known."""
        self.used_bytes = None
        for _ in range(TRIES):
            began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            try:
                read = files.read_region(region)
                memory = machine.memory(self._uuid)
                after = files.read_cards(region)
            except (OSError, abi.AbiError):  # nothing to correct: a library that cannot book refuses everything
                self._correction.forget()
                memory = machine.memory(self._uuid)
                if memory is not None and not memory.served:
                    self.used_bytes = counted(_users(memory.users, belongs), (), self._at, 0)
                return None
            if memory is None:
                break
            if memory.served:
                self._correction.forget()
                return None
            users = _users(memory.users, belongs)
            sizes = memory.users.values()
            surplus = sum(size for size in sizes if size is not None) - memory.used
            driver = counted(users, read.slots, self._at, surplus)
            if driver is None:
                break
            ledger = LedgerSample(self._mine(read.cards), self._mine(after), read.slots, edge_locked(region, self._at))
            self.used_bytes = max(driver, 0 if ledger.after is None else ledger.after.used_bytes)
            self._correction.take(driver, users, ledger, self._at, began)
            if ledger.still:
                return self._correction.feed
        else:
            return self._correction.feed
        self._correction.skip(process.alive)
        return self._correction.feed

    def _mine(self, cards: tuple[CardLedger, ...]) -> CardLedger | None:
        """By its UUID: a region that nobody has used yet names no card."""
        return next((book for book in cards if book.uuid == self._name), None)


def _users(listed: Mapping[int, int | None], belongs: Callable[[int], bool]) -> list[CardUser]:
    """Whoever of the container has memory on the card and does not end; asked after the driver was."""
    found = []
    for pid, size in listed.items():
        seen = process.read_living(pid) if belongs(pid) else None
        if seen is not None and process.holds_memory(pid):
            found.append(CardUser(pid, size, process.inner_pid(pid), seen.start))
    return found
