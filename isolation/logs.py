# SPDX-License-Identifier: Apache-2.0
"""
Log messages of every long-running process, on standard error: the format, and the options that choose it.

Lines for people, or JSON for a log collector. Messages hold names of pods and answers of servers, so control
characters are replaced: no name forges a line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning")
_MAX_CHARS: Final = 4000
_LIBRARIES: Final = {
    "aiohttp": logging.WARNING,
    "kubernetes": logging.WARNING,
    # They warn of every connection that a client cut.
    "asyncio": logging.ERROR,
    "grpc": logging.ERROR,
}
"""The least of a library's own messages that is shown, whatever --log-level says."""


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--log-format` and `--log-level`, for `set_up`."""
    level = click.option(
        "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Minimum log level."
    )
    form = click.option(
        "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="Log format on stderr."
    )
    return form(level(command))


def set_up(form: str, level: str) -> None:
    """Replace all handlers of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _LIBRARIES.items():
        logging.getLogger(name).setLevel(least)


class Text(logging.Formatter):
    """`2026-01-31T12:00:00Z warning isolation.node.watch: the API server did not answer`."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, logger, message; a stack trace on lines of its own."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        trace = _trace(self, record)
        line = f"{moment} {record.levelname.lower()} {record.name}: {_message(record)}"
        return f"{line}\n{trace}" if trace else line


class Json(logging.Formatter):
    """One object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, message, logger, and the stack trace where there is one."""
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": _message(record),
            "logger": record.name,
        }
        trace = _trace(self, record)
        return json.dumps(fields | ({"trace": trace} if trace else {}))


def _message(record: logging.LogRecord) -> str:
    return printable(record.getMessage(), _MAX_CHARS)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
