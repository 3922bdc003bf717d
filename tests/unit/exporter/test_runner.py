# SPDX-License-Identifier: Apache-2.0
"""Sources side by side with a deadline: what hangs, what fails, and what does not pile up."""

from __future__ import annotations

import itertools
import threading
import time
from threading import Barrier, Event

import pytest
from support.waiting import PATIENCE_SECONDS, until

from exporter.runner import Runner, _Job
from exporter.sources.errors import SourceError


@pytest.fixture
def runner():
    """A runner; its idle workers are gone after the test."""
    with Runner() as made:
        yield made


@pytest.fixture
def gate():
    """Something to hang on; it opens when the test is over, so that no thread stays."""
    event = Event()
    yield event
    event.set()


def workers() -> list[threading.Thread]:
    """Threads of runners that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("source ")]


def test_a_source_that_answers_has_a_value_and_a_duration(runner):
    """
    The value comes through, without an error, with how long it took and when it was complete.
    """
    before = time.monotonic()

    outcome = runner.run("nvml", lambda: time.sleep(0.02) or 42, PATIENCE_SECONDS)

    assert (42, "", True) == (outcome.value, outcome.error, outcome.ok)
    assert 0.02 <= outcome.seconds <= time.monotonic() - before
    assert before + 0.02 <= outcome.at <= time.monotonic()


def test_sources_are_read_side_by_side(runner):
    """
    Two sources that wait for each other both answer: neither is read after the other.
    """
    meet = Barrier(2, timeout=PATIENCE_SECONDS)

    outcomes = runner.run_all(dict.fromkeys(("a", "b"), meet.wait), PATIENCE_SECONDS)

    assert {0, 1} == {outcome.value for outcome in outcomes.values()}


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SourceError("the socket is gone; is the kubelet running?"), "the socket is gone; is the kubelet running?"),
        (SourceError(), "failed without an error message"),
        (ValueError("7 of 8"), "ValueError: 7 of 8"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_what_a_source_raises_is_an_error_of_its_own(runner, raised, expected):
    """
    A failure is told in words and costs no other source its value, nor this one the next turn.
    """

    def fail():
        raise raised

    outcomes = runner.run_all({"bad": fail, "good": lambda: 1}, PATIENCE_SECONDS)

    assert (None, expected, False) == (outcomes["bad"].value, outcomes["bad"].error, outcomes["bad"].ok)
    assert 1 == outcomes["good"].value
    assert 2 == runner.run("bad", lambda: 2, PATIENCE_SECONDS).value


def test_a_source_that_tells_nothing_has_failed(runner):
    """
    None is no value: it would be taken for one that failed without saying so.
    """
    assert (False, "returned nothing") == (
        (outcome := runner.run("empty", lambda: None, PATIENCE_SECONDS)).ok,
        outcome.error,
    )


def test_a_hanging_source_costs_its_cycle_no_more_than_the_deadline(runner, gate):
    """
    The others' values are there when the deadline is over, and the one that hangs has an error.
    """
    numbers = itertools.count()

    def turn():
        """With another that hangs; a deadline so short may be over before a busy machine has come to either."""
        outcomes = runner.run_all({f"stuck {next(numbers)}": gate.wait, "good": lambda: 1}, 0.2)
        (stuck, good) = outcomes.values()
        assert (None, "timed out after 0.2 s") == (stuck.value, stuck.error)
        return good.value

    assert 1 == until(turn)


def test_a_hanging_source_is_left_alone_until_it_comes_back(runner, gate):
    """
    While a read hangs, the next cycles fail at once without calling again; afterwards it is asked again,
    and its late answer is nobody's.
    """
    calls = []

    def stuck():
        calls.append(1)
        gate.wait()
        return "late"

    runner.run("nvml", stuck, 0.05)
    until(lambda: calls)
    again = [runner.run("nvml", stuck, PATIENCE_SECONDS) for _ in range(50)]

    assert 1 == len(calls)
    assert not any(outcome.ok for outcome in again)
    assert "no answer for" in again[0].error
    assert 0.02 <= again[-1].seconds

    gate.set()
    until(lambda: runner.run("nvml", lambda: "fresh", PATIENCE_SECONDS).value == "fresh")


def test_threads_do_not_pile_up(runner, gate):
    """
    A thousand cycles over three sources, one of them hanging, take three threads.
    """
    before = set(workers())
    reads = {"stuck": gate.wait, "a": lambda: 1, "b": lambda: 2}
    runner.run_all(reads, 0.05)

    for _ in range(1000):
        runner.run_all(reads, PATIENCE_SECONDS)

    assert 3 == len(set(workers()) - before)


def test_a_source_that_answered_may_be_asked_again_at_once(runner, monkeypatch):
    """
    No outcome is told before its worker is free, even if it is slow to turn round.
    """
    finish = _Job.finish

    def slow(self, value, error):
        finish(self, value, error)
        time.sleep(0.02)

    monkeypatch.setattr(_Job, "finish", slow)

    assert [True] * 5 == [runner.run("quick", lambda: 1, PATIENCE_SECONDS).ok for _ in range(5)]


def test_idle_workers_end_when_the_runner_closes(gate):
    """
    Closing does not wait for one that hangs, and once that comes back no thread is left.
    """
    before = set(workers())
    runner = Runner()
    runner.run_all({"stuck": gate.wait, "good": lambda: 1}, 0.05)
    runner.close()

    assert set(workers()) - before
    gate.set()
    until(lambda: not set(workers()) - before)


def test_no_deadline_is_waited_for_twice(runner, gate, monkeypatch):
    """
    Several hanging sources share one deadline: the cycle waits for it once.
    """
    given, settle = [], _Job.outcome
    monkeypatch.setattr(
        _Job, "outcome", lambda job, patience, whole: given.append(patience) or settle(job, patience, whole)
    )
    begun = time.monotonic()

    outcomes = runner.run_all({str(number): gate.wait for number in range(8)}, 0.2)

    assert 0.2 <= time.monotonic() - begun
    assert all(patience <= 0.0 for patience in given[1:])
    assert not any(outcome.ok for outcome in outcomes.values())
