# SPDX-License-Identifier: Apache-2.0
"""
Log lines about requests that are not HTTP: one now and then, with nothing of what was sent.

aiohttp writes a traceback for each of them, with the sender's bytes in it: whoever reaches a port could fill the log
and write into it what it likes. Decides which errors are the caller's doing; defects of ours keep their traces.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_SECONDS: Final = 60.0
_CALLERS: Final = (HttpProcessingError, RequestPayloadError, ConnectionResetError, BrokenPipeError)
_MAX_ADDRESS: Final = 64


class RequestErrorFilter(logging.Filter):
    """Lets one record of a caller's mistake through per `EVERY_SECONDS`, short and with their number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._due = float("-inf")
        self._number = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written; what is not the caller's doing stays as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, _CALLERS):
            return True
        self._number += 1
        now = self._clock()
        if now < self._due:
            return False
        peer = ascii(record.args[0])[:_MAX_ADDRESS] if isinstance(record.args, tuple) and record.args else "unknown"
        record.msg = "rejected %d invalid or aborted requests, the last one from %s: %s"
        record.args = (self._number, peer.strip("'"), type(error).__name__)
        record.exc_info = record.exc_text = record.stack_info = None
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        self._due, self._number = now + EVERY_SECONDS, 0
        return True


def request_error_logger(log: logging.Logger) -> logging.Logger:
    """For a server of aiohttp's (`logger=`): beneath this log, and never more of what callers do than one line."""
    below = log.getChild("http")
    if not any(isinstance(one, RequestErrorFilter) for one in below.filters):
        below.addFilter(RequestErrorFilter())
    return below
