# SPDX-License-Identifier: Apache-2.0
"""
Cards whose compute has been used up for long, and who leaves them for a quieter one.

Counts only what was measured: a card or a pod whose use cannot be told is neither hot nor quiet,
and is not moved nor moved to. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.core.observation import Reservation
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.inputs import RebalanceInputs
    from isolation.contract.model import Placement, Pod
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class HotCardMove:
    """One pod that leaves a hot card, and its quieter home."""

    pod: Pod
    reservation: Reservation
    card: str
    heat: float
    seconds: float
    """How long the card has been hot."""


def track_hot_cards(seen: Observation, limits: Limits, before: Mapping[str, float]) -> dict[str, float]:
    """Since when each card has been hot; one that was not measured begins anew."""
    return {
        uuid: before.get(uuid, seen.at)
        for uuid, heat in sorted(seen.card_utilization.items())
        if heat > limits.hot_card_threshold_ratio
    }


def find_hot_card_moves(now: RebalanceInputs, most: int, since: Mapping[str, float]) -> list[HotCardMove]:
    """The moves of one turn, the card that has been hot longest first: one for each node, and one to each."""
    seen, limits = now.seen, now.limits
    due = {uuid: at for uuid, at in since.items() if seen.at - at >= limits.hot_card_seconds}
    if not due or most < 1:
        return []
    owners, nodes, trial = set(now.owners_moving), set[str](), seen.engine.fork()
    heat = dict(seen.card_utilization)
    here = _on_cards(seen, due)
    found: list[HotCardMove] = []
    for uuid, at in sorted(due.items(), key=lambda item: (item[1], item[0])):
        for pod in _candidates(now, here.get(uuid, []), heat[uuid]):
            place = None
            if pod.request.owner not in owners and pod.placement is not None and pod.placement.node not in nodes:
                place = _quiet(trial, now, pod, heat, nodes | {pod.placement.node})
            if place is None or pod.placement is None:
                continue
            home = Reservation(pod.uid, pod.request, place, seen.at, seen.at + limits.move_timeout_seconds)
            trial.hold(home.hold, pod.request, place)
            owners.add(pod.request.owner)
            nodes |= {pod.placement.node, place.node}
            for part in place.slices:
                heat[part.uuid] += seen.pod_utilization[pod.uid]
            found.append(HotCardMove(pod, home, uuid, heat[uuid], seen.at - at))
            break
        if len(found) == most:
            break
    return found


def _on_cards(seen: Observation, uuids: Collection[str]) -> dict[str, list[Pod]]:
    """Who is on these cards."""
    found: dict[str, list[Pod]] = {}
    for name, pods in seen.on.items():
        if seen.is_usable(name):
            for pod in pods.values():
                for part in pod.placement.slices if pod.placement is not None else ():
                    if part.uuid in uuids:
                        found.setdefault(part.uuid, []).append(pod)
    return found


def _candidates(now: RebalanceInputs, pods: list[Pod], heat: float) -> list[Pod]:
    """
    Whose leaving would cool the card and is worth it, the lightest first; alone on a card nobody is in the way.

    What is saved is the card: whoever stays on it has its time again.
    """
    seen, budget, weights = now.seen, now.budget, now.weights
    measured = [pod for pod in pods if pod.uid in seen.pod_utilization]
    if sum(seen.pod_utilization[pod.uid] > 0 for pod in measured) < 2:  # noqa: PLR2004 (a pod that is alone does not mind)
        return []
    movable = [
        pod
        for pod in measured
        if not pod.deleting
        and pod.uid not in seen.reserved
        and pod.request.shared
        and heat - seen.pod_utilization[pod.uid] <= budget.limits.hot_card_threshold_ratio
        and not budget.is_protected(pod)
        and weights.is_worth(weights.cards_ratio(heat), (pod,))
    ]
    return sorted(movable, key=lambda pod: (weights.pods_ratio((pod,)), pod.uid))


def _quiet(
    trial: Engine, now: RebalanceInputs, pod: Pod, heat: Mapping[str, float], taken: Collection[str]
) -> Placement | None:
    """The best place whose every card stays quiet with the pod on it."""
    most = now.limits.hot_card_target_ratio - now.seen.pod_utilization[pod.uid]
    names = [
        name
        for name, node in trial.nodes.items()
        if name not in taken
        and now.seen.is_usable(name)
        and any(heat.get(card.uuid, 2.0) <= most for card in node.cards)
    ]
    scores, _ = trial.rate(pod.request, names)
    for at in np.argsort(scores, kind="stable").tolist():
        if not np.isfinite(scores[at]):
            return None
        place = trial.place_on(pod.request, names[at])
        if not isinstance(place, Refusal) and all(heat.get(part.uuid, 2.0) <= most for part in place.slices):
            return place
    return None
