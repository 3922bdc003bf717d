"""
What the scheduler tells Prometheus: counters of what it answered, and gauges read when somebody scrapes.

Names, labels and help come from the catalogue (`isolation.contract.metrics_scheduler`); what the process costs
(memory, CPU, descriptors) has the names that every Prometheus client uses. What cannot be told is absent: a watch
that was never heard has no age.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client import Counter as Counted

from isolation.cluster.gauges import Gauges
from isolation.contract import metrics_scheduler as catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from isolation.contract.metrics import MetricSpec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds; 5 ms and 20 ms are what the handlers promise at 1,000 and 5,000 nodes."""


class Metrics:
    """One registry per process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._counter(catalogue.REQUESTS)
        spec = catalogue.DURATION
        self._duration = Histogram(spec.name, spec.help, spec.labels, buckets=_BUCKETS, registry=self._registry)
        self._woken = self._counter(catalogue.WOKEN)
        self._reliefs = self._counter(catalogue.RELIEFS)
        self._evictions = self._counter(catalogue.EVICTIONS)

    def _counter(self, spec: MetricSpec) -> Counted:
        return Counted(spec.name, spec.help, spec.labels, registry=self._registry)

    def answered(self, verb: str, outcome: str, seconds: float) -> None:
        """One question."""
        self._requests.labels(verb, outcome).inc()
        self._duration.labels(verb).observe(seconds)

    def woken(self, said: str) -> None:
        """One waiting pod was told; `said` is what kept the server from it."""
        if not said:
            self._woken.inc()

    def relieved(self, outcome: str) -> None:
        """One pre-emption of ours."""
        self._reliefs.labels(outcome).inc()

    def evicted(self, outcome: str) -> None:
        """One eviction."""
        self._evictions.labels(outcome).inc()

    def watch(self, read: Callable[[], Mapping[MetricSpec, Mapping[tuple[str, ...], float]]]) -> None:
        """Gauges, read at every scrape."""
        self._registry.register(Gauges(read))

    def page(self) -> bytes:
        """For a scraper."""
        return generate_latest(self._registry)


def count(words: Iterable[str]) -> dict[tuple[str, ...], float]:
    """How often each stands there, as rows of one label."""
    return {(word,): float(number) for word, number in Counter(words).items()}
