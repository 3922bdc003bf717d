# SPDX-License-Identifier: Apache-2.0
"""
First-fit-decreasing over cards: which pods fill one node, in which cards.

Counts card by card, never sums over a node: five cards with 3 GiB free are no room for 4 GiB.
Whether a pod may use such a node at all (mode, selectors, taints, card model) is the placement engine's answer
(`templates`); here is arithmetic only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from isolation.contract.model import FULL_CORE
from isolation.placement.node_rules import needs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from isolation.contract.model import Node, Pod, Request

Shape: TypeAlias = tuple[object, ...]


def get_shape(request: Request) -> Shape:
    """What makes two requests the same to placement."""
    return (
        request.cards,
        request.card_bytes,
        request.card_core,
        request.whole,
        request.cpu_milli,
        request.memory_bytes,
        request.rules,
    )


def largest_first(request: Request) -> tuple[float, ...]:
    """The order of first-fit-decreasing: size on a card first, then everything else that is large."""
    return (
        -float(request.whole),
        -request.card_bytes,
        -request.card_core,
        -request.cards,
        -request.cpu_milli,
        -request.memory_bytes,
    )


@dataclass(slots=True)
class PodGroup:
    """Pending pods of one shape, in the order in which they are placed."""

    request: Request
    pods: deque[Pod]


def group_pods(pods: Iterable[Pod]) -> list[PodGroup]:
    """Pods by shape, the largest shape first, within a shape as given."""
    found: dict[Shape, PodGroup] = {}
    for pod in pods:
        key = get_shape(pod.request)
        group = found.get(key)
        if group is None:
            found[key] = group = PodGroup(pod.request, deque())
        group.pods.append(pod)
    return sorted(found.values(), key=lambda group: (largest_first(group.request), group.pods[0].uid))


@dataclass(frozen=True, slots=True)
class Slot:
    """One pod of a planned node, and the positions of its cards there."""

    pod: Pod
    cards: tuple[int, ...]


class Bin:
    """What one node has left while a simulation fills it."""

    def __init__(self, node: Node, room: Sequence[tuple[int, int]] | None = None, held: Iterable[Request] = ()) -> None:
        self.node = node
        rooms = room or [(card.allocatable_bytes if card.healthy else 0, FULL_CORE) for card in node.cards]
        self._bytes = [free for free, _ in rooms]
        self._core = [core for _, core in rooms]
        held = tuple(held)
        self._cpu = node.cpu_milli - sum(request.cpu_milli for request in held)
        self._memory = node.memory_bytes - sum(request.memory_bytes for request in held)
        self._pods = node.pods - len(held)
        self._divided = any(card.instance is not None for card in node.cards)

    def take(self, request: Request) -> tuple[int, ...] | None:
        """Give the first cards that have the room, or None and nothing taken."""
        if not self._has_host_room(request):
            return None
        chosen: list[int] = []
        needs = needs_of(request) if self._divided else None
        for position in range(len(self._bytes)):
            if len(chosen) == request.cards:
                break
            if self._fits(request, position) and (needs is None or needs.allow(self.node.cards[position])):
                chosen.append(position)
        return tuple(chosen) if self._give(request, chosen) else None

    def take_cards(self, request: Request, cards: Sequence[int]) -> bool:
        """Give exactly these cards, or False and nothing taken."""
        free = all(position < len(self._bytes) and self._fits(request, position) for position in cards)
        return free and self._has_host_room(request) and self._give(request, cards)

    def _has_host_room(self, request: Request) -> bool:
        return self._pods > 0 and request.cpu_milli <= self._cpu and request.memory_bytes <= self._memory

    def _give(self, request: Request, chosen: Sequence[int]) -> bool:
        if len(chosen) < request.cards:
            return False
        for position in chosen:
            self._bytes[position] = 0 if request.whole else self._bytes[position] - request.card_bytes
            self._core[position] = 0 if request.whole else self._core[position] - request.card_core
        self._cpu -= request.cpu_milli
        self._memory -= request.memory_bytes
        self._pods -= 1
        return True

    # first fit, not best fit: the count must be the one that first-fit-decreasing gives
    def _fits(self, request: Request, position: int) -> bool:
        if request.whole:
            card = self.node.cards[position]
            return self._bytes[position] == card.allocatable_bytes > 0 and self._core[position] == FULL_CORE
        return request.card_bytes <= self._bytes[position] and request.card_core <= self._core[position]


def fill_node(room: Bin, groups: Iterable[PodGroup], may: Callable[[Request], bool]) -> list[Slot]:
    """The pods that go on one node, largest first; the groups stay as they are until `take_pods`."""
    slots: list[Slot] = []
    for group in groups:
        if not group.pods or not may(group.request):
            continue
        for pod in group.pods:
            cards = room.take(group.request)
            if cards is None:
                break  # the rest of the group is alike, and room only shrinks
            slots.append(Slot(pod, cards))
    return slots


def take_pods(groups: Iterable[PodGroup], slots: Iterable[Slot]) -> None:
    """Remove the pods of these slots from their groups; `fill_node` takes each group from its front."""
    count: dict[Shape, int] = {}
    for slot in slots:
        key = get_shape(slot.pod.request)
        count[key] = count.get(key, 0) + 1
    for group in groups:
        for _ in range(count.get(get_shape(group.request), 0)):
            group.pods.popleft()
