# SPDX-License-Identifier: Apache-2.0
"""
Many runs over several processes, in the order of the jobs.

Decides how workers start, and that none of them outlives the command or speaks for it; what a run
is, is `replay`'s business.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TYPE_CHECKING, Final

from isolation.simulator.sim.replay import ReplayJob, Run, RunError, Trace, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def count_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def replay_all(trace: Trace, jobs: Sequence[ReplayJob], workers: int) -> Iterator[Run]:
    """Every job, spread over processes; the runs come in the order of the jobs."""
    if workers <= 1 or len(jobs) <= 1:
        yield from (replay(trace, job) for job in jobs)
        return
    others = set(active_children())
    # Spawned, not forked: a fork next to the threads of numpy or a progress bar may deadlock.
    pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), _start_worker, (trace,))
    try:
        with _deferred_interrupt():
            runs = pool.map(_replay_in_worker, jobs)
        yield from runs
    except BaseException as exc:
        # The pool forgets a worker that was starting when another one died, and would wait for it for ever.
        for worker in set(active_children()) - others:
            worker.kill()
        if not isinstance(exc, BrokenProcessPool):
            raise
        raise RunError("a worker process died, perhaps because memory ran out; try fewer --workers") from exc
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """While workers start: they inherit the mask, until `_start` tells them how to end in silence."""
    came: list[int] = []
    # A mask alone would not do here: the signal then goes to some thread of numpy's.
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            raise KeyboardInterrupt


_WORKER_TRACE: Final[list[Trace]] = []
"""A worker's trace: sent once, not with every job."""


def _start_worker(trace: Trace) -> None:
    """Prepare a worker; Ctrl-C ends it at once and silently, the parent speaks for all."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_end_with_parent, daemon=True).start()
    _WORKER_TRACE[:] = [trace]


def _end_with_parent() -> None:
    """A worker does not outlive whoever reads its runs, however that one ended."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGKILL)


def _replay_in_worker(job: ReplayJob) -> Run:
    """One job on the worker's trace."""
    return replay(_WORKER_TRACE[0], job)
