# SPDX-License-Identifier: Apache-2.0
"""
The catalogue of what the node agent exposes about itself, in the manner of `metrics`.

A chapter of its own, since no exporter of card figures serves it: docs/metrics.md is printed from it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "health": "healthy or unhealthy, as reported to the kubelet.",
        "node": "Name of the node.",
        "method": "RPC of the container runtime (NRI): CreateContainer, StateChange, Synchronize and others.",
        "reason": "Why a card gets no new allocations: xid; ecc (uncorrectable error); driver (it requests a recovery "
        "action); row_remap (remapping of a memory row failed); lost (NVML does not report the card); mig "
        "(its MIG instances were changed while containers had allocations on them).",
        "task": "Background task: watch-pods, watch-namespaces, watch-node, runtime (connection with the container "
        "runtime), cards, card-events, events (of pods), node-status, sweep (unused files), "
        "time-slices (length of time slices), reconcile, "
        "gpu-time (for containers with a compute share).",
        "outcome": "Result of the RPC: ok; refused (with the reason); timeout; error (internal). The last three refuse "
        "the container, and the kubelet tries again.",
    }
)


def _agent(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}node_agent_{name}", kind, labels, unit, text, Group.NODE)


INFO: Final = _agent("info", Unit.NONE, "Node of the agent; always 1.", "node", kind=Kind.INFO)
REQUEST_DURATION: Final = _agent(
    "request_duration_seconds",
    Unit.SECONDS,
    "Duration of RPCs from the container runtime.",
    "method",
    kind=Kind.HISTOGRAM,
)
REQUESTS: Final = _agent(
    "requests_total",
    Unit.NONE,
    "Answered RPCs of the container runtime, by outcome.",
    "method",
    "outcome",
    kind=Kind.COUNTER,
)
TASK_FAILURES: Final = _agent(
    "task_failures_total", Unit.NONE, "Failures of the agent's background tasks.", "task", kind=Kind.COUNTER
)
TASK_HEALTHY: Final = _agent(
    "task_healthy",
    Unit.NONE,
    "Whether the background task works: 1 yes, 0 no (it has failed, or completed no cycle, for too long; /healthz "
    "names it).",
    "task",
)
READY: Final = _agent("ready", Unit.NONE, "Whether pods may be bound to this node: 1 yes, 0 no.")
DEVICE_PLUGIN: Final = _agent(
    "device_plugin_up", Unit.NONE, "Whether the device plugin process runs beside the agent: 1 yes, 0 no."
)
KUBELET_REGISTERED: Final = _agent(
    "kubelet_registered", Unit.NONE, "Whether the device plugin is registered with the kubelet: 1 yes, 0 no."
)
KUBELET_REGISTRATIONS: Final = _agent(
    "kubelet_registrations_total",
    Unit.NONE,
    "Registrations with the kubelet since the device plugin started.",
    kind=Kind.COUNTER,
)
UNPREPARED_CONTAINERS: Final = _agent(
    "unprepared_containers_total",
    Unit.NONE,
    "Containers with a share that the device plugin refused because the agent had not prepared them, since the device "
    "plugin started.",
    kind=Kind.COUNTER,
)
DEVICES: Final = _agent("devices", Unit.NONE, "Devices (units of shared memory) reported to the kubelet.", "health")
ALLOCATED_DEVICES: Final = _agent(
    "allocated_devices", Unit.NONE, "Devices (units of shared memory) allocated to containers."
)
ALLOCATIONS: Final = _agent("allocations", Unit.NONE, "Containers with an allocation on this node.")
RUNTIME_CONNECTED: Final = _agent(
    "runtime_connected", Unit.NONE, "Whether the container runtime shows every container to the agent: 1 yes, 0 no."
)
RUNTIME_CONNECTIONS: Final = _agent(
    "runtime_connections_total",
    Unit.NONE,
    "Connections with the container runtime since the agent started.",
    kind=Kind.COUNTER,
)
UNHEALTHY_CARDS: Final = _agent(
    "unhealthy_cards", Unit.NONE, "Unhealthy cards, which get no new allocations, by reason.", "reason"
)
HEALTH_MONITORED_CARDS: Final = _agent(
    "health_monitored_cards", Unit.NONE, "Cards for which the driver reports XID and ECC error events."
)
MPS_FAILED_CONTAINERS: Final = _agent(
    "mps_failed_containers_total",
    Unit.NONE,
    "Containers that ended because their card's MPS server had, since the agent started; the Event MPSServerEnded says "
    "why.",
    kind=Kind.COUNTER,
)
NODE_UPDATES: Final = _agent(
    "node_updates_total", Unit.NONE, "Writes to the Node object since the agent started.", kind=Kind.COUNTER
)
WATCH_STALENESS: Final = _agent(
    "watch_staleness_seconds",
    Unit.SECONDS,
    "Time since the last message from the API server about this node's pods; below 90 for a healthy watch.",
)

CATALOGUE: Final = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            INFO,
            REQUEST_DURATION,
            REQUESTS,
            TASK_FAILURES,
            TASK_HEALTHY,
            READY,
            DEVICE_PLUGIN,
            KUBELET_REGISTERED,
            KUBELET_REGISTRATIONS,
            UNPREPARED_CONTAINERS,
            DEVICES,
            ALLOCATED_DEVICES,
            ALLOCATIONS,
            RUNTIME_CONNECTED,
            RUNTIME_CONNECTIONS,
            UNHEALTHY_CARDS,
            HEALTH_MONITORED_CARDS,
            MPS_FAILED_CONTAINERS,
            NODE_UPDATES,
            WATCH_STALENESS,
        )
    }
)
