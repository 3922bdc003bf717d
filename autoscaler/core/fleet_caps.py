# SPDX-License-Identifier: Apache-2.0
"""
What the fleet as a whole may not go beyond: nodes, cost per hour, removals per hour.

Counts machines of the configured pools, also those that are coming and those that somebody else takes out of service:
they are paid for. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Self

from autoscaler.core.disruption_budget import HOUR
from autoscaler.core.lifecycle import MachineState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool

_NOT_PAID = frozenset({MachineState.FAILED, MachineState.GONE})


@dataclass(slots=True)
class FleetGrowth:
    """What the fleet may still grow by; counts down as machines are bought."""

    limits: Limits
    nodes: float = inf
    cost: float = inf
    """Per hour, in the currency of the pools' prices."""

    @classmethod
    def of(cls, seen: Observation, limits: Limits) -> Self:
        """Of one reading."""
        pools = [
            seen.pools[m.pool] for m in seen.machines.values() if m.pool in seen.pools and m.state not in _NOT_PAID
        ]
        return cls(
            limits,
            limits.max_nodes_total - len(pools) if limits.max_nodes_total else inf,
            limits.max_cost_per_hour - sum(pool.price for pool in pools) if limits.max_cost_per_hour else inf,
        )

    def refuses(self, pool: Pool) -> str:
        """Why the pool may not grow by one more; empty: it may."""
        if self.nodes < 1:
            return f"the fleet is at max_nodes_total, {self.limits.max_nodes_total} nodes"
        # prices are decimal fractions: a thousandth of a price is rounding, not a breach
        if pool.price > self.cost + pool.price / 1000:
            return f"one more node would exceed max_cost_per_hour, {self.limits.max_cost_per_hour:g}"
        return ""

    def bought(self, pool: Pool) -> None:
        """One more."""
        self.nodes -= 1
        self.cost -= pool.price


def count_removals_left(removed: Iterable[float], limits: Limits, now: float) -> float:
    """Machines that may still be removed this hour; `removed`: when others were, in seconds since the epoch."""
    most = limits.max_node_removals_per_hour
    return max(0, most - sum(now - at < HOUR for at in removed)) if most else inf
