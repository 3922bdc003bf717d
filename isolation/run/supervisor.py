# SPDX-License-Identifier: Apache-2.0
"""
The supervisor of one allocation: a process that outlives `gpushare run` and stays as long as any descendant lives.

It is the parent of the command and the subreaper of all its descendants, so it knows when the last one has ended.
Meanwhile it writes down their pids, feeds the library with each process's GPU time and gives back the memory of dead
processes. It leaves the session, so that terminal signals, stops and hang-ups do not reach it. If it is killed, nothing
is lost: the store has what the next run needs.
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
from isolation.run.launch import FAILED, Command, fork_command
from isolation.run.store import AllocationStore, StoredAllocation, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.host.feed import Feeder

ROUND_SECONDS: Final = 1.0
"""How often descendants are written down and dead memory is given back."""
CLEANUP_SECONDS: Final = 0.2
"""How long the end of a command waits for its descendants, so that the next command finds the capacity free."""
_SELDOM: Final = 100
_PAUSES: Final = (0.001, 0.002, 0.005, 0.01, 0.0)
"""Seconds; kernels may show a task in its control group for a moment after it was waited for."""
_SUBREAPER, _NAME = 36, 15  # PR_SET_CHILD_SUBREAPER, PR_SET_NAME: linux/include/uapi/linux/prctl.h


@dataclass(slots=True)
class Supervisor:
    """One allocation and its command."""

    store: AllocationStore
    held: StoredAllocation
    command: Command
    feeder: Callable[[], Feeder] | None
    """None: nothing to feed. Made in the supervisor's process, since NVML does not survive a fork."""
    reap: Callable[[Path], object] | None
    """Gives back what dead processes of a region hold; None: nothing is enforced."""
    report_fd: int
    """Pipe to `gpushare run`: lines of JSON."""

    def run(self) -> None:
        """Start the command and stay to the end. Never returns."""
        code = FAILED
        try:
            # ignored, as some starters leave it, children vanish before waitpid sees them
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # orphans of the command come to us instead of to init: the allocation lives as long as they do
            _prctl(_SUBREAPER, 1)
            pid = self._start()
            self._detach()
            _Loop(self, pid).run()
            code = 0
        except (OSError, StoreError):
            code = FAILED  # there is no reader left; the store has the record
        finally:
            os._exit(code)

    def send(self, **line: object) -> None:
        """One line to `gpushare run`, if it is still there."""
        with contextlib.suppress(OSError):
            os.write(self.report_fd, json.dumps(line).encode() + b"\n")

    def _start(self) -> int:
        pid, gate, errors = fork_command(self.command)
        liveness.write_members(self.held.folder, [process.identify(pid)])
        self.send(pid=pid)
        # only now may the command begin: whoever looks from here on finds its process among the members
        os.write(gate, b"g")
        os.close(gate)
        failed = os.read(errors, 64).decode("ascii")
        os.close(errors)
        if failed:
            code, errno = map(int, failed.split())
            os.waitpid(pid, 0)
            self.close()
            self.send(failed=code, errno=errno)
            os._exit(0)
        return pid

    def close(self) -> None:
        """Close the lock and remove the allocation, unless a process still lives in it."""
        os.close(self.command.lock)
        for pause in _PAUSES:
            if self.store.release(self.held):
                return
            time.sleep(pause)

    def _detach(self) -> None:
        """Leave the session and the terminal, and close every descriptor that we inherited."""
        os.setsid()
        # The exporter finds orphans of an allocation by this name (exporter.sources.lineage).
        _prctl(_NAME, ctypes.c_char_p(b"gpushare-keeper"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        kept = {0, 1, 2, self.report_fd, self.command.lock}
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)


class _Loop:
    """From the start of the command to the end of its last descendant."""

    def __init__(self, supervisor: Supervisor, pid: int) -> None:
        self.supervisor = supervisor
        self.pid = pid
        self.status: int | None = None
        self.feeder = supervisor.feeder() if supervisor.feeder else None
        self.members: tuple[Process, ...] = ()
        self._written: tuple[Process, ...] | None = None

    def run(self) -> None:
        """Until no descendant is left."""
        tick = self.feeder.seconds if self.feeder else ROUND_SECONDS
        newer = partial(process.descends, root=os.getpid())
        due = report_at = 0.0
        while not self._collect():
            now = time.monotonic()
            if self.status is not None and self.supervisor.report_fd >= 0:
                report_at = report_at or now + CLEANUP_SECONDS
                if now >= report_at:
                    self._report()
            if now >= due:
                with contextlib.suppress(OSError):  # those known before stand until the next look
                    self._refresh_members()
                # reading /proc of thousands of processes takes long: at most one part in _SELDOM of the time
                due = now + max(ROUND_SECONDS, _SELDOM * (time.monotonic() - now))
            if self.feeder is not None:
                with contextlib.suppress(OSError, AbiError):  # unfed, the library goes by its promise
                    self.feeder.turn(frozenset(member.pid for member in self.members), now, newer)
            wait = min(tick, due - now) if self.status is None or self.supervisor.report_fd < 0 else 0.01
            signal.sigtimedwait({signal.SIGCHLD}, max(0.001, wait))
        with contextlib.suppress(OSError, StoreError):  # the next run sees that no process lives
            self.supervisor.close()
        self._report()

    def _collect(self) -> bool:
        """Reap ended children; whether no descendant is left."""
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
        """Send the command's exit code to `gpushare run`, once."""
        if self.supervisor.report_fd < 0 or self.status is None:
            return
        self.supervisor.send(code=os.waitstatus_to_exitcode(self.status))
        os.close(self.supervisor.report_fd)
        self.supervisor.report_fd = -1

    def _refresh_members(self) -> None:
        group = self.supervisor.held.entry.cgroup
        if group and (pids := cgroup.pids(Path(group))):
            living = {pid: process.read_living(pid) for pid in pids}
            self.members = tuple(Process(pid, stat.start) for pid, stat in living.items() if stat is not None)
        else:
            self.members = process.descendants(os.getpid())
        if self.members != self._written:
            with contextlib.suppress(OSError):
                liveness.write_members(self.supervisor.held.folder, self.members)
                self._written = self.members
        if self.supervisor.reap is not None:
            self._reap(self.supervisor.held.folder / liveness.REGION)

    def _reap(self, region: Path) -> None:
        """In a process of its own: the command can write anything into the region."""
        try:
            slots = files.read_region(region).slots
        except (OSError, AbiError):
            return
        here = {member.pid: member.start for member in self.members}
        if all(here.get(slot.pid) == slot.start_ticks for slot in slots) or self.supervisor.reap is None:
            return
        if os.fork() == 0:
            try:
                self.supervisor.reap(region)
            finally:
                os._exit(0)


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
