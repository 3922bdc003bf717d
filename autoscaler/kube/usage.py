# SPDX-License-Identifier: Apache-2.0
"""
What is measured of cards and pods, as the autoscaler takes it: figures with their age, and nodes without figures.

Decides how old a figure is and when it is too old to be acted upon. The age is counted on a clock that cannot be set,
from the moment at which an exporter was first seen to report a new measurement: an exporter that hangs, or a
Prometheus that repeats its last words, grows old whatever the clocks of other machines say. Only of the first word of
all, which may have been repeated for hours, the wall clock is asked how old it is. Pure but for `Nothing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from autoscaler.apis.metrics.core.readings import CardKey, CardOf, ContainerCardUse, UseSample
from isolation.contract import metrics
from isolation.contract.usage_rates import UsageHistory, add_reading, usage_rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Pod
    from isolation.contract.usage_rates import Rate

WANTED: Final = (
    metrics.CONTAINER_MEMORY_USED,
    metrics.CONTAINER_MEMORY_ALLOCATED,
    metrics.CONTAINER_COMPUTE_SECONDS,
    metrics.CONTAINER_MEMORY_PEAK,
    metrics.DENIED_ALLOCATIONS,
    metrics.CARD_BUSY_SECONDS,
    metrics.SAMPLE_TIMESTAMP,
)
"""What is asked for."""
WINDOW_SCRAPES: Final = 4
"""Use of compute is an average over so many scrapes, a minute by default: a burst is in it whole."""
_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})
_LARGEST: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as it was reported."""

    metric: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What one container has used of one card since its start, for right-sizing."""

    used_bytes: int
    peak_bytes: int | None = None
    denied: int = 0
    compute_seconds: float | None = None
    allocated_bytes: int | None = None
    """What it was promised then; None: not reported."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The latest of every node."""

    samples: Mapping[CardKey, UseSample] = field(default_factory=lambda: _EMPTY)
    measured: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    """By node, when its exporter measured, on the steady clock."""
    heat: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    """By card's UUID, part of its compute in use; old ones are absent."""
    stale: frozenset[str] = frozenset()
    """Nodes whose figures are too old to be acted upon."""
    failed: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Nodes without figures now, or with old ones only, and why."""
    whole: Mapping[CardOf, tuple[ContainerCardUse, ...]] = field(default_factory=lambda: _EMPTY)
    """What pods have and use of whole cards, which only their node's kubelet and exporter know."""

    uses: Mapping[CardKey, ContainerUse] = field(default_factory=lambda: _EMPTY)
    """Of nodes whose measurements are fresh."""

    def used(self, node: str, spots: Sequence[CardKey]) -> float | None:
        """The most that a pod with these parts of cards uses of the compute of one card; None: unknown."""
        if not spots or not self.samples or node in self.stale:
            return None
        by_card: dict[str, float] = {}
        for spot in spots:
            sample = self.samples.get(spot)
            if sample is None or sample.used_core is None:
                return None
            by_card[spot.uuid] = by_card.get(spot.uuid, 0.0) + sample.used_core
        return max(by_card.values())


def spots_of(pod: Pod) -> tuple[CardKey, ...]:
    """What exporters call its parts of cards."""
    return tuple(CardKey(pod.namespace, pod.name, hold.container, hold.uuid) for hold in pod.holds)


class MeasurementAges:
    """When each node was first seen to have measured what it shows now."""

    def __init__(self, stale_seconds: float, window_seconds: float) -> None:
        self.stale_seconds, self._window = stale_seconds, window_seconds
        self._last: dict[str, tuple[float, float]] = {}
        self._histories: dict[str, UsageHistory[CardKey | str]] = {}

    def joined(
        self, answers: Mapping[str, Sequence[Row]], failed: Mapping[str, str], now: float, wall: float | None = None
    ) -> Measured:
        """
        Everything of one reading; `answers` by the node that was asked. A node's word about another is not taken.

        `wall`: seconds since the epoch; without it whatever is seen for the first time counts as measured now.
        """
        samples: dict[CardKey, UseSample] = {}
        whole: dict[CardOf, tuple[ContainerCardUse, ...]] = {}
        heat: dict[str, float] = {}
        uses: dict[CardKey, ContainerUse] = {}
        wrong = dict(failed)
        for node, rows in answers.items():
            own = [row for row in rows if row.labels.get("node", node) in {"", node}]
            stamp = next((row.value for row in own if row.metric == metrics.SAMPLE_TIMESTAMP.name), None)
            if stamp is None or not isfinite(stamp):
                wrong[node] = "its exporter reports no sample time"
                continue
            before = self._last.get(node)
            if before is None:
                # a clock that is wrong costs one more measurement
                self._last[node] = (stamp, now if wall is None else now - abs(wall - stamp))
            elif before[0] != stamp:
                self._last[node] = (stamp, now)
            history = self._histories.get(node) or UsageHistory(self._window)
            self._histories[node] = add_reading(history, stamp, _seconds(own))
            rates = usage_rates(self._histories[node])
            mine = _samples(own, rates)
            samples.update(mine)
            whole.update(_whole(node, own, mine))
            if self._age(node, now) <= self.stale_seconds:
                uses.update(uses_of(own))
                heat |= {card: min(1.0, rate.value) for card, rate in rates.items() if isinstance(card, str)}
        self._histories = {node: kept for node, kept in self._histories.items() if node in answers or node in failed}
        self._last = {node: seen for node, seen in self._last.items() if node in answers or node in failed}
        stale = {node for node in self._last if self._age(node, now) > self.stale_seconds}
        for node in stale:
            wrong.setdefault(
                node, f"measurements are {self._age(node, now):.0f} s old; its hot cards are not mitigated"
            )
        times = {node: seen for node, (_, seen) in self._last.items()}
        return Measured(samples, times, heat, frozenset(stale | (answers.keys() - times.keys())), wrong, whole, uses)

    def _age(self, node: str, now: float) -> float:
        return now - self._last[node][1]


def _spot(labels: Mapping[str, str]) -> CardKey:
    return CardKey(*(labels.get(key, "") for key in ("namespace", "pod", "container", "uuid")))


def _samples(rows: Sequence[Row], rates: Mapping[CardKey | str, Rate]) -> dict[CardKey, UseSample]:
    used: dict[CardKey, int] = {}
    for row in rows:
        if row.metric == metrics.CONTAINER_MEMORY_USED.name and isfinite(row.value) and 0 <= row.value < _LARGEST:
            used[_spot(row.labels)] = int(row.value)
    core = {spot: rate for spot, rate in rates.items() if isinstance(spot, CardKey)}
    return {spot: UseSample(used.get(spot), *core.get(spot, (None, 0.0))) for spot in used.keys() | core.keys()}


def uses_of(rows: Sequence[Row]) -> dict[CardKey, ContainerUse]:
    """A container without a figure of its used memory is left out."""
    found: dict[str, dict[CardKey, float]] = {}
    for row in rows:
        if isfinite(row.value) and 0 <= row.value < _LARGEST:
            found.setdefault(row.metric, {})[_spot(row.labels)] = row.value
    peaks, denied = found.get(metrics.CONTAINER_MEMORY_PEAK.name, {}), found.get(metrics.DENIED_ALLOCATIONS.name, {})
    seconds = found.get(metrics.CONTAINER_COMPUTE_SECONDS.name, {})
    allocated = found.get(metrics.CONTAINER_MEMORY_ALLOCATED.name, {})
    return {
        spot: ContainerUse(
            int(used),
            int(peaks[spot]) if spot in peaks else None,
            int(denied.get(spot, 0)),
            seconds.get(spot),
            int(allocated[spot]) if spot in allocated else None,
        )
        for spot, used in found.get(metrics.CONTAINER_MEMORY_USED.name, {}).items()
    }


def _whole(
    node: str, rows: Sequence[Row], samples: Mapping[CardKey, UseSample]
) -> dict[CardOf, tuple[ContainerCardUse, ...]]:
    """Containers with whole cards, by their pod."""
    found: dict[CardOf, dict[CardKey, ContainerCardUse]] = {}
    for row in rows:
        labels = row.labels
        if row.metric not in {metrics.CONTAINER_MEMORY_USED.name, metrics.CONTAINER_MEMORY_ALLOCATED.name}:
            continue
        if labels.get("mode") != "exclusive" or not labels.get("card", "").isdecimal():
            continue
        spot = _spot(labels)
        known = found.setdefault(CardOf(node, spot.namespace, spot.pod), {})
        card, measured = int(labels["card"][:4]), samples.get(spot, ())
        use = known.get(spot) or ContainerCardUse(spot.container, spot.uuid, card, None, 1.0, *measured)
        if row.metric == metrics.CONTAINER_MEMORY_ALLOCATED.name and isfinite(row.value) and 0 <= row.value < _LARGEST:
            use = replace(use, allocated_bytes=int(row.value))
        known[spot] = use
    return {place: tuple(uses.values()) for place, uses in found.items()}


def _seconds(rows: Sequence[Row]) -> dict[CardKey | str, float]:
    """Counters of containers by their spot, of cards by UUID."""
    found: dict[CardKey | str, float] = {}
    for row in rows:
        if not (isfinite(row.value) and 0 <= row.value < _LARGEST):
            continue
        if row.metric == metrics.CONTAINER_COMPUTE_SECONDS.name:
            found[_spot(row.labels)] = row.value
        elif row.metric == metrics.CARD_BUSY_SECONDS.name and row.labels.get("uuid"):
            found[row.labels["uuid"]] = row.value
    return found


class Nothing:
    """Nobody measures: nothing rests on figures."""

    async def read(self, addresses: Mapping[str, str]) -> Measured:  # noqa: ARG002 (a Figures is asked so)
        """Nothing."""
        return Measured()
