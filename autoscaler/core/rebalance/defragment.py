# SPDX-License-Identifier: Apache-2.0
"""
Single moves that make idle cards useful again to the pods that come.

Begins above a high mark of fragmentation and goes on until a low one. A move is tried on two
what-ifs: in one, nobody has left yet, so that its home can be reserved beside everything that
stands; in the other everybody has moved, so that its gain is what remains. Pure.

Source of the measure: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.core.observation import Reservation
from isolation.contract.model import FULL_CORE, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.inputs import RebalanceInputs
    from isolation.contract.model import Card, Pod
    from isolation.placement.engine import Engine

LEAST_GAIN: Final = 0.05
"""Cards: what rounding may not pretend."""


@dataclass(frozen=True, slots=True)
class DefragmentMove:
    """One pod, its new home, and the idle cards that become useful by it."""

    pod: Pod
    reservation: Reservation
    gain: float
    frees: tuple[int, ...] = ()
    """Indices of the cards of its node on which nobody is left when it has gone."""


def should_defragment(seen: Observation, budget: Budget, *, before: bool) -> bool:
    """Whether to defragment now; `before`: whether it was so in the last turn."""
    ratio = stranded_ratio(*seen.engine.fragments())
    limits = budget.limits
    return ratio is not None and ratio > (limits.defragment_stop_ratio if before else limits.defragment_start_ratio)


def stranded_ratio(idle: float, lost: float) -> float | None:
    """The part of the idle cards that is lost; None while hardly a card is idle."""
    return lost / idle if idle >= 1 else None


def find_defragment_moves(now: RebalanceInputs, most: int) -> list[DefragmentMove]:
    """The moves of one turn: each of another owner, from another node, to another node."""
    seen, budget, limits = now.seen, now.budget, now.limits
    owners, nodes = set(now.owners_moving), set[str]()
    stand, then = seen.engine.fork(), seen.engine.fork()
    idle, lost = then.fragments()
    found: list[DefragmentMove] = []
    for pod in list(_candidates(seen, budget, owners))[: limits.defragment_max_trials_per_cycle]:
        if len(found) >= most or (stranded_ratio(idle, lost) or 0.0) <= limits.defragment_stop_ratio:
            break
        source = pod.placement
        if source is None or pod.request.owner in owners or source.node in nodes:
            continue
        place = stand.place(pod.request)
        if isinstance(place, Refusal) or place.node in nodes or place.node == source.node:
            continue
        then.release(pod.uid)
        then.hold(f"then/{pod.uid}", pod.request, place)
        idle, left = then.fragments()
        gain = lost - left
        if gain < LEAST_GAIN or not now.weights.is_worth(now.weights.cards_ratio(gain), (pod,)):
            then.release(f"then/{pod.uid}")
            then.hold(pod.uid, pod.request, source, force=True)
            continue
        home = Reservation(pod.uid, pod.request, place, seen.at, seen.at + limits.move_timeout_seconds)
        stand.hold(home.hold, pod.request, place)
        owners.add(pod.request.owner)
        nodes |= {source.node, place.node}
        lost = left
        found.append(DefragmentMove(pod, home, gain, _freed(then, source.node, {part.uuid for part in source.slices})))
    return found


def _freed(then: Engine, name: str, cards: Collection[str]) -> tuple[int, ...]:
    """Those of these cards that are wholly free."""
    pairs = zip(then.nodes[name].cards, then.room(name), strict=True)
    return tuple(
        card.index for card, room in pairs if card.uuid in cards and room == (card.allocatable_bytes, FULL_CORE)
    )


def _candidates(seen: Observation, budget: Budget, restless: Collection[str]) -> Iterable[Pod]:
    """Pods that may move, those first that keep least of their cards from being free."""
    found: list[tuple[float, str, Pod]] = []
    for name, pods in seen.on.items():
        if not seen.is_usable(name) or not pods or all(pod.deleting for pod in pods.values()):
            continue
        cards = {card.uuid: (card.allocatable_bytes, free) for card, (free, _) in _room(seen, name)}
        for uid, pod in pods.items():
            if pod.placement is None or not pod.request.shared or pod.deleting or uid in seen.reserved:
                continue
            rest = [cards[part.uuid] for part in pod.placement.slices if part.uuid in cards]
            used = sum(1 - free / offered for offered, free in rest if offered)
            found.append((used / max(1, len(rest)), uid, pod))
    found.sort(key=lambda each: each[:2])
    return (pod for _, _, pod in found if pod.request.owner not in restless and not budget.is_protected(pod))


def _room(seen: Observation, name: str) -> Iterable[tuple[Card, tuple[int, int]]]:
    return zip(seen.engine.nodes[name].cards, seen.engine.room(name), strict=True)
