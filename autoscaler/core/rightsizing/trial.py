# SPDX-License-Identifier: Apache-2.0
"""
Which running pods are made smaller now, and what becomes of those that were: the trial of each resize.

Decides within a budget by hour and by owner. A pod that was made smaller is on trial for one whole life, or for
`trial_seconds`: its freed room stays reserved for it, and a denied request gives it back at once. After the trial the
room is free; what is denied then gets its memory back where there is room. Pure: who resizes, and who reserves, is not
known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.rightsizing.histogram import DAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOUR: Final = 3600.0
_FOLLOWS: Final = 0.03
"""Use that is the same part of the smaller promise as of the larger one, to within this, follows it."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """How far live right-sizing may go."""

    max_resizes_per_hour: int = 10
    """0: none."""
    max_resizes_per_owner_per_hour: int = 1
    trial_seconds: float = DAY
    least_freed_bytes: int = 1 << 30
    """A resize that frees less of a card is not worth a change."""


@dataclass(frozen=True, slots=True)
class LivePod:
    """One container of a running pod whose owner allows that it is resized, of one card."""

    uid: str
    container: str
    owner: str
    """Namespace and workload."""
    promised_bytes: int
    recommended_bytes: int
    """0: no recommendation."""
    peak_bytes: int = 0
    denied: int = 0
    """Requests denied since it started."""
    used_bytes: int = 0

    @property
    def key(self) -> str:
        """Identity of a trial."""
        return f"{self.uid}/{self.container}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A container that was made smaller."""

    uid: str
    container: str
    owner: str
    from_bytes: int
    to_bytes: int
    began: float
    until: float
    denied: int = 0
    """As it was when it began."""
    peak_bytes: int = 0
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """Make a container smaller, and reserve what becomes free."""

    pod: LivePod
    to_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Give a container back what it had."""

    trial: Trial
    reason: str
    from_reservation: bool
    """Whether its room is still reserved: then it is at once; else where there is room, by a move, or at the next
    start."""


@dataclass(frozen=True, slots=True)
class Release:
    """A trial has passed: what it freed is free for others."""

    trial: Trial
    reason: str


@dataclass(frozen=True, slots=True)
class TrialState:
    """What outlives a decision."""

    trials: Mapping[str, Trial] = field(default_factory=dict)
    """In progress, by container."""
    passed: Mapping[str, Trial] = field(default_factory=dict)
    """Of containers that still run with less."""
    resized: tuple[tuple[float, str], ...] = ()
    """When, and of which owner, within the last hour."""


def judge(state: TrialState, pods: Mapping[str, LivePod], now: float) -> tuple[list[Restore | Release], TrialState]:
    """What follows from the trials; `pods`: by key, those that run. One of a pod that has ended has passed."""
    steps: list[Restore | Release] = []
    trials, passed = dict(state.trials), {key: old for key, old in state.passed.items() if key in pods}
    for key, trial in state.trials.items():
        pod = pods.get(key)
        if pod is None:
            steps.append(Release(trial, "the pod has ended: a whole life needed no more"))
        elif pod.denied > trial.denied:
            steps.append(Restore(trial, "a request for memory was denied", from_reservation=True))
        elif _follows(trial, pod):
            steps.append(Restore(trial, "its use follows the promise: it takes what it gets", from_reservation=True))
        elif now >= trial.until:
            steps.append(Release(trial, f"{(now - trial.began) / HOUR:.1f} h without a denied request"))
            passed[key] = trial
        else:
            continue
        del trials[key]
    for key, trial in list(passed.items()):
        if key in pods and pods[key].denied > trial.denied:
            steps.append(Restore(trial, "a request for memory was denied after the trial", from_reservation=False))
            del passed[key]
    return steps, replace(state, trials=trials, passed=passed)


def plan_shrinks(
    state: TrialState, pods: Iterable[LivePod], now: float, limits: TrialLimits
) -> tuple[list[Shrink], TrialState]:
    """What is made smaller now, what frees most first; the state as if all of it was done."""
    recent = tuple((at, owner) for at, owner in state.resized if now - at < HOUR)
    by_owner, trials, steps = Counter(owner for _, owner in recent), dict(state.trials), list[Shrink]()
    on_trial = {trial.owner for trial in trials.values()}
    for pod in sorted(pods, key=lambda pod: (pod.recommended_bytes - pod.promised_bytes, pod.key)):
        freed = pod.promised_bytes - pod.recommended_bytes
        if not pod.recommended_bytes or freed < limits.least_freed_bytes or pod.used_bytes > pod.recommended_bytes:
            continue
        if len(recent) >= limits.max_resizes_per_hour:
            break
        # one of an owner at a time: what is wrong for one replica is wrong for all
        if pod.owner in on_trial or by_owner[pod.owner] >= limits.max_resizes_per_owner_per_hour:
            continue
        recent = (*recent, (now, pod.owner))
        by_owner[pod.owner] += 1
        on_trial.add(pod.owner)
        trials[pod.key] = Trial(
            pod.uid,
            pod.container,
            pod.owner,
            pod.promised_bytes,
            pod.recommended_bytes,
            now,
            now + limits.trial_seconds,
            pod.denied,
            pod.peak_bytes,
        )
        steps.append(Shrink(pod, pod.recommended_bytes, f"{freed / (1 << 30):.1f} GiB of each card are never used"))
    return steps, replace(state, trials=trials, resized=recent)


def _follows(trial: Trial, pod: LivePod) -> bool:
    """Whether use fell with the promise, in proportion."""
    if not trial.peak_bytes or not pod.used_bytes or pod.used_bytes >= trial.to_bytes:
        return False
    before, now = trial.peak_bytes / trial.from_bytes, pod.used_bytes / trial.to_bytes
    return before >= 0.5 and abs(now - before) <= _FOLLOWS * before and trial.to_bytes < trial.from_bytes  # noqa: PLR2004
