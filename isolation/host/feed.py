# SPDX-License-Identifier: Apache-2.0
"""
What only the host can tell a container, written for it some ten times a second.

Own GPU time: event times count the neighbours' slices too; NVML's samples do not. They come late, rounded,
and some not at all. The granted rate: what neighbours leave idle. Memory: how far the ledger is from what the driver
counts (`correction`). The container can only read the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocationError, load
from isolation.host.core.compute_rates import ACTIVE_NS, INELASTIC, TenantShare, granted
from isolation.host.core.own_time import DIVIDED_ROUNDING_PPM, OwnTime, SharedSamples
from isolation.host.files import read_text
from isolation.host.liveness import REGION
from isolation.host.memory_sample import CardWatch
from isolation.lib import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isolation.contract.host_allocation import HostAllocation
    from isolation.contract.model import Slice
    from isolation.host.machine import Machine

KnownLedgers: TypeAlias = "dict[Path, dict[UUID, abi.CardLedger]]"
"""By folder of an allocation, its cards as its container keeps them."""
FEED: Final = "feed"
SAMPLE_SECONDS: Final = 0.1
RATE_SECONDS: Final = 0.03
NEIGHBOURS_SECONDS: Final = 0.5
PACE_NS: Final = 300_000_000
CROWDED: Final = 0.93
"""Part of the time for which events of a tenant under way mean that its queue is never empty."""


@dataclass(slots=True)
class ComputePace:
    """How much of its rate a tenant gets while its queue on the card is never empty, as its own region tells."""

    got: float = 1.0
    _before: tuple[int, int, int, int] | None = None

    def add(self, book: abi.CardLedger, clock: int) -> float:
        """One more look, some way into the next stretch of time."""
        now = (clock, book.event_ns, book.charged_ns + book.corrected_ns, book.rate_ppm)
        if self._before is None:
            self._before = now
        passed, event, charged = (now[i] - self._before[i] for i in range(3))
        if passed < PACE_NS:
            return self.got
        rate = max(1, min(now[3], self._before[3]))
        crowded = event >= CROWDED * passed and now[3] == self._before[3]
        latest = min(1.0, charged * abi.PPM / (passed * rate)) if crowded else 1.0
        self.got += (latest - self.got) / 2
        self._before = now
        return self.got


class Feeder:
    """Keeps the feed of one hold fresh: a turn every `seconds`."""

    def __init__(self, entry: HostAllocation, folder: Path, machine: Machine, policy: abi.Policy) -> None:
        self._entry, self._folder, self._machine, self._policy = entry, folder, machine, policy
        self._own = {part.uuid: OwnTime() for part in entry.slices}
        self._shared = {part.uuid: SharedSamples() for part in entry.slices}
        self._events: dict[str, int] = {}
        """Event time of ours on each card, at the latest look."""
        self._feed = [abi.CardFeed(0, 0) for _ in entry.slices]
        self._memory = [CardWatch(at, part.uuid, uuid_of(part.uuid)) for at, part in enumerate(entry.slices)]
        self._neighbours: tuple[tuple[HostAllocation, Path], ...] = ()
        self._paces: dict[tuple[str, UUID], ComputePace] = {}
        self._neighbours_due = self._samples_due = 0.0
        self.seconds = SAMPLE_SECONDS if policy in INELASTIC else RATE_SECONDS

    def used(self) -> tuple[int | None, ...]:
        """Bytes in use by card at the last sample, the larger of ledger and driver's figure; None: cannot be told."""
        return tuple(watch.used_bytes for watch in self._memory)

    def due(self, now: float) -> bool:
        """Whether a turn would change anything: rates are granted at each, samples taken now and then."""
        return self._policy not in INELASTIC or self.samples_due(now)

    def samples_due(self, now: float) -> bool:
        """Whether the next turn samples: only then does it matter whose processes are ours."""
        return now >= self._samples_due

    def turn(
        self,
        ours: frozenset[int],
        now: float,
        newer: Callable[[int], bool] = lambda _pid: False,
        known: KnownLedgers | None = None,
    ) -> bool:
        """
        Sample if it is time, look who wants the cards, write: whether it was time.

        `newer`: whether a process that uses the card and is not in `ours` is the container's all the same.
        `known`: what has been read of regions in this turn of all feeders, so that each is read once.
        """
        known = {} if known is None else known
        sampled = self.samples_due(now)
        if sampled:
            self._samples_due = now + SAMPLE_SECONDS - 0.01
            self._sample(ours, now, known)
            region = region_of(self._folder, self._entry)
            for at, watch in enumerate(self._memory):
                memory = watch.look(self._machine, region, lambda pid: pid in ours or newer(pid))
                self._feed[at] = replace(self._feed[at], memory=memory)
        rates = self._rates(now, known)
        self._feed = [replace(feed, rate_ppm=rate) for feed, rate in zip(self._feed, rates, strict=True)]
        files.write_feed(feed_of(self._folder, self._entry), self._feed)
        return sampled

    def _sample(self, ours: frozenset[int], now: float, known: KnownLedgers) -> None:
        for at, part in enumerate(self._entry.slices):
            own, shared = self._own[part.uuid], self._shared[part.uuid]
            before = (own.at, own.own_ns, own.seen_ns)
            samples = self._machine.samples(part.uuid, own.since)
            shared.see(samples)
            own.add(samples, ours)
            divides = shared.is_shared(ours, self._entry.id)
            if divides or self._may_divide(part, shared, known):
                self._read_events(part, shared, now, known)
            if divides and not self._feed[at].sample_ns:
                self._feed_own(at, shared.start(), 0, 0, DIVIDED_ROUNDING_PPM)
            elif divides:
                divided = shared.divide(self._entry.id)
                if divided is not None:
                    self._feed_own(at, divided.at, divided.own_ns, divided.covered_ns, DIVIDED_ROUNDING_PPM)
            elif own.at != before[0]:  # the library takes every new time for a new sample
                rounding = own.step * (abi.PPM // 200)
                self._feed_own(at, own.at, own.own_ns - before[1], own.seen_ns - before[2], rounding)
                shared.start(own.at)

    def _may_divide(self, part: Slice, shared: SharedSamples, known: KnownLedgers) -> bool:
        """Whether events may have to be divided soon: then the first samples find readings as old as they are."""
        if shared.is_apart:
            return False
        if self._policy not in INELASTIC:
            return True  # others' ledgers are read for the rates anyway
        book = _read_ledgers(self._folder, self._entry, known).get(uuid_of(part.uuid))
        before, self._events[part.uuid] = self._events.get(part.uuid, 0), book.event_ns if book is not None else 0
        return self._events[part.uuid] > before

    def _read_events(self, part: Slice, shared: SharedSamples, now: float, known: KnownLedgers) -> None:
        """The events of all tenants of the card."""
        uuid, events = uuid_of(part.uuid), {}
        self._look_around(now)
        for entry, folder in ((self._entry, self._folder), *self._neighbours):
            ledger = _read_ledgers(folder, entry, known).get(uuid)
            if ledger is not None:
                events[entry.id] = ledger.event_ns
        shared.read(time.time_ns() // 1000, events)

    def _feed_own(self, at: int, micros: int, own_ns: int, seen_ns: int, rounding_ppm: int) -> None:
        ago = max(0, time.time_ns() - micros * 1000)
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - ago
        feed = self._feed[at]
        fed = replace(feed, own_ns=feed.own_ns + own_ns, sample_ns=moment, rounding_ppm=rounding_ppm)
        self._feed[at] = replace(fed, sampled_ns=max(1, feed.sampled_ns + seen_ns))

    def _look_around(self, now: float) -> None:
        if now >= self._neighbours_due:
            self._neighbours_due = now + NEIGHBOURS_SECONDS
            self._neighbours = neighbours(self._folder, self._entry)

    def _rates(self, now: float, known: KnownLedgers) -> list[int]:
        if self._policy in INELASTIC:
            return [0] * len(self._feed)
        self._look_around(now)
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        mine = _read_ledgers(self._folder, self._entry, known)
        theirs = [(entry, _read_ledgers(folder, entry, known)) for entry, folder in self._neighbours]
        return [self._rate(part, mine, theirs, clock) for part in self._entry.slices]

    def _rate(
        self,
        part: Slice,
        mine: dict[UUID, abi.CardLedger],
        theirs: list[tuple[HostAllocation, dict[UUID, abi.CardLedger]]],
        clock: int,
    ) -> int:
        uuid, others = uuid_of(part.uuid), []
        for entry, ledgers in theirs:
            for other in entry.slices:
                if other.uuid == part.uuid:
                    ledger = ledgers.get(uuid)
                    active = ledger is not None and clock - ledger.wanted_ns < ACTIVE_NS
                    got = self._pace(entry.id, ledger, clock)
                    others.append(_tenant(other.core, entry, active=active, got=got))
        got = self._pace(self._entry.id, mine.get(uuid), clock)
        return granted(_tenant(part.core, self._entry, active=True, got=got), others)

    def _pace(self, ident: str, book: abi.CardLedger | None, clock: int) -> float:
        if book is None or self._policy is not abi.Policy.WEIGHT:
            return 1.0
        return self._paces.setdefault((ident, book.uuid), ComputePace()).add(book, clock)


def uuid_of(card: str) -> UUID:
    """`GPU-...` or `MIG-...` as the 16 bytes that CUDA tells."""
    return UUID(card.removeprefix("GPU-").removeprefix("MIG-"))


def neighbours(folder: Path, entry: HostAllocation) -> tuple[tuple[HostAllocation, Path], ...]:
    """Who else holds something of the same cards, as the book beside us tells; the unreadable are left out."""
    cards, found = {part.uuid for part in entry.slices}, []
    for path in folder.parent.iterdir():
        if path.name.startswith(".") or path == folder:
            continue
        try:
            other = load(read_text(path / "promise.json"))
        except (OSError, UnicodeDecodeError, HostAllocationError):
            continue
        if other.boot == entry.boot and cards & {part.uuid for part in other.slices}:
            found.append((other, path))
    return tuple(found)


def _tenant(core: int, entry: HostAllocation, *, active: bool, got: float) -> TenantShare:
    each, policy = abi.PPM // 100, abi.Policy[entry.policy.upper()]
    return TenantShare(core * each, policy, entry.online, active, got, entry.weight, entry.ceiling * each)


def feed_of(folder: Path, entry: HostAllocation) -> Path:
    """Where the library reads it: a pod's container has a folder of what it may only read."""
    return folder / FEED if entry.tenant is None else folder / "limits" / FEED


def region_of(folder: Path, entry: HostAllocation) -> Path:
    """Where the library writes: a pod's container has a folder of what it may write."""
    return folder / REGION if entry.tenant is None else folder / "region" / REGION


def _read_ledgers(folder: Path, entry: HostAllocation, known: KnownLedgers) -> dict[UUID, abi.CardLedger]:
    """The cards as the container keeps them; empty where that cannot be read (a claim, not a measurement)."""
    if folder not in known:
        try:
            known[folder] = {book.uuid: book for book in files.read_cards(region_of(folder, entry))}
        except (OSError, abi.AbiError):
            known[folder] = {}
    return known[folder]
