# SPDX-License-Identifier: Apache-2.0
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
        "scan_interval_seconds",
        "action_validation_delay_seconds",
        "scale_down_unneeded_seconds",
        "scale_down_delay_after_add_seconds",
        "min_node_age_seconds",
        "min_pod_age_seconds",
        "move_cooldown_seconds",
        "max_node_provision_seconds",
        "max_device_registration_seconds",
        "drain_timeout_seconds",
        "node_delete_delay_after_taint_seconds",
        "initial_pool_backoff_seconds",
        "max_pool_backoff_seconds",
        "pod_restart_seconds",
        "move_timeout_seconds",
        "hot_card_seconds",
        "right_size_trial_seconds",
    }
)
_RATIOS: Final = (
    "scale_down_utilization_threshold",
    "max_moves_per_hour_ratio",
    "defragment_start_ratio",
    "defragment_stop_ratio",
    "hot_card_threshold_ratio",
    "hot_card_target_ratio",
)
_DAY: Final = 86_400.0
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(_TIMES, (0.0, 30 * _DAY)),
    **dict.fromkeys(
        (
            "max_node_provision_seconds",
            "max_device_registration_seconds",
            "drain_timeout_seconds",
            "move_timeout_seconds",
        ),
        (1.0, _DAY),
    ),
    **dict.fromkeys(("initial_pool_backoff_seconds", "max_pool_backoff_seconds"), (1.0, _DAY)),
    **dict.fromkeys(_RATIOS, (0.0, 1.0)),
    "scan_interval_seconds": (0.1, 3600.0),
    "action_validation_delay_seconds": (0.0, 600.0),
    "pod_restart_seconds": (0.0, _DAY),
    "memory_reload_bytes_per_second": (float(MIB), 1024.0 * GIB),
    "disruption_cost_ratio": (0.0, 1000.0),
    "max_scale_down_parallelism": (0, 1000),
    "scale_down_non_empty_candidates_count": (0, 1000),
    "scale_down_headroom_pod_shapes": (0, 1000),
    "max_nodes_per_scaleup": (0, 10_000),
    "max_nodes_total": (0, 1_000_000),
    "max_cost_per_hour": (0.0, 1e12),
    "max_node_removals_per_hour": (0, 100_000),
    "max_moves_per_cycle": (0, 1000),
    "max_moves_per_hour": (0, 100_000),
    "min_moves_per_hour": (0, 1000),
    "min_replicas": (0, 1000),
    "make_room_max_failed_pod_shapes_per_cycle": (0, 1000),
    "make_room_max_moves_per_pod": (0, 10),
    "defragment_max_trials_per_cycle": (0, 10_000),
    "max_resizes_per_hour": (0, 100_000),
    "max_resizes_per_owner_per_hour": (0, 1000),
    "min_resize_bytes": (float(MIB), 1024.0 * GIB),
}
"""What an operator may write, lowest and highest: beyond it a limit is none, or the loop stands still."""


class LimitsError(ValueError):
    """Limits that contradict themselves; the message names every one of them."""


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """Bounds of one autoscaler; the defaults are cluster-autoscaler's where it has the same bound."""

    scan_interval_seconds: float = 10.0
    """Interval between two reconcile cycles (cluster-autoscaler: --scan-interval)."""
    action_validation_delay_seconds: float = 5.0
    """Pause between deciding and acting. A step that is no longer valid after it is dropped."""
    scale_down_unneeded_seconds: float = 600.0
    """How long a node must be unneeded before it is drained (cluster-autoscaler: --scale-down-unneeded-time)."""
    scale_down_delay_after_add_seconds: float = 600.0
    """No scale-down for this long after a scale-up (cluster-autoscaler: --scale-down-delay-after-add)."""
    min_node_age_seconds: float = 3600.0
    """Minimum lifetime of a node: no scale-down of a node that became usable less than this long ago."""
    scale_down_utilization_threshold: float = 0.5
    """A node is unneeded only while its utilization is at most this (--scale-down-utilization-threshold)."""
    max_scale_down_parallelism: int = 10
    """Maximum number of nodes that start draining in one cycle (cluster-autoscaler: --max-scale-down-parallelism)."""
    scale_down_non_empty_candidates_count: int = 30
    """Maximum number of nodes simulated for scale-down in one cycle (--scale-down-non-empty-candidates-count)."""
    scale_down_headroom_pod_shapes: int = 20
    """Maximum number of recent pod shapes for which a scale-down must leave room, in case such pods arrive again."""
    max_nodes_per_scaleup: int = 1000
    """Maximum number of nodes added in one cycle (cluster-autoscaler: --max-nodes-per-scaleup)."""
    max_nodes_total: int = 0
    """Maximum number of nodes in all pools together; 0: no limit (cluster-autoscaler: --max-nodes-total)."""
    max_cost_per_hour: float = 0.0
    """Maximum sum of the prices of all nodes of the pools, per hour; 0: no limit."""
    max_node_removals_per_hour: int = 100
    """Maximum number of nodes removed in any hour, failed ones included; 0: no limit."""
    max_moves_per_cycle: int = 10
    """Maximum number of pods evicted in one cycle."""
    max_moves_per_hour: int = 1000
    """Maximum number of pods evicted in any hour, whatever the size of the cluster."""
    max_moves_per_hour_ratio: float = 0.02
    """Maximum number of pods evicted in any hour, as a ratio of all running pods."""
    min_moves_per_hour: int = 10
    """Evictions per hour that are always allowed, even where max_moves_per_hour_ratio gives fewer (small clusters)."""
    min_pod_age_seconds: float = 600.0
    """A pod younger than this is not evicted, and its node is not drained."""
    move_cooldown_seconds: float = 3600.0
    """A pod that was moved is not moved again for this long (cooldown)."""
    min_replicas: int = 2
    """A pod is not evicted if its owner has fewer running replicas than this (descheduler: minReplicas)."""
    disruption_cost_ratio: float = 2.0
    """A move is approved if saving ratio x this >= disruption ratio (ratios of total cost and of total disruption)."""
    pod_restart_seconds: float = 30.0
    """Estimated downtime of a moved pod that uses no card memory."""
    memory_reload_bytes_per_second: float = 0.5 * GIB
    """Estimated rate at which a moved pod reloads its card memory."""
    move_timeout_seconds: float = 300.0
    """A reservation for a single move expires after this if no pod used it."""
    make_room_max_failed_pod_shapes_per_cycle: int = 10
    """Stop looking for make-room moves after this many pod shapes failed in one cycle."""
    make_room_max_moves_per_pod: int = 2
    """Maximum number of pods moved to make room for one pending pod."""
    defragment_start_ratio: float = 0.25
    """Defragmentation starts when more than this ratio of the idle cards is stranded (no pod of the mix can use it)."""
    defragment_stop_ratio: float = 0.15
    """Defragmentation stops when the stranded ratio of the idle cards is at most this."""
    defragment_max_trials_per_cycle: int = 40
    """Maximum number of moves simulated for defragmentation in one cycle."""
    hot_card_threshold_ratio: float = 0.9
    """A card is hot while more than this ratio of its compute is in use."""
    hot_card_target_ratio: float = 0.6
    """A pod leaves a hot card only for cards whose utilization, with the pod, is at most this."""
    hot_card_seconds: float = 600.0
    """How long a card must be hot before a pod is moved off it."""
    max_resizes_per_hour: int = 0
    """Maximum number of running pods made smaller in any hour, of those that allow it; 0: none, they are only shown."""
    max_resizes_per_owner_per_hour: int = 1
    """Maximum number of these that are of one workload."""
    min_resize_bytes: int = GIB
    """A running pod is not made smaller if that frees less memory of each of its cards."""
    right_size_trial_seconds: float = _DAY
    """How long the memory that a pod gave up stays reserved for it. A denied request gives it back."""
    max_node_provision_seconds: float = 900.0
    """A requested node that has not registered by then has failed (cluster-autoscaler: --max-node-provision-time)."""
    max_device_registration_seconds: float = 300.0
    """A registered node whose cards have not appeared by then has failed."""
    drain_timeout_seconds: float = 900.0
    """A drain that has not finished by then is cancelled, and the node takes pods again."""
    node_delete_delay_after_taint_seconds: float = 300.0
    """Minimum time from tainting a node to removing it (cluster-autoscaler: --node-delete-delay-after-taint)."""
    initial_pool_backoff_seconds: float = 300.0
    """Backoff of a pool after a failed scale-up, doubled after each failure (--initial-node-group-backoff-duration)."""
    max_pool_backoff_seconds: float = 1800.0
    """Maximum backoff of a pool (cluster-autoscaler: --max-node-group-backoff-duration)."""

    def __post_init__(self) -> None:
        wrong = [f"{f.name} is {getattr(self, f.name)}" for f in fields(self) if not getattr(self, f.name) >= 0]
        if not self.scan_interval_seconds > 0:
            wrong.append("scan_interval_seconds must be more than 0")
        wrong += [f"{name} is a ratio and must be at most 1" for name in _RATIOS if not getattr(self, name) <= 1]
        if not self.defragment_stop_ratio <= self.defragment_start_ratio:
            wrong.append("defragment_stop_ratio must be at most defragment_start_ratio")
        if not self.hot_card_target_ratio <= self.hot_card_threshold_ratio:
            wrong.append("hot_card_target_ratio must be at most hot_card_threshold_ratio")
        if not self.memory_reload_bytes_per_second > 0:
            wrong.append("memory_reload_bytes_per_second must be more than 0")
        if wrong:
            raise LimitsError("limits are negative or contradict each other: " + "; ".join(wrong))

    def scaled(self, factor: float) -> ScalingLimits:
        """The same limits in another tempo: every time but the period times `factor`, for demonstrations."""
        return replace(
            self, **{name: getattr(self, name) * factor for name in sorted(_TIMES - {"scan_interval_seconds"})}
        )
