# SPDX-License-Identifier: Apache-2.0
"""
Does an allocation of `gpushare run` still live? It does while any evidence says so, or while nobody can tell.

`gpushare run` decides by it whether memory of a card is free, the exporter which allocations it shows. No single
sign is enough once the keeper of a command was killed: programs close descriptors, clean their environment, leave
their session. In order of cost:

  lock     the folder's flock, held through a descriptor that the command and its descendants inherit
  slots    of the region, locked by every process with a CUDA context through the library
  members  pid and start time of every descendant, as the keeper saw them last
  group    the command's control group, where one could be made
  mark     the promise id in the environment with which a process was started
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import LOCK_OFFSET, SLOTS
from isolation.contract.host_allocation import MAX_PIDS, Process
from isolation.file_locks import NOT_THERE, locked
from isolation.host import cgroup, process
from isolation.host.files import open_regular, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from isolation.contract.host_allocation import HostAllocation

MARK: Final = "GPUSHARE_PROMISE"
"""Environment variable of the command: the promise id."""
MEMBERS: Final = "members"
REGION: Final = "region"
MAX_MEMBERS: Final = 4096
MEMBERS_BYTES: Final = 1 << 17
_OFD_GETLK: Final = 36  # F_OFD_GETLK: linux/include/uapi/asm-generic/fcntl.h
_FLOCK: Final = struct.Struct("@hhqqi4x")
_NO_REGION: Final = NOT_THERE | {errno.EINVAL, errno.ENXIO}
"""With what `open_regular` says of a special file: the library maps and locks regular ones only."""


class Liveness:
    """Judges allocations by one host's /proc and control groups, and remembers which marks it found last."""

    def __init__(
        self, proc: str = process.PROC, cgroup_root: Path | None = None, marks_seconds: float = float("inf")
    ) -> None:
        """`cgroup_root`: None: as mounted here. `marks_seconds`: how long a look at every process's marks is good."""
        self._proc, self._cgroup_root, self._marks_seconds = proc, cgroup_root, marks_seconds
        self._marks: frozenset[tuple[str, int]] = frozenset()
        self._marks_at = float("-inf")

    def lives(
        self, hold: HostAllocation, folder: str | Path, region: str | Path, members: Iterable[Process], now: float = 0.0
    ) -> bool:
        """Whether a descendant of the command lives. `now`: monotonic seconds. NoProcError."""
        return (
            locked(folder)
            or slots_locked(region)
            or any(process.alive(member, self._proc) for member in members)
            or (bool(hold.cgroup) and cgroup.populated(Path(hold.cgroup), hold.id, self._cgroup_root))
            or self._marked(hold, now)
        )

    def _marked(self, hold: HostAllocation, now: float) -> bool:
        if now - self._marks_at >= self._marks_seconds:
            self._marks_at, self._marks = now, frozenset(self._read_marks())
        return (hold.id, hold.uid) in self._marks

    def _read_marks(self) -> Iterator[tuple[str, int]]:
        """Promise id and user of every process that was started with a mark."""
        for pid in process.pids(self._proc):
            if not (mark := process.environment(pid, MARK, self._proc)):
                continue
            with contextlib.suppress(OSError, ValueError):
                status = process.read_status(pid, self._proc)
                # In a PID namespace of its own it may be a container's, and a container's root has our root's number.
                if status.namespace_pid == pid:
                    yield mark, status.uid


def lives(entry: HostAllocation, folder: Path, boot: str) -> bool:
    """The same for one allocation on this machine, with all that its folder says. Nothing outlives a boot."""
    return entry.boot == boot and Liveness().lives(entry, folder, folder / REGION, members(folder))


def slots_locked(region: str | Path, *, unknown: bool = True) -> bool:
    """Whether a process with a CUDA context has its slot of the region; `unknown` as in `locked`."""
    return _bytes_locked(region, LOCK_OFFSET, SLOTS, unknown=unknown)


def edge_locked(region: Path, card: int) -> bool:
    """
    Whether a call is under way that may pass the promise for a moment; `card` as in the limits file.

    No where that cannot be told: with yes a tenant could stop the correction of its ledger by a lock nobody can read.
    """
    return _bytes_locked(region, LOCK_OFFSET + SLOTS + card, 1, unknown=False)


def _bytes_locked(region: str | Path, start: int, length: int, *, unknown: bool) -> bool:
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        with open_regular(region) as (fd, _):
            try:
                answer = fcntl.fcntl(fd, _OFD_GETLK, query)
            except OSError:
                return unknown
    except OSError as exc:
        return unknown and exc.errno not in _NO_REGION
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK


def members(folder: Path) -> tuple[Process, ...]:
    """The descendants as the keeper saw them last."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in read_text(folder / MEMBERS, MEMBERS_BYTES).splitlines()[:MAX_MEMBERS]:
            pid, start = map(int, line.split())
            if 0 < pid <= MAX_PIDS:
                found.append(Process(pid, start))
    return tuple(found)


def write_members(folder: Path, found: Iterable[Process]) -> None:
    """Replace the list in one step. It dies with the machine, as they do: no fsync."""
    draft = folder / f".{MEMBERS}"
    draft.write_text("".join(f"{member.pid} {member.start}\n" for member in found), "ascii")
    draft.chmod(0o644)
    draft.replace(folder / MEMBERS)
