# SPDX-License-Identifier: Apache-2.0
"""
A container's file system just before its program runs: is what we mounted on top, and will the library be loaded.

Everything is looked up inside the container's root, as its programs will: a link of the image to an absolute path must
not lead to the host. Loader and C library count only on the image's own file system: a volume's may hang, and change.
The loader of glibc reads /etc/ld.so.preload; musl's does not, and an image without a loader has
only static programs. In such a container a program would use the card without limits.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.node.cdi import Mount

_OPENAT2: Final = 437
"""The number of the call on every machine: linux/include/uapi/asm-generic/unistd.h."""
_NO_XDEV, _NO_MAGICLINKS, _IN_ROOT = 0x01, 0x02, 0x10  # linux/openat2.h
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
OLDEST: Final = (2, 17)
"""The first glibc that has the symbols of our library."""
_LOADERS: Final = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2",),
    "aarch64": ("/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1"),
}
_LIBRARIES: Final = (
    *("/lib/{0}-linux-gnu/libc.so.6", "/usr/lib/{0}-linux-gnu/libc.so.6"),
    *("/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/lib/libc.so.6", "/usr/lib/libc.so.6"),
)
_VERSION: Final = re.compile(rb"GLIBC_([0-9]{1,2})\.([0-9]{1,3})(?:\.[0-9]{1,2})?\0")
_MAX_BYTES: Final = 16 << 20


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Root:
    """A container's root directory, by the process of it that waits for its start."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """OSError where there is no such process."""
        self._fd = os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def hidden(self, mounts: Iterable[Mount]) -> str:
        """The first of these under which something else is found in the container; empty: none."""
        for mount in mounts:
            ours = Path(mount.host).stat()
            try:
                fd = self._open(mount.container, os.O_PATH)
            except OSError:
                return mount.container
            try:
                found = os.fstat(fd)
            finally:
                os.close(fd)
            if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
                return mount.container
        return ""

    def preload_problem(self) -> str:
        """Why no loader of this image would load our library; empty: one does."""
        machine = platform.machine()
        if not any(self._is_file(path) for path in _LOADERS.get(machine, ())):
            return "the image has no glibc loader (musl, or static programs only)"
        for pattern in _LIBRARIES:
            version = self._glibc(pattern.format(machine))
            if version is not None:
                oldest = ".".join(map(str, OLDEST))
                shown = ".".join(map(str, version))
                return f"the image has glibc {shown}, older than {oldest}" if version < OLDEST else ""
        return "the image has a glibc loader but no libc.so.6"

    def _is_file(self, path: str) -> bool:
        fd = self._file(path)
        if fd is not None:
            os.close(fd)
        return fd is not None

    def _glibc(self, path: str) -> tuple[int, int] | None:
        """The newest version of which a C library defines symbols; None: there is no such file."""
        fd = self._file(path)
        if fd is None:
            return None
        with os.fdopen(fd, "rb") as file:
            # not mapped into memory: a tenant that cuts the file meanwhile must not end the agent
            return max(((int(a), int(b)) for a, b in _VERSION.findall(file.read(_MAX_BYTES))), default=None)

    def _file(self, path: str) -> int | None:
        """A regular file of the image, opened to be read."""
        try:
            fd = self._open(path, _READ, _NO_XDEV)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    def _open(self, path: str, flags: int, resolve: int = 0) -> int:
        how = _How(flags | os.O_CLOEXEC, 0, resolve | _NO_MAGICLINKS | _IN_ROOT)
        fd: int = self._libc.syscall(
            _OPENAT2, self._fd, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return fd
