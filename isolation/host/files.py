# SPDX-License-Identifier: Apache-2.0
"""
Files that others may write, a tenant for example: read without following links, blocking, or reading too much.

Links, pipes and devices are refused, and so is a file that is larger than expected. Every failure is an OSError;
what the bytes mean is decided by the callers.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LINE: Final = 4096
"""Bytes that hold any of the kernel's small files, such as /proc/<pid>/stat."""
TEXT_BYTES: Final = 1 << 20
"""No text that we read is larger."""


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """Descriptor and `fstat` of a regular file."""
    fd = os.open(path, FLAGS)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield fd, about
    finally:
        os.close(fd)


def read_whole(path: str | os.PathLike[str], most: int) -> tuple[bytes, os.stat_result]:
    """All of a regular file of at most `most` bytes, and its `fstat`."""
    with open_regular(path) as (fd, about):
        raw = os.pread(fd, most + 1, 0)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return raw, about


def read_text(path: str | os.PathLike[str], most: int = TEXT_BYTES) -> str:
    """The same as UTF-8 text; UnicodeDecodeError."""
    return read_whole(path, most)[0].decode("utf-8")


def read_kernel(path: str, most: int = LINE) -> bytes:
    """The beginning of one of the kernel's own files, in one call."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)
