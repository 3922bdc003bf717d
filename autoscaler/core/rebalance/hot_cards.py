# SPDX-License-Identifier: Apache-2.0
"""
Hot-spot mitigation: cards whose compute has been used up for long, and which pod leaves each for a less busy card.

Counts only what was measured: a card or a pod whose use is unknown is neither hot nor quiet, and is not moved nor moved
to. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.core.observation import SuccessorReservation
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.cost import RebalanceInputs
    from isolation.contract.model import Placement, Pod
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class HotCardMove:
    """One pod that leaves a hot card, and its reservation on less busy ones."""

    pod: Pod
    reservation: SuccessorReservation
    card: str
    heat: float
    seconds: float
    """How long the card has been hot."""


def track_hot_cards(
    utilization: Mapping[str, float], at: float, limits: ScalingLimits, before: Mapping[str, float]
) -> dict[str, float]:
    """Since when each card has been hot, by UUID; one that was not measured starts again. `before`: the last answer."""
    return {
        uuid: before.get(uuid, at)
        for uuid, ratio in sorted(utilization.items())
        if ratio > limits.hot_card_threshold_ratio
    }


def find_hot_card_moves(inputs: RebalanceInputs, most: int, since: Mapping[str, float]) -> list[HotCardMove]:
    """The moves of one turn, the card that has been hot longest first: one for each node, and one to each."""
    observation, limits = inputs.observation, inputs.limits
    due = {uuid: at for uuid, at in since.items() if observation.at - at >= limits.hot_card_seconds}
    if not due or most < 1:
        return []
    owners, nodes, simulation = set(observation.owners_moving()), set[str](), observation.engine.fork()
    heat = dict(observation.card_utilization)
    here = _on_cards(observation, due)
    found: list[HotCardMove] = []
    for uuid, at in sorted(due.items(), key=lambda item: (item[1], item[0])):
        for pod in _candidates(inputs, here.get(uuid, []), heat[uuid]):
            place, request = None, observation.succeeding(pod)
            if pod.request.owner not in owners and pod.placement is not None and pod.placement.node not in nodes:
                place = _find_quiet_placement(simulation, inputs, pod, heat, nodes | {pod.placement.node})
            if place is None or pod.placement is None:
                continue
            reservation = SuccessorReservation(
                pod.uid, request, place, observation.at, observation.at + limits.move_timeout_seconds
            )
            simulation.hold(reservation.hold, request, place)
            owners.add(pod.request.owner)
            nodes |= {pod.placement.node, place.node}
            for part in place.slices:
                heat[part.uuid] += observation.pod_utilization[pod.uid]
            found.append(HotCardMove(pod, reservation, uuid, heat[uuid], observation.at - at))
            break
        if len(found) == most:
            break
    return found


def _on_cards(observation: Observation, uuids: Collection[str]) -> dict[str, list[Pod]]:
    """Pods by these cards."""
    found: dict[str, list[Pod]] = {}
    for name, pods in observation.on.items():
        if observation.is_usable(name):
            for pod in pods.values():
                for part in pod.placement.slices if pod.placement is not None else ():
                    if part.uuid in uuids:
                        found.setdefault(part.uuid, []).append(pod)
    return found


def _candidates(inputs: RebalanceInputs, pods: list[Pod], heat: float) -> list[Pod]:
    """
    Pods that would cool the card by leaving and are worth it, the cheapest to move first.

    A pod alone on its card disturbs no other. What a move saves is the card: those that stay have its time again.
    """
    observation, budget, cost = inputs.observation, inputs.budget, inputs.cost
    measured = [pod for pod in pods if pod.uid in observation.pod_utilization]
    if sum(observation.pod_utilization[pod.uid] > 0 for pod in measured) < 2:  # noqa: PLR2004 (a pod alone on its card disturbs no other)
        return []
    movable = [
        pod
        for pod in measured
        if not pod.deleting
        and pod.uid not in observation.reserved
        and pod.request.shared
        and heat - observation.pod_utilization[pod.uid] <= budget.limits.hot_card_threshold_ratio
        and not budget.is_protected(pod)
        and cost.is_worth(cost.cards_ratio(heat), (pod,))
    ]
    return sorted(movable, key=lambda pod: (cost.pods_ratio((pod,)), pod.uid))


def _find_quiet_placement(
    simulation: Engine, inputs: RebalanceInputs, pod: Pod, heat: Mapping[str, float], taken: Collection[str]
) -> Placement | None:
    """The best placement whose cards all stay below `hot_card_target_ratio` with the pod on them."""
    most = inputs.limits.hot_card_target_ratio - inputs.observation.pod_utilization[pod.uid]
    names = [
        name
        for name, node in simulation.nodes.items()
        if name not in taken
        and inputs.observation.is_usable(name)
        and any(heat.get(card.uuid, 2.0) <= most for card in node.cards)
    ]
    request = inputs.observation.succeeding(pod)
    scores, _ = simulation.rate(request, names)
    for at in np.argsort(scores, kind="stable").tolist():
        if not np.isfinite(scores[at]):
            return None
        place = simulation.place_on(request, names[at])
        if not isinstance(place, Refusal) and all(heat.get(part.uuid, 2.0) <= most for part in place.slices):
            return place
    return None
