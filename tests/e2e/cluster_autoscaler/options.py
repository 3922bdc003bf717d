# SPDX-License-Identifier: Apache-2.0
"""Flags of cluster-autoscaler 1.36 that change what it does here, with its defaults (config/flags/flags.go)."""

from __future__ import annotations

from dataclasses import dataclass, field

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Times are seconds of the autoscaler's own clock."""

    scan_interval: float = 10.0
    allowed_scheduler_names: frozenset[str] = field(default_factory=frozenset)
    enforce_node_group_min_size: bool = False
    scale_down_enabled: bool = True
    scale_down_utilization_threshold: float = 0.5
    scale_down_unneeded_time: float = 10 * MINUTE
    scale_down_unready_time: float = 20 * MINUTE
    scale_down_delay_after_add: float = 10 * MINUTE
    scale_down_delay_after_failure: float = 3 * MINUTE
    max_scale_down_parallelism: int = 10
    max_drain_parallelism: int = 1
    scale_down_non_empty_candidates_count: int = 30
    unremovable_node_recheck_timeout: float = 5 * MINUTE
    max_node_provision_time: float = 15 * MINUTE
    max_nodes_per_scaleup: int = 1000
    initial_node_group_backoff_duration: float = 5 * MINUTE
    max_node_group_backoff_duration: float = 30 * MINUTE
    node_group_backoff_reset_timeout: float = 180 * MINUTE
    new_pod_scale_up_delay: float = 0.0
    max_pod_eviction_time: float = 2 * MINUTE
    max_graceful_termination: float = 10 * MINUTE
    skip_nodes_with_local_storage: bool = True
    skip_nodes_with_system_pods: bool = True
    skip_nodes_with_custom_controller_pods: bool = True
    ok_total_unready_count: int = 3
    max_total_unready_percentage: float = 45.0
