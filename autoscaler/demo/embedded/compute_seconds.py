# SPDX-License-Identifier: Apache-2.0
"""
Counters of compute for a simulated cluster: what its cards and containers use, added up over real time.

Readings of the simulation are ratios of a moment, and its own clock runs many times faster than that of whoever scrapes
them: a rate of its seconds would be a multiple of a card. So they are integrated here as an exporter does each cycle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isolation.contract.reading import CardReading, ContainerReading, Frame, NodeReading


class ComputeSeconds:
    """Remembers where each counter stands; one that is gone from a frame begins at 0 when it comes again."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._cards: dict[str, float] = {}
        self._containers: dict[tuple[str, str, str], float] = {}

    def add(self, frame: Frame, now: float) -> Frame:
        """The same frame with its counters, at `now` seconds of the real clock."""
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        cards, containers = self._cards, self._containers
        self._cards, self._containers = {}, {}

        def card(one: CardReading) -> CardReading:
            if one.utilisation_ratio is None:
                return one
            seconds = self._cards[one.uuid] = _grown(cards.get(one.uuid), one.utilisation_ratio, elapsed)
            return replace(one, busy_seconds=seconds)

        def container(one: ContainerReading) -> ContainerReading:
            if one.used_core_ratio is None:
                return one
            key = (one.promise, one.container, one.uuid)
            seconds = self._containers[key] = _grown(containers.get(key), one.used_core_ratio, elapsed)
            return replace(one, compute_seconds=seconds)

        def node(one: NodeReading) -> NodeReading:
            return replace(one, cards=tuple(map(card, one.cards)), containers=tuple(map(container, one.containers)))

        return replace(frame, nodes=tuple(map(node, frame.nodes)))


def _grown(before: float | None, ratio: float, elapsed: float) -> float:
    return 0.0 if before is None else before + ratio * elapsed
