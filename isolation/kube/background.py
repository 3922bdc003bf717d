# SPDX-License-Identifier: Apache-2.0
"""
Tasks that last as long as their process: one that breaks is restarted after a pause, and reported until it works.

Decides when a task is begun again, and when its process is unhealthy for it: it has failed, or has completed no cycle,
for too long, or its supervisor is gone. Knows nothing of what the tasks do. Every task has a name, under which it
stands in `/healthz`, in the metrics and in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from isolation.kube.core.backoff import Pace, delay
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from isolation.contract.metrics import MetricSpec
    from isolation.kube.gauges import Rows

log = logging.getLogger(__name__)
LIMIT_SECONDS: Final = 60.0
"""A task may fail, or be late with a cycle, for so long before its process is unhealthy."""
STEADY_SECONDS: Final = 30.0
"""A task without cycles that has run for so long works again."""
_PACE: Final = Pace(first=0.5, longest=15.0)


class _Task:
    """What is known of one; a task in a thread writes, the event loop reads."""

    def __init__(self, name: str, limit: float) -> None:
        self.name, self._limit = name, limit
        self.alive: Callable[[], bool] = bool
        self.busy = False
        self.failures = 0
        self._in_a_row = 0
        self._failing: float | None = None
        """Since when."""
        self._why = ""
        self._due = math.inf
        """When the cycle under way, or the next one, is begun."""

    def begins(self) -> None:
        """A cycle."""
        self.busy, self._due = True, time.monotonic()

    def works(self, pause: float = math.inf) -> None:
        """It has completed a cycle, or has run for long enough; the next one is due after `pause` seconds."""
        self.busy, self._due = False, time.monotonic() + pause
        self._in_a_row, self._failing = 0, None

    def broke(self, exc: BaseException) -> float:
        """Seconds until it is begun again."""
        now = time.monotonic()
        self.failures += 1
        self._in_a_row += 1
        self._failing = now if self._failing is None else self._failing
        pause = delay(self._in_a_row, random.random(), _PACE)  # noqa: S311 (spreads work, keeps no secret)
        self.busy, self._due = False, now + pause
        first = _first(exc)
        self._why = " ".join(f"{type(first).__name__}: {first}".split())
        # An API server that is away or says no is no defect of ours. Of a defect, the trace of the first in a row: the
        # same may come every few seconds.
        expected = isinstance(first, ClusterError)
        trace = exc if self._in_a_row == 1 and not expected else None
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "background task failed: task=%s: %s: next try in %.1f s",
            self.name,
            self._why,
            pause,
            exc_info=trace,
        )
        return pause

    def trouble(self) -> str:
        """Why the process is unhealthy for this task; empty: it is not."""
        if not self.alive():
            return f"task {self.name} has ended"
        now, failing = time.monotonic(), self._failing
        if failing is not None and now - failing > self._limit:
            return f"task {self.name} has been failing for {now - failing:.0f} s: {self._why}"
        if now - self._due > self._limit:
            return f"task {self.name} has not completed a cycle for {now - self._due:.0f} s"
        return ""


class Background:
    """The tasks of one process; each goes on while its `with` block lasts."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def problems(self) -> str:
        """What fails, by name and with the reason; empty: nothing does."""
        return "; ".join(filter(None, (task.trouble() for task in self._tasks.values())))

    def rows(self, failures: MetricSpec, healthy: MetricSpec) -> Rows:
        """How often each has failed, and whether it is healthy (1 or 0); both metrics have the label `task`."""
        tasks = tuple(self._tasks.values())
        fine: Mapping[tuple[str, ...], float] = {(task.name,): float(not task.trouble()) for task in tasks}
        return {failures: {(task.name,): float(task.failures) for task in tasks}, healthy: fine}

    @contextlib.asynccontextmanager
    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Work without an end of its own; deadlines within are its own business."""
        task = self._new(name, LIMIT_SECONDS)

        async def forever() -> None:
            loop = asyncio.get_running_loop()
            while True:
                steady = loop.call_later(STEADY_SECONDS, task.works)
                broken: BaseException = RuntimeError("it returned")
                try:
                    await work()
                except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 (whatever it is: begun again)
                    broken = exc
                finally:
                    steady.cancel()
                await asyncio.sleep(_broke(task, broken))

        async with self._running(task, forever()):
            yield

    @contextlib.asynccontextmanager
    async def cycles(
        self,
        name: str,
        cycle: Callable[[], Awaitable[float]],
        *,
        news: asyncio.Event | None = None,
        limit: float = LIMIT_SECONDS,
        grace: float = 0.0,
    ) -> AsyncIterator[None]:
        """
        One cycle after another; each returns the seconds until the next, which `news` cuts short.

        At the end of the block a cycle under way has `grace` seconds, then it is cancelled.
        """
        task, over, bell = self._new(name, limit), asyncio.Event(), news or asyncio.Event()

        async def forever() -> None:
            while not over.is_set():
                bell.clear()
                task.begins()
                try:
                    pause = await cycle()
                    task.works(pause)
                    if not over.is_set():
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(bell.wait(), pause)
                except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 (likewise)
                    await asyncio.sleep(_broke(task, exc))

        async with self._running(task, forever()) as running:
            try:
                yield
            finally:
                over.set()
                if task.busy and grace:
                    _, late = await asyncio.wait((running,), timeout=grace)
                    if late:
                        log.warning("cancelling task %s: its cycle did not end within %.0f s", name, grace)

    @contextlib.contextmanager
    def thread(self, name: str, cycle: Callable[[], float], *, limit: float = LIMIT_SECONDS) -> Iterator[None]:
        """The same in a thread of its own, which dies with the process where a driver holds it up."""
        task, over = self._new(name, limit), Event()

        def forever() -> None:
            while not over.is_set():
                task.begins()
                try:
                    pause = cycle()
                    task.works(pause)
                except Exception as exc:  # noqa: BLE001 (likewise)
                    pause = task.broke(exc)
                over.wait(pause)

        running = Thread(target=forever, name=name, daemon=True)
        task.alive = running.is_alive
        running.start()
        try:
            yield
        finally:
            over.set()
            del self._tasks[name]

    def _new(self, name: str, limit: float) -> _Task:
        if name in self._tasks:
            raise ValueError(f"task {name} runs already")
        self._tasks[name] = _Task(name, limit)
        return self._tasks[name]

    @contextlib.asynccontextmanager
    async def _running(self, task: _Task, forever: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
        running = asyncio.ensure_future(forever)
        task.alive = lambda: not running.done()
        try:
            yield running
        finally:
            del self._tasks[task.name]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _broke(task: _Task, exc: BaseException) -> float:
    """Seconds until it is begun again; passes on that the task itself is being cancelled."""
    mine = asyncio.current_task()
    if isinstance(exc, asyncio.CancelledError) and mine is not None and mine.cancelling():
        raise exc
    return task.broke(exc)


def _first(exc: BaseException) -> BaseException:
    """Of a group its first."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
