# SPDX-License-Identifier: Apache-2.0
"""
What is held on which card, for people and for alarms: over-committed cards, and the classic `inspect` answer.

Reads `Capacity` and changes nothing for good. The JSON is that of the AliyunContainerService
gpushare-scheduler-extender (`/gpushare-scheduler/inspect[/<node>]`), which existing tools read: a node that is
unknown is an `error` in it, not an HTTP error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from isolation.scheduler.core.reservations import reservation_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.scheduler.core.capacity import Capacity

PREFIX: Final = "/gpushare-scheduler"
_ENCODE: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class InspectedPod:
    """What one pod (or reservation) holds of one card, in units."""

    name: str
    namespace: str
    used: int


@dataclass(frozen=True, slots=True)
class InspectedCard:
    """One card and who holds what of it, in units."""

    index: int
    uuid: str
    total: int
    used: int
    pods: tuple[InspectedPod, ...]


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One node with its cards, in units."""

    name: str
    cards: tuple[InspectedCard, ...]

    @property
    def total(self) -> int:
        """Units that all cards offer."""
        return sum(card.total for card in self.cards)

    @property
    def used(self) -> int:
        """Units promised; more than `total` where the node is over-committed."""
        return sum(card.used for card in self.cards)


@dataclass(frozen=True, slots=True)
class OvercommittedCard:
    """A card of which more is promised than it offers: an alarm."""

    node: str
    uuid: str
    bytes: int
    """By how much."""
    core: int = 0


def find_overcommitted(capacity: Capacity) -> list[OvercommittedCard]:
    """Cards of which more is promised than they offer; what is reserved is meant to wait for room, and not counted."""
    found = []
    for name in capacity.engine.strained():
        node = capacity.engine.nodes[name]
        kept = [key for key in capacity.keys_by_node.get(name, ()) if reservation_name(key) is not None]
        with capacity.without(kept):
            left = capacity.engine.room(name)
        for card, (free, core) in zip(node.cards, left, strict=True):
            lost = 0 if card.healthy else card.allocatable_bytes  # an unhealthy card offers nothing, and keeps its pods
            if free + lost < 0 or core < 0:
                found.append(OvercommittedCard(name, card.uuid, max(0, -free - lost), max(0, -core)))
    return found


def inspect_nodes(
    capacity: Capacity, names: Mapping[str, str], unit_bytes: int, name: str | None = None
) -> list[InspectedNode]:
    """Every node with shared cards, or the one named, by name; `names` of pods by UID."""
    nodes = capacity.engine.nodes
    chosen = sorted(nodes) if name is None else [name] if name in nodes else []
    return [_inspect_node(capacity, names, unit_bytes, node) for node in chosen]


def _inspect_node(capacity: Capacity, names: Mapping[str, str], unit_bytes: int, name: str) -> InspectedNode:
    node = capacity.engine.nodes[name]
    parts: dict[str, list[InspectedPod]] = {card.uuid: [] for card in node.cards}
    for key in capacity.keys_by_node.get(name, ()):
        if key not in capacity.engine.holds:
            continue
        request, placed = capacity.engine.holds[key]
        kept, namespace = reservation_name(key), capacity.held[key].namespace
        who = names.get(key, key) if kept is None else f"(reserved: {kept})"
        for part in placed.slices:
            if part.uuid in parts:
                parts[part.uuid].append(InspectedPod(who, namespace, -(-request.card_bytes // unit_bytes)))
    cards = (
        InspectedCard(
            card.index,
            card.uuid,
            card.allocatable_bytes // unit_bytes,
            sum(part.used for part in parts[card.uuid]),
            tuple(parts[card.uuid]),
        )
        for card in node.cards
    )
    return InspectedNode(name, tuple(cards))


def encode_inspection(nodes: Iterable[InspectedNode], only: str | None = None) -> bytes:
    """Every node with shared cards, or the one that is asked for."""
    wanted = [node for node in nodes if only is None or node.name == only]
    error = "" if wanted or only is None else f"node {only} is unknown or has no shared cards"
    return _ENCODE.encode({"nodes": [_encode_node(node) for node in wanted], "error": error})


def encode_version(release: str) -> bytes:
    """Which gpushare answers."""
    return _ENCODE.encode({"version": release})


def _encode_node(node: InspectedNode) -> dict[str, Any]:
    devs = [
        {
            "id": card.index,
            "totalGPU": card.total,
            "usedGPU": card.used,
            "pods": [{"name": pod.name, "namespace": pod.namespace, "usedGPU": pod.used} for pod in card.pods],
        }
        for card in node.cards
    ]
    return {"name": node.name, "totalGPU": node.total, "usedGPU": node.used, "devs": devs}
