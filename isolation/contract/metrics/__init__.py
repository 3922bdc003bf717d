# SPDX-License-Identifier: Apache-2.0
"""
The metric catalogue: every name that gpushare exposes, with its type, labels, unit and help.

A series that is not in `CATALOGUE` does not exist: exporters build `Family` values from it,
dashboards and rules take names from it, and docs/metrics.md is printed from it. One value per
(card, container), never a device total copied to tenants; device series carry no pod labels, so
that they do not change identity when a pod comes or goes. This module knows neither Prometheus'
client nor where the values come from.

Naming rules: Prometheus, "Metric and label naming" (base units, `_total` for counters, ratios 0..1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "gpushare_"


class Kind(StrEnum):
    """Metric types in use; the values are OpenMetrics' own words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"
    """Always 1; what it says stands in its labels."""
    HISTOGRAM = "histogram"
    """Of durations; no exporter of card figures has one."""


class Unit(StrEnum):
    """Base units; the value is the suffix that a name must carry."""

    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    WATTS = "watts"
    CELSIUS = "celsius"
    JOULES = "joules"
    HERTZ = "hertz"
    NONE = ""
    """A count of things, or a yes (1) and no (0)."""


class Group(StrEnum):
    """Chapters of the catalogue."""

    NODE = "Node"
    CARD = "Card"
    CONTAINER = "Container"
    ISOLATION = "Isolation"
    POOL = "Pools and autoscaler"
    EXPORTER = "Exporter"
    SCHEDULER = "Scheduler"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family as it is exposed."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: Unit
    help: str
    group: Group


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples: label values in the order of the spec's labels, then the value."""

    spec: MetricSpec
    samples: tuple[tuple[tuple[str, ...], float], ...]


def family(spec: MetricSpec, rows: Iterable[tuple[tuple[str, ...], float | None]]) -> Family:
    """
    Samples of one metric; what is unknown (None, or no finite number) is absent, never 0.

    Rows with the same labels are parts of one amount and are added up, and a sum with an
    unknown part is unknown: two samples of one series would make a scraper drop either of them.
    """
    sums: dict[tuple[str, ...], float | None] = {}
    for labels, value in rows:
        if len(labels) != len(spec.labels):
            raise ValueError(f"{spec.name} has labels {spec.labels}, got {len(labels)} values")
        known = None if value is None or not isfinite(value) else float(value)
        if spec.kind is Kind.INFO or labels not in sums:
            sums[labels] = known
        else:
            before = sums[labels]
            sums[labels] = None if before is None or known is None else before + known
    return Family(spec, tuple((labels, value) for labels, value in sums.items() if value is not None))


NODE_LABELS: Final = ("node",)
CARD_LABELS: Final = ("node", "uuid", "card")
CONTAINER_LABELS: Final = ("namespace", "pod", "container", "node", "uuid", "card", "mode")
LABELS: Final = MappingProxyType(
    {
        "card": "Index of the card on its node, from 0.",
        "clock": "Clock domain: sm or memory.",
        "collector": "Part of the exporter that produces a group of metrics.",
        "compute_source": "Source of the used compute; same values as source.",
        "container": "Name of the container in its pod; for a `gpushare run` command, its promise id.",
        "driver": "Version of the NVIDIA driver.",
        "isolation": "What enforces promises on the node: none, library, kernel, mig or mps; empty if unknown.",
        "mode": "On container series: exclusive (a whole card) or shared. On gpushare_card_info: what the node serves "
        "(share, cgpu, core_mem, mps or default).",
        "kind": "Kind of event (pod placed, node added, pod moved ...), of breach (over_limit, denied, uninstrumented, "
        "unallocated, missing_library, unreadable_region or wrong_limits), of ECC error or remapped row (corrected or "
        "uncorrected), of retired page (single_bit or double_bit) or of PCI Express error (correctable, non_fatal or "
        "fatal).",
        "model": "Product name of the card.",
        "namespace": "Namespace of the pod; empty for a `gpushare run` command.",
        "node": "Name of the node.",
        "peak_source": "Source of the peak memory; same values as source.",
        "parent": "UUID of the physical card of a MIG instance; empty for a physical card.",
        "pod": "Name of the pod; for a `gpushare run` command, the name of the run.",
        "policy": "How compute is shared: fixed, burst, weight, priority or none; empty if compute is not limited.",
        "pool": "Name of the node pool.",
        "profile": "MIG profile, for example 1g.10gb; empty for a physical card.",
        "promise": "Promise id, as in the allocation record, the limits file, Events and logs; UID of the pod if only "
        "the kubelet reports the promise.",
        "allocation_source": "Who recorded the promise: agent (the node agent), run (`gpushare run`), kubelet (its "
        "device assignments) or ids (units counted from device IDs; the container's processes identify the card).",
        "reason": "On pending pods: refusal code of the placement engine (fragmented: the free memory adds up to "
        "enough, but no set of cards fits), or scheduling before the first attempt. Of throttling: power_cap, thermal, "
        "hardware_thermal, hardware_slowdown or power_brake, which start at 0; sync_boost, application_clocks, "
        "display_clocks or other once seen. Of an unhealthy card: xid, ecc (uncorrectable error), driver (it requests "
        "a recovery action), row_remap (remapping failed) or lost (off the bus).",
        "source": "Source of the value: nvml (measured per process), accounting (the driver's accounting mode), "
        "library (reported by the container's library), allocation (the value of the card, if one container has the "
        "whole card) or simulation; empty if unknown.",
        "state": "Lifecycle state of the node, for example ready or booting.",
        "uuid": "UUID of the card or MIG instance.",
        "version": "Version of gpushare.",
        "xid": "Number of the XID error.",
    }
)


def _card(name: str, unit: Unit, text: str, *more: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}card_{name}", kind, (*CARD_LABELS, *more), unit, text, Group.CARD)


def _container(name: str, unit: Unit, text: str, *more: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    labels = (*CONTAINER_LABELS, *more)
    return MetricSpec(f"{PREFIX}container_{name}", kind, labels, unit, text, Group.CONTAINER)


def _isolation(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.COUNTER) -> MetricSpec:
    return MetricSpec(f"{PREFIX}isolation_{name}", kind, labels, unit, text, Group.ISOLATION)


def _node(name: str, text: str, *more: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}node_{name}", kind, (*NODE_LABELS, *more), Unit.NONE, text, Group.NODE)


def _pool(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}{name}", kind, labels, unit, text, Group.POOL)


def _exporter(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}exporter_{name}", kind, labels, unit, text, Group.EXPORTER)


CARD_INFO: Final = _card(
    "info",
    Unit.NONE,
    "Information about the card: model, node pool, mode, isolation and MIG profile; always 1.",
    *("model", "pool", "mode", "isolation", "parent", "profile"),
    kind=Kind.INFO,
)
CARD_MEMORY_TOTAL: Final = _card("memory_total_bytes", Unit.BYTES, "Total memory of the card.")
CARD_MEMORY_USED: Final = _card("memory_used_bytes", Unit.BYTES, "Used memory of the card: total minus free.")
CARD_MEMORY_RESERVED: Final = _card("memory_reserved_bytes", Unit.BYTES, "Memory of the card reserved by the driver.")
CARD_MEMORY_ALLOCATED: Final = _card("memory_allocated_bytes", Unit.BYTES, "Memory of the card promised to containers.")
CARD_MEMORY_ALLOCATABLE: Final = _card(
    "memory_allocatable_bytes",
    Unit.BYTES,
    "Memory of the card that can be promised: total minus reserved, in whole units.",
)
CARD_MEMORY_UNATTRIBUTED: Final = _card(
    "memory_unattributed_bytes", Unit.BYTES, "Memory of the card used by processes without a promise."
)
CARD_MEMORY_UNACCOUNTED: Final = _card(
    "memory_unaccounted_bytes",
    Unit.BYTES,
    "Used memory that the measurement does not explain: used minus containers, unattributed and reserved.",
)
CARD_MEMORY_LARGEST_FREE: Final = _card(
    "memory_largest_free_bytes", Unit.BYTES, "Largest promise of memory that still fits on the card, in whole units."
)
CARD_UTILISATION: Final = _card("utilisation_ratio", Unit.RATIO, "Fraction of time in which a kernel ran on the card.")
CARD_BUSY_SECONDS: Final = _card(
    "busy_seconds_total",
    Unit.SECONDS,
    "Time in which a kernel ran on the card, since the exporter started.",
    kind=Kind.COUNTER,
)
CARD_MEMORY_UTILISATION: Final = _card(
    "memory_utilisation_ratio", Unit.RATIO, "Fraction of time in which the memory of the card was read or written."
)
CARD_POWER: Final = _card("power_watts", Unit.WATTS, "Power draw of the card.")
CARD_POWER_LIMIT: Final = _card("power_limit_watts", Unit.WATTS, "Power limit of the card.")
CARD_ENERGY: Final = _card(
    "energy_joules_total", Unit.JOULES, "Energy consumed by the card since the driver was loaded.", kind=Kind.COUNTER
)
CARD_CLOCK: Final = _card("clock_hertz", Unit.HERTZ, "Current clock frequency of the card.", "clock")
CARD_THROTTLED: Final = _card(
    "throttled_seconds_total",
    Unit.SECONDS,
    "Time for which the clocks of the card were throttled, by reason; reasons can overlap.",
    "reason",
    kind=Kind.COUNTER,
)
CARD_TEMPERATURE: Final = _card("temperature_celsius", Unit.CELSIUS, "Temperature of the card.")
CARD_HEALTHY: Final = _card("healthy", Unit.NONE, "Whether the card is healthy and can be promised: 1 yes, 0 no.")
CARD_XIDS: Final = _card(
    "xid_errors_total",
    Unit.NONE,
    "XID errors since the exporter started, by XID number; fatal ones and those of applications start at 0.",
    "xid",
    kind=Kind.COUNTER,
)
CARD_ECC: Final = _card(
    "ecc_errors_total", Unit.NONE, "ECC errors since the driver was loaded, by kind.", "kind", kind=Kind.COUNTER
)
CARD_PCIE_REPLAYS: Final = _card(
    "pcie_replays_total", Unit.NONE, "PCI Express packets that were retransmitted.", kind=Kind.COUNTER
)
CARD_NVLINK_ERRORS: Final = _card(
    "nvlink_errors_total", Unit.NONE, "Errors on all NVLink links of the card.", kind=Kind.COUNTER
)
CARD_EXCLUSIVE: Final = _card(
    "exclusive", Unit.NONE, "Whether the whole card is promised to one container: 1 yes, 0 no (shared or free)."
)
CARD_CONTAINERS: Final = _card("containers", Unit.NONE, "Number of containers with a promise on the card.")
CARD_USAGE_ATTRIBUTABLE: Final = _card(
    "usage_attributable",
    Unit.NONE,
    "Whether NVML's values for the card can be attributed to containers: 1 yes, 0 no (the exporter cannot see the "
    "host's processes, or NVML reports MPS clients under their server).",
)

CONTAINER_INFO: Final = _container(
    "info",
    Unit.NONE,
    "Information about a container on a card: promise id, compute policy and sources of its values; always 1.",
    *("promise", "allocation_source", "policy", "source", "compute_source", "peak_source"),
    kind=Kind.INFO,
)
CONTAINER_MEMORY_ALLOCATED: Final = _container(
    "memory_allocated_bytes", Unit.BYTES, "Memory of the card promised to the container."
)
CONTAINER_MEMORY_USED: Final = _container(
    "memory_used_bytes",
    Unit.BYTES,
    "Memory of the card used by the container; 0 from allocation until the container uses the card.",
)
CONTAINER_COMPUTE_ALLOCATED: Final = _container(
    "compute_allocated_ratio",
    Unit.RATIO,
    "Fraction of the card's compute promised to the container; absent if none is.",
)
CONTAINER_COMPUTE_USED: Final = _container(
    "compute_used_ratio", Unit.RATIO, "Fraction of the card's compute used by the container."
)
CONTAINER_COMPUTE_LIMIT: Final = _container(
    "compute_limit_ratio",
    Unit.RATIO,
    "Largest fraction of the card's compute that the container may use: the promise under policy fixed, its ceiling or "
    "the whole card under the others; absent if compute is not limited.",
)
CONTAINER_COMPUTE_SECONDS: Final = _container(
    "compute_seconds_total",
    Unit.SECONDS,
    "Compute time of the card used by the container: its rate is the used fraction of the card.",
    kind=Kind.COUNTER,
)
CONTAINER_COMPUTE_OVERRUN: Final = _container(
    "compute_overrun_seconds_total",
    Unit.SECONDS,
    "GPU time that kernels running longer than a second used beyond the container's share of the card's compute; later "
    "launches wait for it. As reported by the container's own library; absent if compute is not limited.",
    kind=Kind.COUNTER,
)

CONTAINER_MEMORY_PEAK: Final = _container(
    "memory_peak_bytes",
    Unit.BYTES,
    "Peak memory of the card used by the container; includes peaks between samples if the driver's accounting mode is "
    "on.",
)
CONTAINER_ENERGY: Final = _container(
    "energy_joules_total",
    Unit.JOULES,
    "Energy of the card attributed to the container: compute energy by its share of the used compute, idle energy by "
    "its share of the card's memory.",
    kind=Kind.COUNTER,
)

OVER_LIMIT: Final = _isolation(
    "over_limit_seconds_total",
    Unit.SECONDS,
    "Time for which the container used more memory of the card than promised.",
    *CONTAINER_LABELS,
)
OVER_LIMIT_INCIDENTS: Final = _isolation(
    "over_limit_incidents_total",
    Unit.NONE,
    "Number of times that the container began to use more memory of the card than promised.",
    *CONTAINER_LABELS,
)
DENIED_ALLOCATIONS: Final = _isolation(
    "denied_allocations_total",
    Unit.NONE,
    "Allocations denied in the container because they exceeded its promise, as reported by the container's own library "
    "(source library: do not page on this alone).",
    *(*CONTAINER_LABELS, "source"),
)
BREACHES: Final = _isolation(
    "breaches_total",
    Unit.NONE,
    "Breaches that began since the exporter started, by kind; details at /breaches.",
    "node",
    "kind",
)
BREACHES_OPEN: Final = _isolation(
    "breaches_open",
    Unit.NONE,
    "Breaches currently open on the card, for each kind that can be checked.",
    *(*CARD_LABELS, "kind"),
    kind=Kind.GAUGE,
)

HOST_PIDS: Final = _node(
    "host_pids_visible",
    "Whether the exporter can see the host's processes: 1 yes, 0 no (without hostPID, usage by container is unknown).",
)
MPS_RUNNING: Final = _node("mps_running", "Whether an MPS server runs on the node: 1 yes, 0 no.")
NODE_INFO: Final = _node(
    "info", "Information about the node: version of the NVIDIA driver; always 1.", "driver", kind=Kind.INFO
)

POOL_NODES: Final = _pool("pool_nodes", Unit.NONE, "Number of nodes in the pool, by state.", "pool", "state")
POOL_MIN_NODES: Final = _pool("pool_min_nodes", Unit.NONE, "Minimum number of nodes of the pool.", "pool")
POOL_MAX_NODES: Final = _pool("pool_max_nodes", Unit.NONE, "Maximum number of nodes of the pool.", "pool")
PENDING_PODS: Final = _pool(
    "pending_pods", Unit.NONE, "Number of pending pods, by the reason why they cannot be placed.", "reason"
)
PENDING_MAX_AGE: Final = _pool(
    "pending_max_age_seconds",
    Unit.SECONDS,
    "Waiting time of the pod that has been pending longest; 0 if no pod is pending.",
)
PENDING_FRAGMENTED_PODS: Final = _pool(
    "pending_fragmented_pods",
    Unit.NONE,
    "Number of pending pods that fit on no set of cards, although the free memory of a node's cards adds up to enough.",
)
AUTOSCALER_EVENTS: Final = _pool(
    "autoscaler_events_total", Unit.NONE, "Events of pods and nodes, by kind.", "kind", kind=Kind.COUNTER
)
SIMULATED_CLOCK: Final = _pool("simulated_clock_seconds", Unit.SECONDS, "Simulated time of the embedded cluster.")

BUILD_INFO: Final = _exporter("build_info", Unit.NONE, "Version of gpushare; always 1.", "version", kind=Kind.INFO)
COLLECTOR_SUCCESS: Final = _exporter(
    "collector_success",
    Unit.NONE,
    "Whether the collector succeeded: 1 yes, 0 no (its series are absent).",
    "collector",
)
COLLECTOR_DURATION: Final = _exporter(
    "collector_duration_seconds", Unit.SECONDS, "Duration of the collector for this reading.", "collector"
)
SAMPLE_TIMESTAMP: Final = _exporter(
    "sample_timestamp_seconds", Unit.SECONDS, "Unix time at which these values were read, in seconds."
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
