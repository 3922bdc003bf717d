# SPDX-License-Identifier: Apache-2.0
"""
Keeps the processes of the demo stack running: started in order, restarted when they end, stopped together.

Decides when an ended process is restarted, and when it is given up. Every process has a session of its own, so that
Ctrl-C reaches `gpushare up` alone; all but the tenants get the parent-death signal. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.demo.stack import cleanup, parent_death
from isolation.contract.stack import DOWN, STARTING, UP, StackProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
STABLE_SECONDS: Final = 30.0
"""A process that ran for so long is restarted without a long delay again."""
MAX_TRIES: Final = 8
"""In a row, none of them sound."""
TERMINATION_SECONDS: Final = 4.0
STAGGER_SECONDS: Final = 0.2
"""Between two starts: the screen should not wait for all of them at once."""
ISOLATED_PYTHON: Final = ("-I", "-S")
"""Python without site packages: it starts in a fraction of the time."""
_LAST_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class ManagedCommand:
    """One process to keep running."""

    name: str
    command: tuple[str, ...]
    url: str = ""
    dies_with_parent: bool = True
    """Killed by the kernel with its parent. A tenant is not: it ends when its standard input does."""


@dataclass(slots=True)
class _ManagedProcess:
    """One process and its state."""

    job: ManagedCommand
    popen: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    due_at: float | None = 0.0
    """When to start it; None: it runs, or is given up."""
    tries: int = 0
    status: StackProcess = field(init=False)

    def __post_init__(self) -> None:
        self.status = StackProcess(self.job.name, STARTING, self.job.url)


class StackSupervisor:
    """See the module."""

    def __init__(
        self,
        jobs: Sequence[ManagedCommand],
        folder: Path,
        mark: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._managed = [_ManagedProcess(job) for job in jobs]
        self._folder = folder
        self._mark = mark
        self._clock = clock
        self._next = clock()
        # Tenants read this pipe and end at its end, so they end with this process however it ends.
        self._stdin_read, self._stdin_write = os.pipe()
        self.events: list[str] = []

    @property
    def statuses(self) -> dict[str, StackProcess]:
        """Every process by name."""
        return {managed.job.name: managed.status for managed in self._managed}

    def pid(self, name: str) -> int | None:
        """Of the process as it was started; None while it does not run."""
        found = next(managed.popen for managed in self._managed if managed.job.name == name)
        return None if found is None else found.pid

    def start_due(self) -> None:
        """Notice ended processes, and start those that are due, one at a time."""
        now = self._clock()
        for managed in self._managed:
            if managed.popen is not None and (status := managed.popen.poll()) is not None:
                self._handle_exit(managed, status, now)
        for managed in self._managed:
            if managed.popen is None and managed.due_at is not None and managed.due_at <= now and self._next <= now:
                self._start(managed, now)
                self._next = now + STAGGER_SECONDS

    def set_responding(self, name: str, *, responding: bool = True) -> None:
        """Record whether it responds; a process that has just started is not called down."""
        for managed in self._managed:
            if managed.job.name != name or managed.popen is None or responding == (managed.status.state == UP):
                continue
            if responding:
                managed.status = replace(managed.status, state=UP, remark="")
            elif managed.status.state == UP:
                managed.status = replace(managed.status, state=DOWN, remark="does not answer")

    def stop(self) -> None:
        """Stop every process within seconds: SIGTERM for services, end of standard input for tenants, then SIGKILL."""
        os.close(self._stdin_write)
        running = [managed.popen for managed in self._managed if managed.popen is not None]
        for managed in self._managed:
            if managed.popen is not None and managed.job.dies_with_parent:
                _signal(managed.popen, signal.SIGTERM)
        deadline = self._clock() + TERMINATION_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        os.close(self._stdin_read)

    def _start(self, managed: _ManagedProcess, now: float) -> None:
        command = managed.job.command
        if managed.job.dies_with_parent:
            command = (sys.executable, *ISOLATED_PYTHON, parent_death.__file__, str(os.getpid()), *command)
        managed.started_at, managed.due_at, managed.tries = now, None, managed.tries + 1
        try:
            with self._log(managed).open("wb") as log:
                managed.popen = subprocess.Popen(  # noqa: S603 (our own command, no shell)
                    command,
                    stdin=subprocess.DEVNULL if managed.job.dies_with_parent else self._stdin_read,
                    stdout=log,
                    stderr=log,
                    env=build_environment(os.environ, self._mark, managed.job.name),
                    start_new_session=True,
                )
        except OSError as exc:
            self._schedule_restart(managed, f"cannot start: {exc.strerror}", now)

    def _handle_exit(self, managed: _ManagedProcess, status: int, now: float) -> None:
        managed.popen = None
        self._kill_descendants(managed.job.name)
        if now - managed.started_at >= STABLE_SECONDS:
            managed.tries = 1
        how = f"signal {-status}" if status < 0 else f"status {status}"
        last = self.last_line(managed.job.name)
        self._schedule_restart(managed, f"exited with {how}{f': {last}' if last else ''}", now)

    def _kill_descendants(self, name: str) -> None:
        """A killed `gpushare run` leaves its command running: kill it before the next one starts."""
        wanted = cleanup.build_marks(self._mark, name)
        for pid in cleanup.find_marked(wanted):
            cleanup.send_signal(wanted, pid, signal.SIGKILL)

    def _schedule_restart(self, managed: _ManagedProcess, why: str, now: float) -> None:
        if managed.tries >= MAX_TRIES:
            managed.status = replace(managed.status, state=DOWN, remark=f"{why}; gave up")
        else:
            delay = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (managed.tries - 1))
            managed.due_at = now + delay
            managed.status = replace(
                managed.status,
                state=DOWN,
                remark=f"{why}; restart in {delay:.0f} s",
                restarts=managed.status.restarts + 1,
            )
        self.events.append(f"{managed.job.name} {managed.status.remark}")
        del self.events[:-20]

    def last_line(self, name: str) -> str:
        """The last line of its log."""
        path = self._folder / f"{name}.log"
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _LAST_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]

    def _log(self, managed: _ManagedProcess) -> Path:
        return self._folder / f"{managed.job.name}.log"


def build_environment(ours: Mapping[str, str], mark: str, part: str) -> dict[str, str]:
    """What every process gets: ours, with the mark, and without settings that a user has for other runs of gpushare."""
    kept = {name: value for name, value in ours.items() if not name.startswith("GPUSHARE_")}
    return {**kept, cleanup.VARIABLE: mark, cleanup.PART: part}


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
