# SPDX-License-Identifier: Apache-2.0
"""A node of the exporter that is looked at again and again, for tests of breaches and of energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from support.node_facts import Node

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.breach_detector import DetectorState, detect_breaches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from exporter.pipeline.breach_detector import Detection
    from exporter.pipeline.breach_log import LoggedBreach
    from isolation.contract.reading import ContainerReading

EPOCH = 1.7e9


class Watch:
    """A node looked at again and again, two seconds apart unless it is said otherwise."""

    judged: Detection
    """After the first look."""

    def __init__(self) -> None:
        self.state, self.now = DetectorState(), 100.0
        self.begun: list[LoggedBreach] = []

    def see(self, node: Node, *, after: float = 2.0, times: int = 1) -> Self:
        """The next samples; the watch is returned."""
        for _ in range(times):
            self.now += after
            snapshot = node.snapshot()
            found = attribute(snapshot, list_allocations(snapshot), NodeLabels("n-0"))
            self.judged = detect_breaches(found, self.state, now=self.now, epoch=EPOCH + self.now)
            self.state = self.judged.state
            self.begun += self.judged.begun
        return self

    @property
    def counts(self) -> dict[str, int]:
        """How many breaches of each kind have begun; kinds without any are left out."""
        return _begun(self.judged.reading.breach_counts)

    @property
    def open(self) -> list[str]:
        """Kinds of breaches that go on."""
        return sorted(breach.finding.kind for breach in self.state.breaches.open.values())

    def going(self, index: int = 0) -> dict[str, int]:
        """How many breaches of which kinds go on on a card, as it is shown."""
        return _begun(self.judged.reading.cards[index].breaches)

    @property
    def one(self) -> ContainerReading:
        """The only container."""
        (only,) = self.judged.reading.containers
        return only


def _begun(counts: Iterable[tuple[str, int]] | None) -> dict[str, int]:
    assert counts is not None
    return {kind: number for kind, number in counts if number}


def using(gib: float, **more: Any) -> Node:
    """A pod with 5 GiB promised that uses so much."""
    return Node(agent=True).pod_hold("a", gib=5).process(1, gib, pod="a", **more)
