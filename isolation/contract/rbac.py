# SPDX-License-Identifier: Apache-2.0
"""
What each process of ours may do in a cluster, each permission once.

A closed table: the roles in the manifests are made from it (`python -m isolation.doctor.manifests`), the doctor
asks the API server for each of them, and the tests run the processes with exactly these. What RBAC cannot
say (a node agent writes to its own node only) is said by an admission policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from isolation.contract.names import (
    AUTOSCALER,
    AUTOSCALER_STATE,
    GROUP,
    KUBE_LEASE,
    KUBE_SCHEDULER,
    NODE_AGENT,
    POOLS,
    PROVISIONING_GROUP,
    PROVISIONING_REQUESTS,
    RESERVATIONS,
    RIGHT_SIZING,
    SCHEDULER,
)


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on one kind of object."""

    resource: str
    verbs: tuple[str, ...]
    group: str = ""
    """API group; empty is the core one."""
    local: bool = False
    """In our own namespace only."""
    names: tuple[str, ...] = ()
    """These objects only."""
    why: str = ""

    @property
    def plain(self) -> str:
        """Without the sub-resource."""
        return self.resource.partition("/")[0]

    @property
    def part(self) -> str:
        """The sub-resource."""
        return self.resource.partition("/")[2]


_LEASES: Final = "coordination.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_SCHEDULER: Final = (
    Permission("nodes", ("list", "watch"), why="cards, modes, readiness"),
    Permission("pods", ("get", "list", "watch"), why="allocations; get decides whether a bind happened"),
    Permission(
        "pods/status", ("patch",), why="requeue a pending pod, resize a running one; label the leader and adopted pods"
    ),
    Permission("resourcequotas", ("list",), why="a pod that grows counts against them"),
    Permission("namespaces", ("list", "watch"), why="quotas by card model"),
    Permission("pods/binding", ("create",), why="node and allocation in one write"),
    Permission("pods/eviction", ("create",), why="preemption by cards, under disruption budgets"),
    Permission(RESERVATIONS, ("list", "watch", "create", "delete"), GROUP, why="reserve memory for a pod"),
    Permission(
        PROVISIONING_REQUESTS, ("get", "list", "watch"), PROVISIONING_GROUP, why="jobs whose pods start together"
    ),
    Permission(f"{PROVISIONING_REQUESTS}/status", ("patch",), PROVISIONING_GROUP, why="whether all of them have cards"),
    Permission("podtemplates", ("get",), why="what the pods of such a job request"),
    Permission("events", ("create",), "events.k8s.io", why="report reasons"),
    Permission(
        "mutatingwebhookconfigurations", ("list",), _ADMISSION, why="whether a system whose dialect is on runs here"
    ),
    Permission("leases", ("create",), _LEASES, local=True, why="one leader (a name cannot be given with create)"),
    Permission("leases", ("get", "update"), _LEASES, local=True, names=(SCHEDULER,), why="own lease"),
    Permission(
        "leases", ("get",), _LEASES, local=True, names=(KUBE_LEASE,), why="whether the kube-scheduler sidecar leads"
    ),
    Permission(
        "configmaps", ("list", "watch"), local=True, names=(POOLS,), why="the pools that the autoscaler may scale"
    ),
    Permission("configmaps", ("list", "watch"), local=True, names=(RIGHT_SIZING,), why="recommendations for promises"),
)
# Beside Kubernetes' own roles for a kube-scheduler, which name another Lease.
_KUBE: Final = (Permission("leases", ("get", "update"), _LEASES, local=True, names=(KUBE_LEASE,), why="own lease"),)
_NODE: Final = (
    Permission("nodes", ("list", "watch", "patch"), why="mode; cards and labels (own node: admission policy)"),
    Permission("namespaces", ("list", "watch"), why="which are exempt: nothing is enforced there"),
    Permission("nodes/status", ("patch",), why="resources that no device plugin owns (own node: admission policy)"),
    Permission("pods", ("list", "watch"), why="pods bound to this node, and their allocations"),
    Permission("events", ("create",), "events.k8s.io", why="why a container ended (its own words: admission policy)"),
)
# What a provider's machines and the metrics APIs need besides comes with their components.
_AUTOSCALER: Final = (
    Permission("nodes", ("get", "list", "watch"), why="cards, free memory, readiness"),
    Permission("nodes", ("patch",), why="the taint and the annotation of a drain (nothing else: admission policy)"),
    Permission("pods", ("list", "watch"), why="pending pods, pods that would have to move"),
    Permission("pods/eviction", ("create",), why="moves, under disruption budgets"),
    Permission("pods/status", ("patch",), why="annotations for cluster-autoscaler (nothing else: admission policy)"),
    Permission("poddisruptionbudgets", ("list", "watch"), "policy", why="pods that may be moved now"),
    Permission(RESERVATIONS, ("list", "watch", "create", "delete"), GROUP, why="reserve memory for moved pods"),
    Permission("events", ("create",), "events.k8s.io", why="report what was done, or why it was not"),
    Permission(
        "configmaps", ("create",), local=True, why="its state (a name cannot be given with create: admission policy)"
    ),
    Permission(
        "configmaps",
        ("get", "patch"),
        local=True,
        names=(AUTOSCALER_STATE, RIGHT_SIZING),
        why="state that survives a restart; recommendations for promises",
    ),
    Permission("configmaps", ("patch",), local=True, names=(POOLS,), why="its pools, for the scheduler and admission"),
    Permission("configmaps", ("get",), local=True, names=(AUTOSCALER,), why="the switch: enabled, dryRun"),
    Permission("leases", ("create",), _LEASES, local=True, why="one leader (a name cannot be given with create)"),
    Permission("leases", ("get", "update"), _LEASES, local=True, names=(AUTOSCALER,), why="own lease"),
)
PERMISSIONS: Final = MappingProxyType(
    {SCHEDULER: _SCHEDULER, KUBE_SCHEDULER: _KUBE, NODE_AGENT: _NODE, AUTOSCALER: _AUTOSCALER}
)
"""By account, all of them in our own namespace."""
MOVING: Final = frozenset(
    {("pods/eviction", "create"), ("pods/status", "patch"), (RESERVATIONS, "create"), (RESERVATIONS, "delete")}
)
"""Of the autoscaler, where pods are moved or annotated. On ACK none is: not granted there (manifests/overlays/ack)."""


def sentence(account: str, verb: str, resource: str) -> str:
    """One permission, as a person says it."""
    return f"{account} may {verb} {resource}"
