"""
Families as Prometheus text: guarded collectors, rendered once per snapshot.

A collector that fails takes only its own series away and says so in a series of its own; it never
fails the scrape. What the values mean is the catalogue's business (`isolation.contract.metrics`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from isolation.contract import metrics
from isolation.contract.metrics import Family, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

_log: Final = logging.getLogger(__name__)

# Without a version, so that the client library answers 1.0.0: asked for 2.0.0 it writes (0.26) a 1.0 body
# under a 2.0 content type.
_OPENMETRICS: Final = "application/openmetrics-text"

Snapshot = TypeVar("Snapshot")


def metric(family: Family) -> Metric:
    """One family as the client library's own value."""
    spec = family.spec
    match spec.kind:
        case Kind.COUNTER:
            made: Metric = CounterMetricFamily(spec.name, spec.help)
        case Kind.INFO:
            made = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help)
        case Kind.GAUGE:
            made = GaugeMetricFamily(spec.name, spec.help)
    for values, value in family.samples:
        made.add_sample(spec.name, dict(zip(spec.labels, map(_encodable, values), strict=True)), value)
    return made


def _encodable(label: str) -> str:
    # A lone surrogate (a name read from undecodable bytes) would fail the whole scrape.
    return label.encode("utf-8", "replace").decode("utf-8")


class Guarded(Collector, Generic[Snapshot]):
    """The collectors of one process over one snapshot, each behind its own guard."""

    def __init__(
        self,
        collectors: Mapping[str, Callable[[Snapshot], Iterable[Family]]],
        snapshot: Snapshot,
        *,
        read_at: float,
        clock: Callable[[], float],
        release: str,
    ) -> None:
        self._collectors = dict(collectors)
        self._snapshot = snapshot
        self._read_at = read_at
        self._clock = clock
        self._release = release

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not collect, and names are the catalogue's to keep apart."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every family with samples, then how the collectors fared."""
        success: list[tuple[tuple[str, ...], float]] = []
        duration: list[tuple[tuple[str, ...], float]] = []
        for name, run in self._collectors.items():
            begun = self._clock()
            try:
                found = [metric(family) for family in run(self._snapshot) if family.samples]
            except Exception:  # noqa: BLE001 (any failure must cost this collector's series only)
                _log.warning("collector %s failed; its series are absent", name, exc_info=True)
                found, worked = [], 0.0
            else:
                worked = 1.0
            yield from found
            success.append(((name,), worked))
            duration.append(((name,), self._clock() - begun))
        yield metric(metrics.family(metrics.COLLECTOR_SUCCESS, success))
        yield metric(metrics.family(metrics.COLLECTOR_DURATION, duration))
        yield metric(metrics.family(metrics.SAMPLE_TIME, [((), self._read_at)]))
        yield metric(metrics.family(metrics.BUILD_INFO, [((self._release,), 1)]))


@dataclass(frozen=True, slots=True)
class Page:
    """What a scrape gets."""

    body: bytes
    content_type: str


class Exposition(Generic[Snapshot]):
    """
    The latest snapshot, rendered when it is first asked for and served from then on.

    `publish` is cheap, so that a world may publish several times a second to nobody.
    """

    def __init__(
        self,
        collectors: Mapping[str, Callable[[Snapshot], Iterable[Family]]],
        *,
        clock: Callable[[], float],
        release: str,
    ) -> None:
        self._collectors = collectors
        self._clock = clock
        self._release = release
        self._lock = Lock()
        self._latest: Guarded[Snapshot] | None = None
        self._pages: dict[bool, tuple[Guarded[Snapshot], Page]] = {}

    def publish(self, snapshot: Snapshot, read_at: float) -> None:
        """Serve this snapshot from now on; `read_at` is when it was read, in seconds since the epoch."""
        self._latest = Guarded(self._collectors, snapshot, read_at=read_at, clock=self._clock, release=self._release)

    def page(self, accept: str = "") -> Page | None:
        """The page for a scraper that accepts these content types; None before the first snapshot."""
        latest = self._latest
        if latest is None:
            return None
        openmetrics = _OPENMETRICS in accept
        with self._lock:
            rendered = self._pages.get(openmetrics)
            if rendered is None or rendered[0] is not latest:
                rendered = (latest, render(latest, openmetrics=openmetrics))
                self._pages[openmetrics] = rendered
        return rendered[1]


def render(collector: Collector, *, openmetrics: bool = False) -> Page:
    """One collector's families as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(_OPENMETRICS if openmetrics else "")
    return Page(encode(registry), content_type)
