# SPDX-License-Identifier: Apache-2.0
"""
The cluster in cluster-autoscaler's head: nodes, what is left of them by sums, and first-fit.

An extended resource is one number per node here, as it is there: no card is known. Pure.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from e2e.cluster_autoscaler.objects import Node, Pod

_OPERATORS: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: value is not None and value.isdigit() and int(value) > int(values[0]),
    "Lt": lambda value, values: value is not None and value.isdigit() and int(value) < int(values[0]),
}


class Snapshot:
    """Nodes with the pods on them; the order of the nodes is the order of the trials."""

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.pods: dict[str, list[Pod]] = {name: [] for name in self.nodes}
        self._free = {name: dict(node.allocatable) for name, node in self.nodes.items()}
        for pod in pods:
            where = pod.node or pod.nominated
            if where in self.nodes:
                self.add(pod, where)

    def copy(self) -> Snapshot:
        """One that can be tried on."""
        other = Snapshot(())
        other.become(self)
        return other

    def become(self, other: Snapshot) -> None:
        """What was tried on the other is so here."""
        self.nodes = dict(other.nodes)
        self.pods = {name: list(pods) for name, pods in other.pods.items()}
        self._free = {name: dict(free) for name, free in other._free.items()}

    def join(self, node: Node) -> None:
        """One node more, without pods."""
        self.nodes[node.name], self.pods[node.name] = node, []
        self._free[node.name] = dict(node.allocatable)

    def add(self, pod: Pod, name: str) -> None:
        """A pod is there."""
        self.pods[name].append(pod)
        free = self._free[name]
        for resource, amount in pod.requests.items():
            free[resource] = free.get(resource, Decimal(0)) - amount

    def fits(self, pod: Pod, name: str) -> bool:
        """Whether the in-process filters of a scheduler would let it there."""
        free = self._free[name]
        enough = all(free.get(resource, Decimal(0)) >= amount for resource, amount in pod.requests.items())
        return enough and allowed(pod, self.nodes[name])

    def place(self, pod: Pod, among: Iterable[str] | None = None) -> str:
        """Put it on the first of these nodes that has room; empty: there is none."""
        for name in self.nodes if among is None else among:
            if self.fits(pod, name):
                self.add(pod, name)
                return name
        return ""


def allowed(pod: Pod, node: Node) -> bool:
    """Selectors, required node affinity and taints."""
    spec = pod.spec
    if any(node.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    needed = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if needed is not None and not any(_matches(term, node) for term in needed.get("nodeSelectorTerms") or ()):
        return False
    taints: list[Mapping[str, Any]] = [taint for taint in node.taints if taint["effect"] != "PreferNoSchedule"]
    if node.unschedulable:
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return all(any(_tolerates(one, taint) for one in spec.get("tolerations") or ()) for taint in taints)


def _matches(term: Mapping[str, Any], node: Node) -> bool:
    asked = [(one, node.labels.get(one["key"])) for one in term.get("matchExpressions") or ()]
    asked += [(one, node.name) for one in term.get("matchFields") or ()]
    return bool(asked) and all(_OPERATORS[one["operator"]](value, one.get("values") or []) for one, value in asked)


def _tolerates(one: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if one.get("effect") and one["effect"] != taint["effect"]:
        return False
    if one.get("operator") == "Exists":
        return not one.get("key") or one["key"] == taint["key"]
    return bool(one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""))
