# SPDX-License-Identifier: Apache-2.0
"""
The stack's processes: started in order, watched, started again when they end, ended together.

Decides when one that ended is tried again, and when no more. Every process has a session of its own,
so that a Ctrl-C reaches the command alone; all but tenants are tied to the starting thread's life.
Not thread-safe: one thread starts, looks and ends.
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
SOUND_SECONDS: Final = 30.0
"""One that ran so long has earned a short pause again."""
MOST_TRIES: Final = 8
"""In a row, none of them sound."""
GENTLE_SECONDS: Final = 4.0
STAGGER_SECONDS: Final = 0.2
"""Between two starts: the screen should not wait for all of them at once."""
BARE: Final = ("-I", "-S")
"""Python without site packages: it starts in a fraction of the time."""
_LAST_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """One process to keep running."""

    name: str
    command: tuple[str, ...]
    url: str = ""
    tied: bool = True
    """Killed by the kernel with its starter. A tenant is not: it ends when its standard input does."""


@dataclass(slots=True)
class Standing:
    """How a job stands."""

    job: Job
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0
    due: float | None = 0.0
    """When it is to be started; None: it runs, or is given up."""
    tries: int = 0
    part: StackProcess = field(init=False)

    def __post_init__(self) -> None:
        self.part = StackProcess(self.job.name, STARTING, self.job.url)


class Crew:
    """See the module."""

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Path,
        mark: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._standing = [Standing(job) for job in jobs]
        self._folder = folder
        self._mark = mark
        self._clock = clock
        self._next = clock()
        # Whoever reads this end ends with us, however we end.
        self._held, self._given = os.pipe()
        self.happened: list[str] = []

    @property
    def parts(self) -> dict[str, StackProcess]:
        """Every process by name."""
        return {one.job.name: one.part for one in self._standing}

    def pid(self, name: str) -> int | None:
        """Of the process as it was started; None while it does not run."""
        found = next(one.process for one in self._standing if one.job.name == name)
        return None if found is None else found.pid

    def look(self) -> None:
        """Notice who has ended, and start who is due, one at a time."""
        now = self._clock()
        for one in self._standing:
            if one.process is not None and (status := one.process.poll()) is not None:
                self._ended(one, status, now)
        for one in self._standing:
            if one.process is None and one.due is not None and one.due <= now and self._next <= now:
                self._start(one, now)
                self._next = now + STAGGER_SECONDS

    def answers(self, name: str, *, yes: bool = True) -> None:
        """Whether it works, as somebody has seen; one that only starts is given its time."""
        for one in self._standing:
            if one.job.name != name or one.process is None or yes == (one.part.state == UP):
                continue
            if yes:
                one.part = replace(one.part, state=UP, remark="")
            elif one.part.state == UP:
                one.part = replace(one.part, state=DOWN, remark="does not answer")

    def end(self) -> None:
        """Every process, in a few seconds: services are told, tenants' standard input ends, who stays is killed."""
        os.close(self._given)
        running = [one.process for one in self._standing if one.process is not None]
        for one in self._standing:
            if one.process is not None and one.job.tied:
                _signal(one.process, signal.SIGTERM)
        deadline = self._clock() + GENTLE_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        os.close(self._held)

    def _start(self, one: Standing, now: float) -> None:
        command = one.job.command
        if one.job.tied:
            command = (sys.executable, *BARE, parent_death.__file__, str(os.getpid()), *command)
        one.begun, one.due, one.tries = now, None, one.tries + 1
        try:
            with self._log(one).open("wb") as log:
                one.process = subprocess.Popen(  # noqa: S603 (our own words, no shell)
                    command,
                    stdin=subprocess.DEVNULL if one.job.tied else self._held,
                    stdout=log,
                    stderr=log,
                    env=environment(os.environ, self._mark, one.job.name),
                    start_new_session=True,
                )
        except OSError as exc:
            self._put_off(one, f"cannot start: {exc.strerror}", now)

    def _ended(self, one: Standing, status: int, now: float) -> None:
        one.process = None
        self._nobody_left(one.job.name)
        if now - one.begun >= SOUND_SECONDS:
            one.tries = 1
        how = f"signal {-status}" if status < 0 else f"status {status}"
        last = self.last_line(one.job.name)
        self._put_off(one, f"exited with {how}{f': {last}' if last else ''}", now)

    def _nobody_left(self, name: str) -> None:
        """A runner that was killed leaves its command running: that ends before another is started in its place."""
        wanted = cleanup.signs(self._mark, name)
        for pid in cleanup.marked(wanted):
            cleanup.tell(wanted, pid, signal.SIGKILL)

    def _put_off(self, one: Standing, why: str, now: float) -> None:
        if one.tries >= MOST_TRIES:
            one.part = replace(one.part, state=DOWN, remark=f"{why}; gave up")
        else:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (one.tries - 1))
            one.due = now + pause
            one.part = replace(
                one.part, state=DOWN, remark=f"{why}; restart in {pause:.0f} s", restarts=one.part.restarts + 1
            )
        self.happened.append(f"{one.job.name} {one.part.remark}")
        del self.happened[:-20]

    def last_line(self, name: str) -> str:
        """What it said last."""
        path = self._folder / f"{name}.log"
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _LAST_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]

    def _log(self, one: Standing) -> Path:
        return self._folder / f"{one.job.name}.log"


def environment(ours: Mapping[str, str], mark: str, part: str) -> dict[str, str]:
    """What every process gets: ours, with the mark, and without settings that a user has for other runs of gpushare."""
    kept = {name: value for name, value in ours.items() if not name.startswith("GPUSHARE_")}
    return {**kept, cleanup.VARIABLE: mark, cleanup.PART: part}


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
