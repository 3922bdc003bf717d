# SPDX-License-Identifier: Apache-2.0
"""
What is known of a program's use of a card: its container lives, and histograms over all of them.

A program is one container of one workload on one card model, in one revision of its template: another image or other
arguments are another program. A life is from a container's start to its end. Decides what a sample changes; what
follows from it is `recommend`'s. Bounded in the number of lives and days. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.histogram import DAY, Histogram
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LIVES: Final = 16
"""Ended lives that are kept of a program, the latest."""
MAX_RUNNING: Final = 64
"""Lives in progress that are followed at once; of more replicas the first are followed."""
MAX_DAYS: Final = 14
"""Daily peaks that are kept of a life: two weeks, since load repeats by the week."""
GROWN_RATIO: Final = 1.02
"""A peak that is larger by this has grown."""
NEAR_RATIO: Final = 0.98
"""Use within this of the peak is constant."""
FULL_RATIO: Final = 0.97
"""Use beyond this of the promise fills it."""
IDLE_RATIO: Final = 0.01
"""Below this use of a card's compute there is no work."""
MIN_WORK: Final = 1800.0
"""Seconds of work that make a day one that shows what is needed."""
LONGEST_GAP: Final = 3600.0
"""Between two samples: what happened in a longer gap is not known."""


@dataclass(frozen=True, slots=True, order=True)
class ProgramKey:
    """Of a history."""

    namespace: str
    owner: str
    """Kind and name of the workload, e.g. Deployment/web."""
    container: str
    model: str
    """Of the card."""
    revision: str = ""
    """Of the pod template, as far as it decides what runs; empty: not known."""


@dataclass(frozen=True, slots=True)
class UsageReading:
    """One measurement of a container on one card."""

    life: str
    """Identity of the life: pod UID, card, start."""
    at: float
    """Seconds since the epoch."""
    started: float
    promised_bytes: int
    used_bytes: int
    peak_bytes: int | None = None
    """Since the life's start, by the isolation library; None: not measured, the samples' maximum counts."""
    denied: int = 0
    """Requests for memory that were denied since the life's start."""
    compute_seconds: float | None = None
    """Compute used since the life's start, in seconds of a whole card."""
    finite: bool = False
    """Whether the program runs to completion (a Job's): only its ended lives show what it needs."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one life has shown; times in seconds since the epoch."""

    started: float
    seen: float
    promised_bytes: int
    peak_bytes: int = 0
    grown: float = 0.0
    """When the peak last grew."""
    denied: int = 0
    used_bytes: int = 0
    compute_seconds: float | None = None
    observed: float = 0.0
    """Seconds between samples that are near enough to each other."""
    flat: float = 0.0
    """Of those, seconds of constant use: near the peak."""
    full: float = 0.0
    """Of those, seconds in which the promise was full."""
    days: tuple[int, ...] = ()
    """Peaks of the latest whole days on which it had work, at most `MAX_DAYS`."""
    day: int = 0
    """Which day of the life this is, from 0."""
    today: int = 0
    """Peak of this day."""
    busy: float = 0.0
    """Seconds of this day in which it had work; all of them where compute is not measured."""

    @property
    def age(self) -> float:
        """Seconds from its start to the last sample."""
        return self.seen - self.started

    @property
    def ratio(self) -> float:
        """Peak to promise."""
        return self.peak_bytes / self.promised_bytes if self.promised_bytes else 0.0

    @property
    def coverage(self) -> float:
        """The observed part of its age."""
        return min(1.0, self.observed / self.age) if self.age > 0 else 1.0

    def follow(self, new: UsageReading) -> Life:
        """With one more measurement; an older one changes nothing."""
        if new.at <= self.seen and self.observed:
            return self
        gap = new.at - self.seen
        near = gap if 0 < gap <= LONGEST_GAP else 0.0
        peak = max(self.peak_bytes, new.used_bytes, new.peak_bytes or 0)
        # a cumulative peak that did not grow says nothing of this day
        use = max(new.used_bytes, peak if peak > self.peak_bytes else 0)
        load = self.load_until(new)
        days, today, busy = self.days, self.today, self.busy + near * (load is None or load >= IDLE_RATIO)
        day = max(self.day, int((new.at - self.started) // DAY))
        if day > self.day:
            # what a program without work uses is not what it needs
            days = (*days, today)[-MAX_DAYS:] if busy >= MIN_WORK else days
            today, busy = 0, 0.0
        today = max(today, use)
        return Life(
            started=self.started,
            seen=new.at,
            promised_bytes=new.promised_bytes,
            peak_bytes=peak,
            grown=new.at if peak > self.peak_bytes * GROWN_RATIO else self.grown,
            denied=max(self.denied, new.denied),
            used_bytes=new.used_bytes,
            compute_seconds=new.compute_seconds,
            observed=self.observed + near,
            flat=self.flat + near * (new.used_bytes >= NEAR_RATIO * peak),
            full=self.full + near * (new.used_bytes >= FULL_RATIO * new.promised_bytes),
            days=days,
            day=day,
            today=today,
            busy=busy,
        )

    def load_until(self, new: UsageReading) -> float | None:
        """Ratio of a card's compute since the last sample; None: not measured."""
        gap = new.at - self.seen
        if self.compute_seconds is None or new.compute_seconds is None or not 0 < gap <= LONGEST_GAP:
            return None
        return min(1.0, max(0.0, (new.compute_seconds - self.compute_seconds) / gap))


def _peaks() -> Histogram:
    return Histogram(float(16 * MIB), half_life=7 * DAY)


def _compute() -> Histogram:
    return Histogram(0.01)


@dataclass(frozen=True, slots=True)
class ProgramHistory:
    """Of one program."""

    peaks: Histogram = field(default_factory=_peaks)
    """Memory peaks of ended lives and of whole days of lives in progress, in bytes."""
    compute: Histogram = field(default_factory=_compute)
    """Ratio of a card's compute while it had work, weighted by seconds."""
    ended: tuple[Life, ...] = ()
    """The latest ended lives, the oldest first."""
    running: Mapping[str, Life] = field(default_factory=dict)
    """By identity."""
    finite: bool = False
    seen: float = 0.0
    """When it was last measured."""
    needed_bytes: int = 0
    """A lower bound of what is needed: more than the promise at which requests were denied."""
    denied_at: float = 0.0
    """When a request was last denied; 0: none was."""

    def record(self, new: UsageReading) -> ProgramHistory:
        """With one more measurement."""
        before = self.running.get(new.life)
        if before is None and len(self.running) >= MAX_RUNNING:
            return self
        life = (before or Life(new.started, new.at, new.promised_bytes)).follow(new)
        peaks, compute, needed, denied_at = self.peaks, self.compute, self.needed_bytes, self.denied_at
        if life.denied > (0 if before is None else before.denied):
            needed, denied_at = max(needed, life.promised_bytes), new.at
        if before is not None:
            if life.days != before.days:
                peaks = peaks.add(life.days[-1], 1.0, new.at)
            load = before.load_until(new)
            if load is not None and load >= IDLE_RATIO:
                compute = compute.add(load, new.at - before.seen, new.at)
        running = {**self.running, new.life: life}
        return ProgramHistory(peaks, compute, self.ended, running, new.finite, new.at, needed, denied_at)

    def end(self, life: str) -> ProgramHistory:
        """A life has ended: the container is gone, or was started again."""
        over = self.running.get(life)
        if over is None:
            return self
        running = {name: other for name, other in self.running.items() if name != life}
        peaks = self.peaks.add(over.peak_bytes, 1.0, over.seen)
        return replace(self, running=running, ended=(*self.ended, over)[-MAX_LIVES:], peaks=peaks)

    def lives(self) -> tuple[Life, ...]:
        """All that are known, the ended ones first."""
        return (*self.ended, *self.running.values())
