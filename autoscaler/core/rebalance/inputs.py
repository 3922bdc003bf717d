# SPDX-License-Identifier: Apache-2.0
"""
What every source of moves is given: one reading, what may still be moved, and what moving costs.

Values only; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.rebalance.cost import DisruptionCost


@dataclass(frozen=True, slots=True)
class RebalanceInputs:
    """One turn as rebalancing sees it."""

    seen: Observation
    budget: Budget
    weights: DisruptionCost

    @property
    def limits(self) -> Limits:
        """The autoscaler's limits."""
        return self.budget.limits

    @property
    def restless(self) -> frozenset[str]:
        """Owners whose last moved pod has not arrived yet: their other replicas stay where they are."""
        seen = self.seen
        return frozenset(
            home.request.owner for uid, home in seen.reserved.items() if uid not in seen.pods or seen.pods[uid].deleting
        )

    @property
    def owners_moving(self) -> frozenset[str]:
        """Owners of pods that have a home kept: they move in their own time, and nobody else of theirs."""
        return frozenset(home.request.owner for home in self.seen.reserved.values())
