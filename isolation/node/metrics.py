# SPDX-License-Identifier: Apache-2.0
"""
What the agent tells Prometheus of itself: how fast it answered, what it holds, whether it is well.

Names, labels and help come from the catalogue (`isolation.contract.metrics.node`); what the process costs
(memory, CPU, descriptors) has the names that every Prometheus client uses. What cannot be told is absent. Usage of
cards is the exporter's to tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from isolation.contract.metrics import node as catalogue
from isolation.kube.gauges import Gauges, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from isolation.contract.metrics import MetricSpec


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0, 30.0)
"""Seconds; 20 ms at the median and 200 ms at the 99th percentile are what the agent promises."""


class NodeMetrics:
    """The registry of one agent."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        spec = catalogue.REQUEST_DURATION
        self._duration = Histogram(spec.name, spec.help, spec.labels, buckets=_BUCKETS, registry=self._registry)
        self._answers = self._counter(catalogue.REQUESTS)

    def _counter(self, spec: MetricSpec) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self._registry)

    def took(self, method: str, seconds: float, outcome: str) -> None:
        """One answer; the outcome is ok, refused, timeout or error."""
        self._duration.labels(method).observe(seconds)
        self._answers.labels(method, outcome).inc()

    def watch(self, read: Callable[[], Rows]) -> None:
        """Gauges, read at every scrape."""
        self._registry.register(Gauges(read))

    def page(self) -> bytes:
        """For a scraper."""
        return generate_latest(self._registry)
