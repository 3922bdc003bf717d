# SPDX-License-Identifier: Apache-2.0
"""
Which API requests admission applies to: `matchConstraints` and rules shared by webhooks and policies.

Decides namespaces and resources, and how a policy object is built; whether an object requests shares is decided in
`cel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import EXEMPT, SHARED, SYSTEM_NAMESPACE, TIME_SLICES
from isolation.scheduler.admission.core.webhook import EPHEMERAL, TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.codec.cursor import Path
    from isolation.scheduler.admission.core.cel import Validation

    Manifest = dict[str, Any]

VERSION: Final = "admissionregistration.k8s.io/v1"
POD_UPDATES = tuple(f"pods{sub}" for sub in ("", "/status", "/resize", f"/{EPHEMERAL}"))
BINDINGS = ("pods/binding", "bindings")


def select_namespaces() -> Manifest:
    """The namespaces with admission."""
    return {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM_NAMESPACE]},
            {"key": EXEMPT, "operator": "NotIn", "values": ["true"]},
        ]
    }


def select_sliced_namespaces() -> Manifest:
    """Of these, the namespaces in which plain `nvidia.com/gpu` is time slices."""
    chosen = select_namespaces()
    chosen["matchExpressions"].append({"key": TIME_SLICES, "operator": "Exists"})
    return chosen


def select_shared_pods() -> Manifest:
    """
    Existing pods with shares, before or after an update: by the label that admission sets.

    The API server compares labels before it evaluates anything: looking for shares in the containers of all
    pods, at each of their updates, took it a second for a pod of a megabyte.
    """
    return {"matchExpressions": [{"key": SHARED, "operator": "Exists"}]}


def resource_rule(resources: Iterable[str], *operations: str) -> Manifest:
    """Which requests; a resource is `pods/status` or `jobs.batch`."""
    listed = list(resources)
    return {
        "apiGroups": sorted({name.partition(".")[2] for name in listed}),
        "apiVersions": ["v1"],
        "resources": [name.partition(".")[0] for name in listed],
        "operations": list(operations),
        "scope": "*",
    }


def workloads_by_path() -> Mapping[Path, list[str]]:
    """Kinds of workloads by the place of their pods."""
    found: dict[Path, list[str]] = {}
    for resource, path in TEMPLATES.items():
        found.setdefault(path, []).append(resource)
    return found


def split_by_group(resources: Iterable[str]) -> list[list[str]]:
    """One rule takes resources of one group."""
    groups: dict[str, list[str]] = {}
    for resource in resources:
        groups.setdefault(resource.partition(".")[2], []).append(resource)
    return list(groups.values())


def build_policy(
    name: str,
    rules: Sequence[Manifest],
    conditions: Mapping[str, str],
    validations: Sequence[Validation],
    variables: Mapping[str, str] | None = None,
    **selectors: Manifest,
) -> Manifest:
    """One ValidatingAdmissionPolicy, in all namespaces with admission unless selectors are given."""
    constraints: dict[str, Any] = {"matchPolicy": "Equivalent", "resourceRules": list(rules)}
    constraints |= selectors or {"namespaceSelector": select_namespaces()}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "matchConditions": [{"name": key, "expression": value} for key, value in conditions.items()],
        "variables": [{"name": key, "expression": value} for key, value in (variables or {}).items()],
        "validations": [
            {"expression": validation.expression, "message": validation.message, "reason": "Forbidden"}
            for validation in validations
        ],
    }
    return {
        "apiVersion": VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"gpushare-{name}"},
        "spec": {key: value for key, value in spec.items() if value},
    }
