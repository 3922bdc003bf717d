# SPDX-License-Identifier: Apache-2.0
"""
A fleet walked forward: each day's amounts follow from what was measured before it.

At each midnight a life in progress gets what the adviser says of it, a new life what it says of the next. A life that
needs more than it has is denied memory and starts again with its first promise. Judged by container-days.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from autoscaler.core.rightsizing.histogram import DAY, Histogram
from autoscaler.core.rightsizing.history import ProgramHistory, UsageReading
from autoscaler.core.rightsizing.recommend import Abstention, Bounds, EvidencePolicy, recommend, recommend_running
from benchmarks.rightsizing.fleet import DAYS, STEPS
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.rightsizing.fleet import Program, TracedLife

STEP_SECONDS: Final = DAY / STEPS


class Adviser(Protocol):
    """Of one program."""

    def observe(self, new: UsageReading) -> None:
        """One measurement."""

    def end(self, life: str) -> None:
        """A life is over."""

    def advise(self, life: str | None, now: float, promised: int) -> int | str:
        """Bytes for a life in progress, or for the next (None); a word where there is no recommendation."""


class OurAdviser:
    """The autoscaler's."""

    def __init__(self, policy: EvidencePolicy | None = None) -> None:
        self._policy = policy or EvidencePolicy()
        self.history = ProgramHistory()

    def observe(self, new: UsageReading) -> None:
        """Into the history."""
        self.history = self.history.record(new)

    def end(self, life: str) -> None:
        """Into the ended lives."""
        self.history = self.history.end(life)

    def advise(self, life: str | None, now: float, promised: int) -> int | str:
        """As `recommend` and `recommend_running` say."""
        if life is None:
            found = recommend(self.history, now, self._policy, Bounds(promised))
        elif life in self.history.running:
            found = recommend_running(self.history, self.history.running[life], now, self._policy, Bounds(promised))
        else:
            return "few_lives"
        return found.why.value if isinstance(found, Abstention) else found.memory_bytes


class VpaAdviser:
    """
    VPA's memory estimate on the same measurements.

    Daily peaks in a histogram with a half-life of 24 h, 90th percentile, 15 % margin; after an OOM the used memory
    times 1.2 (at least 100 MiB more) is a sample. Source: vertical-pod-autoscaler/pkg/recommender/logic/recommender.go,
    model/aggregations_config.go, model/container.go.
    """

    def __init__(self) -> None:
        self._peaks = Histogram(1e7)
        self._days: dict[str, tuple[int, int]] = {}
        self._denied: dict[str, int] = {}

    def observe(self, new: UsageReading) -> None:
        """The day's peak so far; finished days become samples."""
        day, (last, peak) = int(new.at // DAY), self._days.get(new.life, (int(new.at // DAY), 0))
        use = max(new.used_bytes, new.peak_bytes or 0) if new.life not in self._days else new.used_bytes
        if day != last:
            self._peaks, peak = self._peaks.add(peak, 1.0, new.at), 0
        if new.denied > self._denied.get(new.life, 0):
            self._denied[new.life] = new.denied
            bumped = max(new.promised_bytes * 1.2, new.promised_bytes + 100 * (1 << 20))
            self._peaks = self._peaks.add(bumped, 1.0, new.at)
        self._days[new.life] = day, max(peak, use)

    def end(self, life: str) -> None:
        """The last day's peak counts too."""
        if life in self._days:
            day, peak = self._days.pop(life)
            self._peaks = self._peaks.add(peak, 1.0, day * DAY)

    def advise(self, life: str | None, now: float, promised: int) -> int | str:  # noqa: ARG002 (the same for all)
        """From the first whole day on."""
        found = self._peaks.quantile(0.9)
        return "few_lives" if found is None else min(promised, _units(found * 1.15))


class PeakAdviser:
    """The largest peak that was seen, and 15 %."""

    def __init__(self) -> None:
        self._peak, self._first = 0, 0.0

    def observe(self, new: UsageReading) -> None:
        """The largest."""
        self._first = self._first or new.at
        self._peak = max(self._peak, new.used_bytes, new.peak_bytes or 0, new.promised_bytes * (new.denied > 0))

    def end(self, life: str) -> None:
        """Nothing."""

    def advise(self, life: str | None, now: float, promised: int) -> int | str:  # noqa: ARG002 (the same for all)
        """After a day."""
        return "few_lives" if now - self._first < DAY else min(promised, _units(self._peak * 1.15))


def _units(amount: float) -> int:
    return int(-(-amount // GIB) * GIB)


@dataclass(slots=True)
class Score:
    """Of one adviser on one fleet."""

    days: int = 0
    """Container-days of programs that are not greedy."""
    advised: int = 0
    """Of those, with a recommendation."""
    new_ooms: int = 0
    """Container-days with an OOM that the first promise would not have had."""
    all_days: int = 0
    greedy_days: int = 0
    greedy_abstained: int = 0
    waste_before: list[float] = field(default_factory=list)
    """Promise less the 99th percentile of use, in GiB, by container-day; all programs that are not greedy."""
    waste_after: list[float] = field(default_factory=list)
    programs: Counter[str] = field(default_factory=Counter)
    """Programs that are not greedy by the last answer: advised, or why not."""
    above: int = 0
    """Recommendations above the promise or below nothing: must be 0."""
    ooms_by_kind: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)

    @property
    def oom_ratio(self) -> float:
        """Of all container-days."""
        return self.new_ooms / max(1, self.all_days)

    @property
    def cut(self) -> float:
        """By how much the median waste fell."""
        before = median(self.waste_before) if self.waste_before else 0.0
        return 1 - median(self.waste_after) / before if before else 0.0

    @property
    def advised_ratio(self) -> float:
        """Of the container-days that are not greedy."""
        return self.advised / max(1, self.days)

    @property
    def greedy_ratio(self) -> float:
        """Of container-days of greedy programs, those without a recommendation."""
        return self.greedy_abstained / max(1, self.greedy_days)

    @property
    def others_abstained(self) -> float:
        """Of programs that are not greedy, those without a recommendation for most of what they ran after learning."""
        total = sum(self.programs.values())
        return 1 - self.programs["advised"] / total if total else 0.0


def walk(fleet: Iterable[Program], make: Callable[[], Adviser]) -> Score:
    """Every program by an adviser of its own for each revision; deterministic."""
    score = Score()
    for program in fleet:
        _Walk(program, make, score).run()
    return score


class _Walk:
    """One program."""

    def __init__(self, program: Program, make: Callable[[], Adviser], score: Score) -> None:
        self._program, self._make, self._score = program, make, score
        self._advisers: dict[str, Adviser] = defaultdict(make)
        self._counts: Counter[str] = Counter()

    def run(self) -> None:
        """Step by step over all replicas, since they share what is learnt."""
        replicas = [
            _Replica(self, number, lives, int(promise * GIB))
            for number, (lives, promise) in enumerate(zip(self._program.replicas, self._program.promises, strict=True))
        ]
        for day in range(DAYS):
            for replica in replicas:
                replica.morning(day)
            for step in range(day * STEPS, (day + 1) * STEPS):
                for replica in replicas:
                    replica.step(step)
            for replica in replicas:
                replica.evening(day)
        if not self._program.greedy:
            late = self._counts
            word = max(late, key=late.__getitem__) if late else "none"
            self._score.programs[word] += 1

    @property
    def program(self) -> Program:
        return self._program

    @property
    def score(self) -> Score:
        return self._score

    def adviser(self, revision: str) -> Adviser:
        return self._advisers[revision]

    def count(self, word: str, day: int) -> None:
        """Which answer a container-day had, after the first third of the time."""
        if day >= DAYS // 3:
            self._counts[word] += 1


class _Replica:
    """One replica: its lives one after another, and what it has at the moment."""

    def __init__(self, walk_of: _Walk, number: int, lives: tuple[TracedLife, ...], promise: int) -> None:
        self._walk, self._number, self._lives, self._promise = walk_of, number, lives, promise
        self._now: TracedLife | None = None
        self._life, self._count, self._given, self._started, self._high, self._seconds = "", 0, promise, 0.0, 0, 0.0
        self._word = ""
        self._waste: list[tuple[float, float]] = []
        self._use: list[float] = []
        self._oom = self._old_oom = False

    def morning(self, day: int) -> None:
        """What a life in progress gets for this day."""
        self._waste, self._use, self._oom, self._old_oom = [], [], False, False
        if self._now is not None:
            self._take(self._walk.adviser(self._now.revision).advise(self._life, day * DAY, self._promise))

    def _take(self, answer: int | str) -> None:
        if isinstance(answer, str):
            self._given, self._word = self._promise, answer
            return
        self._word, self._given = "advised", answer
        self._walk.score.above += not 0 < answer <= self._promise

    def _begin(self, life: TracedLife, at: float, *, whole: bool) -> None:
        self._now, self._count = life, self._count + 1
        self._life, self._started, self._high, self._seconds = f"{self._number}/{self._count}", at, 0, 0.0
        if whole:
            self._given, self._word = self._promise, self._word or "advised"
        else:
            self._take(self._walk.adviser(life.revision).advise(None, at, self._promise))

    def step(self, step: int) -> None:
        """One step."""
        if self._lives and self._lives[0].start == step:
            first, *rest = self._lives
            self._lives = tuple(rest)
            self._begin(first, step * STEP_SECONDS, whole=False)
        if self._now is None:
            return
        life, at = self._now, (step + 1) * STEP_SECONDS
        number = step - life.start
        scale = self._given if self._walk.program.greedy else GIB
        need, use = int(life.peak[number] * scale), int(life.used[number] * scale)
        adviser = self._walk.adviser(life.revision)
        self._old_oom |= need > self._promise
        denied = need > self._given
        self._seconds += float(life.busy[number]) * STEP_SECONDS
        self._high = max(self._high, min(need, self._given))
        self._use.append(min(use, self._given) / GIB)
        self._waste.append((self._promise / GIB, self._given / GIB))
        adviser.observe(
            UsageReading(
                self._life,
                at,
                self._started,
                self._given,
                min(use, self._given),
                self._high,
                int(denied),
                self._seconds,
                self._walk.program.finite,
            )
        )
        if denied:
            self._oom |= need <= self._promise
            adviser.end(self._life)
            self._begin(life, at, whole=True)
        if number + 1 == len(life.peak):
            adviser.end(self._life)
            self._now = None

    def evening(self, day: int) -> None:
        """The container-day is judged."""
        if not self._use:
            return
        score, program = self._walk.score, self._walk.program
        score.all_days += 1
        score.new_ooms += self._oom
        score.ooms_by_kind[program.kind] += self._oom
        advised = self._word == "advised"
        if program.greedy:
            score.greedy_days += 1
            score.greedy_abstained += not advised
            return
        score.days += 1
        score.advised += advised
        score.why[f"{program.kind}: {self._word}"] += 1
        self._walk.count(self._word, day)
        high = float(np.percentile(self._use, 99))
        before, after = np.array(self._waste).mean(axis=0)
        score.waste_before.append(max(0.0, float(before) - high))
        score.waste_after.append(max(0.0, float(after) - high))
