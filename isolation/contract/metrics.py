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
    Samples of one metric; what cannot be told (None, or no finite number) is absent, never 0.

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
        "clock": "Which clock: sm or memory.",
        "collector": "Part of the exporter that produces a group of metrics.",
        "compute_source": "Where the used compute comes from, with the values of source.",
        "container": "Container name within the pod; of a `gpushare run` command: its promise id.",
        "driver": "Version of the NVIDIA driver.",
        "isolation": "What enforces promises on the node: none, library, mps, kernel; empty: nobody said.",
        "mode": "On container series: exclusive (a whole card) or shared. On the card's info series: what its node "
        "serves (share, cgpu, core_mem, default).",
        "kind": "Kind of event (pod placed, node added, pod moved ...), of breach (over_limit, denied, uninstrumented, "
        "unallocated, missing_library, unreadable_region, wrong_limits; of those that go on also none) or of ECC error "
        "(corrected, uncorrected).",
        "model": "Product name of the card.",
        "namespace": "Namespace of the pod; empty for a `gpushare run` command.",
        "node": "Name of the node that has the card.",
        "peak_source": "Where the most used memory comes from, with the values of source.",
        "parent": "UUID of the card of which a MIG instance is a part; empty for a card.",
        "pod": "Pod name; of a `gpushare run` command: its name.",
        "policy": "How compute is shared: fixed, burst, weight, priority, none; empty where nobody limits it.",
        "pool": "Node pool.",
        "profile": "MIG profile, such as 1g.10gb; empty for a card.",
        "promise": "Promise id, as in the allocation record, the limits file, Events and logs; the pod's UID where "
        "only the kubelet knows of the promise.",
        "promised_by": "Who wrote the promise down: agent (the node agent), run (`gpushare run`), kubelet (its device "
        "assignments), ids (units counted from device IDs, their card found by the processes on it).",
        "reason": "Why a pod waits: the refusal code of the placement engine (fragmented: the room is there as a sum, "
        "but no card set has it); scheduling before it was looked at. On a card: why its clocks are held down.",
        "source": "Where the figure comes from: nvml (measured per process), accounting (the driver's own book), "
        "library (the container's word), allocation (the card's figure, where one container has it all), simulation; "
        "empty: it cannot be told.",
        "state": "State of a node in its life: ready, booting and so on.",
        "uuid": "UUID of the card (or of the MIG instance).",
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
    "Model, pool, mode, enforcement and MIG place of the card; always 1.",
    *("model", "pool", "mode", "isolation", "parent", "profile"),
    kind=Kind.INFO,
)
CARD_TOTAL: Final = _card("memory_total_bytes", Unit.BYTES, "Memory of the card.")
CARD_USED: Final = _card("memory_used_bytes", Unit.BYTES, "Memory in use on the card: total less free.")
CARD_RESERVED: Final = _card("memory_reserved_bytes", Unit.BYTES, "Memory that the driver keeps for itself.")
CARD_ALLOCATED: Final = _card("memory_allocated_bytes", Unit.BYTES, "Memory of the card promised to containers.")
CARD_OFFERED: Final = _card(
    "memory_offered_bytes", Unit.BYTES, "Memory of the card that can be promised: whole units of total less reserved."
)
CARD_UNATTRIBUTED: Final = _card(
    "memory_unattributed_bytes", Unit.BYTES, "Memory measured in processes outside any promise."
)
CARD_REMAINDER: Final = _card(
    "memory_remainder_bytes",
    Unit.BYTES,
    "Used less containers, unattributed and reserved: what the measurement does not explain; 0 when it explains all.",
)
CARD_LARGEST_FREE: Final = _card(
    "memory_largest_free_bytes", Unit.BYTES, "Largest promise of memory that still fits on the card, in whole units."
)
CARD_UTILISATION: Final = _card("utilisation_ratio", Unit.RATIO, "Part of the time in which the card ran a kernel.")
CARD_MEMORY_UTILISATION: Final = _card(
    "memory_utilisation_ratio", Unit.RATIO, "Part of the time in which the card's memory was read or written."
)
CARD_POWER: Final = _card("power_watts", Unit.WATTS, "Power drawn by the card.")
CARD_POWER_LIMIT: Final = _card("power_limit_watts", Unit.WATTS, "Most power that the card may draw.")
CARD_ENERGY: Final = _card(
    "energy_joules_total", Unit.JOULES, "Energy drawn by the card since its driver was loaded.", kind=Kind.COUNTER
)
CARD_CLOCK: Final = _card("clock_hertz", Unit.HERTZ, "Clocks of the card now.", "clock")
CARD_THROTTLED: Final = _card(
    "throttled",
    Unit.NONE,
    "Whether clocks are held down: 1 for each reason there is; with the reason none, 0, where there is none.",
    "reason",
)
CARD_TEMPERATURE: Final = _card("temperature_celsius", Unit.CELSIUS, "Temperature of the card.")
CARD_HEALTHY: Final = _card("healthy", Unit.NONE, "Whether the card can be promised: 1 yes, 0 no.")
CARD_XIDS: Final = _card(
    "xid_errors_total", Unit.NONE, "XID errors since the exporter began, by number.", "xid", kind=Kind.COUNTER
)
CARD_ECC: Final = _card(
    "ecc_errors_total", Unit.NONE, "ECC errors since the driver was loaded.", "kind", kind=Kind.COUNTER
)
CARD_PCIE_REPLAYS: Final = _card(
    "pcie_replays_total", Unit.NONE, "PCI Express packets that had to be sent again.", kind=Kind.COUNTER
)
CARD_NVLINK_ERRORS: Final = _card(
    "nvlink_errors_total", Unit.NONE, "Errors on all NVLink links of the card.", kind=Kind.COUNTER
)
CARD_EXCLUSIVE: Final = _card(
    "exclusive", Unit.NONE, "Whether the whole card is promised to one container: 1 yes, 0 no (shared, or free)."
)
CARD_HOLDERS: Final = _card("containers", Unit.NONE, "Containers to which something of the card is promised.")
CARD_ATTRIBUTABLE: Final = _card(
    "attributable",
    Unit.NONE,
    "Whether NVML's figures on this card can be told apart by container: 1 yes, 0 no (processes that we cannot see, "
    "MPS clients that stand under their server).",
)

CONTAINER_INFO: Final = _container(
    "info",
    Unit.NONE,
    "Promise id, policy and sources of the figures of a container on a card; always 1.",
    *("promise", "promised_by", "policy", "source", "compute_source", "peak_source"),
    kind=Kind.INFO,
)
CONTAINER_ALLOCATED: Final = _container(
    "memory_allocated_bytes", Unit.BYTES, "Memory of the card promised to the container."
)
CONTAINER_USED: Final = _container(
    "memory_used_bytes",
    Unit.BYTES,
    "Memory of the card that the container uses; 0 from allocation on, until it starts.",
)
CONTAINER_CORE: Final = _container(
    "compute_allocated_ratio", Unit.RATIO, "Part of the card's compute promised to the container; absent if none was."
)
CONTAINER_CORE_USED: Final = _container(
    "compute_used_ratio", Unit.RATIO, "Part of the card's compute that the container uses."
)

CONTAINER_PEAK: Final = _container(
    "memory_peak_bytes",
    Unit.BYTES,
    "Most memory of the card that the container was seen to use, between samples too where the driver keeps account.",
)
CONTAINER_ENERGY: Final = _container(
    "energy_joules_total",
    Unit.JOULES,
    "Energy of the card put down to the container: of what computing takes its share of the compute, of what an idle "
    "card draws its share of the promises.",
    kind=Kind.COUNTER,
)

OVER_LIMIT: Final = _isolation(
    "over_limit_seconds_total",
    Unit.SECONDS,
    "Time for which the container has used more memory of the card than promised.",
    *CONTAINER_LABELS,
)
OVER_EPISODES: Final = _isolation(
    "over_limit_episodes_total",
    Unit.NONE,
    "How often the container has begun to use more memory of the card than promised.",
    *CONTAINER_LABELS,
)
DENIED: Final = _isolation(
    "denied_allocations_total",
    Unit.NONE,
    "Allocations refused within the container because they went past its promise, as its own library tells "
    "(source library: do not page on this alone).",
    *(*CONTAINER_LABELS, "source"),
)
BREACHES: Final = _isolation(
    "breaches_total", Unit.NONE, "Breaches begun since the exporter did, by kind; details at /breaches.", "node", "kind"
)
BREACHED: Final = _isolation(
    "breaches_open",
    Unit.NONE,
    "Breaches that go on now on the card, by kind; with the kind none, 0, where all kinds can be judged and none goes "
    "on.",
    *(*CARD_LABELS, "kind"),
    kind=Kind.GAUGE,
)

HOST_PIDS: Final = _node(
    "host_pids",
    "Whether the exporter sees the host's processes: 1 yes, 0 no (without hostPID no container's use can be measured).",
)
MPS: Final = _node("mps", "Whether an MPS server runs on the node: 1 yes, 0 no.")
NODE_INFO: Final = _node("info", "Driver of the node's cards; always 1.", "driver", kind=Kind.INFO)

POOL_NODES: Final = _pool("pool_nodes", Unit.NONE, "Nodes of the pool by state.", "pool", "state")
POOL_SMALLEST: Final = _pool("pool_nodes_smallest", Unit.NONE, "Fewest nodes that the pool may have.", "pool")
POOL_LARGEST: Final = _pool("pool_nodes_largest", Unit.NONE, "Most nodes that the pool may have.", "pool")
PENDING: Final = _pool("pending_pods", Unit.NONE, "Pods without a place, by the reason of their refusal.", "reason")
PENDING_LONGEST: Final = _pool(
    "pending_longest_seconds", Unit.SECONDS, "How long the pod that waits longest has waited; 0 when none waits."
)
PHANTOMS: Final = _pool(
    "phantom_pods",
    Unit.NONE,
    "Pods that wait although the sums over some node's cards have room for them: no card set has it.",
)
EVENTS: Final = _pool(
    "autoscaler_events_total", Unit.NONE, "What has happened to pods and nodes, by kind.", "kind", kind=Kind.COUNTER
)
CLOCK: Final = _pool("fleet_clock_seconds", Unit.SECONDS, "The fleet's own clock in the embedded cluster.")

BUILD_INFO: Final = _exporter("build_info", Unit.NONE, "Version of gpushare; always 1.", "version", kind=Kind.INFO)
COLLECTOR_SUCCESS: Final = _exporter(
    "collector_success",
    Unit.NONE,
    "Whether the collector succeeded: 1 yes, 0 no; its series are absent then.",
    "collector",
)
COLLECTOR_DURATION: Final = _exporter(
    "collector_duration_seconds", Unit.SECONDS, "How long the collector took for this reading.", "collector"
)
SAMPLE_TIME: Final = _exporter(
    "sample_timestamp_seconds", Unit.SECONDS, "When these values were read, in seconds since the epoch."
)

CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
"""Every metric by name, in the order of this module."""
