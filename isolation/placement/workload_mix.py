# SPDX-License-Identifier: Apache-2.0
"""
The workload mix: which request shapes arrive how often, and what the rest of a card is worth to them.

Learns from requests alone, never from the future: counts per shape, refreshed at 32, 64, 128 ...
arrivals and then every `STEADY`, so that a long-lived fleet follows its workload. Counts are
halved at `MEMORY` arrivals, so that old ones fade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from isolation.contract.model import FULL_CORE
from isolation.placement import native

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST: Final = 32
STEADY: Final = 4096
MEMORY: Final = 65536
CPU_MARGIN: Final = 0.75
"""Part of the mean CPU per card that a free card must find beside it to count as sellable (0.6 and 1.0 pack worse)."""


class RequestShape(NamedTuple):
    """What equal pods request; `group` is their row in `EligibilityGroups`."""

    cpu: int
    memory: int
    bytes: int
    core: int
    cards: int
    whole: bool
    group: int
    offline: bool = False


@dataclass(frozen=True, slots=True)
class MixTable:
    """The mix in the shape the native code reads; never changed once made."""

    arrays: dict[str, np.ndarray[Any, Any]]
    singles: int
    cpu_per_card: float

    def struct(self, eligible: np.ndarray[Any, Any], may: np.ndarray[Any, Any] | None) -> native.MixStruct:
        """Pointers into this table and the given rows of eligibility and of allowed cards."""
        kinds, shapes = self.arrays["need"].shape
        out = native.MixStruct(shapes, self.singles, kinds, len(self.arrays["end"]), eligible.shape[1])
        for name, array in self.arrays.items():
            setattr(out, name, native.pointer(array))
        out.hosts = len(self.arrays["host_cpu"])
        out.eligible, out.cpu_per_card = native.pointer(eligible), self.cpu_per_card
        out.may = None if may is None else native.pointer(may)
        return out


class WorkloadMix:
    """Counts arrivals by shape."""

    def __init__(self) -> None:
        self.counts: dict[RequestShape, int] = {}
        self.arrived = 0
        self.due = FIRST

    def copy(self) -> WorkloadMix:
        """An independent copy."""
        twin = WorkloadMix()
        twin.counts, twin.arrived, twin.due = dict(self.counts), self.arrived, self.due
        return twin

    def add(self, shape: RequestShape) -> bool:
        """Count one arrival; True when the table should be rebuilt."""
        self.counts[shape] = self.counts.get(shape, 0) + 1
        self.arrived += 1
        if self.arrived < self.due:
            return False
        self.due += min(self.due, STEADY)
        if self.arrived >= MEMORY:
            self.counts = {s: n // 2 for s, n in self.counts.items() if n > 1}
            self.arrived //= 2
            self.due = self.arrived + STEADY
        return True

    def table(self, kinds: Sequence[int]) -> MixTable:
        """The mix against cards of these sizes (bytes offered)."""
        asking = {shape: n for shape, n in self.counts.items() if shape.cards > 0}
        common = sorted(asking.items(), key=lambda item: (-item[1], item[0]))[: native.MAX_SHAPES]
        common.sort(key=lambda item: item[0].group)
        shapes = [shape for shape, _ in common]
        alone = {shape: n for shape, n in self.counts.items() if shape.cards == 0}
        hosts = sorted(alone.items(), key=lambda item: (-item[1], item[0]))[: native.MAX_SHAPES]
        popular = np.array([float(n) for _, n in common])
        sizes = [max(1, offered) for offered in kinds] or [1]
        need = np.array([[_need(shape, offered) for shape in shapes] for offered in sizes]).reshape(len(sizes), -1)
        singles = [m for m, shape in enumerate(shapes) if shape.cards == 1]
        teams = [m for m, shape in enumerate(shapes) if shape.cards > 1]
        order = np.zeros(need.shape, np.int32)
        for k in range(len(sizes)):
            order[k] = [m for _, m in sorted((-need[k, m], m) for m in singles)] + teams
        groups = np.array([s.group for s in shapes], np.int32)
        segments, sizes_of = np.unique(groups, return_counts=True)
        columns = {
            "cpu": np.array([s.cpu for s in shapes], np.float64),
            "memory": np.array([s.memory for s in shapes], np.float64),
            "cards": np.array([s.cards for s in shapes], np.int32),
            "group": segments,
            "end": np.cumsum(sizes_of).astype(np.int32),
            "popularity": popular / popular.sum() if len(popular) else popular,
            "host_cpu": np.array([s.cpu for s, _ in hosts], np.float64),
            "host_memory": np.array([s.memory for s, _ in hosts], np.float64),
            "host_popularity": np.array([n for _, n in hosts]) / max(1.0, popular.sum()),
            "need": np.ascontiguousarray(need),
            "order": order,
            "value": np.array([_values(need[k], popular) for k in range(len(sizes))]),
        }
        return MixTable(columns, len(singles), self._cpu_per_card(sizes))

    def _cpu_per_card(self, sizes: Sequence[int]) -> float:
        """Milli-cores asked per card asked, of all pods: CPU-only pods take theirs from the same nodes."""
        typical = max(sizes)
        cards = sum(n * s.cards * min(1.0, _need(s, typical)) for s, n in self.counts.items() if s.cards)
        cpu = sum(n * s.cpu for s, n in self.counts.items())
        return CPU_MARGIN * cpu / cards if cards > 0 else 0.0


def _need(shape: RequestShape, offered: int) -> float:
    """Part of one card that the shape takes of each card it uses."""
    return 1.0 if shape.whole else max(shape.bytes / offered, shape.core / FULL_CORE)


def _values(need: np.ndarray[Any, Any], popular: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Price table of one card size, in thousandths; without a mix every remainder is worth itself."""
    demand: dict[int, float] = {}
    for part, count in zip(need, popular, strict=True):
        size = max(1, int(np.ceil(part * native.PRICE_STEPS - 1e-6)))
        if size <= native.PRICE_STEPS:
            demand[size] = demand.get(size, 0.0) + float(count)
    if not demand:
        return np.linspace(0.0, 1.0, native.PRICE_STEPS + 1)
    largest = sorted(demand, key=lambda size: (-size * demand[size], size))[: native.MAX_SIZES]
    sizes, amounts = np.array(largest, np.int32), np.array([demand[s] for s in largest])
    value = np.zeros(native.PRICE_STEPS + 1)
    native.LIB.gs_prices(len(largest), native.pointer(sizes), native.pointer(amounts), native.pointer(value))
    return value
