# SPDX-License-Identifier: Apache-2.0
"""
Does anybody still live on a `gpushare run` hold? A hold lives while any evidence says so.

The same evidence by which `gpushare run` decides whether room is free, seen from outside and never in its
way, in order of cost: the lock on the hold's folder, inherited by every descendant; slots of the region,
locked by every process with a CUDA context; members that live; the hold's control group; and, looked for
now and then only, the mark in the environment of a process of the same user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exporter.sources import processes
from exporter.sources.files import opened
from exporter.sources.lineage import GROUP, MARK
from isolation.contract.abi import LOCK_OFFSET, SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.host_allocation import HostAllocation, Process

MARKS_SECONDS: Final = 10.0
"""How often every process's environment is asked, where nothing else is left of a hold."""
_OFD_GETLK: Final = 36  # F_OFD_GETLK: linux/include/uapi/asm-generic/fcntl.h
_FLOCK: Final = struct.Struct("@hhqqi4x")


class Evidence:
    """Remembers which marks were seen last."""

    def __init__(self, proc: Path, cgroup: Path) -> None:
        self._proc, self._cgroup = str(proc), str(cgroup)
        self._marked: frozenset[tuple[str, int]] = frozenset()
        self._looked_at = float("-inf")

    def lives(self, hold: HostAllocation, folder: str, region: str, members: Iterable[Process], now: float) -> bool:
        """Whether a descendant of the command lives, by any evidence there is."""
        return (
            locked(folder)
            or slots_locked(region)
            or any(self._alive(member) for member in members)
            or self._populated(hold)
            or self._marked_by(hold, now)
        )

    def _alive(self, member: Process) -> bool:
        try:
            seen = processes.stat(self._proc, member.pid)
        except (OSError, ValueError):
            return False
        return seen is not None and seen.start == member.start

    def _populated(self, hold: HostAllocation) -> bool:
        """Of a group with the hold's own name in the hierarchy only: the path is somebody's word."""
        path = Path(hold.cgroup)
        if path.name != f"{GROUP}{hold.id}" or Path(self._cgroup) not in path.parents or ".." in path.parts:
            return False
        try:
            return "populated 1" in (path / "cgroup.events").read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return False

    def _marked_by(self, hold: HostAllocation, now: float) -> bool:
        if now - self._looked_at >= MARKS_SECONDS:
            self._looked_at = now
            self._marked = frozenset(self._marks())
        return (hold.id, hold.uid) in self._marked

    def _marks(self) -> Iterable[tuple[str, int]]:
        """(promise id, user) of every process that was started with one."""
        for entry in os.scandir(self._proc):
            if not entry.name.isdecimal():
                continue
            ident = processes.marks(self._proc, int(entry.name), MARK)
            if ident:
                with contextlib.suppress(OSError, ValueError):
                    status = processes.status(self._proc, int(entry.name))
                    if status.namespace_pid == int(entry.name):  # else a container's, whose root may be ours by number
                        yield ident, status.uid


def locked(folder: str) -> bool:
    """Whether somebody holds the folder's lock. Asked with a shared one, for a moment: others who ask do likewise."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def slots_locked(region: str) -> bool:
    """Whether a process with a CUDA context has its slot of the region."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_OFFSET, SLOTS, 0)
    try:
        with opened(region) as (fd, _):
            answer = fcntl.fcntl(fd, _OFD_GETLK, asked)
    except OSError:
        return False
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK
