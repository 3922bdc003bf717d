# SPDX-License-Identifier: Apache-2.0
"""
A pool of equal nodes: what a fresh one looks like, how many there may be, what one costs.

Pure. How long a machine takes to boot, and whether the provider has one, only the provider knows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from isolation.contract.model import FULL_CORE, Mode, Node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.model import Placement, Request


class PoolError(ValueError):
    """A pool that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool; its template is a node as it is when it has just registered, cards and labels included."""

    name: str
    template: Node
    min_nodes: int = 0
    max_nodes: int = 1000
    price: float = 1.0
    """Per node and hour, in any currency that all pools share."""
    priority: int = 0
    """Pools of a higher priority grow first, whatever they cost; among equals the price decides."""
    buys: bool = True
    """Whether this autoscaler adds its nodes; otherwise only cluster-autoscaler does."""
    drains: bool = True
    """Whether this autoscaler drains and removes its nodes and moves their pods; otherwise cluster-autoscaler does."""
    known: bool = True
    """Whether its provider answered; if not, its bounds are its current size: it neither grows nor shrinks."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PoolError("pool has no name")
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise PoolError(f"pool {self.name}: smallest {self.min_nodes} must be from 0 to largest {self.max_nodes}")
        if not self.price > 0:
            raise PoolError(f"pool {self.name}: price {self.price} must be greater than 0")

    def node(self, name: str) -> Node:
        """A new node of this pool; its cards' UUIDs are derived from its name."""
        cards = tuple(replace(card, uuid=card_uuid(name, card.index)) for card in self.template.cards)
        return replace(self.template, name=name, cards=cards, pool=self.name, ready=True, cordoned=False)


def card_uuid(node: str, index: int) -> str:
    """A UUID for a card that does not exist yet: stable, and different on every node."""
    digest = hashlib.blake2b(f"{node}/{index}".encode(), digest_size=16).digest()
    return f"GPU-{UUID(bytes=digest)}"


def compute_load(node: Node, held: Iterable[tuple[Request, Placement]]) -> float:
    """
    How full a node is, 0..1: the fullest of memory, compute and whole cards.

    Without cards it is the fuller of CPU and memory, as for the cluster-autoscaler.
    """
    held = tuple(held)
    if not node.cards:
        cpu = sum(request.cpu_milli for request, _ in held)
        memory = sum(request.memory_bytes for request, _ in held)
        return max(_ratio(cpu, node.cpu_milli), _ratio(memory, node.memory_bytes))
    slices = [part for _, placement in held for part in placement.slices]
    if node.mode is Mode.EXCLUSIVE:
        return _ratio(len({part.uuid for part in slices}), len(node.cards))
    offered = sum(card.allocatable_bytes for card in node.cards)
    return max(
        _ratio(sum(part.bytes for part in slices), offered),
        _ratio(sum(part.core for part in slices), FULL_CORE * len(node.cards)),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
