# SPDX-License-Identifier: Apache-2.0
"""
One process as /proc shows it, read with as few calls as can be.

Knows the kernel's formats and nothing of pods or promises. A process that has ended, and a zombie, which
holds no memory any more, are None. A program whose first thread alone has ended looks like a zombie and is
none: its other threads live and hold what they held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.sources.files import read_kernel

GONE: Final = frozenset(b"ZXx")
KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD: linux/include/linux/sched.h
STATUS_BYTES: Final = 16384
"""The list of groups may push NSpid out of reach; then it cannot be told."""
ENVIRON_BYTES: Final = 1 << 18
MOST_NAME: Final = 64
_UID: Final = re.compile(rb"\nUid:\t(\d+)")
_NAMESPACES: Final = re.compile(rb"\nNSpid:(?:\t\d+)*\t(\d+)\n")
FIRST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO: linux/include/linux/proc_ns.h


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/<pid>/stat, as far as it matters here."""

    name: str
    parent: int
    flags: int
    start: int
    """Clock ticks since boot: a pid with its start time is one process for all time."""
    headless: bool = False
    """The first thread has ended, others live."""


@dataclass(frozen=True, slots=True)
class Status:
    """/proc/<pid>/status, likewise."""

    uid: int
    """The real one."""
    namespace_pid: int | None
    """In the innermost PID namespace."""


def parse_stat(raw: bytes) -> Stat | None:
    """None for what has ended. The name may hold anything; the last parenthesis ends it."""
    opening, closing = raw.find(b"("), raw.rfind(b")")
    fields = raw[closing + 2 :].split(None, 20)
    if opening < 0 or closing < opening or len(fields) < 20:  # noqa: PLR2004 (the start time is the 20th after the name)
        raise ValueError("unknown format of process status")
    headless = fields[0][0] in GONE
    if headless and int(fields[17]) <= 1:
        return None
    name = raw[opening + 1 : closing].decode("utf-8", "replace")[:MOST_NAME]
    return Stat(name, int(fields[1]), int(fields[6]), int(fields[19]), headless)


def stat(proc: str, pid: int) -> Stat | None:
    """The process of that pid now."""
    try:
        return parse_stat(read_kernel(f"{proc}/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_status(raw: bytes) -> Status:
    """A line break in the name is escaped by the kernel: no name can pass for another line."""
    uid, inner = _UID.search(raw), _NAMESPACES.search(raw)
    if uid is None:
        raise ValueError("unknown format of process status")
    return Status(int(uid[1]), int(inner[1]) if inner else None)


def status(proc: str, pid: int) -> Status:
    """OSError where it is gone meanwhile."""
    return parse_status(read_kernel(f"{proc}/{pid}/status", STATUS_BYTES))


def cgroup_text(proc: str, pid: int | str) -> str:
    """/proc/<pid>/cgroup; OSError where it is gone meanwhile."""
    return read_kernel(f"{proc}/{pid}/cgroup", STATUS_BYTES).decode("utf-8", "replace")


def body(proc: str, pid: int) -> str:
    """Where in /proc the living rest of a headless process tells its control groups."""
    threads = (int(thread.name) for thread in Path(proc, str(pid), "task").iterdir() if thread.name.isdecimal())
    return f"{pid}/task/{next((one for one in threads if one != pid), pid)}"


def marks(proc: str, pid: int, name: bytes) -> str:
    """The value of a variable with which the process was started; empty where there is none, or not for us to see."""
    try:
        words = read_kernel(f"{proc}/{pid}/environ", ENVIRON_BYTES).split(b"\0")
    except OSError:
        return ""
    prefix = name + b"="
    return next((word[len(prefix) :].decode("ascii", "replace") for word in words if word.startswith(prefix)), "")


def sees_host(proc: str) -> bool:
    """
    Whether these are the host's processes. Nobody inside a namespace of his own can show us otherwise.

    The second process of a host is a kernel thread; where that is hidden, the number of the first namespace,
    the same in every kernel, tells.
    """
    second = stat(proc, 2)
    if second is not None and second.flags & KERNEL_THREAD:
        return True
    try:
        return str(Path(proc, "1/ns/pid").readlink()) == FIRST_NAMESPACE
    except OSError:
        return False
