# SPDX-License-Identifier: Apache-2.0
"""
The book of holds: a folder, and in it one folder for each hold.

    <book>/<id>/promise.json    the entry
    <book>/<id>/...          limits, feed, region, members, group
    <book>/.wait-...         those that wait (see `queue`)

A hold appears and vanishes by one rename; nobody rewrites what somebody else wrote, so a book that
several users share in a sticky folder stays true. Whoever decides holds the flock of the book's
folder: two runs never see the same free space. A hold that nobody lives on any more is not counted,
whether or not its folder can be removed. What cannot be read is an error, never an empty book.
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
from isolation.host import cgroup, liveness, process
from isolation.host.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON: Final = Path("/run/gpushare/allocations")
"""Made by root, for every user of the machine."""
ANYBODYS: Final = Path("/var/tmp/gpushare-allocations")  # noqa: S108 (sticky, and checked when it is opened)
"""Where there is no common one and nobody is root."""
HOLD: Final = "promise.json"
PREFIX: Final = "run-"
"""Of a hold's id."""
GROUP: Final = "group"
"""Path of the hold's control group, noted before it is made."""
MOST_PATH: Final = 200
"""Characters; the library takes paths of 255."""
_DRAFT: Final = ".draft-"
_GONE: Final = ".gone-"


class BookError(Exception):
    """A book that cannot be used or believed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Held:
    """A hold and where it stands."""

    entry: HostAllocation
    folder: Path


@dataclass(frozen=True, slots=True)
class Draft:
    """A hold that nobody sees yet; its lock is ours from the first moment."""

    folder: Path
    lock: int
    """Descriptor of the folder, flocked: who inherits it keeps the hold alive."""


def usual() -> Path:
    """The book of this machine: the common one wherever it exists or can be made."""
    return COMMON if os.geteuid() == 0 or COMMON.is_dir() else ANYBODYS


class Book:
    """See the module. `holds`, `draft`, `publish` and `drop` are called within `deciding`."""

    def __init__(self, home: Path, also: tuple[Path, ...] = ()) -> None:
        """`also`: books that nobody writes any more, whose holds still count."""
        self.home = home
        self._also = also
        self._boot = process.boot()

    @contextlib.contextmanager
    def deciding(self, *, make: bool = True) -> Iterator[Book]:
        """Nobody else decides meanwhile. `make`: also where there is no book yet."""
        fd = self._open(make=make)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            while not self._current(fd):  # the book was removed and made anew while we waited
                os.close(fd)
                fd = self._open(make=make)
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield self
        finally:
            os.close(fd)

    def _current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.home.stat())
        except FileNotFoundError:
            return False

    def _open(self, *, make: bool) -> int:
        if len(str(self.home)) > MOST_PATH:
            raise BookError(f"{self.home}: path is longer than {MOST_PATH} characters: choose a shorter --state-dir")
        try:
            if make and not self.home.is_dir():
                self._make()
            fd = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise BookError(f"{self.home}: {exc.strerror}: choose another directory with --state-dir") from None
        about = os.fstat(fd)
        if about.st_uid not in {0, os.geteuid()} and not about.st_mode & stat.S_ISVTX:
            os.close(fd)
            advice = "choose another directory with --state-dir"
            raise BookError(f"{self.home} belongs to another user and has no sticky bit: {advice}")
        return fd

    def _make(self) -> None:
        """Sticky and open to all from its first moment, and never in the place of one made meanwhile."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        mask = os.umask(0)
        try:
            self.home.mkdir(mode=0o1777, exist_ok=True)
        finally:
            os.umask(mask)

    def stamp(self) -> int:
        """Another one whenever a hold or somebody who waits came or went; 0 where there is no book."""
        try:
            return self.home.stat().st_mtime_ns
        except OSError:
            return 0

    def holds(self) -> tuple[Held, ...]:
        """Every hold that somebody lives on, oldest first. What is left of dead ones is swept away."""
        living, dead = self._read_all()
        for held in dead:
            if held.folder.parent == self.home:
                self._remove(held)
        self._sweep()
        return living

    def look(self, *, expected: bool) -> tuple[Held, ...]:
        """The same for whoever only asks: nothing is made or swept away. `expected`: no book is an error."""
        if self.home.is_dir():
            with self.deciding(make=False):
                return self._read_all()[0]
        if expected:
            raise BookError(
                f"{self.home} does not exist: gpushare run creates it; check --state-dir (GPUSHARE_STATE_DIR)"
            )
        return self._read_all()[0]

    def _read_all(self) -> tuple[tuple[Held, ...], list[Held]]:
        """Holds that somebody lives on, oldest first, and the dead."""
        living: list[Held] = []
        dead: list[Held] = []
        for home in (self.home, *self._also):
            for folder in _folders(home):
                held = Held(self._read(folder), folder)
                (living if liveness.lives(held.entry, folder, self._boot) else dead).append(held)
        return tuple(sorted(living, key=lambda held: (held.entry.created, held.entry.id))), dead

    def _sweep(self) -> None:
        """What was begun and not finished, and is nobody's work any more."""
        for path in self.home.iterdir():
            if path.name.startswith((_DRAFT, _GONE)) and not liveness.locked(path):
                _forget(path)

    @staticmethod
    def _read(folder: Path) -> HostAllocation:
        if not (folder.name.startswith(PREFIX) or (folder / HOLD).exists()):
            raise BookError(f"{folder.parent} holds other files ({folder}): choose another directory with --state-dir")
        advice = f"if its processes have ended, remove {folder}; until then gpushare run fails"
        try:
            entry = load(read_text(folder / HOLD))
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
            raise BookError(f"cannot read {folder / HOLD} ({why}): {advice}") from None
        except HostAllocationError as exc:
            raise BookError(f"cannot use {folder / HOLD} ({exc}): {advice}") from None
        if entry.id != folder.name:
            raise BookError(f"{folder / HOLD} belongs to allocation {entry.id[:40]!r}: {advice}")
        return entry

    def draft(self, ident: str) -> Draft:
        """A folder for a new hold, locked, not yet seen by anybody."""
        folder = self.home / f"{_DRAFT}{ident}"
        try:
            folder.mkdir()
            folder.chmod(0o755)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise BookError(f"{self.home}: {exc.strerror}: choose another directory with --state-dir") from None
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Draft(folder, lock)

    def publish(self, draft: Draft, entry: HostAllocation) -> Held:
        """From here on the hold counts. Durable before it is seen."""
        folder = self.home / entry.id
        with (draft.folder / HOLD).open("x", encoding="utf-8") as file:
            file.write(dump(entry))
            file.flush()
            os.fsync(file.fileno())
        (draft.folder / HOLD).chmod(0o644)
        os.fsync(draft.lock)
        draft.folder.rename(folder)
        self._sync()
        return Held(entry, folder)

    def drop(self, draft: Draft) -> None:
        """Nothing came of it."""
        os.close(draft.lock)
        _forget(draft.folder)

    def end(self, held: Held) -> bool:
        """Give the room back if nobody lives on it; whether that is so. The caller has closed the lock."""
        with self.deciding():
            if liveness.lives(held.entry, held.folder, self._boot):
                return False
            self._remove(held)
        return True

    def _remove(self, held: Held) -> None:
        """In a sticky folder somebody else's leftovers stay: they count for nothing."""
        gone = held.folder.with_name(f"{_GONE}{held.entry.id}")
        try:
            held.folder.rename(gone)
        except OSError:
            return
        _forget(gone)

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


def _forget(folder: Path) -> None:
    """Remove what is left of a hold that ended or never began, its control group first; else it waits for the next.

    Only our own note of a group is believed: we may be root.
    """
    gone = True
    with contextlib.suppress(OSError, ValueError):  # no text, or no path
        if folder.stat(follow_symlinks=False).st_uid == os.geteuid():
            gone = cgroup.drop(Path(read_text(folder / GROUP)))
    if gone:
        shutil.rmtree(folder, ignore_errors=True)
