# SPDX-License-Identifier: Apache-2.0
"""Control groups of tests, in the hierarchy of version 2, wherever that is mounted."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def unified() -> Path | None:
    """Where version 2 is mounted, with groups that this process may make; None: nowhere."""
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        left, _, right = line.partition(" - ")
        root, at = left.split()[3:5]
        if right.startswith("cgroup2 ") and root == "/" and os.access(at, os.W_OK):
            return Path(at)
    return None


@contextlib.contextmanager
def groups(name: str) -> Iterator[Path]:
    """A group for tests; it and those below it are gone afterwards, with their processes."""
    at = unified()
    assert at is not None, "no cgroup version 2 is mounted here"
    top = at / f"gpushare-test-{os.getpid()}-{name}"
    top.mkdir()
    try:
        yield top
    finally:
        remove(top)


def remove(group: Path) -> None:
    """End its processes and remove it, the ones below first."""
    for child in sorted((one for one in group.rglob("*") if one.is_dir()), reverse=True):
        _remove(child)
    _remove(group)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + 10
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < deadline, f"{group} still has processes"
            time.sleep(0.01)


def enter(group: Path) -> str:
    """A shell line that moves the shell into the group."""
    return f"echo $$ > {group}/cgroup.procs"
