# SPDX-License-Identifier: Apache-2.0
"""
Runs the sources of a cycle in parallel, each with a deadline; never two reads of one source at once.

A read that overruns fails in this cycle. It cannot be stopped (it may hang in a driver), so its source is not read
again until it has returned, and what it returns then is dropped as too old. One thread per source, so that nothing
piles up however long one hangs.
"""

from __future__ import annotations

import logging
import time
from threading import Condition, Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from exporter.pipeline.snapshot import SourceOutcome
from exporter.sources.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class Runner:
    """
    Workers by source name; a context manager that lets them go.

    One caller at a time: it is the cycle's, and a cycle has one thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers: dict[str, _Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, name: str, read: Callable[[], T], deadline: float) -> SourceOutcome[T]:
        """What one source tells within `deadline` seconds; `read` takes no arguments."""
        return self.run_all({name: read}, deadline)[name]

    def run_all(self, reads: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, SourceOutcome[Any]]:
        """Every source at once; all have answered, or failed, when `deadline` seconds are over."""
        end = self._clock() + deadline
        jobs = {name: self._worker(name).offer(read) for name, read in reads.items()}
        return {
            name: self._refused(name) if job is None else job.outcome(end - self._clock(), deadline)
            for name, job in jobs.items()
        }

    def close(self) -> None:
        """End the idle workers; one that hangs ends when its source returns."""
        for worker in self._workers.values():
            worker.dismiss()
        self._workers.clear()

    def _worker(self, name: str) -> _Worker:
        if name not in self._workers:
            self._workers[name] = _Worker(name, self._clock)
        return self._workers[name]

    def _refused(self, name: str) -> SourceOutcome[Any]:
        now = self._clock()
        hung = now - self._workers[name].begun
        return SourceOutcome(None, f"no answer for {hung:.1f} s: waiting for the pending read", hung, now)


class _Job:
    """One read: given up by its caller, or finished by its worker, whichever comes first."""

    def __init__(self, read: Callable[[], Any], begun: float, clock: Callable[[], float]) -> None:
        self.read = read
        self._begun = begun
        self._clock = clock
        self._done = Event()
        self._lock = Lock()
        self._outcome: SourceOutcome[Any] | None = None

    def outcome(self, patience: float, deadline: float) -> SourceOutcome[Any]:
        """The worker's answer, or that there was none in time."""
        self._done.wait(max(0.0, patience))
        now = self._clock()
        return self._settle(SourceOutcome(None, f"timed out after {deadline:g} s", now - self._begun, now))

    def finish(self, value: Any, error: str) -> None:
        """Leave the answer where the caller finds it."""
        now = self._clock()
        self._settle(SourceOutcome(value, error, now - self._begun, now))
        self._done.set()

    def _settle(self, outcome: SourceOutcome[Any]) -> SourceOutcome[Any]:
        with self._lock:
            if self._outcome is None:
                self._outcome = outcome
            return self._outcome


class _Worker:
    """The one thread in which a source is read."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.begun = 0.0
        """When the read under way began."""
        self._name = name
        self._clock = clock
        self._wake = Condition()
        self._job: _Job | None = None
        self._dismissed = False
        Thread(target=self._work, name=f"source {name}", daemon=True).start()

    def offer(self, read: Callable[[], Any]) -> _Job | None:
        """Take a read on, or None while the last one has not come back."""
        with self._wake:
            if self._job is not None:
                return None
            self.begun = self._clock()
            job = self._job = _Job(read, self.begun, self._clock)
            self._wake.notify()
            return job

    def dismiss(self) -> None:
        """End the thread as soon as it is idle."""
        with self._wake:
            self._dismissed = True
            self._wake.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            value, error = self._read(job)
            with self._wake:
                self._job = None  # free before the caller learns of it, so that it may ask again at once
            job.finish(value, error)

    def _next(self) -> _Job | None:
        with self._wake:
            self._wake.wait_for(lambda: self._job is not None or self._dismissed)
            return self._job

    def _read(self, job: _Job) -> tuple[Any, str]:
        try:
            value = job.read()
        except SourceError as exc:
            return None, str(exc) or "failed without an error message"
        except BaseException as exc:  # noqa: BLE001 (whatever a source does, its worker must live on)
            _log.warning("source %s failed", self._name, exc_info=True)
            return None, f"{type(exc).__name__}: {exc}"
        return value, "" if value is not None else "returned nothing"
