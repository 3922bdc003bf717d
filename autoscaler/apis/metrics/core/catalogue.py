# SPDX-License-Identifier: Apache-2.0
"""
The metrics that are served, and how each follows from a reading.

Pure. A metric of pods is a figure of one pod, or of all on a node or in a namespace together, over those
of its (container, card) parts that were selected; one that is unknown is None. A metric of pools is a
list of labelled figures, chosen so that HorizontalPodAutoscaler, which adds up what it gets, adds up
something that makes sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autoscaler.apis.metrics.core.readings import ContainerCardUse, MetricsSnapshot, PodUse
    from autoscaler.apis.metrics.core.selector import Selector

Labelled = tuple[dict[str, str], float]
"""Labels of one figure, and the figure."""


@dataclass(frozen=True, slots=True)
class PodMetric:
    """One figure for each pod."""

    name: str
    text: str
    amount: Callable[[Sequence[ContainerCardUse]], float | None]
    base: Callable[[Sequence[ContainerCardUse]], float | None] | None = None
    """What the amount is a part of; None: the amount is the figure."""
    measured: bool = True
    """Needs the exporter; else it follows from what Kubernetes itself knows."""
    averaged: bool = False
    """An average over a window, not a state."""

    def of(self, pod: PodUse, selector: Selector) -> float | None:
        """The pod's figure; None where it is unknown, or nothing of the pod is selected."""
        return self.of_all((pod,), selector)

    def of_all(self, pods: Sequence[PodUse], selector: Selector) -> float | None:
        """The same of several pods together: a ratio of sums, not a sum of ratios; None where one pod's is unknown."""
        if not all(pod.uses for pod in pods):
            return None  # whole cards that their node has not named yet
        selected = [parts for pod in pods if (parts := _selected(pod, selector))]
        amount = _sum(self.amount(parts) for parts in selected) if selected else None
        if self.base is None or amount is None:
            return amount
        base = _sum(self.base(parts) for parts in selected)
        return amount / base if base else None


@dataclass(frozen=True, slots=True)
class PoolMetric:
    """Figures of pools, for a namespace that asks."""

    name: str
    text: str
    labels: frozenset[str]
    figures: Callable[[MetricsSnapshot, str, Selector], list[Labelled]]


PART_LABELS: Final = frozenset({"container", "uuid", "card", "node"})
"""What `metricLabelSelector` may speak of."""


def make_labels(pod: PodUse, use: ContainerCardUse) -> dict[str, str]:
    """Of one part of a pod."""
    return {"container": use.container, "uuid": use.uuid, "card": str(use.card), "node": pod.node}


def _selected(pod: PodUse, selector: Selector) -> Sequence[ContainerCardUse]:
    return [use for use in pod.uses if selector.matches(make_labels(pod, use))] if selector.terms else pod.uses


def _sum(values: Iterable[float | None]) -> float | None:
    """A sum with an unknown part is unknown."""
    total = 0.0
    for value in values:
        if value is None or not 0 <= value < float("inf"):  # also NaN
            return None
        total += value
    return total


def _allocated(uses: Sequence[ContainerCardUse]) -> float | None:
    return _sum(use.allocated_bytes for use in uses)


def _used(uses: Sequence[ContainerCardUse]) -> float | None:
    return _sum(use.used_bytes for use in uses)


def _core_used(uses: Sequence[ContainerCardUse]) -> float | None:
    return _sum(use.used_core for use in uses)


def _core_allocated(uses: Sequence[ContainerCardUse]) -> float | None:
    """What was promised; where no compute was promised to any container, the whole cards."""
    promised = _sum(use.allocated_core for use in uses if use.allocated_core is not None)
    return promised or len({use.uuid for use in uses}) if promised is not None else None


def _pending(picture: MetricsSnapshot, namespace: str, selector: Selector) -> list[Labelled]:
    """One figure for each pool, 0 too: nobody waiting is known."""
    every = namespace == SYSTEM_NAMESPACE
    found = {(room.pool, namespace): 0.0 for room in picture.pools} | {("", namespace): 0.0}
    for waiting in picture.waiting:
        if every or waiting.namespace == namespace:
            key = (waiting.pool, waiting.namespace)
            found[key] = found.get(key, 0.0) + waiting.bytes
    labelled = [({"pool": pool, "namespace": of}, value) for (pool, of), value in sorted(found.items())]
    return [each for each in labelled if selector.matches(each[0])]


def _largest(picture: MetricsSnapshot, _namespace: str, selector: Selector) -> list[Labelled]:
    """One figure over all pools selected, since largest slices do not add up."""
    free = [room.largest_free_bytes for room in picture.pools if selector.matches({"pool": room.pool})]
    return [({}, float(max(free)))] if free else []


def _fragmentation(picture: MetricsSnapshot, _namespace: str, selector: Selector) -> list[Labelled]:
    """One figure over all pools selected; 0 where nothing is idle: nothing is lost."""
    rooms = [room for room in picture.pools if selector.matches({"pool": room.pool})]
    idle, lost = sum(room.idle_cards for room in rooms), sum(room.lost_cards for room in rooms)
    return [({}, lost / idle if idle != 0 else 0.0)] if rooms else []


_POD_METRICS: Final = (
    PodMetric("gpu_mem_used_bytes", "Card memory used by the pod.", _used),
    PodMetric("gpu_mem_allocated_bytes", "Card memory allocated to the pod.", _allocated, measured=False),
    PodMetric(
        "gpu_mem_used_ratio",
        "Used card memory as a ratio of the allocated memory; above 1 is a breach.",
        _used,
        _allocated,
    ),
    PodMetric(
        "gpu_core_used_ratio",
        "Used compute as a ratio of the allocated compute, or of whole cards if none is allocated; a minute's average.",
        _core_used,
        _core_allocated,
        averaged=True,
    ),
)
_POOL_METRICS: Final = (
    PoolMetric(
        "gpu_mem_pending_bytes",
        "Card memory requested by pending pods of the namespace, by the cheapest pool that could host them.",
        frozenset({"pool", "namespace"}),
        _pending,
    ),
    PoolMetric(
        "gpu_mem_largest_free_bytes",
        "Largest memory request that still fits on one card of the selected pools.",
        frozenset({"pool"}),
        _largest,
    ),
    PoolMetric(
        "gpu_fragmentation_ratio",
        "Ratio of the idle cards that is stranded: no pod of the current mix can use it.",
        frozenset({"pool"}),
        _fragmentation,
    ),
)
POD_METRICS: Final = {metric.name: metric for metric in _POD_METRICS}
POOL_METRICS: Final = {metric.name: metric for metric in _POOL_METRICS}
