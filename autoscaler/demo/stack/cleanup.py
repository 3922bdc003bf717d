# SPDX-License-Identifier: Apache-2.0
"""
Ends what still runs of a demo stack and removes its folders, also when the stack itself was killed.

The stack calls it at an orderly end. As a script in a process of its own (`python cleanup.py MARK FOLDER...`) it waits
until its standard input ends. A process belongs to the stack if its environment has the stack's mark; no other process
is ever signalled.
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
TERMINATION_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL, and from there until the rest is left alone."""
POLL_SECONDS: Final = 0.05


def build_marks(mark: str, part: str = "") -> set[bytes]:
    """What stands in the environment of a stack's processes, or of one part's."""
    both = {VARIABLE: mark, PART: part} if part else {VARIABLE: mark}
    return {f"{name}={value}".encode() for name, value in both.items()}


def has_marks(pid: int, wanted: set[bytes]) -> bool:
    """Whether this process has these signs; one that is gone, or another user's, has not."""
    try:
        return wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def find_marked(wanted: set[bytes]) -> list[int]:
    """Processes with these signs, the caller left out."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid() and has_marks(pid, wanted)]


def send_signal(wanted: set[bytes], pid: int, number: int) -> None:
    """A signal to that very process, if it still is one of the stack's."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # The handle was opened before the check, so a reused pid is never signalled.
        if has_marks(pid, wanted):
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended meanwhile
    finally:
        os.close(handle)


def clean_up(mark: str, folders: list[str], grace: float = TERMINATION_SECONDS) -> None:
    """End every process of the stack, first gently, then not; then its folders go."""
    begun, wanted = time.monotonic(), build_marks(mark)
    terminated = False
    while (left := find_marked(wanted)) and (waited := time.monotonic() - begun) < 2 * TERMINATION_SECONDS + grace:
        if waited >= grace:
            number = signal.SIGTERM if not terminated else signal.SIGKILL
            if not terminated or waited >= grace + TERMINATION_SECONDS:
                for pid in left:
                    send_signal(wanted, pid, number)
            terminated = True
        time.sleep(POLL_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean_up(sys.argv[1], sys.argv[2:])
