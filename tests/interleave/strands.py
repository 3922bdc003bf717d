# SPDX-License-Identifier: Apache-2.0
"""
Threads in counted time: one runs at a time, and gives way to everybody else wherever it touches the world.

What blocks in a real program (a file, a control group) is a `pause` here. Between two of them a thread is alone; at
each the loop goes on with whatever is due, so that another thread of the same process comes between. The threads are
real and hand one baton around. A process that dies takes them along: in its next pause a thread gets CrashedError.
"""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any

from interleave.loop import PROCESS, CrashedError, touch_world

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from interleave.loop import Process, VirtualLoop

_HERE = threading.local()
_IDLE: list[Any] = []
"""Threads are made once and used again: making one takes longer than most of what is done in it."""


class _Thread:
    """Does one strand after another."""

    def __init__(self) -> None:
        self._news = threading.Lock()  # held; a release says that there is work
        self._news.acquire()
        self._work: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        self._work = work
        self._news.release()

    def _run(self) -> None:
        while True:
            self._news.acquire()
            work, self._work = self._work, None
            if work is not None:
                work()
            del work  # nothing keeps a run that is over


class Strand:
    """One call in a thread of its own; `future` gets what comes of it."""

    def __init__(self, loop: VirtualLoop, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._loop, self._work, self._future = loop, work, future
        self._go, self._back = threading.Lock(), threading.Lock()  # held; a release is the baton
        self._go.acquire()
        self._back.acquire()
        self._context = contextvars.copy_context()
        self._process: Process | None = None
        self._thread: _Thread | None = None
        self._said: tuple[Any, BaseException | None] = (None, None)
        self.over = False
        self._doomed = False

    def begin(self) -> None:
        """Until its first pause."""
        self._process = PROCESS.get()
        if self._process is not None:
            self._process.mourners.append(self.end)
        self._loop.strands.add(self)
        self._thread = _IDLE.pop() if _IDLE else _Thread()
        self._thread.do(self._main)
        self._wait()

    def end(self) -> None:
        """Its process is dead, or the run is over."""
        if not self.over and getattr(_HERE, "strand", None) is not self:
            self._doomed = True
            self._resume()

    def sleep(self, seconds: float) -> None:
        """From within."""
        self._loop.call_later(seconds, self._resume)
        self._back.release()
        self._go.acquire()
        if self._doomed:
            raise CrashedError

    def _resume(self) -> None:
        if not self.over:
            self._go.release()
            self._wait()

    def _wait(self) -> None:
        """The baton comes back at its next pause, or at its end."""
        self._back.acquire()
        if self.over:
            self._loop.strands.discard(self)
            if self._thread is not None:
                _IDLE.append(self._thread)
            if self._process is not None and self.end in self._process.mourners:
                self._process.mourners.remove(self.end)
            result, fault = self._said
            if isinstance(fault, CrashedError) or self._future.done():
                return
            if fault is not None:
                self._future.set_exception(fault)
            else:
                self._future.set_result(result)

    def _main(self) -> None:
        _HERE.strand = self
        try:
            self._said = (self._context.run(self._work), None)
        except BaseException as exc:  # noqa: BLE001 (as an executor does)
            self._said = (None, exc)
        self.over = True
        _HERE.strand = None
        self._back.release()


def pause(seconds: float) -> None:
    """The world is touched: in a thread others go on meanwhile, and the process may die here."""
    touch_world()
    strand = getattr(_HERE, "strand", None)
    if strand is not None:
        strand.sleep(seconds)
        touch_world()


class Lock:
    """What is used of `threading.Lock`: whoever waits for it lets others go on."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            pause(0.01)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
