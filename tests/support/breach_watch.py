# SPDX-License-Identifier: Apache-2.0
"""A node of the exporter that is looked at again and again, for tests of breaches and of energy."""

from __future__ import annotations

from support.node_facts import Node

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.breaches import DetectorState, detect_breaches

EPOCH = 1.7e9


class Watch:
    """A node looked at again and again, two seconds apart unless it is said otherwise."""

    def __init__(self):
        self.state, self.now, self.judged, self.begun = DetectorState(), 100.0, None, []

    def see(self, node, *, after=2.0, times=1):
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
    def counts(self):
        """How many breaches of each kind have begun; kinds without any are left out."""
        return {kind: number for kind, number in self.judged.reading.breach_counts if number}

    @property
    def open(self):
        """Kinds of breaches that go on."""
        return sorted(breach.finding.kind for breach in self.state.incidents.open.values())

    def going(self, index=0):
        """How many breaches of which kinds go on on a card, as it is shown."""
        return {kind: number for kind, number in self.judged.reading.cards[index].breaches if number}

    @property
    def one(self):
        """The only container."""
        (only,) = self.judged.reading.containers
        return only


def using(gib, **more):
    """A pod with 5 GiB promised that uses so much."""
    return Node(agent=True).pod_hold("a", gib=5).process(1, gib, pod="a", **more)
