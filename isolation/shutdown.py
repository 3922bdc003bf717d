# SPDX-License-Identifier: Apache-2.0
"""How a process is told to end: SIGTERM from a supervisor, SIGINT from a terminal."""

from __future__ import annotations

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """Set by either signal; to be called in the running event loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
