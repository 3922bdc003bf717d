# SPDX-License-Identifier: Apache-2.0
"""
The catalogue of what the autoscaler exposes about itself and its pools, in the manner of `metrics`.

A chapter of its own: docs/metrics.md is printed from it. What the embedded cluster shows too (sizes of
pools by state, their bounds, waiting pods by reason, fragmented, events) is in `metrics` and served beside these.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "status": "Decision for a pending pod: fits (a node has room and the scheduler has not placed the pod yet), "
        "nominated (it fits on a node that is being provisioned), drain_cancelled (a drain was cancelled for it), "
        "pool_limited (a pool could host it but cannot grow now), unsatisfiable (no pool can ever host it), "
        "unsupported (the autoscaler does not support one of its scheduling constraints).",
        "code": "gRPC status code of the response, by name.",
        "listener": "Endpoint that serves the certificate: metrics_api, grpc.",
        "method": "gRPC method: of cluster-autoscaler's cloud provider or expander, or of KEDA's external scaler.",
        "namespace": "Namespace of the pods.",
        "owner": "Workload, as Kind/name.",
        "container": "Container of the workload's pods.",
        "model": "Card model.",
        "outcome": "Of a reconcile cycle: done (at least one action was taken), idle (nothing to do), inhibited "
        "(a condition inhibited at least one action), standby (another replica is the leader), dry_run, failed (see "
        "the log). Of an action: done, refused (by the API server or the provider), inhibited (by a condition or by "
        "the switch), failed, dry_run. Of a state write: done, conflict (another client wrote it), failed.",
        "pool": "Node pool. For pending pods: the cheapest pool that could host them; empty if no pool can.",
        "provider": "Provider type of the pool, as configured: scale, aws, ack, externalgrpc.",
        "task": "Background task: watch-nodes, watch-pods, watch-reservations, watch-budgets, election, switch, grpc, "
        "metrics-api, handover (annotations for cluster-autoscaler), right-sizing, reconcile.",
        "reason": "Condition that inhibits some or all actions. Of programs without a recommendation: fills_promise "
        "(it takes whatever it gets), few_lives (too little is known), torn_history (too much was not measured), "
        "recently_denied (it was denied memory in the last days).",
        "source": "Source of the measurements: exporter (one per node), prometheus.",
        "stage": "Stage of a reconcile cycle: observe, decide, act.",
        "state": "Measurements of a node: fresh, stale (older than three scrape intervals), missing (none received).",
        "action": "Type of action: scale_up, cancel_scale_up (an order that cluster-autoscaler has not carried out), "
        "cancel_drain, drain, evict (from a draining node), make_room, defragment, mitigate_hot_card (single moves), "
        "shrink, restore (in place, or by a move), release (right-sizing of running pods), "
        "remove_node (scale-down), remove_failed_node (give up a node that was not provisioned).",
        "resource": "Watched resource: nodes, pods, reservations, budgets (PodDisruptionBudgets).",
    }
)


def _autoscaler(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}autoscaler_{name}", kind, labels, unit, text, Group.POOL)


def _pool(name: str, unit: Unit, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}{name}", Kind.GAUGE, labels, unit, text, Group.POOL)


TASK_FAILURES: Final = _autoscaler(
    "task_failures_total", Unit.NONE, "Failures of background tasks of the process.", "task", kind=Kind.COUNTER
)
TASK_HEALTHY: Final = _autoscaler(
    "task_healthy",
    Unit.NONE,
    "Whether the background task works: 1 yes, 0 no (it has failed, or completed no cycle, for too long; /healthz "
    "names it).",
    "task",
)
LEADER: Final = _autoscaler("leader", Unit.NONE, "Whether this replica is the leader: 1 yes, 0 no.")
ENABLED: Final = _autoscaler("enabled", Unit.NONE, "Whether the switch is on: 1 yes, 0 no (off or unreadable).")
DRY_RUN: Final = _autoscaler(
    "dry_run", Unit.NONE, "Whether dry run is on (actions are logged, not taken): 1 yes, 0 no."
)
SYNCED: Final = _autoscaler(
    "synced", Unit.NONE, "Whether the initial lists of all watched resources are complete: 1 yes, 0 no."
)
WATCH_STALENESS: Final = _autoscaler(
    "watch_staleness_seconds",
    Unit.SECONDS,
    "Seconds since the last message from the API server on a watch; below 90 on a healthy watch.",
    "resource",
)
CYCLES: Final = _autoscaler("cycles_total", Unit.NONE, "Reconcile cycles by outcome.", "outcome", kind=Kind.COUNTER)
CYCLE_DURATION: Final = _autoscaler(
    "cycle_duration_seconds",
    Unit.SECONDS,
    "Duration of each stage of a reconcile cycle; the pause between deciding and acting is not counted.",
    "stage",
    kind=Kind.HISTOGRAM,
)
LAST_CYCLE: Final = _autoscaler(
    "last_cycle_timestamp_seconds", Unit.SECONDS, "Unix time at which the last complete reconcile cycle ended."
)
ACTIONS: Final = _autoscaler(
    "actions_total", Unit.NONE, "Steps by type and outcome.", "action", "outcome", kind=Kind.COUNTER
)
INHIBITED: Final = _autoscaler(
    "inhibited", Unit.NONE, "Conditions that inhibit actions now, by reason; the log names each.", "reason"
)
METRICS_AGE: Final = _autoscaler(
    "metrics_age_seconds", Unit.SECONDS, "Age of the oldest measurement that is still in use.", "source"
)
METRICS_NODES: Final = _autoscaler(
    "metrics_nodes", Unit.NONE, "Nodes with cards by the state of their measurements.", "state"
)
PROVIDER_UP: Final = _autoscaler(
    "provider_up",
    Unit.NONE,
    "Whether the last request to the pool's provider succeeded: 1 yes, 0 no (the pool is not scaled).",
    "pool",
    "provider",
)
PENDING_PODS: Final = _autoscaler(
    "pending_pods", Unit.NONE, "Pending pods by the autoscaler's decision for them.", "status"
)
HANDOVER_PENDING_PODS: Final = _autoscaler(
    "handover_pending_pods",
    Unit.NONE,
    "Pods whose annotations for cluster-autoscaler have yet to follow scale_up, scale_down or the switch.",
)
RESERVATIONS: Final = _autoscaler("reservations", Unit.NONE, "Reservations for pods that are being moved.")
MOVES_LAST_HOUR: Final = _autoscaler("moves_last_hour", Unit.NONE, "Pods evicted in the last hour.")
MOVE_BUDGET_REMAINING: Final = _autoscaler("move_budget_remaining", Unit.NONE, "Evictions left in the current hour.")
FRAGMENTATION: Final = _autoscaler(
    "fragmentation_ratio", Unit.RATIO, "Ratio of the idle cards that is stranded: no pod of the current mix can use it."
)
DEFRAGMENTING: Final = _autoscaler("defragmenting", Unit.NONE, "Whether defragmentation is active: 1 yes, 0 no.")
HOT_CARDS: Final = _autoscaler(
    "hot_cards", Unit.NONE, "Cards whose compute utilization is above limits.hot_card_threshold_ratio."
)
SCALED_UP_CARDS: Final = _autoscaler(
    "scaled_up_cards_total", Unit.NONE, "Cards of nodes added by scale-ups.", "pool", kind=Kind.COUNTER
)
SCALED_DOWN_CARDS: Final = _autoscaler(
    "scaled_down_cards_total", Unit.NONE, "Cards of nodes removed by scale-downs.", "pool", kind=Kind.COUNTER
)
FLAPS: Final = _autoscaler(
    "flaps_total",
    Unit.NONE,
    "Actions undone within limits.min_node_age_seconds (default 1 h): a new node drained, a drain cancelled, a pod "
    "moved again. An increase is a defect.",
    "pool",
    kind=Kind.COUNTER,
)
STATE_WRITES: Final = _autoscaler(
    "state_writes_total", Unit.NONE, "Writes of the saved state by outcome.", "outcome", kind=Kind.COUNTER
)
CONFIG_RELOAD_TIMESTAMP: Final = _autoscaler(
    "config_last_reload_success_timestamp_seconds",
    Unit.SECONDS,
    "Unix time at which the active configuration was loaded.",
)
CONFIG_RELOAD_SUCCESSFUL: Final = _autoscaler(
    "config_last_reload_successful",
    Unit.NONE,
    "Whether the configuration file was valid when last read: 1 yes, 0 no (the previous one stays active; after a "
    "restart there is none).",
)
GRPC_REQUESTS: Final = _autoscaler(
    "grpc_requests_total", Unit.NONE, "gRPC requests by method and status code.", "method", "code", kind=Kind.COUNTER
)
GRPC_REQUEST_DURATION: Final = _autoscaler(
    "grpc_request_duration_seconds", Unit.SECONDS, "Duration of gRPC requests by method.", "method", kind=Kind.HISTOGRAM
)
CERTIFICATE_EXPIRY: Final = _autoscaler(
    "certificate_expiry_timestamp_seconds",
    Unit.SECONDS,
    "Unix time at which the serving certificate expires (the earliest of its chain). Absent if it cannot be read.",
    "listener",
)
POOL_TARGET_NODES: Final = _pool(
    "pool_target_nodes", Unit.NONE, "Target size of the pool at its provider, set by any client.", "pool"
)
POOL_BACKOFF: Final = _pool(
    "pool_backoff_seconds",
    Unit.SECONDS,
    "Seconds until the pool may scale up again after failed scale-ups; 0 if it is not in backoff.",
    "pool",
)
POOL_NODE_PRICE: Final = _pool("pool_node_price", Unit.NONE, "Price of one node of the pool, as configured.", "pool")
POOL_NODE_TEMPLATE_KNOWN: Final = _pool(
    "pool_node_template_known",
    Unit.NONE,
    "Whether the node template of the pool is known: 1 yes, 0 no (the pool cannot scale up).",
    "pool",
)
POOL_LARGEST_FREE: Final = _pool(
    "pool_largest_free_bytes", Unit.BYTES, "Largest memory request that still fits on one card of the pool.", "pool"
)
POOL_IDLE_CARDS: Final = _pool(
    "pool_idle_cards", Unit.NONE, "Idle compute of the pool's ready nodes, in cards.", "pool"
)
POOL_STRANDED_CARDS: Final = _pool(
    "pool_stranded_cards",
    Unit.NONE,
    "Stranded part of the idle cards, in cards: no pod of the current mix can use it.",
    "pool",
)
PENDING_MEMORY: Final = _pool(
    "pending_memory_bytes", Unit.BYTES, "Memory of shared cards requested by pending pods.", "namespace", "pool"
)

_PROGRAM: Final = ("namespace", "owner", "container", "model")
RECOMMENDED_MEMORY: Final = _pool(
    "recommended_memory_bytes",
    Unit.BYTES,
    "Memory of one card that a container of the workload should be promised. Absent without a recommendation.",
    *_PROGRAM,
)
RECOMMENDED_COMPUTE: Final = _pool(
    "recommended_compute_ratio",
    Unit.RATIO,
    "Compute of one card that a container of the workload should be promised: the 95th percentile of its own use "
    "while it had work, and 15 %. Absent where it is not known.",
    *_PROGRAM,
)
RECOMMENDED_FREED: Final = _pool(
    "recommended_freed_bytes",
    Unit.BYTES,
    "Promised memory that would come back if all running containers of the workload had the recommended memory.",
    *_PROGRAM,
)
RECOMMENDED_ABSTAINED: Final = _pool(
    "recommended_abstained_programs",
    Unit.NONE,
    "Running programs (workload, container, card model) without a recommendation, by reason.",
    "reason",
)

RIGHT_SIZING_TRIALS: Final = _pool(
    "right_sizing_trials",
    Unit.NONE,
    "Containers that were made smaller, and for which what they gave up is still reserved.",
)
RIGHT_SIZING_RESERVED: Final = _pool(
    "right_sizing_reserved_bytes", Unit.BYTES, "Memory that is reserved for them beyond what they are promised."
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
