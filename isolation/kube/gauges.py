# SPDX-License-Identifier: Apache-2.0
"""
Gauges of a process of ours, and counters kept elsewhere, read at each scrape.

Decides nothing: names, labels and help come from the catalogue, what is unknown is left out by the callback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from isolation.contract.metrics import Kind, MetricSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

Rows: TypeAlias = Mapping[MetricSpec, Mapping[tuple[str, ...], float]]
"""Values by label values, for each metric."""


class Gauges(Collector):
    """Whatever `read` says at the moment of a scrape."""

    def __init__(self, read: Callable[[], Rows]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of a scrape: the world may not stand yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family for each metric that was read."""
        for spec, rows in self._read().items():
            kind = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(spec.name, spec.help, labels=spec.labels)
            for labels, value in rows.items():
                family.add_metric(labels, value)
            yield family
