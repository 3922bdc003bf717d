# SPDX-License-Identifier: Apache-2.0
"""
The allocation store of `gpushare run`: a directory, and in it one directory for each allocation.

    <state-dir>/<id>/promise.json    the record
    <state-dir>/<id>/...             limits, feed, region, members, cgroup
    <state-dir>/.wait-...            runs that wait (see `wait_queue`)

An allocation appears and vanishes by one rename, and only its own user changes it (`resize`), so several users can
share a store in a sticky directory. Whoever decides holds the flock of the directory: two runs never see the same free
capacity. An allocation without living processes does not count, whether or not its directory can be removed. A record
that cannot be read is an error, never an empty store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.contract.host_allocation import HostAllocation, HostAllocationError, dump, load
from isolation.file_locks import locked
from isolation.host import cgroup, liveness, process
from isolation.host.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM_DIRECTORY: Final = Path("/run/gpushare/allocations")
"""Made by root, for every user of the machine."""
FALLBACK_DIRECTORY: Final = Path("/var/tmp/gpushare-allocations")  # noqa: S108 (sticky, and checked when it is opened)
"""Where there is no system-wide one and the user is not root."""
RECORD: Final = "promise.json"
PREFIX: Final = "run-"
"""Of an allocation's id."""
GROUP: Final = "group"
"""File with the path of the allocation's cgroup, written before the cgroup is made."""
MAX_PATH: Final = 200
"""Characters; the library takes paths of 255."""
_DRAFT: Final = ".draft-"
_REMOVED: Final = ".gone-"


class StoreError(Exception):
    """A store that cannot be used or trusted; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StoredAllocation:
    """An allocation and its directory."""

    entry: HostAllocation
    folder: Path


@dataclass(frozen=True, slots=True)
class Draft:
    """An allocation that other runs do not see yet; its lock is ours from the first moment."""

    folder: Path
    lock: int
    """Descriptor of the directory, flocked: a process that inherits it keeps the allocation alive."""


def default_directory() -> Path:
    """The store of this machine: the system-wide one wherever it exists or can be made."""
    return SYSTEM_DIRECTORY if os.geteuid() == 0 or SYSTEM_DIRECTORY.is_dir() else FALLBACK_DIRECTORY


class AllocationStore:
    """See the module. `list_living`, `draft`, `publish` and `discard` are called within `locked`."""

    def __init__(self, home: Path, also: tuple[Path, ...] = ()) -> None:
        """`also`: stores that no run writes any more, whose allocations still count."""
        self.home = home
        self._also = also
        self._boot = process.boot()

    @contextlib.contextmanager
    def locked(self, *, make: bool = True) -> Iterator[AllocationStore]:
        """Hold the store's lock: no other run decides meanwhile. `make`: create the store where there is none."""
        fd = self._open(make=make)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            while not self._is_current(fd):  # the directory was replaced while we waited for its lock
                os.close(fd)
                fd = self._open(make=make)
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(fd)

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.home.stat())
        except FileNotFoundError:
            return False

    def _open(self, *, make: bool) -> int:
        if len(str(self.home)) > MAX_PATH:
            raise StoreError(f"{self.home}: path is longer than {MAX_PATH} characters: choose a shorter --state-dir")
        try:
            if make and not self.home.is_dir():
                self._create()
            fd = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise StoreError(f"{self.home}: {exc.strerror}: choose another directory with --state-dir") from None
        about = os.fstat(fd)
        if about.st_uid not in {0, os.geteuid()} and not about.st_mode & stat.S_ISVTX:
            os.close(fd)
            advice = "choose another directory with --state-dir"
            raise StoreError(f"{self.home} belongs to another user and has no sticky bit: {advice}")
        return fd

    def _create(self) -> None:
        """Sticky and open to all from its first moment, and never in the place of one made meanwhile."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        mask = os.umask(0)
        try:
            self.home.mkdir(mode=0o1777, exist_ok=True)
        finally:
            os.umask(mask)

    def revision(self) -> int:
        """Changes whenever an allocation or a waiting run came or went; 0 where there is no store."""
        try:
            return self.home.stat().st_mtime_ns
        except OSError:
            return 0

    def list_living(self) -> tuple[StoredAllocation, ...]:
        """Every allocation with living processes, oldest first. What is left of the others is removed."""
        living, dead = self._read_all()
        for stored in dead:
            if stored.folder.parent == self.home:
                self._remove(stored)
        self._sweep()
        return living

    def read(self, *, expected: bool) -> tuple[StoredAllocation, ...]:
        """The same for readers: nothing is created or removed. `expected`: a missing store is an error."""
        if self.home.is_dir():
            with self.locked(make=False):
                return self._read_all()[0]
        if expected:
            raise StoreError(
                f"{self.home} does not exist: gpushare run creates it; check --state-dir (GPUSHARE_STATE_DIR)"
            )
        return self._read_all()[0]

    def _read_all(self) -> tuple[tuple[StoredAllocation, ...], list[StoredAllocation]]:
        """Allocations with living processes, oldest first, and those without."""
        living: list[StoredAllocation] = []
        dead: list[StoredAllocation] = []
        for home in (self.home, *self._also):
            for folder in _folders(home):
                stored = StoredAllocation(self._read(folder), folder)
                (living if liveness.lives(stored.entry, folder, self._boot) else dead).append(stored)
        return tuple(sorted(living, key=lambda stored: (stored.entry.created, stored.entry.id))), dead

    def _sweep(self) -> None:
        """Remove drafts and removals whose process has ended."""
        for path in self.home.iterdir():
            if path.name.startswith((_DRAFT, _REMOVED)) and not locked(path):
                _remove_remains(path)

    @staticmethod
    def _read(folder: Path) -> HostAllocation:
        if not (folder.name.startswith(PREFIX) or (folder / RECORD).exists()):
            raise StoreError(f"{folder.parent} holds other files ({folder}): choose another directory with --state-dir")
        advice = f"if its processes have ended, remove {folder}; until then gpushare run fails"
        try:
            entry = load(read_text(folder / RECORD))
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
            raise StoreError(f"cannot read {folder / RECORD} ({why}): {advice}") from None
        except HostAllocationError as exc:
            raise StoreError(f"cannot use {folder / RECORD} ({exc}): {advice}") from None
        if entry.id != folder.name:
            raise StoreError(f"{folder / RECORD} belongs to allocation {entry.id[:40]!r}: {advice}")
        return entry

    def draft(self, ident: str) -> Draft:
        """A locked directory for a new allocation, not yet visible to other runs."""
        folder = self.home / f"{_DRAFT}{ident}"
        try:
            folder.mkdir()
            folder.chmod(0o755)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise StoreError(f"{self.home}: {exc.strerror}: choose another directory with --state-dir") from None
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Draft(folder, lock)

    def publish(self, draft: Draft, entry: HostAllocation) -> StoredAllocation:
        """From here on the allocation counts. Synced to disk before it is visible."""
        folder = self.home / entry.id
        with (draft.folder / RECORD).open("x", encoding="utf-8") as file:
            file.write(dump(entry))
            file.flush()
            os.fsync(file.fileno())
        (draft.folder / RECORD).chmod(0o644)
        os.fsync(draft.lock)
        draft.folder.rename(folder)
        self._sync()
        return StoredAllocation(entry, folder)

    def discard(self, draft: Draft) -> None:
        """Remove a draft that was not published."""
        os.close(draft.lock)
        _remove_remains(draft.folder)

    def release(self, held: StoredAllocation) -> bool:
        """Remove the allocation if none of its processes lives; whether that is so. The caller has closed the lock."""
        with self.locked():
            if liveness.lives(held.entry, held.folder, self._boot):
                return False
            self._remove(held)
        return True

    def _remove(self, held: StoredAllocation) -> None:
        """In a sticky directory another user's leftovers stay: they do not count."""
        gone = held.folder.with_name(f"{_REMOVED}{held.entry.id}")
        try:
            held.folder.rename(gone)
        except OSError:
            return
        _remove_remains(gone)

    def _sync(self) -> None:
        fd = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _folders(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    return sorted(path for path in home.iterdir() if not path.name.startswith(".") and path.is_dir())


def _remove_remains(folder: Path) -> None:
    """
    Remove what is left of an allocation that ended or was never published, its cgroup first; else leave it to the next.

    Only a file of our own names the cgroup: we may be root, and another user's file could name any cgroup.
    """
    gone = True
    with contextlib.suppress(OSError, ValueError):  # no text, or no path
        if folder.stat(follow_symlinks=False).st_uid == os.geteuid():
            gone = cgroup.drop(Path(read_text(folder / GROUP)))
    if gone:
        shutil.rmtree(folder, ignore_errors=True)
