# SPDX-License-Identifier: Apache-2.0
"""
What scheduler, node agent and autoscaler say on standard error, and the options that ask for it.

Lines for people, or JSON for a collector of logs. Names of pods and words of servers stand in messages: control
characters are taken out, so that nobody forges a line. The exporter, which knows nothing of clusters, has its own of
the same keys. What is worth saying is not decided here.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning")
_MOST: Final = 4000
_CHATTY: Final = ("aiohttp", "asyncio", "grpc", "kubernetes")
"""Libraries that are heard from warnings on, whatever is asked for."""


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
    """Replace whatever handlers there are."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class Text(logging.Formatter):
    """`2026-01-31T12:00:00Z warning isolation.node.watch: the API server did not answer`."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, who, text; a trace on lines of its own."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        trace = _trace(self, record)
        return f"{moment} {record.levelname.lower()} {record.name}: {_clean(record)}" + (f"\n{trace}" if trace else "")


class Json(logging.Formatter):
    """One object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, text, who, and the trace where there is one."""
        said = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": _clean(record),
            "logger": record.name,
        }
        trace = _trace(self, record)
        return json.dumps(said | ({"trace": trace} if trace else {}))


def _clean(record: logging.LogRecord) -> str:
    text = record.getMessage()[:_MOST]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
