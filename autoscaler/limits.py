"""
How far the autoscaler may go: every number that bounds it, in one validated value.

Decides nothing. Knows neither clusters nor pods.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

_TIMES: Final = frozenset(
    {
        "period_seconds",
        "settle_seconds",
        "unneeded_seconds",
        "after_add_seconds",
        "min_pod_age_seconds",
        "immune_seconds",
        "provision_seconds",
        "devices_seconds",
        "drain_seconds",
        "backoff_seconds",
        "backoff_longest_seconds",
    }
)


class LimitsError(ValueError):
    """Limits that contradict themselves; the message names every one of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one autoscaler; the defaults are cluster-autoscaler's where it has the same bound."""

    period_seconds: float = 10.0
    """Between two turns of the loop."""
    settle_seconds: float = 5.0
    """Between deciding and acting: what no longer holds by then is dropped."""
    unneeded_seconds: float = 600.0
    """A node must have been superfluous for this long before it is drained."""
    after_add_seconds: float = 600.0
    """No drain for this long after a node was bought."""
    low_load_ratio: float = 0.5
    """A node is superfluous only while its load is at most this."""
    nodes_per_round: int = 10
    """Most nodes that begin to drain in one turn."""
    candidates_per_round: int = 30
    """Most nodes whose pods are tried elsewhere in one turn."""
    buys_per_round: int = 1000
    """Most nodes bought in one turn."""
    moves_per_round: int = 10
    """Most pods evicted in one turn."""
    moves_per_hour: int = 60
    """Most pods evicted in any hour."""
    min_pod_age_seconds: float = 600.0
    """A younger pod is left alone, and with it its node."""
    immune_seconds: float = 3600.0
    """A pod that was moved is left alone for this long."""
    provision_seconds: float = 900.0
    """A machine that is not a node by then has failed."""
    devices_seconds: float = 300.0
    """A node whose cards have not been registered by then has failed."""
    drain_seconds: float = 900.0
    """A drain that has not ended by then is called off."""
    backoff_seconds: float = 300.0
    """A pool that could not deliver is left alone for this long, doubled each time."""
    backoff_longest_seconds: float = 1800.0

    def __post_init__(self) -> None:
        wrong = [f"{f.name} is {getattr(self, f.name)}" for f in fields(self) if not getattr(self, f.name) >= 0]
        if not self.period_seconds > 0:
            wrong.append("period_seconds must be more than 0")
        if not self.low_load_ratio <= 1:
            wrong.append("low_load_ratio is a ratio, at most 1")
        if wrong:
            raise LimitsError("limits must not be negative: " + "; ".join(wrong))

    def scaled(self, factor: float) -> Limits:
        """The same limits in another tempo: every time but the period times `factor`, for demonstrations."""
        return replace(self, **{name: getattr(self, name) * factor for name in sorted(_TIMES - {"period_seconds"})})
