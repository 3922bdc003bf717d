# SPDX-License-Identifier: Apache-2.0
"""
What was found in a cluster: values only, with "there is none" and "unknown" kept apart.

Decides what of a node or pod is kept, so that a fleet of any size fits; judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Node, Slice


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The server did not say."""

    why: str


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node."""

    name: str
    node: Node | None
    """None: what it says of itself cannot be read; `why` then tells."""
    why: str = ""
    mode: str | None = None
    """The label's own word; None: no label."""
    policy: str | None = None
    """What the label of the compute policy says where it is no policy; None: it is one, or there is no label."""
    backend: str | None = None
    """What the agent enforces by, empty: nothing can be held; None: it does not say."""
    backend_text: str = ""
    """What that holds, or why nothing does."""
    units: int = 0
    """Of shares, allocatable."""
    whole: int = 0
    """Whole cards, allocatable."""
    kubelet: str = ""
    agent: str = ""
    card_units: str = ""
    card_count: str = ""
    unhealthy: str = ""
    """Which cards get no new pods, and why, as our agent says."""
    described: bool = False
    """Our agent's list of cards stands on it."""
    vendors: bool = False
    """A node of a cloud that owns these names itself."""
    offered: tuple[str, ...] = ()
    """Extended resources, by name."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that asks for shares or carries our label."""

    key: str
    namespace: str
    node: str
    scheduler: str
    labelled: bool
    done: bool
    deleting: bool
    asks: bool
    recorded: bool
    """Our record stands on it, readable or not."""
    slices: tuple[Slice, ...] = ()
    dialect: str = ""
    """In which it was written; empty: ACK's."""
    wrong: str = ""
    """Why its request makes no sense; empty where it does."""
    created: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Those for cluster-autoscaler (`handover.HANDOVER`)."""
    resident: bool = False
    """A DaemonSet's: it goes with its node."""
    devices: frozenset[str] = frozenset()
    """Device IDs that the kubelet says its containers have; empty where it does not tell."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or DaemonSet."""

    kind: str
    key: str
    images: tuple[str, ...]
    wanted: int
    ready: int
    words: tuple[str, ...] = ()
    """Command lines of its containers."""
    secrets: tuple[str, ...] = ()
    """Secrets without which its pods do not start."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Certificates that a process of ours uses, PEM; keys are not kept."""

    certificate: bytes = b""
    """What it shows."""
    authority: bytes = b""
    """Whom it believes."""
    manager: str = ""
    """cert-manager's Certificate that renews it; empty: nobody does by itself."""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """How the autoscaler stands."""

    lease: Mapping[str, Any] | Unavailable | None = None
    switch: Mapping[str, Any] | Unavailable | None = None
    """The ConfigMap's data."""
    metrics: str | Unavailable | None = None
    """What the replica that leads shows; None: none leads."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A running pod that shows what is in Secret `gpushare-cluster-autoscaler` of its namespace."""

    key: str
    begun: float
    """Seconds since the epoch; what it shows it read then."""


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """Who scales nodes besides us."""

    found: tuple[Workload, ...] = ()
    """cluster-autoscalers: Deployments, DaemonSets, and pods of no controller (static ones)."""
    pools: str | Unavailable | None = None
    """What our autoscaler has published (`codec.pools`); None: nothing."""
    callers: tuple[Caller, ...] = ()
    shown: Mapping[str, Secret | Unavailable | None] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """What these have of our certificates, by namespace; ours too, from which it was copied."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What Prometheus operator and Grafana have of gpushare."""

    operator: bool
    scrapes: int = 0
    rules: int = 0
    dashboards: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """A pod that was shown to admission and never made: what came back."""

    refused: str = ""
    """The server's words; empty: it would have been made."""
    shared: bool = False
    scheduler: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """One look at a cluster."""

    version: str | Unavailable
    definition: Mapping[str, Any] | Unavailable | None = None
    provisioning: Mapping[str, Any] | Unavailable | None = None
    """The definition of ProvisioningRequest; None: it is not installed."""
    webhooks: tuple[Mapping[str, Any], ...] | Unavailable = ()
    policies: tuple[Mapping[str, Any], ...] | Unavailable = ()
    bindings: tuple[Mapping[str, Any], ...] | Unavailable = ()
    services: tuple[Mapping[str, Any], ...] | Unavailable = ()
    """APIServices."""
    nodes: tuple[ClusterNode, ...] | Unavailable = ()
    pods: tuple[PodFacts, ...] | Unavailable = ()
    exempt: tuple[str, ...] | Unavailable = ()
    """Namespaces that admission passes by."""
    unisolated: tuple[str, ...] | Unavailable = ()
    """Namespaces in which pods with shares may run without a seccomp profile."""
    workloads: tuple[Workload, ...] | Unavailable = ()
    lease: Mapping[str, Any] | Unavailable | None = None
    secrets: Mapping[str, Secret | Unavailable | None] = field(default_factory=lambda: MappingProxyType({}))
    """By name, in our namespace."""
    autoscaler: AutoscalerFacts | None = None
    """None: it is not installed."""
    scalers: ScalerFacts = field(default_factory=ScalerFacts)
    monitoring: Monitoring | Unavailable = field(default_factory=lambda: Unavailable("was not queried"))
    good: Probe | Unavailable = field(default_factory=lambda: Unavailable("was not queried"))
    bad: Probe | Unavailable = field(default_factory=lambda: Unavailable("was not queried"))
    rights: Mapping[str, bool | None] | Unavailable = field(default_factory=lambda: Unavailable("was not queried"))
    """Of the accounts that are there: `account may verb resource` -> whether; None: unknown."""
