# SPDX-License-Identifier: Apache-2.0
"""
How far a container's ledger is from what the driver counts, card by card.

The driver sees what no hook does: contexts and modules of a runtime's private tables, local memory, reserves. What it
counts beyond the ledger is taken from what may be charged; a guess that proved too high is given back. Takes a figure
only where the ledger did not move around it. A region is written by the tenant: whatever it says, ledger and correction
together are never below the driver's figure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import GRANULE, CardLedger, MemoryFeed
from isolation.contract.host_allocation import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from isolation.contract.abi import SlotReading

_MAX_BYTES: Final = 1 << 39
"""Bytes: more than any card has, and what the feed can say."""


@dataclass(frozen=True, slots=True)
class CardUser:
    """A process of one container that has memory on one card, as the driver and /proc tell."""

    pid: int
    """In the host's PID namespace."""
    bytes: int | None
    """On this card; None where the driver cannot tell."""
    inner_pid: int | None = None
    """As the process knows itself: the last number of NSpid in /proc/<pid>/status; None: as the host knows it."""
    start_ticks: int | None = None
    """Field 22 of /proc/<pid>/stat; None: it could not be read, and the pid alone must do."""


@dataclass(frozen=True, slots=True)
class LedgerSample:
    """One card of a region, before and after the driver was asked."""

    before: CardLedger | None
    """None: no process has used the library yet."""
    after: CardLedger | None
    slots: Sequence[SlotReading] = ()
    """Read after `before`."""
    edge: bool = False
    """A call was under way that may pass the ledger for a moment."""

    @property
    def still(self) -> bool:
        """Whether nothing was charged or given back meanwhile."""
        return not self.edge and _version(self.before) == _version(self.after)


def _version(book: CardLedger | None) -> tuple[int, int]:
    return (0, 0) if book is None else (book.version, book.used_bytes)


def counted(users: Iterable[CardUser], slots: Iterable[SlotReading], card: int, surplus: int) -> int | None:
    """
    Bytes that the driver counts for these processes, memory that they share once; None where it cannot tell of one.

    `surplus` is by how much all processes of the card together have more than the card gives: by so much the driver
    counts shared memory twice. What a container says it imported is believed no further than that.
    """
    total = 0
    for user in users:
        if user.bytes is None:
            return None
        total += user.bytes
    imported = sum(_sane(slot.imported[card]) for slot in slots if not slot.ghost)
    return total - min(imported, max(0, surplus), total)


def excess(driver: int, users: Sequence[CardUser], ledger: LedgerSample, card: int) -> int:
    """
    What the ledger must be raised by; below 0: lowered, since guesses proved too high.

    `ledger` must be still. What the driver does not show yet stands as it is charged: calls under way, processes that
    it was not asked about.
    """
    used = ledger.before.used_bytes if ledger.before is not None else 0
    explicit = guessed = others = 0
    here = {(user.pid if user.inner_pid is None else user.inner_pid, user.start_ticks) for user in users}
    for slot in ledger.slots:
        held = _sane(slot.bytes_by_card[card])
        if slot.ghost:
            others += held
        elif (slot.pid, slot.start_ticks) in here:
            guess = min(_sane(slot.guessed[card]), held)
            other = min(_sane(slot.managed[card]) + _sane(slot.underway[card]), held - guess)
            explicit, guessed, others = explicit + held - guess - other, guessed + guess, others + other
    actual = min(max(0, driver - explicit), guessed)
    beyond = max(0, driver - explicit - guessed - others)
    return max(beyond or actual - guessed, driver - used)


def _sane(bytes_: int) -> int:
    """A tenant's figure; what no card has is nothing."""
    return bytes_ if 0 < bytes_ <= _MAX_BYTES else 0


class Correction:
    """Of one card of one container: the last figure that could be taken, and of whom."""

    def __init__(self) -> None:
        self.feed: MemoryFeed | None = None
        self.measured: tuple[Process, ...] = ()
        self._before: MemoryFeed | None = None
        """The sample before, where it could be taken."""

    def take(self, driver: int, users: Sequence[CardUser], ledger: LedgerSample, card: int, sample_ns: int) -> None:
        """A figure of the driver that came between the two readings of the ledger, which began at `sample_ns`."""
        used, released = (0, 0) if ledger.before is None else (ledger.before.used_bytes, ledger.before.released)
        self.measured = tuple(Process(user.pid, user.start_ticks) for user in users if user.start_ticks is not None)
        if ledger.still:
            latest = MemoryFeed(sample_ns, excess(driver, users, ledger, card), used, released)
            before, self._before = self._before, latest
            self.feed = latest if latest.excess_bytes >= 0 else _stood(before, latest)
            return
        # Who never had more in its ledger than the peak cannot have more on the card without hiding some.
        known = max(0, self.feed.excess_bytes) if self.feed is not None else 0
        sure = driver - (0 if ledger.after is None else ledger.after.peak_bytes)
        if sure > known or known > driver:
            self.feed = MemoryFeed(sample_ns, max(0, sure, min(known, driver)), used, released)

    def skip(self, alive: Callable[[Process], bool]) -> None:
        """The driver did not tell: what is known stands while a process lives of which it is known."""
        if not any(map(alive, self.measured)):
            self.forget()

    def forget(self) -> None:
        """Nothing is known."""
        self.feed = self._before = None
        self.measured = ()


def _stood(before: MemoryFeed | None, latest: MemoryFeed) -> MemoryFeed:
    """
    Guesses are given back as far as they proved too high in two samples running.

    What left the card and stood in the ledger yet at one of them looks like a guess that costs nothing.
    """
    if before is None:
        return replace(latest, sample_ns=0, excess_bytes=0)
    back = max(0, -before.excess_bytes - (latest.released - before.released) * GRANULE)
    return replace(latest, sample_ns=before.sample_ns, excess_bytes=max(latest.excess_bytes, -back))
