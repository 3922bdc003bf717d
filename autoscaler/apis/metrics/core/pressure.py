# SPDX-License-Identifier: Apache-2.0
"""
What pools have left and who waits for them, from one observation of the autoscaler.

Pure. A waiting pod counts for one pool: the cheapest that could host it, whether or not that one may grow;
none where no pool could. Nodes that are not usable have nothing left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.apis.metrics.core.readings import PendingPod, PoolCapacity
from autoscaler.core.templates import get_templates

if TYPE_CHECKING:
    from autoscaler.core.observation import Observation
    from isolation.contract.model import Request


def summarize_pools(seen: Observation) -> tuple[PoolCapacity, ...]:
    """Of each pool, over its usable nodes."""
    nodes: dict[str, list[str]] = {name: [] for name in seen.pools}
    for name in seen.engine.nodes:
        machine = seen.machines.get(name)
        if machine is not None and seen.is_usable(name) and machine.pool in nodes:
            nodes[machine.pool].append(name)
    return tuple(_room(seen, pool, nodes[pool]) for pool in sorted(nodes))


def list_pending(seen: Observation) -> tuple[PendingPod, ...]:
    """Memory of shared cards that is waited for, by namespace and pool."""
    templates = get_templates(tuple(seen.pools.values()))
    cheapest = sorted(seen.pools, key=lambda name: (seen.pools[name].price, name))
    found: dict[tuple[str, str], int] = {}
    for pod in seen.pending:
        if pod.request.shared:
            pool = next((name for name in cheapest if templates.hosts(name, pod.request)), "")
            key = (pod.namespace, pool)
            found[key] = found.get(key, 0) + _bytes(pod.request)
    return tuple(PendingPod(namespace, pool, amount) for (namespace, pool), amount in sorted(found.items()))


def _room(seen: Observation, pool: str, names: list[str]) -> PoolCapacity:
    largest = max((_largest(seen, name) for name in names), default=0)
    idle, lost = seen.engine.fragments(names)
    return PoolCapacity(pool, largest, idle, lost)


def _largest(seen: Observation, name: str) -> int:
    """In whole units of the card, as it would be promised."""
    pairs = zip(seen.engine.nodes[name].cards, seen.engine.room(name), strict=True)
    return max(
        (max(0, free) // card.unit_bytes * card.unit_bytes for card, (free, _) in pairs if card.healthy), default=0
    )


def _bytes(request: Request) -> int:
    return request.cards * request.card_bytes
