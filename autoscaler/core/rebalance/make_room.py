# SPDX-License-Identifier: Apache-2.0
"""
Room for pending pods by moving others: few moves for each, and only if cheaper than a node.

A node is an option if nothing but full cards keeps the pod off it. The pods that would have to move need placements in
addition to everything that runs now and to the pending pod, so that all are reserved before any pod is evicted. Pure;
what a move costs is decided in `rebalance.cost`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

from autoscaler.core.bin_packing import Shape, get_shape, largest_first
from autoscaler.core.observation import SuccessorReservation
from isolation.contract.model import FULL_CORE, Refusal, Why
from isolation.placement.node_rules import needs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.core.rebalance.cost import RebalanceInputs
    from isolation.contract.model import Placement, Pod, Request
    from isolation.placement.engine import Engine

NODES_TRIED: Final = 8
"""For one pending pod, cheapest first."""
NODES_SEARCHED: Final = 200
"""Maximum number of nodes whose pods are examined for one pending pod."""
PODS_ON_CARD: Final = 16
"""Of a card with more, those that are the cheapest to move."""
_SHORT: Final = (Why.FRAGMENTED, Why.CARDS)


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """One pending pod, and the moves that make room for it."""

    pod: Pod
    node: str
    moves: tuple[tuple[Pod, SuccessorReservation], ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """Pods that must leave one node, and what that costs."""

    cost: float
    node: str
    pods: tuple[Pod, ...]


class _Part(NamedTuple):
    """What one pod has of one card, and what moving the pod costs."""

    cost: float
    pod: Pod
    bytes: int
    core: int


class RoomMaker:
    """A simulation in which pending pods get room, one after the other."""

    def __init__(self, inputs: RebalanceInputs) -> None:
        self._seen, self._budget, self._cost = inputs.observation, inputs.budget, inputs.cost
        self._limits = inputs.limits
        self._simulation: Engine = inputs.observation.engine.fork()
        self._owners_moving = set(inputs.observation.owners_moving())
        self._parts: dict[str, dict[str, list[_Part]]] = {}
        self._failed_shapes: set[Shape] = set()
        """Shapes for which no move was found: none is found for the next pod of that shape either."""
        self.left = min(inputs.budget.free, inputs.limits.max_moves_per_cycle)
        """Moves that this cycle still has."""

    def make_room(self, pods: Sequence[Pod], saving: float) -> tuple[MadeRoom, ...]:
        """Room for each of the pods, worth its moves together, or for none of them."""
        found: list[MadeRoom] = []
        for pod in pods:
            room = self._make_room_for(pod, self.left - sum(len(each.moves) for each in found))
            moving = [mover for each in found for mover, _ in each.moves]
            if room is None:
                break
            found.append(room)
            if not self._cost.is_worth(saving, [*moving, *(mover for mover, _ in room.moves)]):
                break
        else:
            self.left -= sum(len(each.moves) for each in found)
            return tuple(found)
        for room in found:
            self._undo(room)
        return ()

    def _make_room_for(self, pod: Pod, left: int) -> MadeRoom | None:
        """The cheapest option that works."""
        most, key = min(left, self._limits.make_room_max_moves_per_pod), get_shape(pod.request)
        if (
            most < 1
            or key in self._failed_shapes
            or len(self._failed_shapes) >= self._limits.make_room_max_failed_pod_shapes_per_cycle
        ):
            return None
        for option in self._options(pod.request, most)[:NODES_TRIED]:
            room = self._try(pod, option)
            if room is not None:
                return room
        self._failed_shapes.add(key)
        return None

    def _options(self, request: Request, most: int) -> list[_Option]:
        """Nodes that at most `most` pods must leave, the cheapest first; the emptiest nodes are examined."""
        names = [name for name in self._seen.on if self._seen.is_usable(name) and name in self._simulation.nodes]
        whys = self._simulation.why_not(request, names) if names else {}
        load = self._seen.load
        short = sorted((load.get(name, 1.0), name) for why in _SHORT for name in whys.get(why, ()))
        options = (self._option(request, name, most) for _, name in short[:NODES_SEARCHED])
        return sorted((each for each in options if each is not None), key=lambda each: (each.cost, each.node))

    def _option(self, request: Request, name: str, most: int) -> _Option | None:
        """The pods that leave one node at least cost, so that as many of its cards as requested have room."""
        cards: list[tuple[float, int, tuple[_Part, ...]]] = []
        node, here = self._simulation.nodes[name], self._on_cards(name)
        core, needs = FULL_CORE if request.whole else request.card_core, needs_of(request)
        for position, (card, (free, left)) in enumerate(zip(node.cards, self._simulation.room(name), strict=True)):
            if not needs.allow(card):
                continue
            asked = card.allocatable_bytes if request.whole else request.card_bytes
            group = _group(here.get(card.uuid, ()), asked - free, core - left, most)
            if group is not None and card.healthy and asked <= card.allocatable_bytes:
                cards.append((sum(part.cost for part in group), position, group))
        if len(cards) < request.cards:
            return None
        cards.sort(key=lambda each: each[:2])
        chosen = {part.pod.uid: part for _, _, group in cards[: request.cards] for part in group}
        owners = {part.pod.request.owner for part in chosen.values()}
        if not 0 < len(chosen) <= most or len(owners) < len(chosen) or owners & self._owners_moving:
            return None
        return _Option(sum(part.cost for part in chosen.values()), name, tuple(part.pod for part in chosen.values()))

    def _on_cards(self, name: str) -> dict[str, list[_Part]]:
        """Parts of pods that may move, by card, the cheapest first; found once in a cycle."""
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = {}
            for pod in self._seen.on[name].values():
                if pod.placement is not None and pod.placement.slices and self._movable(pod):
                    cost = self._cost.pods_ratio((pod,))
                    for part in pod.placement.slices:
                        found.setdefault(part.uuid, []).append(_Part(cost, pod, part.bytes, part.core))
            for parts in found.values():
                parts.sort(key=lambda part: (part.cost, part.pod.uid))
                del parts[PODS_ON_CARD:]
        return found

    def _movable(self, pod: Pod) -> bool:
        return not (
            pod.deleting
            or pod.uid in self._seen.reserved
            or pod.request.owner in self._owners_moving
            or self._budget.is_protected(pod)
        )

    def _try(self, pod: Pod, option: _Option) -> MadeRoom | None:
        """Whether the pod really fits then, and every pod that leaves has a placement now."""
        simulation, node = self._simulation, option.node
        for mover in option.pods:
            simulation.release(mover.uid)
        answer = simulation.place_on(pod.request, node)
        for mover in option.pods:
            simulation.hold(mover.uid, *_held(mover), force=True)
        if isinstance(answer, Refusal):
            return None
        # more is held than there is, on purpose: no reservation may count on what the pending pod will need
        simulation.hold(pod.uid, pod.request, answer, force=True)
        moves: list[tuple[Pod, SuccessorReservation]] = []
        for mover in sorted(option.pods, key=lambda each: (largest_first(each.request), each.uid)):
            request = self._seen.succeeding(mover)
            reservation = simulation.place(request)
            if isinstance(reservation, Refusal):
                self._undo(MadeRoom(pod, node, tuple(moves)))
                return None
            kept = SuccessorReservation(
                mover.uid, request, reservation, self._seen.at, self._seen.at + self._limits.move_timeout_seconds
            )
            simulation.hold(kept.hold, request, reservation)
            self._owners_moving.add(mover.request.owner)
            moves.append((mover, kept))
        return MadeRoom(pod, node, tuple(moves))

    def _undo(self, room: MadeRoom) -> None:
        self._simulation.release(room.pod.uid)
        for mover, reservation in room.moves:
            self._simulation.release(reservation.hold)
            self._owners_moving.discard(mover.request.owner)


def _held(pod: Pod) -> tuple[Request, Placement]:
    if pod.placement is None:
        raise ValueError(f"pod {pod.key} has no placement")
    return pod.request, pod.placement


def _group(parts: Sequence[_Part], lack: int, lack_core: int, most: int) -> tuple[_Part, ...] | None:
    """The fewest and cheapest pods of one card whose parts of it are enough; None where `most` are too few."""
    if lack <= 0 and lack_core <= 0:
        return ()
    for number in range(1, most + 1):
        for group in combinations(parts, number):
            if sum(each.bytes for each in group) >= lack and sum(each.core for each in group) >= lack_core:
                return group
    return None
