# SPDX-License-Identifier: Apache-2.0
"""
Which node of a pool the pods get for whom it was bought: the first that comes up with room for them.

Decides for reservations that name a pool and no node. Those of one planned node stay together
where a node has room for all of them; whoever has no place then takes what is left, the largest first. The choice is
held in memory only: the next leader makes it anew from the same objects, and a pod that is bound by then holds its own
room. Pure but for the room that is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.model import CardChoice, Placement, Refusal, Slice
from isolation.placement.node_rules import find_barrier, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Node, Pod, Request
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.capacity import Capacity


def may_use(pod: Pod, node: Node | None) -> bool:
    """Whether the pod may go to this node, apart from room: none is kept where it could not be used."""
    return node is not None and node.serving and find_barrier(kind_of(pod.request), pod.request.rules, node) is None


def assign_places(
    room: Capacity, node: str, waiting: Sequence[tuple[Reservation, Pod]], keys: Mapping[str, str]
) -> dict[str, Placement]:
    """
    Places on this node by name of the reservation; they are held in the room, each under its key.

    `waiting` in the order in which they are served.
    """
    there = room.nodes.get(node)
    if there is None or node not in room.engine.nodes:
        return {}
    left = [(made, pod) for made, pod in waiting if may_use(pod, there)]
    planned: dict[str, list[tuple[Reservation, Pod]]] = {}
    for made, pod in left:
        planned.setdefault(made.planned_node or made.name, []).append((made, pod))
    found: dict[str, Placement] = {}
    full: set[Request] = set()
    for group in (*planned.values(), *([one] for one in sorted(left, key=_largest))):
        if any(made.name in found for made, _ in group):
            continue
        found |= _together(room, there, sorted(group, key=_largest), keys, full)
    return found


def _together(
    room: Capacity, node: Node, group: Iterable[tuple[Reservation, Pod]], keys: Mapping[str, str], full: set[Request]
) -> dict[str, Placement]:
    """All of them or nobody; `full`: requests for which the node has no room, for as long as it only fills."""
    found: dict[str, Placement] = {}
    for made, pod in group:
        lean = room.lean(pod.request)
        place = None if lean in full else _place(room, node, made, pod)
        if place is None:
            if not found:
                full.add(lean)
            for name in found:
                room.free(keys[name])
            return {}
        found[made.name] = place
        room.hold(keys[made.name], made.namespace, pod.request, place)
    return found


def _place(room: Capacity, node: Node, made: Reservation, pod: Pod) -> Placement | None:
    """The cards that the purchase was counted on, else any that the pod would get."""
    positions = [part.index for part in made.placement.slices]
    if node.choice is not CardChoice.SPREAD and max(positions) < len(node.cards):
        cards = [node.cards[position] for position in positions]
        wanted = Placement(node.name, tuple(Slice(card.uuid, card.index, 0) for card in cards))
        exact = room.place_exactly(pod.request, pod.namespace, wanted)
        if exact is not None:
            return exact
    found = room.place_on(pod.request, pod.namespace, node.name)
    return None if isinstance(found, Refusal) else found


def _largest(one: tuple[Reservation, Pod]) -> tuple[int, int, int, str]:
    request = one[1].request
    return -request.card_bytes, -request.card_core, -request.cards, one[0].name
