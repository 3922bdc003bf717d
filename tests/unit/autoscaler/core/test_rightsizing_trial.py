# SPDX-License-Identifier: Apache-2.0
"""Trials of live right-sizing: budgets, one replica of an owner at a time, and what gives memory back."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.rightsizing.histogram import DAY
from autoscaler.core.rightsizing.trial import (
    HOUR,
    LivePod,
    Release,
    Restore,
    TrialLimits,
    TrialState,
    judge,
    plan_shrinks,
)
from isolation.contract.quantity import GIB

LIMITS = TrialLimits()
POD = LivePod("u1", "main", "team/Deployment/web", 16 * GIB, 6 * GIB, peak_bytes=5 * GIB, used_bytes=4 * GIB)


def begun():
    """A trial of the pod, from 0."""
    steps, state = plan_shrinks(TrialState(), [POD], 0.0, LIMITS)
    assert [step.to_bytes for step in steps] == [6 * GIB]
    return state


def after(state, pod, now):
    """What is decided on it."""
    return judge(state, {} if pod is None else {pod.key: pod}, now)


def test_nothing_is_decided_while_a_trial_goes_on():
    """
    Its room stays reserved.
    """
    state = begun()

    assert after(state, POD, HOUR) == ([], state)


def test_a_denied_request_gives_it_back_at_once_from_the_reserved_room():
    """
    And the container is on trial no more.
    """
    [step], state = after(begun(), replace(POD, denied=1), HOUR)

    assert isinstance(step, Restore)
    assert step.from_reservation
    assert step.trial.from_bytes == 16 * GIB
    assert not state.trials


def test_a_trial_that_passes_frees_the_room():
    """
    By time, or since a whole life ended; what is denied later is restored where there is room.
    """
    [step], state = after(begun(), POD, DAY)
    assert isinstance(step, Release)
    [late], _ = after(state, replace(POD, denied=1), 2 * DAY)
    assert isinstance(late, Restore)
    assert not late.from_reservation

    [ended], state = after(begun(), None, HOUR)
    assert isinstance(ended, Release)
    assert not state.passed


def test_use_that_falls_with_the_promise_gives_it_back():
    """
    A program that takes 60 % of what it sees.
    """
    pod = replace(POD, peak_bytes=int(9.6 * GIB), used_bytes=5 * GIB)
    _, state = plan_shrinks(TrialState(), [pod], 0.0, LIMITS)

    [step], _ = after(state, replace(pod, used_bytes=int(3.6 * GIB)), HOUR)

    assert isinstance(step, Restore)


def test_what_is_in_use_is_never_taken():
    """
    Nor what was not recommended, nor what frees too little.
    """
    pods = [
        replace(POD, used_bytes=7 * GIB),
        replace(POD, uid="u2", recommended_bytes=0),
        replace(POD, uid="u3", recommended_bytes=16 * GIB),
    ]

    assert plan_shrinks(TrialState(), pods, 0.0, LIMITS)[0] == []


@given(
    owners=st.lists(st.sampled_from("abcdef"), max_size=40),
    most=st.integers(0, 8),
    each=st.integers(0, 3),
    times=st.lists(st.floats(0, 900), min_size=1, max_size=12),
)
def test_no_hour_has_more_resizes_than_its_budget(owners, most, each, times):
    """
    Over all, and of one owner; one replica of an owner is on trial at a time.
    """
    limits = replace(LIMITS, max_resizes_per_hour=most, max_resizes_per_owner_per_hour=each, trial_seconds=600.0)
    pods = [replace(POD, uid=f"u{number}", owner=owner) for number, owner in enumerate(owners)]
    state, now, done = TrialState(), 0.0, []
    for pause in times:
        now += pause
        running = {pod.key: pod for pod in pods}
        _, state = judge(state, running, now)
        steps, state = plan_shrinks(state, [pod for pod in pods if pod.key not in state.passed], now, limits)
        done += [(now, step.pod.owner) for step in steps]
        on_trial = [trial.owner for trial in state.trials.values()]
        assert len(on_trial) == len(set(on_trial))
        hour = [owner for at, owner in done if now - at < HOUR]
        assert len(hour) <= most
        assert all(hour.count(owner) <= each for owner in hour)
