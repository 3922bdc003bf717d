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

RANGE = range(20_000, 30_000)
_LOCKS: list[int] = []
"""Held until this process ends."""


def free_port() -> int:
    """A port on loopback that nobody listens on, and that no other test is given."""
    folder = Path(tempfile.gettempdir()) / f"gpushare-test-ports-{os.geteuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.sample(RANGE, len(RANGE)):
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        _LOCKS.append(lock)
        return port
    raise OSError(f"no port of {RANGE} is free on loopback")
