# SPDX-License-Identifier: Apache-2.0
"""
Does anybody still live on a hold? A hold lives while any evidence says so.

No single sign is enough once the keeper of a command has been killed: programs close descriptors,
clean their environment, leave their session. In order of cost:

  lock     the folder's flock, held through a descriptor that the command and its descendants inherit
  books    slots of the region, locked by every process with a CUDA context through the library
  group    the command's control group, where one could be made
  members  pid and start time of every descendant, as the keeper saw them last
  mark     the promise id in the environment with which a process was started
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import LOCK_OFFSET, SLOTS
from isolation.contract.host_allocation import MOST_PIDS, Process
from isolation.host import cgroup, process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.host_allocation import HostAllocation

MARK: Final = "GPUSHARE_PROMISE"
"""Environment variable of the command: the promise id."""
MEMBERS: Final = "members"
REGION: Final = "region"
MOST_BYTES: Final = 1 << 20
_OFD_GETLK: Final = 36  # F_OFD_GETLK: linux/include/uapi/asm-generic/fcntl.h
_FLOCK: Final = struct.Struct("@hhqqi4x")


def lives(entry: HostAllocation, folder: Path, boot: str) -> bool:
    """Whether a descendant of the command lives, by any evidence there is."""
    if entry.boot != boot:
        return False
    return (
        locked(folder)
        or slots_locked(folder / REGION)
        or (bool(entry.cgroup) and cgroup.populated(Path(entry.cgroup)))
        or any(process.alive(member) for member in members(folder))
        or process.marked(f"{MARK}={entry.id}".encode(), entry.uid)
    )


def locked(path: Path, flags: int = os.O_DIRECTORY) -> bool:
    """Whether somebody holds the flock of a hold's folder (or of a file); what is gone is not held."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        return False
    try:
        # shared, so that those who ask at the same moment do not take each other for the holder
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def slots_locked(region: Path) -> bool:
    """Whether a process with a CUDA context has its slot of the region."""
    return _bytes_locked(region, LOCK_OFFSET, SLOTS)


def edge_locked(region: Path, card: int) -> bool:
    """Whether a call is under way that may pass the promise for a moment; `card` as in the limits file."""
    return _bytes_locked(region, LOCK_OFFSET + SLOTS + card, 1)


def _bytes_locked(region: Path, start: int, length: int) -> bool:
    try:
        fd = os.open(region, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        answer = fcntl.fcntl(fd, _OFD_GETLK, asked)
    except OSError:
        return False
    finally:
        os.close(fd)
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK


def members(folder: Path) -> tuple[Process, ...]:
    """The descendants as the keeper saw them last."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in read_small(folder / MEMBERS).splitlines():
            pid, start = map(int, line.split())
            if 0 < pid <= MOST_PIDS:
                found.append(Process(pid, start))
    return tuple(found)


def write_members(folder: Path, found: Iterable[Process]) -> None:
    """Replace the list in one step. It dies with the machine, as they do: no fsync."""
    draft = folder / f".{MEMBERS}"
    draft.write_text("".join(f"{one.pid} {one.start}\n" for one in found), "ascii")
    draft.chmod(0o644)
    draft.replace(folder / MEMBERS)


def read_small(path: Path) -> str:
    """The text of a file that may be somebody else's: no links, no pipes, no more than 1 MiB."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + 1).decode("utf-8")
    finally:
        os.close(fd)
