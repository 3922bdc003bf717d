# SPDX-License-Identifier: Apache-2.0
"""Right-sizing: histograms, lives, when a program is recommended for, and when nothing is said about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.rightsizing.codec import HistoryError, decode, encode
from autoscaler.core.rightsizing.histogram import DAY, Histogram
from autoscaler.core.rightsizing.history import MAX_LIVES, MAX_RUNNING, ProgramHistory, ProgramKey, UsageReading
from autoscaler.core.rightsizing.programs import MeasuredContainer, advance, recommend_all
from autoscaler.core.rightsizing.recommend import (
    Abstained,
    Abstention,
    Bounds,
    EvidencePolicy,
    Recommendation,
    recommend,
    recommend_running,
)
from isolation.contract.model import Phase, Pod, Request
from isolation.contract.quantity import GIB

HOUR = 3600.0
STEP = 900.0
POLICY = EvidencePolicy()
KEY = ProgramKey("team", "Deployment/web", "main", "T4", "abc")


def live(history, name, days, promised=16, peaks=(4.0,), *, at=0.0, finite=False, busy=1.0, denied=0):
    """A life of so many days whose use repeats the given peaks (GiB), one for each day."""
    for step in range(1, int(days * DAY / STEP) + 1):
        moment = at + step * STEP
        # one step of a day at the peak, the rest below it, so that it is not constant
        high = peaks[int(step * STEP // DAY) % len(peaks)]
        used = high if step % 24 == 3 else high * 0.9
        reading = UsageReading(
            name, moment, at, promised * GIB, int(used * GIB), None, denied, busy * step * STEP * 0.5, finite
        )
        history = history.record(reading)
    return history


def constant(history, name, days, promised, ratio):
    """A life with constant use."""
    for step in range(1, int(days * DAY / STEP) + 1):
        used = int(promised * ratio * GIB)
        history = history.record(UsageReading(name, step * STEP, 0.0, promised * GIB, used, used, 0, step * STEP * 0.5))
    return history


def advised(history, name, promised=16):
    """What is recommended for a life in progress."""
    life = history.running[name]
    return recommend_running(history, life, life.seen, POLICY, Bounds(promised * GIB))


@given(st.lists(st.floats(0.01, 1e12), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_one_bucket_above_the_exact_one(values, ratio):
    """
    As VPA's: the upper bound of the bucket.
    """
    histogram = Histogram(1.0)
    for value in values:
        histogram = histogram.add(value, 1.0, 0.0)
    exact = sorted(values)[max(0, -(-int(ratio * len(values) * 1e9) // 10**9) - 1)]

    found = histogram.quantile(ratio)

    assert found is not None
    assert found >= min(exact, histogram.upper(255)) * 0.999
    assert found <= max(1.0, sorted(values)[min(len(values) - 1, int(ratio * len(values)) + 1)] * 1.06 + 1.0)


def test_a_sample_weighs_half_after_a_half_life():
    """
    Two old samples and one new one: after a half-life they are equal.
    """
    histogram = Histogram(1.0, half_life=DAY).add(10.0, 2.0, 0.0).add(100.0, 1.0, DAY)

    assert histogram.quantile(0.49) < 12
    assert histogram.quantile(0.51) > 99


def test_a_service_with_much_room_is_recommended_less():
    """
    4 GiB of 16 for a week: more than the peak, far less than the promise.
    """
    history = live(ProgramHistory(), "a", 7)

    found = advised(history, "a")

    assert isinstance(found, Recommendation)
    assert 4 * GIB < found.memory_bytes <= 6 * GIB


def test_peaks_that_vary_get_more_head_room_than_steady_ones():
    """
    The same largest peak, once usual and once an exception.
    """
    steady = advised(live(ProgramHistory(), "a", 8, peaks=(6.0,)), "a")
    bursty = advised(live(ProgramHistory(), "a", 8, peaks=(3.0, 3.0, 3.0, 6.0)), "a")

    assert bursty.memory_bytes > steady.memory_bytes


@pytest.mark.parametrize("ratio", [0.75, 0.9, 0.93, 0.99])
def test_a_program_that_takes_a_usual_part_of_its_promise_is_not_recommended_for(ratio):
    """
    JAX, vLLM, TensorFlow: from the first hours on.
    """
    found = advised(constant(ProgramHistory(), "a", 4, 16, ratio), "a")

    assert isinstance(found, Abstention)
    assert found.why is Abstained.FILLS_PROMISE


def test_constant_use_that_follows_the_promise_is_no_need():
    """
    60 % of 16 GiB and 60 % of 32: no usual part, and yet a part.
    """
    history = constant(constant(ProgramHistory(), "a", 4, 16, 0.6), "b", 4, 32, 0.6)

    assert advised(history, "a").why is Abstained.FILLS_PROMISE


def test_constant_use_that_does_not_follow_the_promise_is_a_need():
    """
    9 GiB whatever is promised.
    """
    history = constant(constant(ProgramHistory(), "a", 4, 18, 0.5), "b", 4, 36, 0.25)

    assert isinstance(advised(history, "a", 18), Recommendation)


def test_a_run_in_progress_says_nothing_about_its_end():
    """
    A Job's peak may come last: only runs that have ended count, and a run that exceeds them is left alone.
    """
    history = live(ProgramHistory(), "now", 5, finite=True)
    assert advised(history, "now").why is Abstained.FEW_LIVES

    for run in range(5):
        history = live(history, f"run-{run}", 1, at=run * 2 * DAY, finite=True).end(f"run-{run}")
    assert isinstance(advised(history, "now"), Recommendation)

    history = live(history, "now", 6, peaks=(9.0,), finite=True)
    assert advised(history, "now").why is Abstained.FEW_LIVES


def test_pods_that_began_together_are_one_start():
    """
    Eight replicas of one rollout do not show what another start needs.
    """
    history = ProgramHistory()
    for replica in range(8):
        history = live(history, f"r{replica}", 2).end(f"r{replica}")

    assert recommend(history, 3 * DAY, POLICY, Bounds(16 * GIB)).why is Abstained.FEW_LIVES


def test_days_without_work_show_nothing():
    """
    A model that is loaded by its first request.
    """
    history = live(ProgramHistory(), "a", 6, peaks=(0.5,), busy=0.0)

    assert advised(history, "a").why is Abstained.FEW_LIVES


def test_a_denied_request_keeps_everything_as_it_is_for_a_week():
    """
    And afterwards less than the promise at which it was denied is not recommended.
    """
    history = live(ProgramHistory(), "a", 4, denied=1)
    assert advised(history, "a").why is Abstained.RECENTLY_DENIED

    history = live(history, "a", 13, denied=1)
    assert advised(history, "a").memory_bytes == 16 * GIB


def test_a_life_of_which_much_was_not_measured_is_not_judged():
    """
    Gaps of hours: a peak may have been in any of them.
    """
    history = ProgramHistory()
    for step in range(1, 40):
        history = history.record(UsageReading("a", step * 3 * HOUR, 0.0, 16 * GIB, 4 * GIB))

    assert advised(history, "a").why is Abstained.TORN_HISTORY


@given(
    promised=st.integers(1, 80),
    least=st.integers(0, 80),
    most=st.one_of(st.none(), st.integers(1, 80)),
    peak=st.floats(0.1, 79.0),
)
def test_a_recommendation_never_leaves_its_bounds(promised, least, most, peak):
    """
    The most wins over the least, and without one the promise is the most.
    """
    history = live(ProgramHistory(), "a", 5, promised, peaks=(min(peak, promised * 0.8),))
    bounds = Bounds(promised * GIB, least * GIB, None if most is None else most * GIB)

    found = recommend_running(history, history.running["a"], 5 * DAY, POLICY, bounds)

    if isinstance(found, Recommendation):
        highest = promised if most is None else most
        assert min(least, highest) * GIB <= found.memory_bytes <= highest * GIB


def test_a_history_is_bounded():
    """
    However many lives come.
    """
    history = ProgramHistory()
    for number in range(100):
        history = history.record(UsageReading(f"r{number}", 60.0, 0.0, GIB, 1))
    assert len(history.running) == MAX_RUNNING
    for number in range(100):
        history = history.record(UsageReading("x", 60.0 + number, 0.0, GIB, 1)).end("x")
        history = history.end(f"r{number}")
    assert len(history.ended) == MAX_LIVES


def test_histories_are_read_as_they_were_written():
    """
    Recommendations are the same for the next leader.
    """
    history = live(live(ProgramHistory(), "a", 6, peaks=(4.0, 7.0)), "b", 3)

    again = decode(encode({KEY: history}), 10 * DAY)[KEY]

    assert advised(again, "a") == advised(history, "a")
    assert again.lives() == history.lives()


@pytest.mark.parametrize("text", ["", "x", "eJw=", encode({})[:-8], "A" * 600_000])
def test_text_that_is_no_history_is_an_error(text):
    """
    With its reason; never a crash.
    """
    with pytest.raises(HistoryError):
        decode(text, 0.0)


def test_lives_end_with_their_pods_and_workloads_are_found_behind_their_controllers():
    """
    A ReplicaSet's pod is the Deployment's, in the revision of its template.
    """
    pod = Pod(
        "u1",
        "web-abc-x",
        "team",
        Request(1, 16 * GIB, owner="ReplicaSet/team/web-abc"),
        phase=Phase.RUNNING,
        labels={"pod-template-hash": "abc"},
    )
    use = MeasuredContainer(pod, "main", "GPU-1", "T4", 16 * GIB, 4 * GIB)
    histories = advance({}, [use], {"u1": pod}, 60.0)

    assert set(histories) == {KEY}
    shown = recommend_all(histories, {KEY: 2}, 60.0, POLICY)
    assert [(one.owner, one.replicas, one.cards, one.abstained) for one in shown] == [
        ("Deployment/web", 1, 2, "few_lives")
    ]
    ended = advance(histories, [], {}, 120.0)
    assert not ended[KEY].running
    assert len(ended[KEY].ended) == 1
