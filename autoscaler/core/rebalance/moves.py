# SPDX-License-Identifier: Apache-2.0
"""
Which single pods move now, and why: to make room for pending pods, off hot cards, against fragmentation.

Room is made before a purchase that it makes unnecessary; the other moves come only in calm cycles, and never together
with a drain that begins. Pure. Whether a move is worth its disruption is decided in `cost`, how many are allowed in
`disruption_budget`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.expander import PoolExpander
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import RESTORE, Move
from autoscaler.core.rebalance.defragment import find_defragment_moves, should_defragment
from autoscaler.core.rebalance.hot_cards import find_hot_card_moves, track_hot_cards
from autoscaler.core.rebalance.make_room import RoomMaker
from autoscaler.core.templates import get_templates
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.cost import RebalanceInputs
    from autoscaler.core.rebalance.defragment import DefragmentMove
    from autoscaler.core.rebalance.hot_cards import HotCardMove
    from autoscaler.core.rebalance.make_room import MadeRoom
    from autoscaler.core.scale_up import Demand, PlannedNode
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Pod


def plan_make_room(inputs: RebalanceInputs, demand: Demand) -> tuple[tuple[Move, ...], Demand]:
    """Moves that make purchases unnecessary, and the demand that is left."""
    if not (demand.planned_nodes or demand.capped) or inputs.budget.free < 1:
        return (), demand
    observation, cost, room_maker = inputs.observation, inputs.cost, RoomMaker(inputs)
    moves: list[Move] = []
    spared: list[PlannedNode] = []
    # the last planned node is the emptiest: it is the one most likely to be spared
    for planned in reversed(demand.planned_nodes):
        if len(planned.pods) <= room_maker.left:
            saving = cost.price_ratio(observation.pools[planned.pool].price)
            rooms = room_maker.make_room(planned.pods, saving)
            moves += _make_room_moves(rooms, f"instead of adding a node to pool {planned.pool}")
            spared += [planned] * bool(rooms)
    saved = set[str]()
    for pod in (pod for pod in observation.pending if pod.uid in demand.capped):
        rooms = room_maker.make_room((pod,), cost.price_ratio(_price_room(observation, pod)))
        moves += _make_room_moves(rooms, "because no pool can scale up for it")
        saved |= {room.pod.uid for room in rooms}
    if not moves:
        return (), demand
    fits = [*demand.fits, *(pod.uid for planned in spared for pod in planned.pods), *sorted(saved)]
    planned_nodes = [planned for planned in demand.planned_nodes if planned not in spared]
    capped = {uid: why for uid, why in demand.capped.items() if uid not in saved}
    return tuple(moves), replace(demand, planned_nodes=planned_nodes, fits=fits, capped=capped)


def plan_rebalance(
    inputs: RebalanceInputs, state: AutoscalerState, most: int, *, defragment: bool
) -> tuple[tuple[Move, ...], AutoscalerState]:
    """Moves off hot cards, else, if `defragment`, against fragmentation; `most` at most. For calm cycles only."""
    state = remember_hot_cards(inputs, state)
    idle, stranded = inputs.observation.engine.fragments()
    is_fragmented = should_defragment(idle, stranded, inputs.limits, before=state.defragmenting)
    state = replace(state, defragmenting=is_fragmented)
    moves = tuple(_mitigate(move) for move in find_hot_card_moves(inputs, most, state.hot))
    # half of the hour's moves is kept for drains, which save whole nodes
    most = min(most, inputs.budget.free - inputs.budget.hourly // 2)
    if defragment and is_fragmented and not moves and most > 0:
        moves = tuple(_defragment(move) for move in find_defragment_moves(inputs, most))
    return moves, state


def plan_returns(inputs: RebalanceInputs, pods: Iterable[str], most: int) -> Iterable[Move]:
    """
    Moves of pods (by UID) that gave memory up, need it back, and have no room for it on their cards.

    What they lost was taken by right-sizing, so a move need save nothing; whatever protects a pod protects these too.
    """
    observation, simulation = inputs.observation, inputs.observation.engine.fork()
    owners = set(observation.owners_moving())
    for uid in pods:
        pod = observation.pods.get(uid)
        if most < 1 or pod is None or pod.deleting or pod.placement is None or uid in observation.reserved:
            continue
        if pod.request.owner in owners or inputs.budget.is_protected(pod):
            continue
        place = simulation.place(pod.request)
        if isinstance(place, Refusal):
            continue
        until = observation.at + inputs.limits.move_timeout_seconds
        reservation = SuccessorReservation(uid, pod.request, place, observation.at, until)
        simulation.hold(reservation.hold, pod.request, place)
        owners.add(pod.request.owner)
        most -= 1
        yield _move(pod, reservation, RESTORE, f"to {place.node}: it needs the memory that right-sizing took from it")


def remember_hot_cards(inputs: RebalanceInputs, state: AutoscalerState) -> AutoscalerState:
    """The state with since when each card has been hot."""
    seen = inputs.observation
    return replace(state, hot=track_hot_cards(seen.card_utilization, seen.at, inputs.limits, state.hot))


def _mitigate(move: HotCardMove) -> Move:
    target = move.reservation.placement.node
    reason = f"to the less busy {target}: its card is hot ({move.heat:.0%} for {move.seconds:.0f} s)"
    return replace(_move(move.pod, move.reservation, "mitigate_hot_card", reason), card=move.card)


def _defragment(move: DefragmentMove) -> Move:
    target = move.reservation.placement.node
    reason = f"to {target}: {_list_freed_cards(move)}makes {move.gain:.2f} stranded idle cards usable"
    return _move(move.pod, move.reservation, "defragment", reason)


def _list_freed_cards(move: DefragmentMove) -> str:
    """Which cards no pod will be on, by name, so that people can check it."""
    source = move.pod.placement
    if source is None or not move.frees:
        return ""
    which = ", ".join(str(index) for index in move.frees)
    return f"frees card{'s' * (len(move.frees) > 1)} {which} of {source.node}, "


def _price_room(observation: Observation, pod: Pod) -> float:
    """What the room that a pod needs costs in the cheapest pool that can host it."""
    templates = get_templates(tuple(observation.pools.values()))
    expander = PoolExpander(observation.pools, frozenset(), templates)
    prices = [pool.price for name, pool in observation.pools.items() if templates.hosts(name, pod.request)]
    return min(prices, default=0.0) * expander.weigh(pod.request)


def _make_room_moves(rooms: Iterable[MadeRoom], why: str) -> Iterable[Move]:
    for room in rooms:
        for pod, reservation in room.moves:
            target = reservation.placement.node
            reason = f"to {target}: makes room on {room.node} for {room.pod.key} {why}"
            yield replace(_move(pod, reservation, "make_room", reason), pods=(room.pod.uid,))


def _move(pod: Pod, reservation: SuccessorReservation, kind: str, reason: str) -> Move:
    source = pod.placement.node if pod.placement is not None else ""
    return Move(pod.uid, source, pod.request.owner, reservation, kind, reason)
