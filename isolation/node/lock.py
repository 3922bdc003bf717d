# SPDX-License-Identifier: Apache-2.0
"""
One agent and one device plugin on a node: two would give the same devices away twice.

Decides who may work with a run directory: whoever has the lock, which the kernel takes back from the dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from isolation.node.paths import Paths

_PATIENCE_SECONDS: Final = 10.0
"""An agent that is told to end needs a few; a DaemonSet may start its successor meanwhile."""


class LockError(Exception):
    """Somebody else works there, or the lock cannot be had; the message says which."""


@contextlib.asynccontextmanager
async def alone(paths: Paths, lock: str, stop: asyncio.Event, what: str) -> AsyncIterator[None]:
    """Nobody else while the block lasts: the second waits a little, then is refused. `what`: they are, for people."""
    try:
        for folder in (paths.run_dir, paths.plugins):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LockError(f"cannot create {exc.filename}: {exc.strerror}: run the {what} as root on its node") from None
    path = paths.run_dir / lock
    with _opened(path) as fd:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not _locked(fd):
            if time.monotonic() >= end or stop.is_set():
                holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                raise LockError(f"another {what} (PID {holder or '?'}) uses {path.parent}")
            await asyncio.sleep(0.1)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield


def is_held(path: Path) -> bool:
    """Whether somebody works there now. Whoever takes the lock at this very moment tries again a little later."""
    try:
        with _opened(path) as fd:
            return not _locked(fd)
    except LockError:
        return False


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise LockError(f"cannot open {path}: {exc.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)
