# SPDX-License-Identifier: Apache-2.0
"""
Defragmentation: single moves that make stranded idle cards usable again for the pods that come.

Starts above `defragment_start_ratio` and goes on until `defragment_stop_ratio`. A move is tried in two simulations: in
one no pod has left yet, so that its reservation fits in addition to everything that runs; in the other all have moved,
so that the gain is what remains. Pure.

Source of the measure: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.core.observation import SuccessorReservation
from isolation.contract.model import FULL_CORE, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.cost import RebalanceInputs
    from isolation.contract.model import Card, Pod
    from isolation.placement.engine import Engine

MIN_GAIN: Final = 0.05
"""Cards; less may be rounding."""


@dataclass(frozen=True, slots=True)
class DefragmentMove:
    """One pod, its reservation, and the number of idle cards that become usable."""

    pod: Pod
    reservation: SuccessorReservation
    gain: float
    frees: tuple[int, ...] = ()
    """Indices of the cards of its node that are free of pods once it has left."""


def should_defragment(idle: float, stranded: float, limits: ScalingLimits, *, before: bool) -> bool:
    """Whether to defragment now, by cards idle and stranded; `before`: whether it was so in the last cycle."""
    ratio = stranded_ratio(idle, stranded)
    return ratio is not None and ratio > (limits.defragment_stop_ratio if before else limits.defragment_start_ratio)


def stranded_ratio(idle: float, stranded: float) -> float | None:
    """The part of the idle cards that is stranded; None while less than one card is idle."""
    return stranded / idle if idle >= 1 else None


def find_defragment_moves(inputs: RebalanceInputs, most: int) -> list[DefragmentMove]:
    """The moves of one cycle: each of another owner, from another node, to another node."""
    observation, budget, limits = inputs.observation, inputs.budget, inputs.limits
    owners, nodes = set(observation.owners_moving()), set[str]()
    now, then = observation.engine.fork(), observation.engine.fork()
    idle, lost = then.fragments()
    found: list[DefragmentMove] = []
    for pod in list(_candidates(observation, budget, owners))[: limits.defragment_max_trials_per_cycle]:
        if len(found) >= most or (stranded_ratio(idle, lost) or 0.0) <= limits.defragment_stop_ratio:
            break
        source = pod.placement
        if source is None or pod.request.owner in owners or source.node in nodes:
            continue
        request = observation.succeeding(pod)
        place = now.place(request)
        if isinstance(place, Refusal) or place.node in nodes or place.node == source.node:
            continue
        then.release(pod.uid)
        then.hold(f"then/{pod.uid}", request, place)
        idle, left = then.fragments()
        gain = lost - left
        if gain < MIN_GAIN or not inputs.cost.is_worth(inputs.cost.cards_ratio(gain), (pod,)):
            then.release(f"then/{pod.uid}")
            then.hold(pod.uid, pod.request, source, force=True)
            continue
        reservation = SuccessorReservation(
            pod.uid, request, place, observation.at, observation.at + limits.move_timeout_seconds
        )
        now.hold(reservation.hold, request, place)
        owners.add(pod.request.owner)
        nodes |= {source.node, place.node}
        lost = left
        found.append(
            DefragmentMove(pod, reservation, gain, _freed(then, source.node, {part.uuid for part in source.slices}))
        )
    return found


def _freed(then: Engine, name: str, cards: Collection[str]) -> tuple[int, ...]:
    """Those of these cards that are wholly free."""
    pairs = zip(then.nodes[name].cards, then.room(name), strict=True)
    return tuple(
        card.index for card, room in pairs if card.uuid in cards and room == (card.allocatable_bytes, FULL_CORE)
    )


def _candidates(observation: Observation, budget: Budget, owners_moving: Collection[str]) -> Iterable[Pod]:
    """Pods that may move, first those on cards that are free but for little."""
    found: list[tuple[float, str, Pod]] = []
    for name, pods in observation.on.items():
        if not observation.is_usable(name) or not pods or all(pod.deleting for pod in pods.values()):
            continue
        cards = {card.uuid: (card.allocatable_bytes, free) for card, (free, _) in _room(observation, name)}
        for uid, pod in pods.items():
            if pod.placement is None or not pod.request.shared or pod.deleting or uid in observation.reserved:
                continue
            rest = [cards[part.uuid] for part in pod.placement.slices if part.uuid in cards]
            used = sum(1 - free / offered for offered, free in rest if offered)
            found.append((used / max(1, len(rest)), uid, pod))
    found.sort(key=lambda each: each[:2])
    return (pod for _, _, pod in found if pod.request.owner not in owners_moving and not budget.is_protected(pod))


def _room(observation: Observation, name: str) -> Iterable[tuple[Card, tuple[int, int]]]:
    return zip(observation.engine.nodes[name].cards, observation.engine.room(name), strict=True)
