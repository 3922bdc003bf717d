# SPDX-License-Identifier: Apache-2.0
"""
Reads again and again in a thread of its own, so that keys never wait for a cluster.

Decides how often: a reading takes no more than a fifth of the time, since a large API server has other work.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Final

from dashboards.terminal.interactive.rows import ReadingSummary
from dashboards.terminal.read.source import UnreadableSourceError, read, read_processes
from dashboards.terminal.read.usage import add_rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.terminal.read.source import Reading, SourceSelection
    from dashboards.terminal.read.usage import Usage

_REST: Final = 4


class BackgroundReader:
    """The latest model, and what went wrong since."""

    def __init__(
        self, source: SourceSelection, limits: tuple[str, str], seconds: float, came: Callable[[], None]
    ) -> None:
        """`limits`: of one namespace and one node, empty where all; `came` is called after each reading."""
        self._source, self._limits, self._seconds, self._came = source, limits, seconds, came
        self._now, self._wanted = threading.Event(), ""
        self._before: Usage | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.model: ReadingSummary | None = None
        self.trouble: UnreadableSourceError | None = None
        self.broken: BaseException | None = None
        self.reading = False
        self.paused = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want_processes(self, node: str) -> None:
        """From now on also those of this node's cards; empty: of none."""
        if node != self._wanted:
            self._wanted = node
            if node:
                self._now.set()

    def again(self) -> None:
        """Read at once."""
        self._now.set()

    def _run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                if not self.paused:
                    self._read()
                took = time.monotonic() - began
                self._came()
                self._now.wait(max(self._seconds - took, took * _REST))
                self._now.clear()
        except BaseException as exc:  # noqa: BLE001 (raised again by whoever shows it)
            self.broken = exc
            self._came()

    def _read(self) -> None:
        self.reading = True
        self._came()
        try:
            namespace, node = self._limits
            found = read(self._source, namespace, node)
            wanted = self._wanted
            processes = read_processes(self._source, wanted) if wanted else None
            self.model, self.trouble = ReadingSummary(self._rated(found), processes), None
        except UnreadableSourceError as exc:
            self.trouble = exc
        finally:
            self.reading = False
        gc.collect()

    def _rated(self, found: Reading) -> Reading:
        """Compute as the mean since the last reading, where exporters count seconds."""
        before, self._before = self._before, found.usage
        if before is None:
            return found
        return type(found)(found.fleet, add_rates(before, found.usage), found.breaches, found.unheard)
