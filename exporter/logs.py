# SPDX-License-Identifier: Apache-2.0
"""
What the exporter says on standard error, as lines for people or as JSON for a collector of logs.

What others wrote (names of pods and processes) stands in messages: control characters are taken out, so that
nobody forges a line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

FORMATS: Final = ("text", "json")
_MOST: Final = 4000
_LOUD: Final = ("grpc", "asyncio")


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00Z warning nvml: did not answer within 1.2 s`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return f"{moment} {record.levelname.lower()} {_clean(record)}{_trace(self, record)}"


class _Json(logging.Formatter):
    """One object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": _clean(record),
            "logger": record.name,
        }
        trace = _trace(self, record)
        return json.dumps(told | ({"trace": trace.strip()} if trace else {}))


def _clean(record: logging.LogRecord) -> str:
    text = record.getMessage()[:_MOST]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""


def set_up(form: str, level: str, *, once: bool) -> None:
    """Replace whatever handlers there are. A single look says what it has to say itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.ERROR if once and level != "debug" else level.upper())
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.ERROR)
