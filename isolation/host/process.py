# SPDX-License-Identifier: Apache-2.0
"""
Who a process is: a pid is used again, a pid with its start time is not.

Reads /proc and nothing else. A zombie without threads is gone: it holds no memory and runs no more.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.host_allocation import Process

if TYPE_CHECKING:
    from collections.abc import Callable

PROC: Final = Path("/proc")
_GONE: Final = frozenset("ZXx")


class NoProcError(OSError):
    """/proc cannot be read: nobody can be called dead."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What /proc tells of a process at one moment."""

    process: Process
    parent: int
    gone: bool


def parse_stat(text: str) -> tuple[bool, int, int]:
    """
    Whether it is gone, parent and start time; the name may hold spaces and parentheses, the last one ends it.

    Where the first thread alone has ended the state says zombie, but the others live and hold what they held.
    """
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0] in _GONE and int(fields[17]) <= 1, int(fields[1]), int(fields[19])


def see(pid: int) -> Seen | None:
    """The process of that pid now; None where there is none (or none that we may see)."""
    try:
        gone, parent, start = parse_stat((PROC / str(pid) / "stat").read_text("utf-8", "replace"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return Seen(Process(pid, start), parent, gone)


def identify(pid: int) -> Process:
    """The process of that pid; ProcessLookupError where it is gone."""
    seen = see(pid)
    if seen is None:
        raise ProcessLookupError(pid)
    return seen.process


def alive(process: Process) -> bool:
    """Whether this very process still runs."""
    seen = see(process.pid)
    return seen is not None and not seen.gone and seen.process == process


def everyone() -> dict[int, Seen]:
    """Every process that we may see, by pid."""
    try:
        names = [entry.name for entry in PROC.iterdir() if entry.name.isdecimal()]
    except OSError as exc:
        raise NoProcError("cannot read /proc") from exc
    return {seen.process.pid: seen for name in names if (seen := see(int(name))) is not None}


def inner_pid(pid: int) -> int | None:
    """Its pid in its own PID namespace: the last of NSpid in /proc/<pid>/status; None where it is gone."""
    try:
        status = (PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    found = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
    return int(found[0]) if found else pid


def holds_memory(pid: int) -> bool:
    """Whether it has an address space: a process that ends gives that up before the driver takes back its memory."""
    for file in (PROC / str(pid) / "statm", *(PROC / str(pid) / "task").glob("*/statm")):
        with contextlib.suppress(OSError):
            if not file.read_text("ascii").startswith("0 "):
                return True
    return False


def descends(pid: int, root: int) -> bool:
    """Whether the process is `root` or descends from it."""
    while pid not in {0, root}:
        seen = see(pid)
        pid = 0 if seen is None else seen.parent
    return pid == root


def descendants(root: int) -> tuple[Process, ...]:
    """Whoever descends from `root` and runs; without `root` itself."""
    below = _children if any((PROC / str(root) / "task").glob("*/children")) else _table()
    found: list[Process] = []
    queue = list(below(root))
    while queue:
        pid = queue.pop()
        queue += below(pid)
        seen = see(pid)
        if seen is not None and not seen.gone:
            found.append(seen.process)
    return tuple(sorted(found))


def _children(pid: int) -> tuple[int, ...]:
    """As the kernel lists them, thread by thread (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for file in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text("ascii").split())
    return tuple(found)


def _table() -> Callable[[int], tuple[int, ...]]:
    """Likewise from one look at every process, for kernels without such lists."""
    children: dict[int, list[int]] = {}
    for pid, seen in everyone().items():
        children.setdefault(seen.parent, []).append(pid)
    return lambda pid: tuple(children.get(pid, ()))


def words(pid: int) -> tuple[bytes, ...]:
    """The environment with which a process was started, `NAME=value` each; none where we may not look."""
    try:
        return tuple((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return ()


def marked(mark: bytes, uid: int) -> bool:
    """Whether a process of that user was started with `mark` (NAME=value) in its environment."""
    for pid, seen in everyone().items():
        try:
            theirs = not seen.gone and (PROC / str(pid)).stat().st_uid == uid
        except OSError:
            continue
        if theirs and mark in words(pid):
            return True
    return False


def boot() -> str:
    """Which boot this is: no process outlives one."""
    return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
