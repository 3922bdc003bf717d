# SPDX-License-Identifier: Apache-2.0
"""
What the room looks like from outside: for people, and for alarms. Reads, never changes anything for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.scheduler.core.answers import InspectedCard, InspectedNode, InspectedPod, OvercommittedCard
from isolation.scheduler.core.reservations import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.scheduler.core.capacity import Capacity


def find_overcommitted(room: Capacity) -> list[OvercommittedCard]:
    """Cards of which more is promised than they offer; what is reserved is meant to wait for room, and not counted."""
    found = []
    for name in room.engine.strained():
        node = room.engine.nodes[name]
        kept = [key for key in room.on.get(name, ()) if name_of(key) is not None]
        with room.without(kept):
            left = room.engine.room(name)
        for card, (free, core) in zip(node.cards, left, strict=True):
            lost = 0 if card.healthy else card.allocatable_bytes  # an unhealthy card offers nothing, and keeps its pods
            if free + lost < 0 or core < 0:
                found.append(OvercommittedCard(name, card.uuid, max(0, -free - lost), max(0, -core)))
    return found


def inspect_nodes(
    room: Capacity, names: Mapping[str, str], unit_bytes: int, name: str | None = None
) -> list[InspectedNode]:
    """Every node with shared cards, or the one named, by name; `names` of pods by UID."""
    nodes = room.engine.nodes
    chosen = sorted(nodes) if name is None else [name] if name in nodes else []
    return [_inspected(room, names, unit_bytes, one) for one in chosen]


def _inspected(room: Capacity, names: Mapping[str, str], unit_bytes: int, name: str) -> InspectedNode:
    node = room.engine.nodes[name]
    parts: dict[str, list[InspectedPod]] = {card.uuid: [] for card in node.cards}
    for key in room.on.get(name, ()):
        if key not in room.engine.holds:
            continue
        request, placed = room.engine.holds[key]
        kept, namespace = name_of(key), room.held[key].namespace
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
