# SPDX-License-Identifier: Apache-2.0
"""
The queue of runs that wait for capacity: a ticket file in the store for each of them.

    <state-dir>/.wait-<number>-<id>      locked by the process that waits, touched while it does

A ticket counts while its lock is held and it was touched lately: a killed run, or one stopped at a terminal, delays no
other. Numbers are drawn under the store's lock, so they are in order of arrival. Knows nothing of cards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.file_locks import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TICKET: Final = ".wait-"
FRESH_SECONDS: Final = 10.0
"""A run that waits touches its ticket each second; a stopped one does not, and loses its turn until it does again."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the line."""

    path: Path
    lock: int

    def touch(self) -> None:
        """Still waiting."""
        os.utime(self.lock)

    def ahead(self) -> int:
        """How many have waited longer. pre: store locked."""
        return sum(1 for path in _tickets(self.path.parent) if path.name < self.path.name and _is_active(path))

    def drop(self) -> None:
        """Leave the line."""
        self.path.unlink(missing_ok=True)
        os.close(self.lock)


def enqueue(home: Path) -> Ticket:
    """The last place in the line. pre: store locked. What is left of the dead is swept away."""
    last = 0
    for path in _tickets(home):
        last = max(last, int(path.name.removeprefix(TICKET)[:_DIGITS]))
        if not _is_locked(path):
            with contextlib.suppress(OSError):  # another user's, in a sticky directory
                path.unlink()
    path = home / f"{TICKET}{last + 1:0{_DIGITS}}-{secrets.token_hex(6)}"
    lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.fchmod(lock, 0o644)  # other users' runs test its lock
    return Ticket(path, lock)


def _tickets(home: Path) -> Iterator[Path]:
    for path in home.glob(f"{TICKET}*"):
        if path.name.removeprefix(TICKET)[:_DIGITS].isdecimal():
            yield path


def _is_active(path: Path) -> bool:
    try:
        touched = path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return False
    return abs(time.time() - touched) < FRESH_SECONDS and _is_locked(path)


def _is_locked(path: Path) -> bool:
    """Whether its run lives; a ticket that cannot be opened delays no run."""
    return locked(path, os.O_NONBLOCK, unknown=False)
