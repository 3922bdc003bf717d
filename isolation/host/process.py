# SPDX-License-Identifier: Apache-2.0
"""
Processes as /proc shows them, each read with as few calls as possible.

A pid alone is no identity, because the kernel reuses it: a pid together with its start time is. A process whose
first thread alone has ended looks like a zombie and is none: its other threads live and keep their memory.

`proc` is the mount point of /proc: the exporter may read the host's under another path.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.host_allocation import Process
from isolation.host.files import read_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROC: Final = "/proc"
STATUS_BYTES: Final = 16384
"""A long list of groups may push NSpid beyond it; then the inner pid is unknown."""
ENVIRON_BYTES: Final = 1 << 18
MAX_NAME: Final = 64
FIRST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO: linux/include/linux/proc_ns.h
KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD: linux/include/linux/sched.h
_ENDED: Final = frozenset(b"ZXx")
_UID: Final = re.compile(rb"\nUid:\t(\d+)")
_NAMESPACES: Final = re.compile(rb"\nNSpid:(?:\t\d+)*\t(\d+)\n")


class NoProcError(OSError):
    """/proc cannot be read, so no process can be called dead."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """/proc/<pid>/stat, as far as it matters here."""

    name: str
    parent: int
    flags: int
    start: int
    """Clock ticks since boot."""
    headless: bool = False
    """The first thread has ended."""
    ended: bool = False
    """So have all others: a zombie, which holds no memory."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """/proc/<pid>/status, likewise."""

    uid: int
    """The real one."""
    namespace_pid: int | None
    """In the innermost PID namespace."""


def parse_stat(raw: bytes) -> ProcessStat:
    """ValueError for another format. A process chooses its name, even with parentheses: the last one ends it."""
    opening, closing = raw.find(b"("), raw.rfind(b")")
    fields = raw[closing + 2 :].split(None, 20)
    if opening < 0 or closing < opening or len(fields) < 20:  # noqa: PLR2004 (the start time is the 20th after the name)
        raise ValueError("unknown format of process status")
    headless = fields[0][0] in _ENDED
    name = raw[opening + 1 : closing].decode("utf-8", "replace")[:MAX_NAME]
    ended = headless and int(fields[17]) <= 1  # field 17: number of threads
    return ProcessStat(name, int(fields[1]), int(fields[6]), int(fields[19]), headless, ended)


def read_stat(pid: int, proc: str = PROC) -> ProcessStat | None:
    """The process of that pid now, zombies included; None where there is none, or none that we may see."""
    try:
        return parse_stat(read_kernel(f"{proc}/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def read_living(pid: int, proc: str = PROC) -> ProcessStat | None:
    """The same without zombies."""
    stat = read_stat(pid, proc)
    return None if stat is None or stat.ended else stat


def parse_status(raw: bytes) -> ProcessStatus:
    """ValueError for another format. The kernel escapes a line break in the name: no name can pass for another line."""
    uid, inner = _UID.search(raw), _NAMESPACES.search(raw)
    if uid is None:
        raise ValueError("unknown format of process status")
    return ProcessStatus(int(uid[1]), int(inner[1]) if inner else None)


def read_status(pid: int, proc: str = PROC) -> ProcessStatus:
    """OSError where it has ended meanwhile."""
    return parse_status(read_kernel(f"{proc}/{pid}/status", STATUS_BYTES))


def identify(pid: int) -> Process:
    """The process of that pid; ProcessLookupError where there is none."""
    stat = read_stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return Process(pid, stat.start)


def alive(process: Process, proc: str = PROC) -> bool:
    """Whether this very process still runs; False where /proc does not say so."""
    try:
        stat = read_living(process.pid, proc)
    except (OSError, ValueError):
        return False
    return stat is not None and stat.start == process.start


def pids(proc: str = PROC) -> Iterator[int]:
    """Of every process that we may see. NoProcError."""
    try:
        names = [entry.name for entry in Path(proc).iterdir() if entry.name.isdecimal()]
    except OSError as exc:
        raise NoProcError(f"cannot read {proc}") from exc
    return map(int, names)


def inner_pid(pid: int) -> int | None:
    """Its pid in its own PID namespace; None where it has ended."""
    try:
        inner = read_status(pid).namespace_pid
    except (OSError, ValueError):
        return None
    return pid if inner is None else inner


def holds_memory(pid: int) -> bool:
    """Whether it has an address space: a process that ends gives that up before the driver takes back its memory."""
    for path in (Path(PROC, str(pid)), *_threads(pid)):
        with contextlib.suppress(OSError):
            if not (path / "statm").read_text("ascii").startswith("0 "):
                return True
    return False


def _threads(pid: int, proc: str = PROC) -> list[Path]:
    """Directories of its threads; empty where it has ended. Not `Path.glob`, which fails where it ends meanwhile."""
    try:
        return list(Path(proc, str(pid), "task").iterdir())
    except OSError:
        return []


def descends(pid: int, root: int) -> bool:
    """Whether the process is `root` or descends from it."""
    while pid not in {0, root}:
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return pid == root


def descendants(root: int) -> tuple[Process, ...]:
    """The living processes that descend from `root`, without `root` itself."""
    listed = any((thread / "children").exists() for thread in _threads(root))
    list_children = _children if listed else _children_by_table()
    found: list[Process] = []
    queue = list(list_children(root))
    while queue:
        pid = queue.pop()
        queue += list_children(pid)
        if (stat := read_living(pid)) is not None:
            found.append(Process(pid, stat.start))
    return tuple(sorted(found))


def _children(pid: int) -> tuple[int, ...]:
    """As the kernel lists them, thread by thread (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text("ascii").split())
    return tuple(found)


def _children_by_table() -> Callable[[int], tuple[int, ...]]:
    """The same for kernels without such lists: one look at every process."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        if (stat := read_stat(pid)) is not None:
            children.setdefault(stat.parent, []).append(pid)
    return lambda pid: tuple(children.get(pid, ()))


def read_cgroups(pid: int | str, proc: str = PROC) -> str:
    """/proc/<pid>/cgroup; OSError where it has ended meanwhile."""
    return read_kernel(f"{proc}/{pid}/cgroup", STATUS_BYTES).decode("utf-8", "replace")


def living_thread(pid: int, proc: str = PROC) -> str:
    """Path below /proc of a thread that still has control groups, of a process whose first thread has ended."""
    threads = (thread.name for thread in _threads(pid, proc))
    return f"{pid}/task/{next((thread for thread in threads if thread != str(pid)), pid)}"


def environment(pid: int, name: str, proc: str = PROC) -> str:
    """
    The value of a variable with which the process was started; empty where there is none, or none that we may see.

    What a program does to its own environment later does not show there.
    """
    try:
        variables = read_kernel(f"{proc}/{pid}/environ", ENVIRON_BYTES).split(b"\0")
    except OSError:
        return ""
    prefix = f"{name}=".encode()
    return next((text[len(prefix) :].decode("ascii", "replace") for text in variables if text.startswith(prefix)), "")


def sees_host(proc: str = PROC) -> bool:
    """
    Whether these are the host's processes. A process inside a PID namespace cannot fake it.

    The second process of a host is a kernel thread. Where that is hidden, the first namespace's number tells: it is
    the same in every kernel.
    """
    second = read_living(2, proc)
    if second is not None and second.flags & KERNEL_THREAD:
        return True
    try:
        return str(Path(proc, "1/ns/pid").readlink()) == FIRST_NAMESPACE
    except OSError:
        return False


def boot(proc: str = PROC) -> str:
    """Which boot this is: no process outlives one. OSError where /proc cannot be read."""
    return read_kernel(f"{proc}/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
