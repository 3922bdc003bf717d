# SPDX-License-Identifier: Apache-2.0
"""
Time that is only counted, and processes that can die between any two steps.

An asyncio loop whose clock jumps to the next timer and whose order among callbacks that are ready
is drawn from a seed, so that one seed is one interleaving. A `Process` is whatever runs in its
context: when it dies its callbacks are dropped as a killed program's are, without `finally`, without
a last word. Knows nothing of clusters.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Iterator

MAX_STEPS: Final = 2_000_000
"""Of one run: whoever needs more spins."""


class CrashedError(BaseException):
    """Thrown through code whose process dies inside a call to the world."""


class StuckError(Exception):
    """Nothing is ready and no timer runs, or nothing ever ends: the run is broken."""


class Process:
    """One program on one machine, from its start to its death."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.fuse: int | None = None
        """Steps until it dies; None: it is not about to."""
        self.frozen = 0.0
        """Until this moment it gets no processor."""
        self.mourners: list[Callable[[], None]] = []
        """Called at its death, from outside of it: connections break."""

    def step(self) -> None:
        """One step further, which may be the last; CrashedError in a process that is dead."""
        if self.alive and self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.die()
        if not self.alive:
            raise CrashedError(self.name)

    def die(self) -> None:
        """Now; nothing of it runs again."""
        if self.alive:
            self.alive = False
            for mourner in tuple(self.mourners):
                OUTSIDE.copy().run(mourner)


PROCESS: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("process", default=None)
OUTSIDE: Final = contextvars.Context()
"""The context of what no process does: servers, networks, kernels."""


@contextlib.contextmanager
def thrown_away() -> Iterator[None]:
    """What a run leaves cut off in the middle of something goes in silence, at the end of the block."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    collecting = gc.isenabled()
    gc.disable()  # the collector has its own times, which would be part of the interleaving
    gc.freeze()  # what was there before is not looked through at the end of each run
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        gc.unfreeze()
        sys.unraisablehook = hook
        if collecting:
            gc.enable()


def touch_world() -> None:
    """Said by every function of the world before it takes effect: the dead have none."""
    process = PROCESS.get()
    if process is not None:
        process.step()


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module; `broken` collects what went wrong where nobody awaits it."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._ready: list[asyncio.Handle] = []  # type: ignore[assignment]
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._draw = draw
        self._now = 0.0
        self.steps = 0
        self.strands: set[Any] = set()
        self.broken: list[str] = []
        self._kept: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """Seconds since the run began."""
        return self._now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """As asyncio does; the heap compares numbers only, which is half of the cost of a run."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """As asyncio does."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def later(self, seconds: float, work: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Do this from outside of every process."""
        return self.call_later(seconds, work, *args, context=OUTSIDE.copy())

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run this as a part of a process; an exception that ends it is counted as broken."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        task = self.create_task(work, name=name, context=context)
        task.add_done_callback(self._ended, context=OUTSIDE.copy())
        return task

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        """As asyncio does; tasks are kept so that the collector never runs the `finally` of a dead one."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._kept.append(task)
        if len(self._kept) > 512:
            self._kept = [kept for kept in self._kept if not kept.done()]
        return task

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """A thread in counted time."""
        from interleave.strands import Strand  # noqa: PLC0415 (it imports this module)

        future = self.create_future()
        strand = Strand(self, lambda: func(*args), future)
        self.call_later(self._draw.random() * 0.002, strand.begin)
        return future

    def close(self) -> None:
        """Threads end with the run."""
        for strand in tuple(self.strands):
            strand.end()
        super().close()

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _run_once(self) -> None:
        ready, heap = self._ready, self._heap
        if not ready:
            while heap and heap[0][2]._cancelled:
                heapq.heappop(heap)
            if not heap:
                raise StuckError("nothing is ready and no timer runs")
            self._now = max(self._now, heap[0][0])
        while heap and heap[0][0] <= self._now:
            timer = heapq.heappop(heap)[2]
            if not timer._cancelled:
                ready.append(timer)
        if not ready:
            return
        at = int(self._draw.random() * len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        self._step(ready.pop())

    def _step(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise StuckError(f"more than {MAX_STEPS} steps at second {self._now:.1f}: {handle}")
        process = handle._context.get(PROCESS)
        if process is not None:
            if process.alive and process.frozen > self._now:
                self.later(process.frozen - self._now, self._step, handle)
                return
            try:
                process.step()
            except CrashedError:
                return
        try:
            handle._run()
        except CrashedError:
            return

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), CrashedError):
            self.broken.append(f"{task.get_name()} at {self._now:.2f}: {task.exception()!r}")

    def _complain(self, _loop: Any, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if not isinstance(fault, CrashedError) and "never retrieved" not in context.get("message", ""):
            self.broken.append(f"{context.get('message')} at {self._now:.2f}: {fault!r}")
