# SPDX-License-Identifier: Apache-2.0
"""
Ports for servers that tests start: a port that is free now is free when its server binds it.

The kernel gives ports above 32767 to outgoing connections, at any moment; these are below, and no other test process on
this machine takes one that is locked.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RANGE = range(20_000, 30_000)
_LOCKS: list[int] = []
"""Held until this process ends."""


def free_port() -> int:
    """A port on loopback that nobody listens on, and that no other test is given."""
    return free_ports((0,))


def free_ports(offsets: Sequence[int]) -> int:
    """The first of several ports, by their distances from it: each is as `free_port` says."""
    folder = Path(tempfile.gettempdir()) / f"gpushare-test-ports-{os.geteuid()}"
    folder.mkdir(exist_ok=True)
    for first in random.sample(RANGE, len(RANGE)):
        locks: list[int] = []
        try:
            for port in (first + offset for offset in offsets):
                locks.append(os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            for lock in locks:
                os.close(lock)
            continue
        _LOCKS.extend(locks)
        return first
    raise OSError(f"no port of {RANGE} is free on loopback")
