"""
The catalogue of what the scheduler exposes about itself, in the manner of `metrics`.

A chapter of its own, since no exporter of card figures serves it: docs/scheduler.md is checked against it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "outcome": "What became of it: of filter fit, no_fit, refused (the request makes no sense), closed (this "
        "replica does not lead or has not read the cluster yet), broken (the caller's request cannot be read), failed "
        "(a defect: see the log); of bind bound, refused, unknown, closed, broken, failed; of an eviction done, gone, "
        "refused, blocked.",
        "reason": "Why a reservation was made: preemption, or the word of whoever made it.",
        "verb": "Question: filter, prioritize, bind, preempt, admission.",
        "watch": "Kind that is watched: nodes, pods, reservations, namespaces.",
    }
)


def _scheduler(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}scheduler_{name}", kind, labels, unit, text, Group.SCHEDULER)


REQUESTS: Final = _scheduler(
    "requests_total", Unit.NONE, "Questions answered, by outcome.", "verb", "outcome", kind=Kind.COUNTER
)
DURATION: Final = _scheduler(
    "request_duration_seconds",
    Unit.SECONDS,
    "How long answering took; of bind with the write to the API server.",
    "verb",
    kind=Kind.HISTOGRAM,
)
LEADS: Final = _scheduler("leader", Unit.NONE, "Whether this replica may bind now: 1 yes, 0 no.")
SYNCED: Final = _scheduler("synced", Unit.NONE, "Whether the cluster has been read as a whole: 1 yes, 0 no.")
VIEW_AGE: Final = _scheduler(
    "view_age_seconds",
    Unit.SECONDS,
    "Time since the API server last said anything on a watch; a healthy one is below 90.",
    "watch",
)
NODES: Final = _scheduler("nodes", Unit.NONE, "Nodes with cards that can be shared.")
PODS: Final = _scheduler("pods", Unit.NONE, "Pods that hold shares.")
ASSUMED: Final = _scheduler(
    "assumptions", Unit.NONE, "Pods for which room is taken and whose binding has not been seen yet."
)
WAITING: Final = _scheduler("waiting_pods", Unit.NONE, "Pods that were refused and not bound since.")
RESERVED: Final = _scheduler("reservations", Unit.NONE, "Reservations that keep room, by reason.", "reason")
OVERCOMMITTED: Final = _scheduler(
    "overcommitted_cards",
    Unit.NONE,
    "Cards of which more is promised than they offer; above 0 means a defect or a "
    "foreign hand, and the card takes nobody more.",
)
UNREADABLE: Final = _scheduler(
    "unreadable_objects", Unit.NONE, "Nodes and pods that could not be read and keep their last readable value."
)
WOKEN: Final = _scheduler(
    "woken_pods_total",
    Unit.NONE,
    "Waiting pods that were told of room, because kube-scheduler had tried them too early.",
    kind=Kind.COUNTER,
)
RELIEFS: Final = _scheduler(
    "reliefs_total",
    Unit.NONE,
    "Pre-emptions for pods that fit by sum and by no card: done, blocked (a budget said no), unreserved.",
    "outcome",
    kind=Kind.COUNTER,
)
EVICTIONS: Final = _scheduler(
    "evictions_total", Unit.NONE, "Evictions asked for, by outcome.", "outcome", kind=Kind.COUNTER
)
CERTIFICATE: Final = _scheduler(
    "certificate_loaded_timestamp_seconds", Unit.SECONDS, "When the certificate in use was read, since the epoch."
)
CERTIFICATE_ENDS: Final = _scheduler(
    "certificate_expiry_timestamp_seconds",
    Unit.SECONDS,
    "Until when the certificate in use is valid, since the epoch; of a chain the first to end. Absent if unreadable.",
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
