# SPDX-License-Identifier: Apache-2.0
"""
Reading what somebody else wrote: bounded, never blocking, never outside the given root.

Decides how a path is opened: pipes, devices and folders are no files, a file larger than expected is not
read at all, links are followed inside the root only (a host's file system mounted in a container must
not lead into the container's own). What the text means is decided elsewhere.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20
"""No configuration that a person wrote is larger."""
_MAX_LINKS: Final = 40  # as the kernel: MAXSYMLINKS, linux/include/linux/namei.h
_MAX_NAMES: Final = 1024


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such file."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """There is something, and it cannot be read."""

    why: str


Text = str | Missing | Unreadable
"""What a file says."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The names in a folder."""

    names: tuple[str, ...]
    writable: bool


class FileReader:
    """The file system under a root."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def text(self, path: str, most: int = MAX_BYTES) -> Text:
        """A whole file of at most so many bytes."""
        try:
            fd = _regular(self.inside(path))
        except (FileNotFoundError, NotADirectoryError):
            return Missing()
        except OSError as exc:
            return Unreadable(exc.strerror or "cannot open the file")
        if fd is None:
            return Unreadable("not a regular file")
        try:
            found = _all(fd, most + 1)
        except OSError as exc:
            return Unreadable(exc.strerror or "read error")
        finally:
            os.close(fd)
        if len(found) > most:
            return Unreadable(f"larger than {most} bytes")
        return found.decode("utf-8", "replace")

    def folder(self, path: str) -> Folder | Missing | Unreadable:
        """The first thousand names, sorted, and whether we could write there."""
        try:
            inside = self.inside(path)
            with os.scandir(inside) as entries:
                names = sorted(entry.name for entry, _ in zip(entries, range(_MAX_NAMES), strict=False))
            return Folder(tuple(names), os.access(inside, os.W_OK | os.X_OK))
        except (FileNotFoundError, NotADirectoryError):
            return Missing()
        except OSError as exc:
            return Unreadable(exc.strerror or "read error")

    def link(self, path: str) -> str | None:
        """Where a link points, as it is written; None where it cannot be read."""
        folder, _, name = path.rpartition("/")
        try:
            return str((self.inside(folder) / name).readlink())
        except OSError:
            return None

    def exists(self, path: str) -> bool | None:
        """Whether something of that name is there; None where that is unknown."""
        try:
            os.lstat(self.inside(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return None
        return True

    def inside(self, path: str) -> Path:
        """Where the path leads, with every link taken relative to the root. OSError where it leads nowhere."""
        if self._root == Path("/"):
            return Path(path)
        done, rest, links = self._root, path.strip("/").split("/"), 0
        while rest:
            part = rest.pop(0)
            if part in {"", "."}:
                continue
            if part == "..":
                done = done.parent if done != self._root else done
                continue
            step = done / part
            if not step.is_symlink():
                done = step
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(f"{path}: too many links")
            goal = str(step.readlink())
            done = self._root if goal.startswith("/") else done
            rest = [*goal.strip("/").split("/"), *rest]
        return done


def _regular(path: Path) -> int | None:
    """The file, opened once it is known to be one: merely opening some devices (a watchdog) does something."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _all(fd: int, most: int) -> bytes:
    """Up to so many bytes; a file of the kernel's comes in pieces."""
    parts, size = [], 0
    while size < most:
        part = os.read(fd, most - size)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
