# SPDX-License-Identifier: Apache-2.0
"""Trials of live right-sizing: budgets, one replica of an owner at a time, and what gives memory back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.limits import ScalingLimits
from autoscaler.core.rightsizing.histogram import DAY
from autoscaler.core.rightsizing.trial import (
    HOUR,
    LivePod,
    TrialState,
    find_wasteful,
    judge,
    plan_shrinks,
)
from isolation.contract.quantity import GIB

LIMITS = ScalingLimits(max_resizes_per_hour=10)
POD = LivePod("u1", "main", "team/Deployment/web", 16 * GIB, 6 * GIB, 20 * GIB, 16 * GIB, denied=0, peak_bytes=5 * GIB)
POD = replace(POD, used_bytes=4 * GIB)
SIDE = replace(POD, container="side", promised_bytes=4 * GIB, asked_bytes=4 * GIB, recommended_bytes=1 * GIB)
"""Another container of its pod."""
SIDE = replace(SIDE, used_bytes=GIB // 2, peak_bytes=GIB // 2)
SHRUNK = replace(POD, promised_bytes=6 * GIB, pod_bytes=10 * GIB, reserved_bytes=20 * GIB, resized=True)
"""The same once the resize is in force."""


def begun(pod=POD):
    """A trial of the pod, from 0."""
    steps = plan_shrinks(TrialState(), [pod], 0.0, LIMITS)
    assert [(step.kind, step.card_bytes, step.reserved_bytes) for step in steps] == [("shrink", 6 * GIB, 20 * GIB)]
    return TrialState().record(steps, 0.0)


def after(state, pod, now):
    """What is decided on it."""
    return judge(state, {} if pod is None else {pod.key: pod}, now, LIMITS)


def test_nothing_is_decided_while_a_trial_goes_on():
    """Its room stays reserved; what is wanted again of a pod on trial waits."""
    state = begun()
    steps, kept = after(state, SHRUNK, HOUR / 2)
    assert ([], state) == (steps, kept)
    assert not plan_shrinks(kept, [replace(SHRUNK, recommended_bytes=2 * GIB)], HOUR / 2, LIMITS)


@pytest.mark.parametrize("trouble", [{"denied": 1}, {"restarts": 1}])
def test_a_denied_request_or_a_restart_gives_it_back_at_once(trouble):
    """From the reserved room; whoever was restored is left alone for the rest of its life."""
    [step], state = after(begun(), replace(SHRUNK, **trouble), HOUR)
    assert ("restore", 16 * GIB, 0) == (step.kind, step.card_bytes, step.reserved_bytes)
    state = state.record([step], HOUR)
    assert (not state.trials, not state.passed) == (True, True)
    assert not list(find_wasteful(state, [replace(POD, resized=True)], LIMITS))


def test_a_count_that_begins_again_is_no_denied_request():
    """A container that starts again counts from 0, and its next denial is one. An exporter may be away."""
    state = begun(replace(POD, denied=5))
    assert not after(state, replace(SHRUNK, denied=None), HOUR)[0]
    steps, state = after(state, replace(SHRUNK, denied=0), HOUR)
    assert not steps
    assert ["restore"] == [step.kind for step in after(state, replace(SHRUNK, denied=1), HOUR)[0]]


def test_a_trial_that_passes_frees_the_room():
    """What is denied later is restored where there is room, and may be made smaller once more."""
    [step], state = after(begun(), SHRUNK, DAY)
    assert ("release", 6 * GIB, 0) == (step.kind, step.card_bytes, step.reserved_bytes)
    state = state.record([step], DAY)
    free = replace(SHRUNK, reserved_bytes=0)
    # the watch may show the reservation a moment longer
    assert ([], state.passed) == (after(state, SHRUNK, DAY + 5)[0], after(state, SHRUNK, DAY + 5)[1].passed)
    assert list(find_wasteful(state, [replace(free, recommended_bytes=3 * GIB, used_bytes=2 * GIB)], LIMITS))
    [late], state = after(state, replace(free, denied=1), 2 * DAY)
    assert ("restore", 16 * GIB) == (late.kind, late.card_bytes)
    assert "after the trial" in late.reason
    state = state.record([late], 2 * DAY)
    assert {POD.key} == after(state, replace(free, denied=1), 2 * DAY)[1].waiting.keys()
    assert not after(state, replace(free, denied=1, promised_bytes=16 * GIB), 2 * DAY)[1].waiting


def test_a_pod_that_has_ended_or_was_changed_by_somebody_is_on_trial_no_more():
    """Its reservation went with it."""
    assert not after(begun(), None, HOUR)[1].trials
    assert not after(begun(), replace(SHRUNK, reserved_bytes=0), HOUR)[1].trials
    assert after(begun(), POD, 5.0)[1].trials, "what was just written is not seen yet"


def test_a_reservation_without_a_trial_begins_one():
    """The record of it was lost, or its write had no answer: nothing stays reserved for ever."""
    steps, state = after(TrialState(), SHRUNK, HOUR)
    [trial] = state.trials.values()
    assert ([], 16 * GIB, 6 * GIB, HOUR + DAY) == (steps, trial.from_bytes, trial.to_bytes, trial.until)


def test_a_pods_other_container_is_left_as_it_is():
    """What is reserved for the pod is no sign that the other one is on trial, and it is not made smaller besides."""
    steps = plan_shrinks(TrialState(), [SIDE, POD], 0.0, replace(LIMITS, max_resizes_per_owner_per_hour=9))
    assert ["main"] == [step.trial.container for step in steps]
    side = replace(SIDE, pod_bytes=10 * GIB, reserved_bytes=20 * GIB, resized=True)
    for state in (TrialState().record(steps, 0.0), TrialState()):
        steps, after_ = judge(state, {side.key: side, SHRUNK.key: SHRUNK}, HOUR, LIMITS)
        assert ([], {SHRUNK.key}) == (steps, after_.trials.keys())
    free = replace(SHRUNK, reserved_bytes=0)
    passed = TrialState(passed={key: replace(trial, until=0.0) for key, trial in after_.trials.items()})
    assert not list(find_wasteful(passed, [replace(SIDE, pod_bytes=10 * GIB, resized=True), free], LIMITS))


def test_use_that_falls_with_the_promise_gives_it_back():
    """A program that takes 60 % of what it sees."""
    state = begun(replace(POD, peak_bytes=int(9.6 * GIB), used_bytes=5 * GIB))
    [step], _ = after(state, replace(SHRUNK, used_bytes=int(3.6 * GIB)), HOUR)
    assert "restore" == step.kind


@pytest.mark.parametrize(
    "change",
    [
        {"used_bytes": 7 * GIB},
        {"recommended_bytes": 0},
        {"recommended_bytes": 16 * GIB},
        {"pending": True},
        {"resized": True},
    ],
)
def test_what_is_in_use_or_was_resized_by_hand_is_never_taken(change):
    """Nor what was not recommended, nor what frees too little."""
    assert not plan_shrinks(TrialState(), [replace(POD, **change)], 0.0, LIMITS)


@given(
    owners=st.lists(st.sampled_from("abcdef"), max_size=40),
    most=st.integers(0, 8),
    each=st.integers(0, 3),
    times=st.lists(st.floats(0, 900), min_size=1, max_size=12),
)
def test_no_hour_has_more_resizes_than_its_budget(owners, most, each, times):
    """Over all, and of one owner; one replica of an owner is on trial at a time."""
    limits = replace(
        LIMITS, max_resizes_per_hour=most, max_resizes_per_owner_per_hour=each, right_size_trial_seconds=600.0
    )
    pods = {f"u{number}/main": replace(POD, uid=f"u{number}", owner=owner) for number, owner in enumerate(owners)}
    state, now, done = TrialState(), 0.0, []
    for pause in times:
        now += pause
        steps, state = judge(state, pods, now, limits)
        shrinks = plan_shrinks(state, pods.values(), now, limits)
        state = state.record([*steps, *shrinks], now)
        for step in (*steps, *shrinks):
            reserved = step.reserved_bytes
            pods[step.trial.key] = replace(
                pods[step.trial.key], reserved_bytes=reserved, resized=True, promised_bytes=step.card_bytes
            )
        done += [(now, step.trial.owner) for step in shrinks]
        on_trial = [trial.owner for trial in state.trials.values()]
        assert len(on_trial) == len(set(on_trial))
        hour = [owner for at, owner in done if now - at < HOUR]
        assert len(hour) <= most
        assert all(hour.count(owner) <= each for owner in hour)
