# SPDX-License-Identifier: Apache-2.0
"""Tasks that last as long as their process: begun again, told of, and named where they fail for too long."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.waiting import soon, until

from isolation.contract.metrics.node import TASK_FAILURES, TASK_HEALTHY
from isolation.kube import background
from isolation.kube.background import Background
from isolation.kube.core.backoff import Pace
from isolation.kube.core.errors import ForbiddenError, UnreachableError

BROKEN = OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Begun again within moments; steady after a moment."""
    monkeypatch.setattr(background, "_PACE", Pace(first=0.01, longest=0.02))
    monkeypatch.setattr(background, "STEADY_SECONDS", 0.05)


def failures(tasks, name="t"):
    """How often it has failed, as the metric has it."""
    return tasks.rows(TASK_FAILURES, TASK_HEALTHY)[TASK_FAILURES][name,]


def healthy(tasks, name="t"):
    """Whether it is, as the metric has it."""
    return tasks.rows(TASK_FAILURES, TASK_HEALTHY)[TASK_HEALTHY][name,]


class Work:
    """Fails so many times, or while `broken`; then goes on."""

    def __init__(self, times=0, error=BROKEN):
        self.left, self.begun, self.broken, self.error = times, 0, False, error

    def once(self):
        """One cycle of a thread."""
        self.begun += 1
        if self.broken or self.left > 0:
            self.left -= 1
            raise self.error
        return 0.001

    async def cycle(self):
        """One cycle of a task."""
        return self.once()

    async def forever(self):
        """A task without cycles."""
        self.once()
        await asyncio.Event().wait()


async def going_on(kind, work, story, **more):
    """The story while the work goes on, in the given way."""
    tasks = Background()
    if kind == "thread":
        with tasks.thread("t", work.once, **more):
            return await story(tasks)
    way = tasks.keep("t", work.forever) if kind == "keep" else tasks.cycles("t", work.cycle, **more)
    async with way:
        return await story(tasks)


KINDS = ("keep", "cycles", "thread")


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_is_begun_again_and_counted(kind, caplog):
    """
    With pauses, a trace for the first failure in a row only; well again as soon as it works.
    """
    work = Work(times=3)

    async def story(tasks):
        await soon(lambda: work.begun >= 4)
        await soon(lambda: not tasks.problems())
        return failures(tasks), healthy(tasks)

    assert (3.0, 1.0) == asyncio.run(going_on(kind, work, story))
    said = [record for record in caplog.records if "background task failed: task=t: OSError" in record.getMessage()]
    assert [True, False, False] == [bool(record.exc_info and record.exc_info[0]) for record in said]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [UnreachableError("request timed out"), ForbiddenError(403, "Forbidden", "no")])
def test_an_api_server_that_is_away_or_says_no_is_told_without_a_trace(kind, error, caplog):
    """
    A warning, as of a watch: nothing of ours is broken; also in a group, as of tasks side by side.
    """
    work = Work(times=2, error=ExceptionGroup("side by side", [error]))

    async def story(tasks):
        await soon(lambda: work.begun >= 3)
        return failures(tasks)

    assert asyncio.run(going_on(kind, work, story)) == 2.0
    said = [record for record in caplog.records if "background task failed: task=t" in record.getMessage()]
    assert [("WARNING", False)] * 2 == [(record.levelname, bool(record.exc_info)) for record in said]
    assert all(f"{type(error).__name__}: {error}" in record.getMessage() for record in said)


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_for_too_long_makes_the_process_unhealthy_until_it_works(kind, monkeypatch):
    """
    By its name and the error.
    """
    monkeypatch.setattr(background, "LIMIT_SECONDS", 0.1)
    work = Work()
    work.broken = kind == "keep"

    async def story(tasks):
        await soon(lambda: (kind == "keep" or work.begun) and not tasks.problems())
        work.broken = True
        await soon(tasks.problems)
        said, was = tasks.problems(), healthy(tasks)
        work.broken = False
        await soon(lambda: not tasks.problems())
        return said, was, healthy(tasks)

    more = {} if kind == "keep" else {"limit": 0.1}
    said, *values = asyncio.run(going_on(kind, work, story, **more))
    assert said.startswith("task t has been failing for ")
    assert said.endswith(f"OSError: {BROKEN}")
    assert [0.0, 1.0] == values


@pytest.mark.parametrize("kind", ["cycles", "thread"])
def test_a_cycle_that_hangs_makes_the_process_unhealthy(kind):
    """
    A driver that does not come back, a lock that nobody gives back.
    """
    gate = threading.Event()

    async def hang():
        await asyncio.Event().wait()

    def hang_thread():
        gate.wait()
        return 0.001

    async def story():
        tasks = Background()
        if kind == "thread":
            with tasks.thread("t", hang_thread, limit=0.1):
                await soon(tasks.problems)
                said = tasks.problems()
                gate.set()
                await soon(lambda: not tasks.problems())
                return said
        async with tasks.cycles("t", hang, limit=0.1):
            await soon(tasks.problems)
            return tasks.problems()

    assert asyncio.run(story()).startswith("task t has not completed a cycle for ")


def test_a_long_pause_between_cycles_is_no_trouble():
    """
    The next one is late from the moment on which it was due.
    """

    async def hourly():
        return 3600.0

    async def story():
        tasks = Background()
        async with tasks.cycles("t", hourly, limit=0.05):
            await asyncio.sleep(0.3)
            return tasks.problems()

    assert not asyncio.run(story())


def test_news_begins_a_cycle_at_once():
    """
    Also such as come during one.
    """
    news, seen = asyncio.Event(), []

    async def cycle():
        seen.append(time.monotonic())
        if len(seen) == 2:
            news.set()
        return 3600.0

    async def story():
        async with Background().cycles("t", cycle, news=news):
            await soon(lambda: len(seen) == 1)
            news.set()
            await soon(lambda: len(seen) == 3)

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["keep", "cycles"])
def test_a_supervisor_that_is_gone_is_unhealthy_at_once(kind):
    """
    Whoever cancelled it.
    """

    async def story(tasks):
        await asyncio.sleep(0)
        (task,) = (one for one in asyncio.all_tasks() if one.get_coro().__name__ == "forever")
        task.cancel()
        await soon(task.done)
        return tasks.problems()

    assert "task t has ended" == asyncio.run(going_on(kind, Work(), story))


def test_what_is_cancelled_from_within_or_returns_is_begun_again():
    """
    A cancelled future that it awaited is a failure like any other.
    """
    begun = []

    async def work():
        begun.append(1)
        if len(begun) == 1:
            raise asyncio.CancelledError
        if len(begun) > 2:
            await asyncio.Event().wait()

    async def story():
        tasks = Background()
        async with tasks.keep("t", work):
            await soon(lambda: len(begun) == 3)
            return failures(tasks)

    assert 2.0 == asyncio.run(story())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_unhealthy():
    """
    Even by what nobody should catch.
    """

    def gone():
        raise SystemExit

    tasks = Background()
    with tasks.thread("t", gone):
        until(tasks.problems)
        assert "task t has ended" == tasks.problems()


def test_at_the_end_a_cycle_may_end_within_its_grace():
    """
    And is cancelled after it; none is begun any more.
    """
    ended, begun = [], []

    async def slow(seconds):
        begun.append(seconds)
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(seconds)
        return 0.0

    async def story(seconds, grace):
        async with Background().cycles("t", lambda: slow(seconds), grace=grace):
            await soon(lambda: seconds in begun)
        return len(begun), len(ended)

    assert (1, 1) == asyncio.run(story(0.5, 60.0))
    before = time.monotonic()
    assert (2, 2) == asyncio.run(story(3600.0, 0.05))
    assert time.monotonic() - before < 60.0


def test_two_tasks_of_one_name_are_a_mistake():
    """
    One would hide the other.
    """

    async def story(tasks):
        with pytest.raises(ValueError, match="runs already"):
            async with tasks.keep("t", Work().forever):
                pass

    asyncio.run(going_on("keep", Work(), story))
