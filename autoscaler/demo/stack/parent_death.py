# SPDX-License-Identifier: Apache-2.0
"""
Replaces itself with another program that the kernel kills when its parent ends (PR_SET_PDEATHSIG).

Run as a script: `python parent_death.py PID COMMAND...`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Of <linux/prctl.h>; kept over an exec of a program without privileges of its own."""


def main(arguments: list[str]) -> None:
    """Tie, then become the command; ends where the starter has gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(arguments[0]):
        os.execvp(arguments[1], arguments[1:])  # noqa: S606 (a command that our own program wrote down)


if __name__ == "__main__":
    main(sys.argv[1:])
