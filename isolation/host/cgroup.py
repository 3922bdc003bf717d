# SPDX-License-Identifier: Apache-2.0
"""
A control group of its own for each command, where this user may make one (cgroup v2).

Nobody leaves a group by forking, closing files or cleaning an environment: the best evidence of who
descends from a command. Where there is none to be had, the other evidence stands (see `liveness`).

Source: Linux, Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "gpushare-"
_PAUSES: Final = (0.001, 0.002, 0.005)
"""Seconds; kernels may keep a task in its group for a moment after it was waited for."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
_MINE: Final = Path("/proc/self/cgroup")


def root_of(mounts: str) -> Path | None:
    """Where the unified hierarchy is mounted, from the text of /proc/self/mountinfo."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split()[4])
    return None


def own_of(text: str) -> str | None:
    """Our group in the unified hierarchy, from the text of /proc/self/cgroup."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line.removeprefix("0::/")
    return None


def create(name: str, note: Path | None = None) -> Path | None:
    """A group below our own; None where that is not for us to do. `note` gets its path before it is made."""
    try:
        root, own = root_of(_MOUNTS.read_text("utf-8")), own_of(_MINE.read_text("utf-8"))
        if root is None or own is None:
            return None
        group = root / own / f"{PREFIX}{name}"
        if note is not None:
            note.write_text(str(group), "utf-8")
        group.mkdir(mode=0o755)
    except OSError:
        return None
    if (group / "cgroup.procs").exists():
        return group
    drop(group)
    return None


def join(group: Path) -> None:
    """Move the calling process there; OSError where that is refused."""
    (group / "cgroup.procs").write_text("0", "ascii")


def pids(group: Path) -> tuple[int, ...]:
    """Who is in the group itself or in one below it."""
    found: list[int] = []
    if not _is_one(group):
        return ()
    for path in _with_groups_below(group):
        with contextlib.suppress(OSError):
            found += map(int, (path / "cgroup.procs").read_text("ascii").split())
    return tuple(sorted(set(found)))


def populated(group: Path, name: str, root: Path | None = None) -> bool:
    """Whether a process is in the group of that name; no if it is gone. `root`: of the hierarchy, None: as mounted."""
    if group.name != f"{PREFIX}{name}" or not _is_one(group, root):
        return False
    try:
        return "populated 1" in (group / "cgroup.events").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _is_one(group: Path, root: Path | None = None) -> bool:
    """Whether the path is a group of ours in the hierarchy: a user wrote it down, who may have written any other."""
    try:
        root = root or root_of(_MOUNTS.read_text("utf-8"))
    except OSError:
        return False
    return root is not None and root in group.parents and ".." not in group.parts and group.name.startswith(PREFIX)


def _with_groups_below(group: Path) -> Iterator[Path]:
    """Those below the group first, then itself. Not `Path.glob`, which fails where one vanishes meanwhile."""
    return (Path(path) for path, _, _ in os.walk(group, topdown=False))


def drop(group: Path) -> bool:
    """Forget an empty group, and the empty groups that the command made below it; whether it is gone."""
    if not _is_one(group):
        return True
    for pause in _PAUSES:
        for path in _with_groups_below(group):
            with contextlib.suppress(OSError):
                path.rmdir()
        if not group.exists():
            return True
        time.sleep(pause)
    return False
