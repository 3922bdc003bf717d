# SPDX-License-Identifier: Apache-2.0
"""
Nodes, pods and budgets as cluster-autoscaler's deciders see them: JSON read once, quantities as exact numbers.

Knows resources of containers, selectors, node affinity, taints and owners. Affinity between pods, spread, ports and
volumes' zones are not read: no story uses them.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kubernetes.utils.quantity import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

Amounts = dict[str, Decimal]
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_LOCAL_VOLUMES: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
SCALE_UP_DELAY: Final = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
_MIRROR: Final = "kubernetes.io/config.mirror"
_NOT_READY: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/network-unavailable"})
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_GRACE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node, or what a fresh one of a group would be."""

    name: str
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)
    ready: bool = True
    unschedulable: bool = False
    created: float = 0.0

    @property
    def being_deleted(self) -> bool:
        """Whether an autoscaler has marked it."""
        return any(taint["key"] == TO_BE_DELETED for taint in self.taints)

    def fresh(self, name: str) -> Node:
        """Another one like it, with a name of its own and no mark of a deletion."""
        taints = tuple(taint for taint in self.taints if taint["key"] != TO_BE_DELETED)
        labels = {**self.labels, "kubernetes.io/hostname": name}
        return replace(self, name=name, provider_id="", labels=labels, taints=taints, ready=True, unschedulable=False)


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """One pod that has not ended."""

    namespace: str
    name: str
    uid: str
    node: str
    requests: Mapping[str, Decimal]
    thing: Mapping[str, Any]
    created: float
    deleted: float | None = None
    """When its grace ends; None: nobody deletes it."""
    owner: str = ""
    """The kind of its controller."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its own."""
        return self.thing["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its own."""
        return self.thing["metadata"].get("annotations") or {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """As JSON."""
        return self.thing["spec"]

    @property
    def scheduler(self) -> str:
        """By name."""
        return self.spec.get("schedulerName") or "default-scheduler"

    @property
    def nominated(self) -> str:
        """The node that preemption makes room on."""
        return self.thing.get("status", {}).get("nominatedNodeName") or ""

    @property
    def unschedulable(self) -> bool:
        """Whether its scheduler has said that it fits nowhere."""
        return any(
            c["type"] == "PodScheduled" and c["status"] == "False" and c.get("reason") == "Unschedulable"
            for c in self.thing.get("status", {}).get("conditions") or ()
        )

    @property
    def mirror(self) -> bool:
        """Whether a kubelet made it of a file."""
        return _MIRROR in self.annotations

    @property
    def stays_with_node(self) -> bool:
        """Whether it goes when its node goes and comes back nowhere."""
        return self.mirror or self.owner == "DaemonSet"


@dataclass(frozen=True, slots=True)
class Budget:
    """One PodDisruptionBudget."""

    namespace: str
    labels: Mapping[str, str]
    allowed: int

    def covers(self, pod: Pod) -> bool:
        """Whether it is about this pod."""
        return pod.namespace == self.namespace and self.labels.items() <= pod.labels.items()


def node_of(thing: Mapping[str, Any]) -> Node:
    """A Node of the API server."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    return Node(
        name=meta["name"],
        provider_id=spec.get("providerID") or "",
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        taints=tuple(spec.get("taints") or ()),
        allocatable={name: _amount(text) for name, text in (status.get("allocatable") or {}).items()},
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        and not any(taint["key"] in _NOT_READY for taint in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        created=_time(meta.get("creationTimestamp")) or 0.0,
    )


def pod_of(thing: Mapping[str, Any]) -> Pod:
    """A Pod of the API server."""
    meta = thing["metadata"]
    owners = [owner["kind"] for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    return Pod(
        namespace=meta.get("namespace") or "default",
        name=meta["name"],
        uid=meta.get("uid") or "",
        node=thing["spec"].get("nodeName") or "",
        requests=_requests(thing["spec"]),
        thing=thing,
        created=_time(meta.get("creationTimestamp")) or 0.0,
        deleted=_time(meta.get("deletionTimestamp")),
        owner=owners[0] if owners else "",
    )


def budget_of(thing: Mapping[str, Any]) -> Budget:
    """A PodDisruptionBudget of the API server; selectors by labels only."""
    labels = (thing["spec"].get("selector") or {}).get("matchLabels") or {}
    return Budget(thing["metadata"]["namespace"], labels, (thing.get("status") or {}).get("disruptionsAllowed") or 0)


def duration(text: str) -> float | None:
    """Go's notation (`8760h`, `1m30s`) in seconds; None where it is none."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def gone_long_ago(pod: Pod, now: float) -> bool:
    """Whether it should have ended: its grace and 30 s more are over."""
    return pod.deleted is not None and pod.deleted + _GRACE_SECONDS < now


def _requests(spec: Mapping[str, Any]) -> Amounts:
    """The larger of the containers' sum (with restartable init containers) and each init container."""
    total, most = Amounts(), Amounts()
    for box in spec.get("initContainers") or ():
        asked = _of_container(box)
        if box.get("restartPolicy") == "Always":
            _add(total, asked)
            asked = dict(total)
        else:
            _add(asked, total)
        for name, amount in asked.items():
            most[name] = max(most.get(name, Decimal(0)), amount)
    for box in spec["containers"]:
        _add(total, _of_container(box))
    for name, amount in most.items():
        total[name] = max(total.get(name, Decimal(0)), amount)
    _add(total, {name: _amount(text) for name, text in (spec.get("overhead") or {}).items()})
    return {name: amount for name, amount in total.items() if amount} | {"pods": Decimal(1)}


def _of_container(box: Mapping[str, Any]) -> Amounts:
    resources = box.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: _amount(text) for name, text in asked.items()}


def _add(total: Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


@lru_cache(4096)
def _amount(text: str) -> Decimal:
    return Decimal(parse_quantity(text))


def _time(text: str | None) -> float | None:
    return None if not text else dt.datetime.fromisoformat(text).timestamp()
