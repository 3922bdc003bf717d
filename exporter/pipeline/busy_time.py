# SPDX-License-Identifier: Apache-2.0
"""
For how long each process computed on a card between two looks, from the driver's samples.

Pure. NVML samples a card a few times a second and tells, for each process that computed since a given
time, one sample: its newest. Samples come late, some not at all; processes that did nothing have
none; now and then there is garbage. So samples are collected several times a cycle and weighted by the
time that they speak for: one period each. Time before that, of which no sample was seen, counts only
as far as the card's own load leaves it unexplained: a lost sample is made good, a pause is not.
Whether a process exists is not decided here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from isolation.host.core.own_time import SampleNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PERIOD_MICROS: Final = 166_667
"""NVML samples six times a second, slow products once: nvmlUtilization_t. What the card shows overrides it."""
LOOK_BACK_MICROS: Final = 1_000_000
"""A first window goes back so far."""
LATE_MICROS: Final = 500_000
"""No sample is waited for longer than this."""
PERCENT: Final = 100
SECOND_MICROS: Final = 1_000_000
_KEEP_MICROS: Final = 10_000_000
_FORGET_MICROS: Final = 600_000_000
"""The total of a process that has done nothing for so long begins at 0 again."""
_FUTURE_MICROS: Final = 1_000_000
_LOST: Final = 6.5
"""A gap of so many periods may be lost samples; a longer one is a pause."""
_MICROS: Final = attrgetter("micros")
_ENGINES: Final = (attrgetter("copy"), attrgetter("encoder"), attrgetter("decoder"))


@dataclass(frozen=True, slots=True)
class BusySample:
    """One process, over the sample period that ended at `micros`."""

    pid: int
    micros: int
    """Microseconds since the epoch."""
    percent: int
    copy: int = 0
    """Percent of the time in which memory was read or written."""
    encoder: int = 0
    decoder: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The whole card, over the sample period that ended at `micros`."""

    micros: int
    percent: int


@dataclass(frozen=True, slots=True)
class Busy:
    """One window."""

    ratios: Mapping[int, float]
    """By pid, 0..1; who is missing did nothing."""
    load: float | None = None
    """Of the card, 0..1; None: the driver keeps no samples of it."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Compute by pid since the meter began; it only grows, as long as the process is not forgotten."""
    card_seconds: float | None = None
    """The same of the card: time in which a kernel ran; None as `load`, until the driver tells."""
    copy: Mapping[int, float] = field(default_factory=dict)
    encoder: Mapping[int, float] = field(default_factory=dict)
    decoder: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Period:
    """One sample period of the card, and how much of it samples of processes explain."""

    micros: int
    percent: int
    unexplained: float


@dataclass(frozen=True, slots=True)
class _Share:
    """A sample with the time before it of which nothing else is known, in microseconds."""

    sample: BusySample
    gap: int
    """Since the one before of this process."""
    polled: int
    """Since the driver was asked before."""


@dataclass(slots=True)
class BusyMeter:
    """The samples of one card from one look to the next."""

    since: int
    """What the driver is to be asked from, in microseconds: the newest sample of anybody."""
    _end: int = 0
    _begin: int = 0
    _polled: int = 0
    _period: int = PERIOD_MICROS
    _seen: dict[int, int] = field(default_factory=dict)
    _names: SampleNames = field(default_factory=SampleNames)
    _shares: list[_Share] = field(default_factory=list)
    _history: list[_Period] = field(default_factory=list)
    _last: Busy = field(default_factory=lambda: Busy({}))
    _seconds: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Total by pid, and when it last grew."""
    _card_seconds: float | None = None

    def __post_init__(self) -> None:
        """Begin where the first question begins."""
        self._end = self._polled = self._begin = self.since

    def add(self, samples: Iterable[BusySample], now: int) -> None:
        """Take what the driver reported at `now` of the time after `since`."""
        if now - self._polled > _KEEP_MICROS:  # what was seen before says nothing of now
            self._restart(now - LOOK_BACK_MICROS)
        polled, self._polled = now - self._polled, now
        asked = newest = self.since
        found = []
        for sample in sorted(samples, key=lambda one: (one.micros, one.pid)):
            before = self._seen.get(sample.pid, 0)
            if _sane(sample, now) and sample.micros > max(asked, before):
                self._shares.append(_Share(sample, sample.micros - before, polled))
                found.append((sample.micros, sample.pid))
                self._seen[sample.pid] = newest = sample.micros
        self._names.add(found)
        self.since = newest

    @property
    def is_shared(self) -> bool:
        """Whether samples have the busy time of the whole card, under the name of any process that computed."""
        return self._names.is_shared

    @property
    def loads_since(self) -> int:
        """The same for the card's own samples; 0 at first: their rhythm is learned from all there are."""
        return self._history[-1].micros if self._history else 0

    def _reach(self, share: _Share) -> tuple[int, bool]:
        """How far back a sample may speak, and whether the driver was asked too seldom to tell more."""
        if share.polled > 2 * self._period:
            return min(share.gap, share.polled), True
        return share.gap if share.gap <= _LOST * self._period else self._period, False

    def take(self, loads: Iterable[Load], now: int) -> Busy:
        """The window since the last one; a window shorter than a sample period repeats the last figures."""
        if now < self._end - _FUTURE_MICROS:
            self._restart(now)
        fresh = self._add_loads(loads, now)
        stamps = (*(period.micros for period in fresh), *(share.sample.micros for share in self._shares))
        newest = min(now, max((now - LATE_MICROS, *stamps)))
        if 2 * (newest - self._end) < self._period:
            return replace(self._last, card_seconds=self._card_seconds)
        width = newest - self._end
        spent = self._spent()
        for pid, micros in spent.items():
            total, _ = self._seconds.get(pid, (0.0, 0))
            self._seconds[pid] = total + micros / (PERCENT * SECOND_MICROS), now
        self._last = Busy(
            _ratios(spent, width),
            _mean(fresh, self._period),
            {pid: total for pid, (total, _) in self._seconds.items()},
            self._card_seconds,
            *(_ratios(self._spent_by(engine), width) for engine in _ENGINES),
        )
        self._end = newest
        self._shares.clear()
        self._forget(now)
        return self._last

    def _restart(self, now: int) -> None:
        """Begin here: the clock was set back, or nobody looked for long."""
        self.since = self._end = self._polled = now
        for kept in (self._seen, self._shares, self._history):
            kept.clear()

    def _add_loads(self, loads: Iterable[Load], now: int) -> list[_Period]:
        latest = self.loads_since
        sane = (load for load in loads if latest < load.micros <= now + _FUTURE_MICROS and 0 <= load.percent <= PERCENT)
        fresh = [_Period(load.micros, load.percent, load.percent) for load in sorted(sane, key=_MICROS)]
        before = self._history[-1].micros if self._history else None
        self._history += fresh
        gaps = sorted(b.micros - a.micros for a, b in pairwise(self._history))
        if gaps:
            self._period = max(1, gaps[len(gaps) // 2])
        self._add_seconds(fresh, before)
        return [period for period in fresh if period.micros > self._end]

    def _add_seconds(self, fresh: list[_Period], before: int | None) -> None:
        """
        Add up the card's own samples, each for the time since the one before (microseconds; None: it is the first).

        A lost sample leaves a gap that the next one speaks for; a longer gap is a pause, or nobody looked.
        """
        for one in fresh:
            gap = self._period if before is None else one.micros - before
            before = one.micros
            if one.micros > self._begin:
                known = gap if gap <= _LOST * self._period else self._period
                self._card_seconds = (self._card_seconds or 0.0) + one.percent * known / (PERCENT * SECOND_MICROS)

    def _spent(self) -> dict[int, float]:
        """Percent times microseconds of each process. Samples first explain their own periods, then older ones."""
        spent: dict[int, float] = {}
        for share in self._shares:
            sample = share.sample
            spent[sample.pid] = spent.get(sample.pid, 0.0) + sample.percent * min(self._reach(share)[0], self._period)
            for period in self._between(sample.micros - self._period // 2, sample.micros + self._period // 2):
                period.unexplained = max(0.0, period.unexplained - sample.percent)
        for share in self._shares:
            reach, sparse = self._reach(share)
            if reach > self._period:
                spent[share.sample.pid] += self._made_good(share.sample, reach, sparse=sparse)
        return spent

    def _spent_by(self, engine: attrgetter[int]) -> dict[int, float]:
        """The same for what no load of the card tells of: a sample speaks for what it covers."""
        spent: dict[int, float] = {}
        for share in self._shares:
            if percent := min(PERCENT, engine(share.sample)):
                reach, sparse = self._reach(share)
                covered = reach if sparse else min(reach, self._period)
                spent[share.sample.pid] = spent.get(share.sample.pid, 0.0) + percent * covered
        return spent

    def _made_good(self, sample: BusySample, reach: int, *, sparse: bool) -> float:
        """What the sample says of the time before its own period."""
        if not self._history:
            return float(sample.percent * (reach - self._period)) if sparse else 0.0
        half, total = self._period // 2, 0.0
        for period in self._between(sample.micros - reach + half, sample.micros - half):
            credit = min(float(sample.percent), period.unexplained)
            period.unexplained -= credit
            total += credit * self._period
        return total

    def _between(self, begin: int, end: int) -> list[_Period]:
        first = bisect_right(self._history, begin, key=_MICROS)
        return self._history[first : bisect_left(self._history, end, lo=first, key=_MICROS)]

    def _forget(self, now: int) -> None:
        """Keep what a late sample may still speak of."""
        old = now - _KEEP_MICROS
        self._history = [period for period in self._history if period.micros > old]
        self._seen = {pid: micros for pid, micros in self._seen.items() if micros > old}
        self._seconds = {pid: kept for pid, kept in self._seconds.items() if now - kept[1] < _FORGET_MICROS}


def _sane(sample: BusySample, now: int) -> bool:
    """Drivers have reported percents in the millions, and pids without a process."""
    return sample.pid > 0 and 0 <= sample.percent <= PERCENT and sample.micros <= now + _FUTURE_MICROS


def _ratios(spent: Mapping[int, float], width: int) -> dict[int, float]:
    return {pid: min(1.0, micros / (PERCENT * width)) for pid, micros in spent.items() if micros > 0}


def _mean(periods: list[_Period], width: int) -> float | None:
    """Time-weighted; a period is as long as the time since the one before, within reason."""
    if not periods:
        return None
    weights = [width, *(min(b.micros - a.micros, 2 * width) for a, b in pairwise(periods))]
    total = sum(weight * period.percent for weight, period in zip(weights, periods, strict=True))
    return min(1.0, total / (PERCENT * sum(weights)))
