# SPDX-License-Identifier: Apache-2.0
"""An embedded cluster whose every step is looked at: rooms, frames, homes, and who is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from support.budget import examples

from autoscaler.core.limits import ScalingLimits
from autoscaler.demo.embedded.fake_cluster import SCHEDULE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster

QUICK = ScalingLimits(min_replicas=1, min_node_age_seconds=0).scaled(0.1)
"""The demonstration's tempo: unneeded after 60 s, drained 60 s after the last purchase."""
a_few = settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_room(embedded: EmbeddedCluster) -> None:
    """Every card and node by plain sums over the pods on it, against what it has and what the engine says."""
    book = embedded.cluster.state
    for name, pods in book.on.items():
        machine = book.engine.nodes[name]
        kept = [home for home in book.reserved.values() if home.placement.node == name]
        held = [(p.request, p.placement) for p in pods.values()] + [(h.request, h.placement) for h in kept]
        for card, (free, core) in zip(machine.cards, book.engine.room(name), strict=True):
            parts = [(r, part) for r, placed in held if placed for part in placed.slices if part.uuid == card.uuid]
            assert card.allocatable_bytes - free == sum(part.bytes for _, part in parts)
            assert free >= 0
            assert sum(part.core for _, part in parts) <= 100
            assert core == 100 - sum(part.core for _, part in parts)
            assert len(parts) == 1 or not any(r.whole for r, _ in parts)
        assert sum(r.cpu_milli for r, _ in held) <= machine.cpu_milli
        assert sum(r.memory_bytes for r, _ in held) <= machine.memory_bytes
        assert len(held) <= machine.pods


def known(figure: float | None) -> float:
    """A figure that a simulated cluster always has."""
    assert figure is not None
    return figure


def check_frame(embedded: EmbeddedCluster) -> None:
    """Used = containers + unattributed + reserved, on every card of every frame."""
    for reading in embedded.frame().nodes:
        for card in reading.cards:
            mine = [c for c in reading.containers if c.uuid == card.uuid]
            used = known(card.used_bytes)
            assert used == sum(known(c.used_bytes) for c in mine) + known(card.unattributed_bytes) + card.reserved_bytes
            assert used <= card.total_bytes
            assert card.allocated_bytes >= sum(c.allocated_bytes for c in mine)
            assert 0 <= known(card.utilisation_ratio) <= 1.0000001
            assert card.largest_free_bytes == card.allocatable_bytes - card.allocated_bytes
            assert card.holders == len(mine)
            assert card.exclusive == any(c.exclusive for c in mine)
            over = sum(known(c.used_bytes) > c.allocated_bytes for c in mine)
            assert card.breaches == (("over_limit", over),)


def check_homes(embedded: EmbeddedCluster) -> None:
    """A pod made again after an eviction never waits longer than the scheduler's next step."""
    moves = {(h.at, h.subject) for h in embedded.cluster.accounting.latest if h.kind == "move"}
    for waiting in embedded.cluster.scheduler.pending:
        if (waiting.created, waiting.key) in moves:
            assert embedded.now - waiting.created <= SCHEDULE_SECONDS


def check_served(embedded: EmbeddedCluster) -> None:
    """Whoever waits knows what is coming, or why nothing is."""
    assert 0 == embedded.summary()["unserved_pods"]


def live(
    embedded: EmbeddedCluster, seconds: float, *checks: Callable[[EmbeddedCluster], object], step: float = 1.0
) -> None:
    """Let time pass and look at every step."""
    for _ in range(int(seconds / step)):
        embedded.advance(step)
        for check in checks:
            check(embedded)


def counts(embedded: EmbeddedCluster) -> dict[str, int]:
    return dict(embedded.frame().counts)
