# SPDX-License-Identifier: Apache-2.0
"""
The keeper: a process of its own that outlives `gpushare run` and stays while anybody lives on the hold.

It is the parent of the command and the reaper of every orphan among its descendants, so it knows when
the last one has gone. Meanwhile it writes down who they are, feeds own GPU time and gives back what
dead processes held. It leaves the session, so that terminals, stops and hang-ups pass it by. Killed, it
takes nothing with it: what the next run needs to know stands in the book.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import AbiError
from isolation.contract.host_allocation import Process
from isolation.host import cgroup, liveness, process
from isolation.lib import files
from isolation.run.launch import BROKEN, Command, start
from isolation.run.store import Book, BookError, Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.host.feed import Feeder

ROUND_SECONDS: Final = 1.0
"""How often descendants are written down and dead memory is given back."""
LINGER_SECONDS: Final = 0.2
"""How long the end of a command waits for what it started, so that the next command finds the room."""
_SELDOM: Final = 100
_PAUSES: Final = (0.001, 0.002, 0.005, 0.01, 0.0)
"""Seconds; kernels may show a task in its control group for a moment after it was waited for."""
_SUBREAPER, _NAME = 36, 15  # PR_SET_CHILD_SUBREAPER, PR_SET_NAME: linux/include/uapi/linux/prctl.h


@dataclass(slots=True)
class Keep:
    """What the keeper keeps."""

    book: Book
    held: Held
    command: Command
    feeder: Callable[[], Feeder] | None
    """None: nothing to feed. Made in the keeper, whose NVML is its own."""
    reap: Callable[[Path], object] | None
    """Gives back what dead processes of a region hold; None: nothing is enforced."""
    talk: int
    """Pipe to `gpushare run`: lines of JSON."""

    def run(self) -> None:
        """Start the command and stay to the end. Never returns."""
        code = BROKEN
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some starters leave it, children vanish untold
            _prctl(_SUBREAPER, 1)
            pid = self._start()
            self._detach()
            _Watch(self, pid).stay()
            code = 0
        except (OSError, BookError):
            code = BROKEN  # nobody is left to tell; the book holds
        finally:
            os._exit(code)

    def tell(self, **line: object) -> None:
        """One line to `gpushare run`, if it is still there."""
        with contextlib.suppress(OSError):
            os.write(self.talk, json.dumps(line).encode() + b"\n")

    def _start(self) -> int:
        pid, gate, errors = start(self.command)
        liveness.write_members(self.held.folder, [process.identify(pid)])
        self.tell(pid=pid)
        os.write(gate, b"g")
        os.close(gate)
        failed = os.read(errors, 64).decode("ascii")
        os.close(errors)
        if failed:
            code, errno = map(int, failed.split())
            os.waitpid(pid, 0)
            self.close()
            self.tell(failed=code, errno=errno)
            os._exit(0)
        return pid

    def close(self) -> None:
        """Let the lock go and give the room back, unless somebody lives on after all."""
        os.close(self.command.lock)
        for pause in _PAUSES:
            if self.book.end(self.held):
                return
            time.sleep(pause)

    def _detach(self) -> None:
        """Out of the session, away from the terminal, with no descriptor of anybody else's."""
        os.setsid()
        _prctl(_NAME, ctypes.c_char_p(b"gpushare-keeper"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        kept = {0, 1, 2, self.talk, self.command.lock}
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)


class _Watch:
    """From the start of the command to the end of its last descendant."""

    def __init__(self, keep: Keep, pid: int) -> None:
        self.keep = keep
        self.pid = pid
        self.status: int | None = None
        self.feeder = keep.feeder() if keep.feeder else None
        self.members: tuple[Process, ...] = ()
        self._written: tuple[Process, ...] | None = None

    def stay(self) -> None:
        """Until nobody is left."""
        tick = self.feeder.seconds if self.feeder else ROUND_SECONDS
        newer = partial(process.descends, root=os.getpid())
        due = linger = 0.0
        while not self._collect():
            now = time.monotonic()
            if self.status is not None and self.keep.talk >= 0:
                linger = linger or now + LINGER_SECONDS
                if now >= linger:
                    self._report()
            if now >= due:
                self._round()
                # a look at a machine with thousands of processes is not for every second
                due = now + max(ROUND_SECONDS, _SELDOM * (time.monotonic() - now))
            if self.feeder is not None:
                with contextlib.suppress(OSError, AbiError):  # unfed, the library goes by its promise
                    self.feeder.turn(frozenset(member.pid for member in self.members), now, newer)
            wait = min(tick, due - now) if self.status is None or self.keep.talk < 0 else 0.01
            signal.sigtimedwait({signal.SIGCHLD}, max(0.001, wait))
        with contextlib.suppress(OSError, BookError):  # the next run sees that nobody lives
            self.keep.close()
        self._report()

    def _collect(self) -> bool:
        """Bury the dead; whether nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                self.status = status

    def _report(self) -> None:
        """Tell how the command ended, once."""
        if self.keep.talk < 0 or self.status is None:
            return
        self.keep.tell(code=os.waitstatus_to_exitcode(self.status))
        os.close(self.keep.talk)
        self.keep.talk = -1

    def _round(self) -> None:
        group = self.keep.held.entry.cgroup
        if group and (pids := cgroup.pids(Path(group))):
            living = {pid: process.read_living(pid) for pid in pids}
            self.members = tuple(Process(pid, stat.start) for pid, stat in living.items() if stat is not None)
        else:
            self.members = process.descendants(os.getpid())
        if self.members != self._written:
            with contextlib.suppress(OSError):
                liveness.write_members(self.keep.held.folder, self.members)
                self._written = self.members
        if self.keep.reap is not None:
            self._reap(self.keep.held.folder / liveness.REGION)

    def _reap(self, region: Path) -> None:
        """In a process of its own: the region is the command's to spoil."""
        try:
            slots = files.read_region(region).slots
        except (OSError, AbiError):
            return
        here = {member.pid: member.start for member in self.members}
        if all(here.get(slot.pid) == slot.start_ticks for slot in slots) or self.keep.reap is None:
            return
        if os.fork() == 0:
            try:
                self.keep.reap(region)
            finally:
                os._exit(0)


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
