# SPDX-License-Identifier: Apache-2.0
"""
Metrics of many simulated nodes on one endpoint, for the embedded cluster of `gpushare up`.

The callers give the readings; the exporter of one node (`exporter.app`) reads its cards instead.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from exporter.http.pages import Exposition
from exporter.http.server import MetricsServer
from exporter.pipeline.families import card_families, container_families
from isolation.distribution import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from isolation.contract.metrics import Family
    from isolation.contract.reading import Frame


class FleetMetrics:
    """Serves the latest frame; a context manager that frees the port when it is left."""

    def __init__(self, port: int, more: Mapping[str, Callable[[Frame], Iterable[Family]]]) -> None:
        collectors = {"cards": _cards, "containers": _containers, **more}
        self._exposition: Exposition[Frame] = Exposition(collectors, clock=time.perf_counter, release=release())
        self._server = MetricsServer(self._exposition, port)
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    def publish(self, frame: Frame) -> None:
        """Serve this frame from now on."""
        self._exposition.publish(frame, time.time())


def _cards(frame: Frame) -> Iterable[Family]:
    return card_families(frame.nodes)


def _containers(frame: Frame) -> Iterable[Family]:
    return container_families(frame.nodes)
