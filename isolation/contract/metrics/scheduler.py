# SPDX-License-Identifier: Apache-2.0
"""
The catalogue of what the scheduler exposes about itself, in the manner of `metrics`.

A chapter of its own, since no exporter of card figures serves it: docs/metrics.md is printed from it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "outcome": "Result. filter: fit, no_fit, refused (the pod's request is invalid), not_ready (this replica is "
        "not the leader or has not synced its caches yet), bad_request (the request cannot be "
        "decoded), failed (internal error: see the log). bind: bound, refused, unknown, not_ready, bad_request, "
        "failed. admission: done, too_large, bad_request. Evictions: done, gone, refused, blocked.",
        "task": "Background task: watch-nodes, watch-pods, watch-reservations, watch-namespaces, watch-pools, "
        "watch-provisioning-requests, gangs (answers ProvisioningRequests), election, "
        "leadership (starts and stops what only the leader does), kube-scheduler-lease, preemption (also "
        "requeues pods and deletes reservations), leader-label (of this pod), certificates (of the extender), "
        "admission-process (starts and watches it), listener-extender, listener-extender-tls, listener-metrics "
        "(accept connections).",
        "reason": "Of reservations: preemption, gang, or the reason that their creator set. Of dropped connections: "
        "timeout, evicted, bytes.",
        "verb": "Type of request: filter, prioritize, bind, preempt, admission.",
        "resource": "Watched resource: nodes, pods, reservations, namespaces, pools (ConfigMap gpushare-pools), "
        "right-sizing (ConfigMap gpushare-right-sizing), provisioning-requests.",
    }
)


def _scheduler(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}scheduler_{name}", kind, labels, unit, text, Group.SCHEDULER)


REQUESTS: Final = _scheduler(
    "requests_total", Unit.NONE, "Requests answered, by verb and outcome.", "verb", "outcome", kind=Kind.COUNTER
)
REQUEST_DURATION: Final = _scheduler(
    "request_duration_seconds",
    Unit.SECONDS,
    "Time to answer a request, by verb; bind includes the write to the API server.",
    "verb",
    kind=Kind.HISTOGRAM,
)
BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Of `REQUEST_DURATION`, in seconds; 5 ms and 20 ms are what the handlers promise at 1,000 and 5,000 nodes."""
TASK_FAILURES: Final = _scheduler(
    "task_failures_total", Unit.NONE, "Failures of background tasks of the process.", "task", kind=Kind.COUNTER
)
TASK_HEALTHY: Final = _scheduler(
    "task_healthy",
    Unit.NONE,
    "Whether the background task works: 1 yes, 0 no (it has failed, or completed no cycle, for too long; /healthz "
    "names it).",
    "task",
)
LEADER: Final = _scheduler("leader", Unit.NONE, "Whether this replica is the leader and may bind pods: 1 yes, 0 no.")
SYNCED: Final = _scheduler("synced", Unit.NONE, "Whether all informer caches are synced: 1 yes, 0 no.")
WATCH_STALENESS: Final = _scheduler(
    "watch_staleness_seconds",
    Unit.SECONDS,
    "Time since the API server last sent anything on the watch; below 90 on a healthy watch.",
    "resource",
)
NODES: Final = _scheduler("nodes", Unit.NONE, "Nodes with shareable GPU cards.")
PODS: Final = _scheduler("pods", Unit.NONE, "Pods that hold GPU shares.")
ASSUMED_PODS: Final = _scheduler(
    "assumed_pods", Unit.NONE, "Assumed pods: cards are chosen, and the binding is not observed yet."
)
PENDING_PODS: Final = _scheduler(
    "pending_pods", Unit.NONE, "Pending pods that fit on no node when they were last tried."
)
RESERVATIONS: Final = _scheduler("reservations", Unit.NONE, "Reservations of card memory, by reason.", "reason")
OVERCOMMITTED_CARDS: Final = _scheduler(
    "overcommitted_cards",
    Unit.NONE,
    "Cards with more memory or compute promised than they offer. Above 0, there is a bug or another component "
    "has written allocations; such a card gets no new pods.",
)
UNREADABLE_OBJECTS: Final = _scheduler(
    "unreadable_objects",
    Unit.NONE,
    "Nodes and pods that cannot be decoded, whose last valid version remains in use, and ConfigMaps of the autoscaler.",
)
HANDED_OVER_POOLS: Final = _scheduler(
    "handed_over_pools",
    Unit.NONE,
    "Pools that gpushare scales in place of cluster-autoscaler, as the autoscaler has last published.",
)
REQUEUED_PODS: Final = _scheduler(
    "requeued_pods_total",
    Unit.NONE,
    "Pending pods that were requeued because capacity became free after kube-scheduler had tried them.",
    kind=Kind.COUNTER,
)
PREEMPTION_ATTEMPTS: Final = _scheduler(
    "preemption_attempts_total",
    Unit.NONE,
    "Preemptions for pods that fit by sum but not on single cards, by outcome: done, blocked (an eviction was denied, "
    "for example by a disruption budget), unreserved (the reservation could not be stored).",
    "outcome",
    kind=Kind.COUNTER,
)
EVICTIONS: Final = _scheduler(
    "evictions_total", Unit.NONE, "Requested evictions, by outcome.", "outcome", kind=Kind.COUNTER
)
ADMISSION_UP: Final = _scheduler("admission_up", Unit.NONE, "Whether the admission process serves: 1 yes, 0 no.")
ADMISSION_RESTARTS: Final = _scheduler(
    "admission_restarts_total",
    Unit.NONE,
    "Restarts of the admission process, because it ended or did not answer.",
    kind=Kind.COUNTER,
)
ADMISSION_CONNECTIONS: Final = _scheduler(
    "admission_connections", Unit.NONE, "Open connections of the admission process."
)
ADMISSION_DROPPED_CONNECTIONS: Final = _scheduler(
    "admission_dropped_connections_total",
    Unit.NONE,
    "Connections that the admission process closed before it answered, by reason: timeout (the request was not "
    "complete in time), evicted (the slowest or idle one, when places ran out), bytes (the largest body, when all "
    "bodies together were too large).",
    "reason",
    kind=Kind.COUNTER,
)
ADMISSION_RESIDENT_MEMORY: Final = _scheduler(
    "admission_resident_memory_bytes", Unit.BYTES, "Resident memory of the admission process."
)
CERTIFICATE_LOADED: Final = _scheduler(
    "certificate_loaded_timestamp_seconds",
    Unit.SECONDS,
    "Time at which the serving certificate was loaded, in seconds since the epoch.",
)
CERTIFICATE_EXPIRY: Final = _scheduler(
    "certificate_expiry_timestamp_seconds",
    Unit.SECONDS,
    "Expiry of the serving certificate, in seconds since the epoch; for a chain, the earliest. Absent if unreadable.",
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
