"""
How far the autoscaler may go: every number that bounds it, in one validated value.

Decides nothing. Knows neither clusters nor pods.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMES: Final = frozenset(
    {
        "period_seconds",
        "settle_seconds",
        "unneeded_seconds",
        "after_add_seconds",
        "fresh_seconds",
        "min_pod_age_seconds",
        "immune_seconds",
        "provision_seconds",
        "devices_seconds",
        "drain_seconds",
        "backoff_seconds",
        "backoff_longest_seconds",
        "restart_seconds",
        "move_seconds",
        "hot_seconds",
    }
)
_RATIOS: Final = (
    "low_load_ratio",
    "moves_per_hour_ratio",
    "fragments_high_ratio",
    "fragments_low_ratio",
    "hot_ratio",
    "quiet_ratio",
)
_DAY: Final = 86_400.0
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(_TIMES, (0.0, 30 * _DAY)),
    **dict.fromkeys(("provision_seconds", "devices_seconds", "drain_seconds", "move_seconds"), (1.0, _DAY)),
    **dict.fromkeys(("backoff_seconds", "backoff_longest_seconds"), (1.0, _DAY)),
    **dict.fromkeys(_RATIOS, (0.0, 1.0)),
    "period_seconds": (0.1, 3600.0),
    "settle_seconds": (0.0, 600.0),
    "restart_seconds": (0.0, _DAY),
    "reload_bytes_per_second": (float(MIB), 1024.0 * GIB),
    "worth": (0.0, 1000.0),
    "nodes_per_round": (0, 1000),
    "candidates_per_round": (0, 1000),
    "guests_per_round": (0, 1000),
    "buys_per_round": (0, 10_000),
    "moves_per_round": (0, 1000),
    "moves_per_hour": (0, 100_000),
    "moves_per_hour_always": (0, 1000),
    "fewest_replicas": (0, 1000),
    "rescues_per_round": (0, 1000),
    "moves_per_rescue": (0, 10),
    "trials_per_round": (0, 10_000),
}
"""What an operator may write, lowest and highest: beyond it a limit is none, or the loop stands still."""


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
    fresh_seconds: float = 3600.0
    """A node is not given back sooner than this after it became usable, or buying it was for nothing."""
    low_load_ratio: float = 0.5
    """A node is superfluous only while its load is at most this."""
    nodes_per_round: int = 10
    """Most nodes that begin to drain in one turn."""
    candidates_per_round: int = 30
    """Most nodes whose pods are tried elsewhere in one turn."""
    guests_per_round: int = 20
    """Most kinds of pods that came lately for which a drain must leave room, were they to come again."""
    buys_per_round: int = 1000
    """Most nodes bought in one turn."""
    moves_per_round: int = 10
    """Most pods evicted in one turn."""
    moves_per_hour: int = 1000
    """Most pods evicted in any hour, however large the fleet."""
    moves_per_hour_ratio: float = 0.02
    """Most pods evicted in any hour, as a part of the pods that run."""
    moves_per_hour_always: int = 10
    """So many may be evicted in any hour in a fleet whose part would be fewer."""
    min_pod_age_seconds: float = 600.0
    """A younger pod is left alone, and with it its node."""
    immune_seconds: float = 3600.0
    """A pod that was moved is left alone for this long."""
    fewest_replicas: int = 2
    """A pod whose owner has fewer running is left alone: nobody would serve while it moves."""
    worth: float = 2.0
    """A move is approved if its part of all cost saved is at least one in so many of its part of all disruption."""
    restart_seconds: float = 30.0
    """What a pod without card memory is away when it moves."""
    reload_bytes_per_second: float = 0.5 * GIB
    """How fast a moved pod fills its card memory again."""
    move_seconds: float = 300.0
    """The home of a single move that nobody came to is given up after this."""
    rescues_per_round: int = 10
    """Room by moving others is sought until so many kinds of waiting pods have found none in one turn."""
    moves_per_rescue: int = 2
    """Most pods moved for one that waits."""
    fragments_high_ratio: float = 0.25
    """Defragmenting begins when this part of the idle cards is of no use to the pods that come."""
    fragments_low_ratio: float = 0.15
    """And goes on until it is this part."""
    trials_per_round: int = 40
    """Most single moves that are tried for defragmenting in one turn."""
    hot_ratio: float = 0.9
    """A card is hot while more of its compute than this is in use."""
    quiet_ratio: float = 0.6
    """A pod moves off a hot card only to one that stays at or below this with it."""
    hot_seconds: float = 600.0
    """A card must have been hot for this long."""
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
        wrong += [f"{name} is a ratio, at most 1" for name in _RATIOS if not getattr(self, name) <= 1]
        if not self.fragments_low_ratio <= self.fragments_high_ratio:
            wrong.append("fragments_low_ratio must be at most fragments_high_ratio")
        if not self.quiet_ratio <= self.hot_ratio:
            wrong.append("quiet_ratio must be at most hot_ratio")
        if not self.reload_bytes_per_second > 0:
            wrong.append("reload_bytes_per_second must be more than 0")
        if wrong:
            raise LimitsError("limits must not be negative, nor contradict each other: " + "; ".join(wrong))

    def scaled(self, factor: float) -> Limits:
        """The same limits in another tempo: every time but the period times `factor`, for demonstrations."""
        return replace(self, **{name: getattr(self, name) * factor for name in sorted(_TIMES - {"period_seconds"})})
