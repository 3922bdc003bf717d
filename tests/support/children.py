# SPDX-License-Identifier: Apache-2.0
"""
Processes that tests start: everything about one stands on its command line.

Nothing of ours runs between fork and exec (`preexec_fn`, `os.fork`, `pty.fork`): gRPC is loaded in most
test processes and its threads do not survive a fork, so that now and then the child hangs or aborts.
"""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import termios
from fcntl import ioctl
from typing import Any

HEEDS_SIGNALS = ("env", "--default-signal=HUP,INT,QUIT")
"""Before a command: as from a terminal, also where the tests run under nohup or in the background."""

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it does not outlive the thread that started it."""


def at_terminal(
    *command: object, rows: int = 24, columns: int = 80, **more: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """A command with a terminal of its own, whose keys reach it: its process, and our end of the terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen([*HEEDS_SIGNALS, "setsid", "--ctty", *map(str, command)], **(streams | more))
    os.close(theirs)
    return process, ours
