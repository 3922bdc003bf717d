# SPDX-License-Identifier: Apache-2.0
"""
The scheduler's Prometheus metrics: counters of its answers, and gauges that are read at each scrape.

Names, labels and help come from the catalogue (`isolation.contract.metrics.scheduler`); the process's memory, CPU and
descriptors have the names that every Prometheus client uses. What is unknown is absent: a watch that never received
anything has no age.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Counter as Counted
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from isolation.contract.metrics import scheduler as catalogue
from isolation.kube.gauges import Gauges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from isolation.contract.metrics import MetricSpec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REST_FACTOR: Final = 10
"""A page is reused for so many times as long as it took: scrapes take a tenth of the event loop at most."""


class Metrics:
    """One registry per process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._counter(catalogue.REQUESTS)
        self._page, self._due = b"", 0.0
        self._durations: dict[str, tuple[list[int], float]] = {}
        self._registry.register(DurationHistogram(self._durations))
        self._requeued = self._counter(catalogue.REQUEUED_PODS)
        self._preemptions = self._counter(catalogue.PREEMPTION_ATTEMPTS)
        self._evictions = self._counter(catalogue.EVICTIONS)

    def _counter(self, spec: MetricSpec) -> Counted:
        return Counted(spec.name, spec.help, spec.labels, registry=self._registry)

    def count_request(self, verb: str, outcome: str, seconds: float) -> None:
        """Count one extender request, which took so long."""
        self._requests.labels(verb, outcome).inc()
        buckets = [0] * (len(catalogue.BUCKETS) + 1)
        buckets[bisect_left(catalogue.BUCKETS, seconds)] = 1
        self.add_durations(verb, buckets, seconds)

    def add_durations(self, verb: str, buckets: Sequence[int], seconds: float) -> None:
        """Add many durations: counts by bucket, one more than `BUCKETS`, and their sum in seconds."""
        before, total = self._durations.get(verb, ([0] * len(buckets), 0.0))
        self._durations[verb] = [old + new for old, new in zip(before, buckets, strict=True)], total + seconds

    def count_reviews(self, outcome: str, number: int) -> None:
        """Count reviews that the admission process answered."""
        self._requests.labels("admission", outcome).inc(number)

    def count_requeue(self, error: str) -> None:
        """Count one requeued pod, unless there was an error."""
        if not error:
            self._requeued.inc()

    def count_preemption(self, outcome: str) -> None:
        """Count one preemption by card."""
        self._preemptions.labels(outcome).inc()

    def count_eviction(self, outcome: str) -> None:
        """Count one eviction."""
        self._evictions.labels(outcome).inc()

    def add_gauges(self, read: Callable[[], Mapping[MetricSpec, Mapping[tuple[str, ...], float]]]) -> None:
        """Add gauges that are read at every scrape."""
        self._registry.register(Gauges(read))

    def page(self) -> bytes:
        """The page for a scrape; frequent scrapes get the same page again."""
        now = time.monotonic()
        if now >= self._due:
            self._page = generate_latest(self._registry)
            took = time.monotonic() - now
            self._due = now + (_REST_FACTOR + 1) * took
        return self._page


class DurationHistogram(Collector):
    """The histogram of durations: buckets and sum by verb, as this process or the admission process counted them."""

    def __init__(self, taken: Mapping[str, tuple[list[int], float]]) -> None:
        self._taken = taken

    def collect(self) -> Iterable[Metric]:
        """One family."""
        spec = catalogue.REQUEST_DURATION
        family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        bounds = [*map(floatToGoString, catalogue.BUCKETS), "+Inf"]
        for verb, (buckets, seconds) in self._taken.items():
            family.add_metric([verb], list(zip(bounds, accumulate(buckets), strict=True)), seconds)
        yield family


def count(words: Iterable[str]) -> dict[tuple[str, ...], float]:
    """Count equal words, as rows of one label."""
    return {(word,): float(number) for word, number in Counter(words).items()}
