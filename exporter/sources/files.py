# SPDX-License-Identifier: Apache-2.0
"""
Files that somebody else writes, read without being led astray, held up or made to swallow much.

No links, no pipes, no devices, never more than was asked for. What the bytes mean is the callers'
business; every failure is an OSError.
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


@contextmanager
def opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Descriptor and nature of a regular file."""
    fd = os.open(path, FLAGS)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        yield fd, about
    finally:
        os.close(fd)


def read_whole(path: str, most: int) -> tuple[bytes, os.stat_result]:
    """All of a regular file of at most `most` bytes, and its nature."""
    with opened(path) as (fd, about):
        raw = os.pread(fd, most + 1, 0)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", path)
    return raw, about


def read_kernel(path: str, most: int = LINE) -> bytes:
    """The beginning of one of the kernel's own files, in one call."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)
