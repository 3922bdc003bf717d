# SPDX-License-Identifier: Apache-2.0
"""
Which node the pods of a planned node get: the first of its pool that comes up and fits them.

The autoscaler plans a node for some pods, and reserves it by pool, since it has no name yet. The reservations of one
planned node stay together where a node fits them all; the others then take what is left, the largest first. The
choice is held in memory only: the next leader makes it again from the same objects, and a pod that is bound by then
holds its own cards. Pure, except that it takes holds in the given `Capacity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.model import CardChoice, Placement, Refusal, Slice
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Node, Pod, Request
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.capacity import Capacity


def may_use(pod: Pod, node: Node | None) -> bool:
    """Whether the pod may use this node, free cards aside."""
    return node is not None and node.serving and find_barrier(needs_of(pod.request), node) is None


def assign_places(
    capacity: Capacity, node: str, pending: Sequence[tuple[Reservation, Pod]], keys: Mapping[str, str]
) -> dict[str, Placement]:
    """
    Choose cards on this node, by name of the reservation, and hold each under its key (`keys`: by name).

    `pending`: reservations and their pods, in the order in which they are served.
    """
    on_node = capacity.nodes.get(node)
    if on_node is None or node not in capacity.engine.nodes:
        return {}
    left = [(reservation, pod) for reservation, pod in pending if may_use(pod, on_node)]
    planned: dict[str, list[tuple[Reservation, Pod]]] = {}
    for reservation, pod in left:
        planned.setdefault(reservation.planned_node or reservation.name, []).append((reservation, pod))
    found: dict[str, Placement] = {}
    full: set[Request] = set()
    for group in (*planned.values(), *([pair] for pair in sorted(left, key=_largest_first))):
        if any(reservation.name in found for reservation, _ in group):
            continue
        found |= _place_group(capacity, on_node, sorted(group, key=_largest_first), keys, full)
    return found


def _place_group(
    capacity: Capacity,
    node: Node,
    group: Iterable[tuple[Reservation, Pod]],
    keys: Mapping[str, str],
    full: set[Request],
) -> dict[str, Placement]:
    """Place all of them or none; `full`: requests that the node cannot fit (it only fills up here)."""
    found: dict[str, Placement] = {}
    for reservation, pod in group:
        stripped = capacity.strip_request(pod.request)
        place = None if stripped in full else _place(capacity, node, reservation, pod)
        if place is None:
            if not found:  # of an empty group: the node alone is the reason, not the group's other pods
                full.add(stripped)
            for name in found:
                capacity.free(keys[name])
            return {}
        found[reservation.name] = place
        capacity.hold(keys[reservation.name], reservation.namespace, pod.request, place)
    return found


def _place(capacity: Capacity, node: Node, reservation: Reservation, pod: Pod) -> Placement | None:
    """The cards that the autoscaler planned with, else any that the pod would get."""
    positions = [part.index for part in reservation.placement.slices]
    if node.choice is not CardChoice.SPREAD and max(positions) < len(node.cards):
        cards = [node.cards[position] for position in positions]
        wanted = Placement(node.name, tuple(Slice(card.uuid, card.index, 0) for card in cards))
        exact = capacity.place_exactly(pod.request, pod.namespace, wanted)
        if exact is not None:
            return exact
    found = capacity.place_on(pod.request, pod.namespace, node.name)
    return None if isinstance(found, Refusal) else found


def _largest_first(pair: tuple[Reservation, Pod]) -> tuple[int, int, int, str]:
    request = pair[1].request
    return -request.card_bytes, -request.card_core, -request.cards, pair[0].name
