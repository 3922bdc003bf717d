# SPDX-License-Identifier: Apache-2.0
"""
What a frame says about cards, pods and pools, added up for eyes.

Pure. "Over promise" is counted per container and card and then added, so that a tenant who uses
too much on one card is not excused by idle memory on another. Where a part of a sum is unknown
the sum says so. Nothing here knows how wide a screen is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dashboards.terminal.memory_bar import MemoryUse, add_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.reading import CardReading, ContainerReading, Frame, NodeReading


BOOTING: Final = "booting"


@dataclass(frozen=True, slots=True)
class CardTotals:
    """One card with the tenants on it."""

    node: NodeReading
    card: CardReading
    memory: MemoryUse
    tenants: int


@dataclass(frozen=True, slots=True)
class PodTotals:
    """One pod on one node, its containers and cards added up."""

    name: str
    node: str
    cards: tuple[int, ...]
    exclusive: bool
    promised: int
    used: int | None
    over: int
    core_promised: float | None
    """In cards: 1.5 is one and a half cards' compute."""
    core_used: float | None


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """One pool: its size and the memory of its cards."""

    name: str
    mode: str
    nodes: int
    booting: int
    min_nodes: int | None
    max_nodes: int | None
    cards: int
    memory: MemoryUse


def over_promise(use: ContainerReading) -> int:
    """Bytes that the container uses beyond its promise on this card."""
    return max(0, (use.used_bytes or 0) - use.allocated_bytes)


class Tally:
    """
    Adds up each node once: a reading that has not changed is the very same value, and so are its sums.

    Kept from frame to frame, a large fleet of which little changes is cheap to show.
    """

    def __init__(self) -> None:
        self._done: dict[str, tuple[NodeReading, tuple[CardTotals, ...], tuple[PodTotals, ...]]] = {}

    def uses(self, nodes: Iterable[NodeReading]) -> tuple[tuple[CardTotals, ...], tuple[PodTotals, ...]]:
        """Every card in the order of nodes and cards; every pod, over promise first, then by use."""
        done = {}
        for node in nodes:
            found = self._done.get(node.node)
            done[node.node] = found if found and found[0] is node else (node, tuple(_cards(node)), tuple(_pods(node)))
        self._done = done
        cards = tuple(card for _, of_node, _ in done.values() for card in of_node)
        pods = (pod for _, _, of_node in done.values() for pod in of_node)
        return cards, tuple(sorted(pods, key=lambda pod: (-pod.over, -(pod.used or 0), pod.name, pod.node)))


def _cards(node: NodeReading) -> Iterable[CardTotals]:
    over: dict[str, int] = {}
    tenants: dict[str, set[tuple[str, str]]] = {}
    for use in node.containers:
        over[use.uuid] = over.get(use.uuid, 0) + over_promise(use)
        tenants.setdefault(use.uuid, set()).add((use.namespace, use.pod))
    for card in node.cards:
        memory = MemoryUse(
            total=card.total_bytes,
            promised=card.allocated_bytes,
            used=card.used_bytes,
            partly=card.used_bytes is None,
            over=over.get(card.uuid, 0),
            other=card.reserved_bytes + (card.unattributed_bytes or 0),
        )
        yield CardTotals(node, card, memory, len(tenants.get(card.uuid, ())))


def _pods(node: NodeReading) -> Iterable[PodTotals]:
    parts: dict[tuple[str, str], list[ContainerReading]] = {}
    for use in node.containers:
        parts.setdefault((use.namespace, use.pod), []).append(use)
    return (_pod(f"{namespace}/{pod}", node.node, uses) for (namespace, pod), uses in parts.items())


def _pod(name: str, node: str, uses: list[ContainerReading]) -> PodTotals:
    return PodTotals(
        name=name,
        node=node,
        cards=tuple(sorted({use.index for use in uses})),
        exclusive=any(use.exclusive for use in uses),
        promised=sum(use.allocated_bytes for use in uses),
        used=None if any(use.used_bytes is None for use in uses) else sum(use.used_bytes or 0 for use in uses),
        over=sum(over_promise(use) for use in uses),
        core_promised=_known_sum(use.allocated_core_ratio for use in uses),
        core_used=_known_sum(use.used_core_ratio for use in uses),
    )


def _known_sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def total_pools(frame: Frame, cards: Iterable[CardTotals]) -> tuple[PoolTotals, ...]:
    """Every pool of the frame, then those that only nodes name."""
    memories: dict[str, list[MemoryUse]] = {pool.name: [] for pool in frame.pools}
    modes: dict[str, str] = {}
    nodes: dict[str, int] = {}
    for node in frame.nodes:
        modes.setdefault(node.pool, node.mode)
        nodes[node.pool] = nodes.get(node.pool, 0) + 1
        memories.setdefault(node.pool, [])
    for use in cards:
        memories[use.node.pool].append(use.memory)
    pools = {pool.name: pool for pool in frame.pools}
    return tuple(
        PoolTotals(
            name,
            modes.get(name) or (pools[name].mode if name in pools else ""),
            pools[name].nodes if name in pools else nodes.get(name, 0),
            pools[name].booting if name in pools else 0,
            pools[name].min_nodes if name in pools else None,
            pools[name].max_nodes if name in pools else None,
            len(parts),
            add_memory(parts),
        )
        for name, parts in memories.items()
    )


def standing(frame: Frame) -> int:
    """Nodes that are there; one that still boots is not."""
    return sum(1 for node in frame.nodes if node.state != BOOTING)
