"""
What only the host can tell a container, written for it some ten times a second.

Own GPU time: event times count the neighbours' slices too; NVML's samples do not. They come late, and
some not at all. The granted rate: what neighbours leave idle. The container can only read the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from isolation.contract import abi
from isolation.contract.hold import HoldError, load
from isolation.lib import files
from isolation.run.evidence import REGION, read_small
from isolation.run.rates import ACTIVE_NS, Tenant, granted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from isolation.contract.hold import Hold
    from isolation.run.machine import Machine, Sample

FEED: Final = "feed"
SAMPLE_SECONDS: Final = 0.1
RATE_SECONDS: Final = 0.03
NEIGHBOURS_SECONDS: Final = 0.5
TRUST_MICROS: Final = 1_000_000
"""Samples are believed to be ours to see for this long after the last one that was."""
PERIOD_MICROS: Final = 166_667
"""NVML samples a process six times a second."""
LONGEST_MICROS: Final = 2 * PERIOD_MICROS + 50_000
"""One sample may be lost; a longer gap is a process that did nothing."""


@dataclass(slots=True)
class OwnTime:
    """GPU time of one command on one card, from samples; from its events where there are none of it. All in micros."""

    own_ns: int = 0
    at: int = 0
    """What `own_ns` is for: the latest sample of ours, or the moment when events were asked."""
    since: int = 0
    """Latest sample of anybody."""
    _seen: dict[int, int] = field(default_factory=dict)
    _events_ns: int = 0
    _told_until: int = 0
    _trusted_until: int = 0

    def add(self, samples: Iterable[Sample], ours: frozenset[int], events_ns: int, now: int) -> None:
        """Count what is new. Before a first sample of ours, and where none can be had, events speak."""
        for sample in sorted(samples, key=lambda one: one.micros):
            before = self._seen.get(sample.pid, sample.micros - PERIOD_MICROS)
            if sample.micros <= before:
                continue
            self.since = max(self.since, sample.micros)
            self._seen[sample.pid] = sample.micros
            if sample.pid not in ours:
                continue
            self._trusted_until = now + TRUST_MICROS
            if sample.micros > self._told_until:  # what lies before was counted by events
                self.at = sample.micros
                covered = min(sample.micros - max(before, self._told_until), LONGEST_MICROS)
                self.own_ns += covered * sample.percent * 10
                self._events_ns = events_ns
        if now >= self._trusted_until:
            self.own_ns += max(0, events_ns - self._events_ns)
            self.at = self._told_until = now
            self._events_ns = events_ns


class Feeder:
    """Keeps the feed of one hold fresh; `turn` says when to come again."""

    def __init__(self, entry: Hold, folder: Path, machine: Machine, policy: abi.Policy) -> None:
        self._entry, self._folder, self._machine, self._policy = entry, folder, machine, policy
        self._own = {part.uuid: OwnTime() for part in entry.slices}
        self._feed = [abi.CardFeed(0, 0) for _ in entry.slices]
        self._neighbours: tuple[tuple[Hold, Path], ...] = ()
        self._neighbours_due = self._samples_due = 0.0
        self.seconds = RATE_SECONDS if policy is not abi.Policy.FIXED else SAMPLE_SECONDS

    def turn(self, ours: frozenset[int], now: float) -> None:
        """Sample if it is time, look who wants the cards, write."""
        if now >= self._samples_due:
            self._samples_due = now + SAMPLE_SECONDS - 0.01
            self._sample(_books(self._folder), ours)
        rates = self._rates(now)
        self._feed = [
            abi.CardFeed(feed.own_ns, feed.sample_ns, 0, rate) for feed, rate in zip(self._feed, rates, strict=True)
        ]
        files.write_feed(self._folder / FEED, self._feed)

    def _sample(self, books: Sequence[abi.CardBook], ours: frozenset[int]) -> None:
        events = {book.uuid: book.event_ns for book in books}
        for at, part in enumerate(self._entry.slices):
            own = self._own[part.uuid]
            before = own.at
            samples = self._machine.samples(part.uuid, own.since)
            wall = time.time_ns()
            own.add(samples, ours, events.get(uuid_of(part.uuid), 0), wall // 1000)
            ago = max(0, wall - own.at * 1000)
            if own.at == before:
                continue  # the library takes every new time for a new sample
            self._feed[at] = abi.CardFeed(own.own_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC) - ago)

    def _rates(self, now: float) -> list[int]:
        if self._policy is abi.Policy.FIXED:
            return [0] * len(self._feed)
        if now >= self._neighbours_due:
            self._neighbours_due = now + NEIGHBOURS_SECONDS
            self._neighbours = neighbours(self._folder, self._entry)
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        others: dict[str, list[Tenant]] = {part.uuid: [] for part in self._entry.slices}
        for entry, folder in self._neighbours:
            wanted = {book.uuid: book.wanted_ns for book in _books(folder)}
            for part in entry.slices:
                if part.uuid in others:
                    active = clock - wanted.get(uuid_of(part.uuid), 0) < ACTIVE_NS
                    others[part.uuid].append(_tenant(part.core, entry.policy, online=entry.online, active=active))
        return [
            granted(_tenant(part.core, self._entry.policy, online=self._entry.online, active=True), others[part.uuid])
            for part in self._entry.slices
        ]


def uuid_of(card: str) -> UUID:
    """`GPU-...` or `MIG-...` as the 16 bytes that CUDA tells."""
    return UUID(card.removeprefix("GPU-").removeprefix("MIG-"))


def neighbours(folder: Path, entry: Hold) -> tuple[tuple[Hold, Path], ...]:
    """Who else holds something of the same cards, as the book beside us tells; the unreadable are left out."""
    cards, found = {part.uuid for part in entry.slices}, []
    for path in folder.parent.iterdir():
        if path.name.startswith(".") or path == folder:
            continue
        try:
            other = load(read_small(path / "hold.json"))
        except (OSError, UnicodeDecodeError, HoldError):
            continue
        if other.boot == entry.boot and cards & {part.uuid for part in other.slices}:
            found.append((other, path))
    return tuple(found)


def _tenant(core: int, policy: str, *, online: bool, active: bool) -> Tenant:
    return Tenant(core * (abi.PPM // 100), abi.Policy[policy.upper()], online, active)


def _books(folder: Path) -> tuple[abi.CardBook, ...]:
    """The cards as the container keeps them; empty where that cannot be read (a claim, not a measurement)."""
    try:
        return files.read_region(folder / REGION).cards
    except (OSError, abi.AbiError):
        return ()
