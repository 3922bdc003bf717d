# SPDX-License-Identifier: Apache-2.0
"""
What a program should be promised, by what its lives have shown, or why that cannot be said.

Decides for the next life (`recommend`), and for one that is running (`recommend_running`), which must have shown that
it is like what is known. Abstains where a program takes whatever it gets, where too little is known, and after a resize
was too small. Pure.

The amount is the largest peak known, and head-room that follows from the peaks themselves: as much again as the largest
is above the median (tails), and as it grew in the later half of what is known (growth), then a fixed part. VPA takes
the 90th percentile of daily peaks and 15 %: of ten days one would be above it, and a denied allocation is not CPU that
comes later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.histogram import DAY
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.core.rightsizing.history import Life, ProgramHistory

HOUR: Final = 3600.0
PREALLOCATED: Final = (0.7, 0.75, 0.8, 0.85)
"""
Fractions of what a program sees that frameworks are usually told to take, below `_HIGH_RATIO`.

Sources: JAX, "GPU memory allocation" (75 %); vLLM and SGLang, `gpu_memory_utilization`, `mem_fraction_static`.
"""
_FRACTION_TOLERANCE: Final = 0.01
_HIGH_RATIO: Final = 0.87
"""Constant use of so much: vLLM's 90 % with what it leaves unused. Nothing would come back either."""
_FLAT_RATIO: Final = 0.9
"""Part of a life with constant use from which on the life is constant."""
_SAME_RATIO: Final = 0.03
_OTHER_PROMISE: Final = 1.1
_CORE_STEP: Final = 5
_TOGETHER: Final = 300.0


class Abstained(StrEnum):
    """Why there is no recommendation."""

    FILLS_PROMISE = "fills_promise"
    """The program takes what it gets: its use is no need."""
    FEW_LIVES = "few_lives"
    """Too few lives, or too short ones."""
    TORN_HISTORY = "torn_history"
    """Much of what happened was not measured."""
    RECENTLY_DENIED = "recently_denied"
    """A request was denied not long ago: what is needed is more than what was seen."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """No recommendation."""

    why: Abstained
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class EvidencePolicy:
    """What is asked of the evidence, and how much is added."""

    headroom_ratio: float = 0.15
    """Added to everything."""
    tail_ratio: float = 1.0
    """Of the distance from the median of peaks to the largest, added to the largest."""
    growth_ratio: float = 1.0
    """Of the growth of the largest peak in the later half, added to it."""
    few_ratio: float = 0.6
    """Divided by the number of peaks and added to the head-room: what few of them cannot show."""
    min_lives: int = 4
    """Lives that began at different times, before a new life is judged, or one of a program that runs to completion."""
    min_days: int = 3
    """Days with work, over all lives, before a life in progress is judged."""
    min_own_days: int = 5
    """Of a life in progress, before its own level counts and not that of all lives."""
    min_life_seconds: float = DAY
    """Age of a life in progress before it is judged, and before it counts for others."""
    min_coverage: float = 0.7
    hold_seconds: float = 7 * DAY
    """After a denied request nothing is made smaller for so long."""
    compute_quantile: float = 0.95
    unit_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a recommendation may not leave, in bytes of a card; set by the workload's owner and by quotas."""

    promised_bytes: int
    """What the pod asked for."""
    least_bytes: int = 0
    most_bytes: int | None = None
    """None: what is promised."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What one card should be promised to one container."""

    memory_bytes: int
    promised_bytes: int
    peak_bytes: int
    """The largest that was seen."""
    peaks: int
    """Number of peaks that it rests on."""
    core: int | None = None
    """Percent of a card's compute; None: not known."""
    reason: str = field(default="", compare=False)


def recommend(
    history: ProgramHistory, now: float, policy: EvidencePolicy, bounds: Bounds
) -> Recommendation | Abstention:
    """For a life that begins now: by ended lives, and by others in progress that are old enough."""
    abstention = _abstain(history, now, policy)
    if abstention is not None:
        return abstention
    lives = [life for life in history.ended if _counts(life, policy, finite=history.finite)]
    if not history.finite:
        lives += [life for life in history.running.values() if _counts(life, policy, finite=False)]
    # pods that began together, of one rollout or one distributed run, are evidence of one beginning
    starts = len({life.started // _TOGETHER for life in lives})
    if starts < policy.min_lives:
        found = f"{starts} of {policy.min_lives} starts"
        return Abstention(Abstained.FEW_LIVES, f"{found} are known that show what a new one needs")
    return _size(history, lives, policy, bounds)


def recommend_running(
    history: ProgramHistory, life: Life, now: float, policy: EvidencePolicy, bounds: Bounds
) -> Recommendation | Abstention:
    """For a life in progress; `bounds`: of its pod as it was created, which is what it gets back in the worst case."""
    if history.finite:
        # its peak may come at its end: only what earlier lives showed counts
        found = recommend(history, now, policy, bounds)
        if isinstance(found, Recommendation) and life.peak_bytes > found.peak_bytes:
            return Abstention(Abstained.FEW_LIVES, "it uses more than any earlier life")
        return found
    abstention = _abstain(history, now, policy)
    if abstention is not None:
        return abstention
    if life.age < policy.min_life_seconds:
        return Abstention(Abstained.FEW_LIVES, f"it has run for {life.age / HOUR:.0f} h")
    if life.coverage < policy.min_coverage:
        return Abstention(Abstained.TORN_HISTORY, f"{life.coverage:.0%} of its time was measured")
    lives = [other for other in history.lives() if _counts(other, policy, finite=False) or other is life]
    if not life.days:
        return Abstention(Abstained.FEW_LIVES, "it has had no day with work yet")
    days = sum(len(other.days) for other in lives)
    if days < policy.min_days:
        return Abstention(Abstained.FEW_LIVES, f"{days} of {policy.min_days} days with work are measured")
    return _size(history, lives, policy, bounds, own=life)


def _abstain(history: ProgramHistory, now: float, policy: EvidencePolicy) -> Abstention | None:
    if history.denied_at and now - history.denied_at < policy.hold_seconds:
        hours = (now - history.denied_at) / HOUR
        return Abstention(Abstained.RECENTLY_DENIED, f"a request for memory was denied {hours:.0f} h ago")
    lives = [life for life in history.lives() if life.observed >= min(HOUR, policy.min_life_seconds)]
    filled = explain_filling(lives)
    if filled:
        return Abstention(Abstained.FILLS_PROMISE, filled)
    ended = [life for life in history.ended if life.age >= HOUR]
    if history.finite and ended and median(life.coverage for life in ended) < policy.min_coverage:
        return Abstention(Abstained.TORN_HISTORY, "less than most of its lives was measured")
    return None


def explain_filling(lives: Sequence[Life]) -> str:
    """Why a program takes whatever it gets; empty: nothing shows that it does."""
    if not lives:
        return ""
    full = [life for life in lives if life.full >= 0.5 * life.observed]
    if 2 * len(full) >= len(lives):
        return f"{len(full)} of {len(lives)} lives filled their promise"
    flat = [life for life in lives if _is_flat(life)]
    if 2 * len(flat) < len(lives):
        return ""
    ratio = median(life.ratio for life in flat)
    same = all(abs(life.ratio - ratio) <= _SAME_RATIO * ratio for life in flat)
    promises = [life.promised_bytes for life in flat]
    if same and max(promises) > _OTHER_PROMISE * min(promises):
        return f"its constant use follows the promise: {ratio:.0%} of each"
    if ratio >= _HIGH_RATIO:
        return f"its use is constant at {ratio:.0%} of the promise"
    if same and any(abs(ratio - usual) <= _FRACTION_TOLERANCE for usual in PREALLOCATED):
        return f"its use is constant at {ratio:.0%} of the promise, a usual fraction to preallocate"
    return ""


def _is_flat(life: Life) -> bool:
    return life.flat >= _FLAT_RATIO * life.observed and life.grown - life.started <= max(HOUR, 0.05 * life.age)


def _counts(life: Life, policy: EvidencePolicy, *, finite: bool) -> bool:
    """Whether a life shows what another needs; of services only those that have seen a day's load."""
    return life.coverage >= policy.min_coverage and (
        finite or (bool(life.days) and life.age >= policy.min_life_seconds)
    )


def _size(
    history: ProgramHistory,
    lives: Sequence[Life],
    policy: EvidencePolicy,
    bounds: Bounds,
    own: Life | None = None,
) -> Recommendation:
    peaks = _peaks(lives, finite=history.finite)
    need = _need(peaks, policy)
    if own is not None and len(own.days) >= policy.min_own_days:
        # one replica's level may be another's by its load or its model; how far a peak rises above it may not
        alike = [other for other in lives if len(other.days) >= policy.min_days]
        rise = max(max(other.days) / median(other.days) for other in alike)
        need = min(
            need, max(_need(_peaks([own], finite=False), policy), median(own.days) * rise * _head(peaks, policy))
        )
    need = max(need, history.needed_bytes * _head(peaks, policy))
    most = bounds.promised_bytes if bounds.most_bytes is None else bounds.most_bytes
    memory = min(max(math.ceil(need / policy.unit_bytes) * policy.unit_bytes, bounds.least_bytes), most)
    used = history.compute.quantile(policy.compute_quantile)
    core = None if used is None else min(100, math.ceil(used * 115 / _CORE_STEP) * _CORE_STEP)
    largest = max(peaks)
    words = f"the largest of {len(peaks)} peaks is {largest / GIB:.1f} GiB, their median {median(peaks) / GIB:.1f} GiB"
    return Recommendation(memory, bounds.promised_bytes, largest, len(peaks), core, words)


def _need(peaks: Sequence[int], policy: EvidencePolicy) -> float:
    """By peaks in the order of their time."""
    largest, before = max(peaks), max(peaks[: (len(peaks) + 1) // 2])
    tail, growth = largest - median(peaks), largest - before
    return (largest + max(policy.tail_ratio * tail, policy.growth_ratio * growth)) * _head(peaks, policy)


def _head(peaks: Sequence[int], policy: EvidencePolicy) -> float:
    return 1 + policy.headroom_ratio + policy.few_ratio / len(peaks)


def _peaks(lives: Sequence[Life], *, finite: bool) -> list[int]:
    """What the amount rests on, by time: peaks of lives, or of days of services."""
    if finite:
        return [life.peak_bytes for life in sorted(lives, key=lambda life: life.seen)]
    found = [
        (life.seen - (len(life.days) - number) * DAY, peak) for life in lives for number, peak in enumerate(life.days)
    ]
    found += [(life.seen, max(life.peak_bytes, life.today)) for life in lives]
    return [peak for _, peak in sorted(found)]
