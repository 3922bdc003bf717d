# SPDX-License-Identifier: Apache-2.0
"""
What a move saves against what it disturbs: the rule by which rebalancing is approved.

Saving is a part of what the fleet costs, disruption a part of all the disruption that moving every
pod would be; a move is worth it if the first is at least one in k of the second. So a fleet is
never turned over for little, and a heavy pod moves for more than a light one. Pure.

Source of the factors for priority and deletion cost, and of their bounds: Karpenter's
documentation of disruption cost; of the annotation: Kubernetes, "ReplicaSet", pod deletion cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import STANDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from isolation.contract.model import Pod

COST_WEIGHT: Final = 2.0**27
PRIORITY_WEIGHT: Final = 2.0**25
LIGHTEST: Final = 0.1
HEAVIEST: Final = 10.0


def disruption_seconds(pod: Pod, limits: ScalingLimits, cost: int = 0) -> float:
    """Seconds that a pod is away when it moves, weighed by how much it matters."""
    away = (
        limits.pod_restart_seconds + pod.request.cards * pod.request.card_bytes / limits.memory_reload_bytes_per_second
    )
    if pod.request.whole and pod.placement is not None:
        away += sum(part.bytes for part in pod.placement.slices) / limits.memory_reload_bytes_per_second
    factor = 1.0 + cost / COST_WEIGHT + pod.priority / PRIORITY_WEIGHT
    return away * min(HEAVIEST, max(LIGHTEST, factor))


@dataclass(frozen=True, slots=True)
class DisruptionCost:
    """The fleet as a whole, counted once in a turn."""

    limits: ScalingLimits
    price: float
    """Of everything that stands."""
    cards: int
    disruption: float
    """Of all pods that run."""
    replicas: Mapping[str, int]
    """Running pods by owner."""
    costs: Mapping[str, int]

    @classmethod
    def of(cls, observation: Observation, limits: ScalingLimits) -> DisruptionCost:
        """One pass over what runs."""
        replicas: Counter[str] = Counter()
        total = 0.0
        for pods in observation.on.values():
            for uid, pod in pods.items():
                if not pod.deleting:
                    replicas[pod.request.owner] += 1
                    total += disruption_seconds(pod, limits, observation.deletion_cost.get(uid, 0))
        standing = (machine.pool for machine in observation.machines.values() if machine.state in STANDING)
        price = sum(observation.pools[pool].price for pool in standing if pool in observation.pools)
        cards = sum(len(node.cards) for node in observation.engine.nodes.values())
        return cls(limits, price, cards, total, replicas, observation.deletion_cost)

    def pods_ratio(self, pods: Iterable[Pod]) -> float:
        """The part of all disruption that moving these pods is."""
        return sum(disruption_seconds(pod, self.limits, self.costs.get(pod.uid, 0)) for pod in pods) / (
            self.disruption or 1.0
        )

    def is_worth(self, saving: float, pods: Iterable[Pod]) -> bool:
        """Whether a part saved of what the fleet costs outweighs moving these pods."""
        return saving * self.limits.disruption_cost_ratio >= self.pods_ratio(pods)

    def price_ratio(self, price: float) -> float:
        """A price as a part of what the fleet costs; 1 where the fleet costs nothing yet."""
        return min(1.0, price / self.price) if self.price > 0 else 1.0

    def cards_ratio(self, cards: float) -> float:
        """So many cards as a part of the fleet's."""
        return min(1.0, cards / self.cards) if self.cards else 0.0


@dataclass(frozen=True, slots=True)
class RebalanceInputs:
    """What every source of moves is given in one cycle."""

    observation: Observation
    budget: Budget
    cost: DisruptionCost

    @property
    def limits(self) -> ScalingLimits:
        """The autoscaler's limits."""
        return self.budget.limits
