# SPDX-License-Identifier: Apache-2.0
"""
Sweeps up behind a stack: ends what still runs of it and removes its folders.

The stack does so itself at an orderly end. Run as a script beside it (`python janitor.py MARK
FOLDER...`) it waits until its standard input ends, and so also sweeps behind a stack that was
killed. Whose process is whose is told by a mark in the environment, nothing else: no other process
is ever touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "GPUSHARE_UP"
"""In the environment of every process of a stack: its mark, which no other stack has."""
PART: Final = "GPUSHARE_UP_PART"
"""Likewise: which part of the stack it is, or was started by."""
PATIENCE_SECONDS: Final = 5.0
"""After which what was told to end is killed, and after as much again left alone."""
POLL_SECONDS: Final = 0.05


def signs(mark: str, part: str = "") -> set[bytes]:
    """What stands in the environment of a stack's processes, or of one part's."""
    both = {VARIABLE: mark, PART: part} if part else {VARIABLE: mark}
    return {f"{name}={value}".encode() for name, value in both.items()}


def bears(pid: int, wanted: set[bytes]) -> bool:
    """Whether this process has these signs; one that is gone, or another user's, has not."""
    try:
        return wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def marked(wanted: set[bytes]) -> list[int]:
    """Processes with these signs, the caller left out."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid() and bears(pid, wanted)]


def tell(wanted: set[bytes], pid: int, number: int) -> None:
    """A signal to that very process, if it still is one of the stack's."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # The handle was opened first: whoever bears the signs now is whom the signal reaches.
        if bears(pid, wanted):
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended meanwhile
    finally:
        os.close(handle)


def sweep(mark: str, folders: list[str], grace: float = PATIENCE_SECONDS) -> None:
    """End every process of the stack, first gently, then not; then its folders go."""
    begun, wanted = time.monotonic(), signs(mark)
    told = False
    while (left := marked(wanted)) and (waited := time.monotonic() - begun) < 2 * PATIENCE_SECONDS + grace:
        if waited >= grace:
            number = signal.SIGTERM if not told else signal.SIGKILL
            if not told or waited >= grace + PATIENCE_SECONDS:
                for pid in left:
                    tell(wanted, pid, number)
            told = True
        time.sleep(POLL_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sweep(sys.argv[1], sys.argv[2:])
