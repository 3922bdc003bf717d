# SPDX-License-Identifier: Apache-2.0
"""
Which running pods are made smaller now, and what becomes of those that were: the trial of each.

Decides within a budget by hour and by owner. A pod that was made smaller is on trial for one whole life, or for
`right_size_trial_seconds`: what it gave up stays reserved for it, and a denied request or a restart gives it back at
once. After the trial the room is free; who is denied memory then gets it back where there is room. Pure: how a pod is
resized is not known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.plan import RELEASE, RESTORE, SHRINK, ResizePod
from autoscaler.core.rightsizing.containers import LivePod, Trial
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autoscaler.core.limits import ScalingLimits

HOUR: Final = 3600.0
_FOLLOWS: Final = 0.03
"""Use that is the same part of the smaller promise as of the larger one, to within this, follows it."""
_WRITE_SECONDS: Final = 60.0
"""A reservation that is not on the pod so long after it was written was taken back by another client."""


@dataclass(frozen=True, slots=True)
class TrialState:
    """What outlives a decision."""

    trials: Mapping[str, Trial] = field(default_factory=dict)
    """In progress, by container."""
    passed: Mapping[str, Trial] = field(default_factory=dict)
    """Of containers that still run with less."""
    waiting: Mapping[str, Trial] = field(default_factory=dict)
    """Of containers that are to have back what they had, and wait for room."""
    resized: tuple[tuple[float, str], ...] = ()
    """When one was made smaller, and of which owner, within the last hour."""

    def record(self, steps: Iterable[ResizePod], at: float) -> TrialState:
        """The state after these steps."""
        trials, passed, waiting = dict(self.trials), dict(self.passed), dict(self.waiting)
        recent = [(when, owner) for when, owner in self.resized if at - when < HOUR]
        for step in steps:
            trial, key = step.trial, step.trial.key
            trials.pop(key, None)
            if passed.pop(key, None) is not None and step.kind == RESTORE:
                waiting[key] = trial
            if step.kind == SHRINK:
                trials[key] = trial
                recent.append((at, trial.owner))
            elif step.kind == RELEASE:
                passed[key] = replace(trial, until=at)
        return TrialState(trials, passed, waiting, tuple(recent))


def judge(
    state: TrialState, pods: Mapping[str, LivePod], now: float, limits: ScalingLimits
) -> tuple[list[ResizePod], TrialState]:
    """
    What follows from the trials, and the state without those that are over; `pods`: by key, those that run.

    A trial of a pod that has ended, or whose amounts another client has changed, is over. A reservation without a trial
    (its record was lost) begins one.
    """
    trials = {key: trial for key, trial in state.trials.items() if key in pods and _is_ours(trial, pods[key], now)}
    passed = {key: old for key, old in state.passed.items() if key in pods and _is_released(old, pods[key], now)}
    known = {trial.uid for trial in (*trials.values(), *passed.values())}
    for key, pod in pods.items():
        gave = pod.reserved_bytes - pod.pod_bytes
        if gave > 0 and pod.uid not in known and pod.promised_bytes < pod.asked_bytes:
            known.add(pod.uid)
            before = min(pod.asked_bytes, pod.promised_bytes + gave)
            trials[key] = _begin(pod, before, pod.promised_bytes, now, limits)
    steps: list[ResizePod] = []
    for key, trial in trials.items():
        pod = pods[key]
        if pod.denied is not None and pod.denied < trial.denied:
            # it has started again since it was counted
            trials[key] = trial = replace(trial, denied=pod.denied)  # noqa: PLW2901
        trouble = _find_trouble(trial, pod)
        if trouble:
            steps.append(_step(RESTORE, trial, f"{trouble}; its room was reserved"))
        elif now >= trial.until:
            tried = _show_time(now - trial.began)
            steps.append(_step(RELEASE, trial, f"{tried} without a denied request; the rest is free for others"))
    for key, trial in passed.items():
        trouble = _find_trouble(trial, pods[key], follows=False)
        if trouble:
            why = f"{trouble} after the trial; as soon as its card has room, by a move, or when its next pod starts"
            steps.append(_step(RESTORE, trial, why))
    waiting = {
        key: trial
        for key, trial in state.waiting.items()
        if key in pods and pods[key].promised_bytes < trial.from_bytes
    }
    return steps, TrialState(trials, passed, waiting, tuple(one for one in state.resized if now - one[0] < HOUR))


def plan_shrinks(state: TrialState, pods: Iterable[LivePod], now: float, limits: ScalingLimits) -> list[ResizePod]:
    """What is made smaller now, what frees most first."""
    by_owner = Counter(owner for _, owner in state.resized)
    left = limits.max_resizes_per_hour - len(state.resized)
    on_trial = {trial.owner for trial in state.trials.values()}
    steps: list[ResizePod] = []
    for pod in find_wasteful(state, pods, limits):
        if len(steps) >= left:
            break
        # one of an owner at a time: what is wrong for one replica is wrong for all
        if pod.owner in on_trial or by_owner[pod.owner] >= limits.max_resizes_per_owner_per_hour:
            continue
        on_trial.add(pod.owner)
        trial = _begin(pod, pod.promised_bytes, pod.recommended_bytes, now, limits)
        freed = show_bytes(pod.promised_bytes - pod.recommended_bytes)
        kept = f"reserved for it for {_show_time(limits.right_size_trial_seconds)}"
        steps.append(_step(SHRINK, trial, f"{freed} of each of its cards are not needed, and {kept}"))
    return steps


def find_wasteful(state: TrialState, pods: Iterable[LivePod], limits: ScalingLimits) -> Iterator[LivePod]:
    """
    Containers that could be made smaller, what frees most first; whoever was resized by hand stays as it is.

    At most one of a pod: what is reserved for a pod is one amount.
    """
    taken = {trial.uid: key for of in (state.trials, state.passed, state.waiting) for key, trial in of.items()}
    for pod in sorted(pods, key=lambda pod: (pod.recommended_bytes - pod.promised_bytes, pod.key)):
        freed = pod.promised_bytes - pod.recommended_bytes
        enough = pod.recommended_bytes and freed >= limits.min_resize_bytes
        idle = not pod.pending and pod.used_bytes <= pod.recommended_bytes
        untouched = not pod.reserved_bytes and (not pod.resized or pod.key in state.passed)
        mine = taken.get(pod.uid, pod.key) == pod.key and pod.key not in state.trials
        if enough and idle and untouched and mine:
            taken[pod.uid] = pod.key
            yield pod


def _begin(pod: LivePod, before: int, after: int, now: float, limits: ScalingLimits) -> Trial:
    return Trial(
        pod.uid,
        pod.container,
        pod.owner,
        before,
        after,
        max(pod.pod_bytes, pod.reserved_bytes),
        now,
        now + limits.right_size_trial_seconds,
        pod.denied or 0,
        pod.restarts,
        pod.peak_bytes,
        pod.node,
        pod.cards,
    )


def _step(kind: str, trial: Trial, reason: str) -> ResizePod:
    before, after = show_bytes(trial.from_bytes), show_bytes(trial.to_bytes)
    if kind == RESTORE:
        before, after = after, before
    change = f"stays at {after}" if kind == RELEASE else f"{before} to {after}"
    return ResizePod(trial.uid, trial.node, kind, trial, f"container {trial.container} {change}: {reason}")


def _show_time(seconds: float) -> str:
    return f"{seconds / HOUR:.0f} h" if seconds >= HOUR else f"{seconds / 60:.0f} min"


def _is_ours(trial: Trial, pod: LivePod, now: float) -> bool:
    """Whether the pod is still as the trial made it; what was just written is not seen yet."""
    return pod.reserved_bytes == trial.reserved_bytes or now - trial.began < _WRITE_SECONDS


def _is_released(trial: Trial, pod: LivePod, now: float) -> bool:
    """Whether nothing is reserved for it any more, or that was just written."""
    return not pod.reserved_bytes or now - trial.until < _WRITE_SECONDS


def _find_trouble(trial: Trial, pod: LivePod, *, follows: bool = True) -> str:
    """Why the container needs what it had; empty: nothing says that it does."""
    if pod.denied is not None and pod.denied > trial.denied:
        return "a request for memory was denied"
    if pod.restarts > trial.restarts:
        return "the pod's containers restarted"
    return "its use follows the promise: it takes what it gets" if follows and _follows(trial, pod) else ""


def _follows(trial: Trial, pod: LivePod) -> bool:
    """Whether use fell with the promise, in proportion."""
    if not trial.peak_bytes or not pod.used_bytes or pod.used_bytes >= trial.to_bytes:
        return False
    before, now = trial.peak_bytes / trial.from_bytes, pod.used_bytes / trial.to_bytes
    return before >= 0.5 and abs(now - before) <= _FOLLOWS * before and trial.to_bytes < trial.from_bytes  # noqa: PLR2004
