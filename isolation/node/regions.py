# SPDX-License-Identifier: Apache-2.0
"""
The folder that a container writes into: bounded, and usable by whoever the container runs as.

A tenant may write as much as it likes into its region's file. On a file system of its own, as large as a
region and no larger, that fills nothing but itself. Where we may not mount one, or the container runtime
would not see it, the file lies on the run directory's disk, and is cut when it has grown.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

from isolation.contract import abi
from isolation.lib import files

_log: Final = logging.getLogger(__name__)
SIZE_BYTES: Final = abi.REGION_BYTES + (256 << 10)
"""A region and the file system's own pages."""
_NOSUID, _NODEV, _NOEXEC, _DETACH = 2, 4, 8, 2  # MS_NOSUID, MS_NODEV, MS_NOEXEC, MNT_DETACH: linux/mount.h
_MOUNTS: Final = Path("/proc/self/mountinfo")
_SELINUX: Final = Path("/sys/fs/selinux/enforce")
_LABEL: Final = b"system_u:object_r:container_file_t:s0"


class Regions:
    """See the module."""

    def __init__(self) -> None:
        self._refused = False
        self._libc = ctypes.CDLL(None, use_errno=True)

    def prepare(self, folder: Path) -> None:
        """A file system of its own, where that can be had. The folder is there and nobody uses it."""
        if not self._refused and (why := mount_tmpfs(folder, SIZE_BYTES, "0755,nr_inodes=16")):
            self._refuse(why)

    def drop(self, folder: Path) -> None:
        """Take the file system away; its memory goes when the last process has closed it."""
        if os.path.ismount(folder) and self._libc.umount2(os.fsencode(folder), _DETACH) != 0:
            _log.error("cannot unmount %s: %s", folder, os.strerror(ctypes.get_errno()))

    @staticmethod
    def usable(region: Path) -> bool:
        """Whether a container can go on with it: a region of the right size that can be read. Cut if it has grown."""
        try:
            if region.is_file() and not region.is_symlink() and region.stat().st_size > abi.REGION_BYTES:
                os.truncate(region, abi.REGION_BYTES)
            files.read_region(region)
        except (OSError, abi.AbiError):
            return False
        return True

    def _refuse(self, why: str) -> None:
        self._refused = True
        _log.warning("%s: storing region files on the disk of the run directory, where containers can grow them", why)


def mount_tmpfs(folder: Path, size: int, mode: str) -> str:
    """A file system of that size that containers can see, unless one is there; why not. `mode`: and more options."""
    if os.path.ismount(folder):
        return ""
    if not _seen_by_others(folder):
        return f"the mount of {folder} is not shared with the container runtime"
    options = f"size={size},mode={mode}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"gpushare", os.fsencode(folder), b"tmpfs", _NOSUID | _NODEV | _NOEXEC, options):
        return f"cannot mount tmpfs on {folder}: {os.strerror(ctypes.get_errno())}"
    return ""


def _seen_by_others(folder: Path) -> bool:
    """Whether what we mount there shows up on the host: the mount that holds the folder is shared with it."""
    best, shared = "", False
    for line in _MOUNTS.read_text("utf-8", "replace").splitlines():
        fields = line.split(" ")
        point = fields[4]
        if len(point) >= len(best) and (folder.is_relative_to(point)):
            best, shared = point, any(field.startswith("shared:") for field in fields[6 : fields.index("-")])
    return shared


def label(path: Path) -> None:
    """Let containers reach the file under SELinux; nothing where there is none."""
    if _SELINUX.exists():
        os.setxattr(path, "security.selinux", _LABEL, follow_symlinks=False)
