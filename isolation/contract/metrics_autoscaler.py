"""
The catalogue of what the autoscaler exposes about itself and its pools, in the manner of `metrics`.

A chapter of its own: docs/autoscaler.md is checked against it. What the embedded cluster shows too (sizes of
pools by state, their bounds, waiting pods by reason, phantoms, events) is in `metrics` and served beside these.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "answer": "What a waiting pod was told: fits (there is room, the scheduler comes to it), coming (it has a "
        "place on a machine that was bought), kept (a drain was called off for it), capped (a pool could host it and "
        "may not grow now), hopeless (no pool could ever host it), unmodelled (it has constraints that are not "
        "understood).",
        "code": "Name of the gRPC status.",
        "door": "Which port shows the certificate: metrics_api, grpc.",
        "method": "Method of cluster-autoscaler's provider, of its expander, or of KEDA's scaler.",
        "namespace": "Namespace of the waiting pods.",
        "outcome": "Of a turn: done (something was done), idle (there was nothing to do), withheld (a doubt kept at "
        "least one step from being decided or done), standby (another replica acts), dry_run, failed (see the log). Of "
        "a step: done, refused (the cluster or the provider would not), withheld (a doubt or the switch), failed, "
        "dry_run. Of a write of the state: done, conflict (somebody else wrote it), failed.",
        "pool": "Node pool; of waiting pods the cheapest that could host them, empty: none could.",
        "provider": "Kind of the pool's provider, as configured: scale, aws, ack, externalgrpc.",
        "reason": "Kind of doubt: why nothing, or not everything, may be done now.",
        "source": "Where measured figures come from: exporter (each node's own), prometheus.",
        "stage": "Part of a turn: observe, decide, act.",
        "state": "How a node's figures are: fresh, stale (older than three scrapes), silent (none yet).",
        "step": "What was done: buy, keep, drain, evict (off a draining node), rescue, defragment, relieve (single "
        "moves), delete, discard.",
        "watch": "Kind that is watched: nodes, pods, reservations, budgets.",
    }
)


def _autoscaler(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}autoscaler_{name}", kind, labels, unit, text, Group.POOL)


def _pool(name: str, unit: Unit, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}{name}", Kind.GAUGE, labels, unit, text, Group.POOL)


LEADS: Final = _autoscaler("leader", Unit.NONE, "Whether this replica may act now: 1 yes, 0 no.")
ENABLED: Final = _autoscaler("enabled", Unit.NONE, "Whether the switch lets it act: 1 yes, 0 no (off, or unreadable).")
DRY_RUN: Final = _autoscaler("dry_run", Unit.NONE, "Whether it only says what it would do: 1 yes, 0 no.")
SYNCED: Final = _autoscaler("synced", Unit.NONE, "Whether the cluster has been read as a whole: 1 yes, 0 no.")
VIEW_AGE: Final = _autoscaler(
    "view_age_seconds",
    Unit.SECONDS,
    "Time since the API server last said anything on a watch; a healthy one is below 90.",
    "watch",
)
TURNS: Final = _autoscaler("turns_total", Unit.NONE, "Turns of the loop, by outcome.", "outcome", kind=Kind.COUNTER)
DURATION: Final = _autoscaler(
    "turn_duration_seconds",
    Unit.SECONDS,
    "How long a part of a turn took; the pause between deciding and acting is in none of them.",
    "stage",
    kind=Kind.HISTOGRAM,
)
LAST_TURN: Final = _autoscaler(
    "last_turn_timestamp_seconds", Unit.SECONDS, "When the last whole turn ended, since the epoch."
)
STEPS: Final = _autoscaler(
    "steps_total", Unit.NONE, "Steps by what became of them.", "step", "outcome", kind=Kind.COUNTER
)
DOUBTS: Final = _autoscaler(
    "doubts", Unit.NONE, "Doubts of each kind now; above 0 something is withheld, the log says what.", "reason"
)
FIGURES_AGE: Final = _autoscaler(
    "figures_age_seconds", Unit.SECONDS, "Age of the oldest measured figures that are still used.", "source"
)
FIGURES_NODES: Final = _autoscaler("figures_nodes", Unit.NONE, "Nodes with cards by how their figures are.", "state")
PROVIDER_UP: Final = _autoscaler(
    "provider_up",
    Unit.NONE,
    "Whether the pool's provider answered when last asked: 1 yes, 0 no (the pool is left alone).",
    "pool",
    "provider",
)
ANSWERS: Final = _autoscaler("pending_answers", Unit.NONE, "Waiting pods by what they were told.", "answer")
RESERVED: Final = _autoscaler("reservations", Unit.NONE, "Homes that are kept free for pods on the move.")
MOVES_HOUR: Final = _autoscaler("moves_last_hour", Unit.NONE, "Pods evicted within the last hour.")
MOVES_LEFT: Final = _autoscaler("moves_left", Unit.NONE, "Pods that may still be evicted within this hour.")
FRAGMENTS: Final = _autoscaler(
    "fragments_ratio", Unit.RATIO, "Part of the idle cards that is of no use to the pods that come."
)
DEFRAGMENTING: Final = _autoscaler(
    "defragmenting", Unit.NONE, "Whether the high mark of fragments was passed and the low one not reached: 1 yes."
)
HOT: Final = _autoscaler("hot_cards", Unit.NONE, "Cards whose compute is in use above the hot mark.")
CARDS_BOUGHT: Final = _autoscaler(
    "bought_cards_total", Unit.NONE, "Cards of nodes that were bought.", "pool", kind=Kind.COUNTER
)
CARDS_RETURNED: Final = _autoscaler(
    "returned_cards_total", Unit.NONE, "Cards of nodes that were emptied and given back.", "pool", kind=Kind.COUNTER
)
FLAPS: Final = _autoscaler(
    "flaps_total",
    Unit.NONE,
    "Done and undone within an hour (as fresh_seconds says): a fresh node emptied, a drain called off, a pod moved "
    "again; a defect.",
    "pool",
    kind=Kind.COUNTER,
)
STATE_WRITES: Final = _autoscaler(
    "state_writes_total", Unit.NONE, "Writes of what is remembered, by outcome.", "outcome", kind=Kind.COUNTER
)
CONFIG_LOADED: Final = _autoscaler(
    "config_loaded_timestamp_seconds", Unit.SECONDS, "When the configuration in force was read, since the epoch."
)
CONFIG_REFUSED: Final = _autoscaler(
    "config_refused", Unit.NONE, "Whether the file says something that cannot be used: 1 yes, and the old one stays."
)
CALLS: Final = _autoscaler(
    "rpc_calls_total", Unit.NONE, "Questions on the gRPC ports, by answer.", "method", "code", kind=Kind.COUNTER
)
CALL_DURATION: Final = _autoscaler(
    "rpc_duration_seconds", Unit.SECONDS, "How long answering on a gRPC port took.", "method", kind=Kind.HISTOGRAM
)
CERTIFICATE_ENDS: Final = _autoscaler(
    "certificate_expiry_timestamp_seconds",
    Unit.SECONDS,
    "Until when the certificate in use is valid, since the epoch; of a chain the first to end. Absent if unreadable.",
    "door",
)
POOL_TARGET: Final = _pool("pool_target_nodes", Unit.NONE, "Machines asked of the pool's provider, by anybody.", "pool")
POOL_REST: Final = _pool(
    "pool_backoff_seconds",
    Unit.SECONDS,
    "How long the pool is not asked for nodes yet because it could not deliver; 0: it is asked.",
    "pool",
)
POOL_PRICE: Final = _pool("pool_node_price", Unit.NONE, "Price of one node, as configured.", "pool")
POOL_KNOWN: Final = _pool(
    "pool_profile_known", Unit.NONE, "Whether it is known what a fresh node is like: 1 yes, 0 no (cannot grow).", "pool"
)
POOL_FREE: Final = _pool(
    "pool_largest_free_bytes", Unit.BYTES, "The largest promise of memory that still fits on one card.", "pool"
)
POOL_IDLE: Final = _pool("pool_idle_cards", Unit.NONE, "Idle compute of the pool's usable nodes, in cards.", "pool")
POOL_LOST: Final = _pool(
    "pool_lost_cards", Unit.NONE, "What of the idle cards is of no use to the pods that come.", "pool"
)
PENDING_BYTES: Final = _pool(
    "pending_bytes", Unit.BYTES, "Memory of shared cards that pods wait for.", "namespace", "pool"
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
