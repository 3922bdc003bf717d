# SPDX-License-Identifier: Apache-2.0
"""Whether a process holds the lock of a file or folder: how what belongs to a process is found while it lives."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Error numbers of what is gone, or is something else by now."""


def locked(path: str | Path, flags: int = os.O_DIRECTORY, *, unknown: bool = True) -> bool:
    """
    Whether a process holds the flock of an allocation's folder (or of a file); what is gone is not held.

    `unknown`: the answer where that cannot be told, for lack of rights for example. It is yes for allocations: to
    call a living one dead gives its memory to a second tenant.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    except OSError as exc:
        return unknown and exc.errno not in NOT_THERE
    try:
        # shared, so that those who ask at the same moment do not take each other for the holder
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return unknown
    finally:
        os.close(fd)
    return False
