# SPDX-License-Identifier: Apache-2.0
"""
GPU time that belongs to one tenant of a card, from NVML's utilisation samples.

Pure. Drivers differ in what a sample says. Some give each process a sample of its own for every period (`OwnTime`).
Others give one sample a period, with the busy time of the whole card, under the name of one of the processes that
computed; which one does not follow how much each of them did. Seen with driver 580 on H200: processes that take half
the card each have 99 % every other period, and one with 32 % of the card was named in 33 of 54 (docs/isolation.md).
There only the card's busy time can be believed, and it is divided by what the tenants' own events say
(`SharedSamples`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.host.machine import Sample

FULL: Final = 100
COARSEST: Final = 5
Tenant = TypeVar("Tenant")
NEARLY: Final = 1.5
"""A gap of more periods than this between two samples is not covered by the second."""
RECENT: Final = 25
"""So many periods are remembered to tell whether samples tell processes apart."""
SAME_MICROS: Final = 50_000
"""Samples closer than this are of one period: NVML's shortest is 167 ms."""
WINDOW_MICROS: Final = 1_000_000
"""Busy time is divided over so long at least: ledgers are read ten times a second."""
DIVIDED_ROUNDING_PPM: Final = 30_000
"""Error of a division over one window: a ledger books a launch when it ends."""
LONGEST_HOLE_MICROS: Final = 2_000_000
"""After a longer time without samples another window begins."""
TOLERANCE: Final = 0.02
"""Part of a window by which events may exceed the busy time without anybody having waited."""
_READINGS: Final = 100
_NODES: Final = (0.0198551, 0.1016668, 0.2372338, 0.4082827, 0.5917173, 0.7627662, 0.8983332, 0.9801449)
_WEIGHTS: Final = (0.0506143, 0.1111905, 0.1568533, 0.1813419, 0.1813419, 0.1568533, 0.1111905, 0.0506143)
"""Gauss-Legendre quadrature over 0 to 1 with eight points (Abramowitz and Stegun, table 25.4)."""


@dataclass(slots=True)
class OwnTime:
    """
    GPU time of one command on one card, from samples of a percent each.

    A sample speaks for one period. What lies between periods was not seen: the process did nothing, or
    its sample was lost. Nobody documents the period or the rounding, so both are learnt from the samples.
    """

    own_ns: int = 0
    at: int = 0
    """Moment of the latest sample of ours, microseconds; 0: none yet."""
    since: int = 0
    """Moment of the latest sample of anybody."""
    seen_ns: int = 0
    """Time that samples of ours spoke for."""
    step: int = 1
    """Percents come in multiples of this, rounded down."""
    _period: int = 0
    _common: int = 0

    def add(self, samples: Iterable[Sample], ours: frozenset[int]) -> None:
        """Count what is new."""
        moments: dict[int, list[Sample]] = {}
        for sample in samples:
            if sample.micros > self.since:
                moments.setdefault(sample.micros, []).append(sample)
        for micros, together in sorted(moments.items()):
            self._learn(micros, together)
            own = [sample.percent for sample in together if sample.pid in ours]
            if own:
                self._count_in(micros, own)

    def _learn(self, micros: int, together: Sequence[Sample]) -> None:
        if self.since:
            gap = micros - self.since
            self._period = min(self._period or gap, gap)
        self.since = micros
        for sample in together:
            if 0 < sample.percent < FULL:
                self._common = gcd(self._common, sample.percent)
        self.step = max(1, min(self._common, COARSEST))

    def _count_in(self, micros: int, percents: Sequence[int]) -> None:
        before, self.at = self.at, micros
        if not before:
            return  # only a place to count from
        gap = micros - before
        covered = gap if gap <= self._period * NEARLY else self._period
        self.seen_ns += covered * 1000
        # in the middle of what the percent may stand for
        self.own_ns += sum(covered * min(200, 2 * percent + self.step) * 5 for percent in percents)


@dataclass(frozen=True, slots=True)
class Divided:
    """Own time of one tenant over one window."""

    own_ns: int
    covered_ns: int
    """Length of the window."""
    at: int
    """Its end, microseconds on the wall clock."""


@dataclass(slots=True)
class SampleNames:
    """Whose names the samples of one card have."""

    is_apart: bool = False
    """Two processes had a sample of the same moment: each has its own."""
    names: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    """PIDs of the latest samples."""
    _last: tuple[int, int] = (-SAME_MICROS, 0)

    def add(self, samples: Iterable[tuple[int, int]]) -> None:
        """Those that are new: (microseconds, PID)."""
        for micros, pid in sorted(samples):
            before, self._last = self._last, (micros, pid)
            self.names.append(pid)
            self.is_apart = self.is_apart or (pid != before[1] and micros - before[0] < SAME_MICROS)

    @property
    def is_shared(self) -> bool:
        """Whether several processes have been named, and never two at once."""
        return not self.is_apart and len(set(self.names)) > 1


@dataclass(slots=True)
class SharedSamples:
    """One card whose samples may not tell processes apart; see the module."""

    _seen: SampleNames = field(default_factory=SampleNames)
    at: int = 0
    """Moment of the latest sample, microseconds; 0: none yet."""
    counted: int = 0
    """Up to this moment nothing is left to be divided."""
    _period: int = 0
    _busy: list[tuple[int, int, int | None]] = field(default_factory=list)
    """Periods that were not divided yet: begin, end (microseconds), busy nanoseconds (None: without a sample)."""
    _readings: deque[tuple[int, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=_READINGS))

    def see(self, samples: Iterable[Sample]) -> None:
        """What is new; at each moment once."""
        moments: dict[int, dict[int, int]] = {}
        for sample in samples:
            if sample.micros > self.at:
                moments.setdefault(sample.micros, {})[sample.pid] = sample.percent
        self._seen.add((micros, pid) for micros, percents in moments.items() for pid in percents)
        for micros, percents in sorted(moments.items()):
            gap = micros - self.at
            self._period = min(self._period or gap, gap) if self.at else 0
            if self._period:
                covered = gap if gap <= self._period * NEARLY else self._period
                percent = min(2 * sum(percents.values()) + 1, 2 * FULL)
                if gap - covered > LONGEST_HOLE_MICROS:
                    self._busy.clear()
                elif covered < gap:
                    self._note(self.at, micros - covered, None)
                self._note(micros - covered, micros, percent)
            elif self.counted:
                self._note(self.counted, micros, None)
            self.at = micros

    def _note(self, begin: int, end: int, percent: int | None) -> None:
        """A period of which nothing was divided yet; `percent` twice, as samples are rounded down."""
        begin = max(begin, self.counted)
        if begin < end and not self.is_apart:
            self._busy.append((begin, end, None if percent is None else (end - begin) * percent * 5))
            del self._busy[:-_READINGS]

    def start(self, until: int = 0) -> int:
        """
        Divide nothing before this moment, microseconds: it has been counted otherwise. 0: before the latest reading.

        Returns the moment.
        """
        self.counted = until or self._readings[-1][0]
        self._busy = [one for one in self._busy if one[0] >= self.counted]
        return self.counted

    @property
    def is_apart(self) -> bool:
        """Whether each process has samples of its own."""
        return self._seen.is_apart

    def is_shared(self, ours: frozenset[int], tenant: str) -> bool:
        """
        Whether samples name one process for several, of which some are not ours.

        Until two were named at once nobody knows it of samples in our name, while others compute too.
        """
        if self.is_apart:
            return False
        return not ours.issuperset(self._seen.names) or self._others_ran(tenant)

    def _others_ran(self, tenant: str) -> bool:
        """Whether ledgers of other tenants have grown of late."""
        if not self._readings:
            return False
        (_, first), (_, last) = self._readings[0], self._readings[-1]
        return any(last[name] > first[name] for name in first.keys() & last.keys() - {tenant})

    def read(self, micros: int, events: Mapping[str, int]) -> None:
        """Event time of each tenant at that moment, as its ledger counts it; whoever is new has done nothing before."""
        if self._readings:
            for name in events.keys() - self._readings[-1][1].keys():
                for _, before in self._readings:
                    before.setdefault(name, events[name])
        self._readings.append((micros, dict(events)))

    def divide(self, tenant: str) -> Divided | None:
        """After a reading: the tenant's part of a window that has ended; None: none has, or its ledger is not known."""
        since, until = self._readings[0][0], self._readings[-1][0]
        early = self.counted and not self._period and until - self.counted >= WINDOW_MICROS // 2
        if early:
            self._note(self._busy[-1][1] if self._busy else self.counted, until, None)
        known = [one for one in self._busy if since <= one[0]]
        ended = [one for one in known if one[1] <= until]
        covered = sum(end - begin for begin, end, _ in ended)
        if not ended or (covered < WINDOW_MICROS and not early):
            self._busy = known
            return None
        self._busy = [one for one in known if one[1] > until]
        events, busy = self._count(ended)
        waits = self._estimate_waits(ended[0][0], ended[-1][1])
        self.counted = ended[-1][1]
        own = take_waits(events, busy, covered * 1000, waits).get(tenant)
        return Divided(int(own), covered * 1000, ended[-1][1]) if own is not None else None

    def _count(self, periods: Iterable[tuple[int, int, int | None]]) -> tuple[dict[str, int], int]:
        """Events by tenant and busy time of all periods; one without a sample is busy as the others, of its events."""
        events: dict[str, int] = {}
        busy = bound = unknown = 0
        for begin, end, sampled in periods:
            before, after = self._events(begin), self._events(end)
            ran = {name: max(0, after[name] - before[name]) for name in before.keys() & after.keys()}
            for name, event in ran.items():
                events[name] = events.get(name, 0) + event
            span = (end - begin) * 1000
            most = int(span * (1.0 - prod(1.0 - min(1.0, event / span) for event in ran.values())))
            if sampled is None:
                unknown += most
            else:
                busy, bound = busy + sampled, bound + most
        return events, busy + (unknown * busy // bound if bound else unknown)

    def _estimate_waits(self, begin: int, end: int) -> dict[str, float]:
        """
        `estimate_waits` over the time between two readings each, summed: who came later was waited for by nobody.

        A ledger books a launch when it ends: what cannot have run since the reading before ran before that.
        """
        waits, over = dict[str, float](), dict[str, float]()
        for (now, last), (was, first) in pairwise(reversed(self._readings)):
            if now <= begin or was >= end or now <= was:
                continue
            span = (now - was) * 1000
            ran = {name: last[name] - first[name] + over.get(name, 0.0) for name in first.keys() & last.keys()}
            over = {name: max(0.0, event - span) for name, event in ran.items()}
            for name, wait in estimate_waits(ran, span).items():
                waits[name] = waits.get(name, 0.0) + wait * span
        return waits

    def _events(self, micros: int) -> dict[str, int]:
        """At that moment, between two readings in proportion."""
        before = after = self._readings[0]
        for after in self._readings:
            if after[0] >= micros:
                break
            before = after
        (begin, first), (end, last) = before, after
        part = (micros - begin) / (end - begin) if end > begin else 0.0
        return {name: int(first[name] + (last[name] - first[name]) * part) for name in first.keys() & last.keys()}


def divide(events: Mapping[Tenant, int], busy: int, span: int) -> dict[Tenant, float]:
    """Own time by tenant, of a card that was busy for so long, whose tenants had work all over the span."""
    return take_waits(events, busy, span, estimate_waits(events, span))


def take_waits(
    events: Mapping[Tenant, int], busy: int, span: int, waits: Mapping[Tenant, float]
) -> dict[Tenant, float]:
    """
    Events without the time that was waited, which is by how much all events exceed the busy time.

    While several have work the card takes turns between them, and the events of each count the turns of the others.
    `waits` says in which proportion they have waited.
    """
    excess = sum(events.values()) - busy
    if excess <= span * TOLERANCE:
        return {name: float(event) for name, event in events.items()}
    total = sum(waits.get(name, 0.0) for name in events) or 1.0
    return {
        name: max(event - excess * waits.get(name, 0.0) / total, event / len(events)) for name, event in events.items()
    }


def estimate_waits(events: Mapping[Tenant, float], span: int) -> dict[Tenant, float]:
    """
    What part of the span each has waited, in proportion to the others.

    With two tenants each has waited half of it, whatever they did. With more it is divided as if they had computed
    independently of each other: of k with work each waits (k - 1)/k of the time, and the mean of 1/(1 + K) over the K
    others is the integral of the product of 1 - a + a x over x from 0 to 1, a being the part of the time for which
    another one has work.
    """
    active = {name: min(1.0, max(0.0, event / span)) for name, event in events.items()}
    turns = dict.fromkeys(active, 0.0)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        factors = {name: 1.0 - part + part * node for name, part in active.items()}
        whole = weight * prod(factors.values())
        for name, factor in factors.items():
            turns[name] += whole / factor
    return {name: part * (1.0 - turns[name]) for name, part in active.items()}
