# SPDX-License-Identifier: Apache-2.0
"""
The ValidatingAdmissionPolicies: the API server enforces them itself, also while the webhook is away.

Decides which validations belong to which policy. They are evaluated after the webhook, on the object as it will be
stored. Policies for gpushare's own service accounts are in `account_policies`.

Source: Kubernetes, "Validating Admission Policy" (1.30).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.names import ACK, COMPUTE_ANNOTATIONS, SCHEDULER, SHARED
from isolation.scheduler.admission.core import account_policies, cel
from isolation.scheduler.admission.core.cel import Validation
from isolation.scheduler.admission.core.matching import (
    BINDINGS,
    POD_UPDATES,
    VERSION,
    build_policy,
    resource_rule,
    select_namespaces,
    select_shared_pods,
    split_by_group,
    workloads_by_path,
)
from isolation.scheduler.admission.core.pod_security import record_annotations
from isolation.scheduler.admission.core.webhook import EPHEMERAL, GPUSHARE_ACCOUNTS, SCHEDULER_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.names import Dialect
    from isolation.scheduler.admission.core.matching import Manifest


_SHARED = {"namespaceSelector": select_namespaces(), "objectSelector": select_shared_pods()}


def build_policies(dialect: Dialect = ACK, scheduler: str = SCHEDULER) -> list[Manifest]:
    """Every ValidatingAdmissionPolicy; `scheduler`: another name where an existing scheduler calls our extender."""
    return [
        *_build_for_new_pods(dialect, scheduler),
        *_build_for_workloads(dialect),
        *_build_for_existing_pods(dialect),
        *account_policies.build_policies(),
    ]


def build_bindings(made: Sequence[Manifest]) -> list[Manifest]:
    """The bindings that put the policies in force, in all namespaces."""
    return [
        {
            "apiVersion": VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": policy["metadata"]["name"]},
            "spec": {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]},
        }
        for policy in made
    ]


def _build_for_new_pods(dialect: Dialect, scheduler: str) -> list[Manifest]:
    """New pods: those with shares, and those with forged labels or records."""
    new, asks = [resource_rule(["pods"], "CREATE")], cel.asks("object", dialect)
    records = cel.carries("object", "annotations", record_annotations(dialect))
    forged = f"{records} || {cel.carries('object', 'labels', (SHARED,))}"
    validations = (
        cel.amount_validations(dialect)
        + cel.compute_validations("object", dialect)
        + cel.pod_validations("object")
        + cel.container_validations("variables.containers", dialect)
    )
    # A pod that the webhook did not label is denied by the second policy, the only one that looks at all pods.
    both = {"concerns-shares": f"{forged} || {asks}"}
    admitted = [
        Validation(f"{one.expression} || !variables.asks", one.message)
        for one in cel.admitted_validations("object", scheduler)
    ]
    admitted += cel.not_forged("object", dialect)
    return [
        build_policy("pods", new, {"asks-for-shares": asks}, validations, cel.variables("object", dialect), **_SHARED),
        build_policy("admitted", new, both, admitted, {"asks": asks}),
    ]


def _build_for_workloads(dialect: Dialect) -> list[Manifest]:
    """Workloads that create pods; one policy for each place of the pod template."""
    found = []
    for path, resources in workloads_by_path().items():
        pod = ".".join(("object", *(str(step) for step in path)))
        before = pod.replace("object", "oldObject", 1)
        new = f"(request.operation == 'CREATE' || {pod} != {before})"
        conditions = {"asks-for-shares": f"has({pod}) && {cel.asks(pod, dialect)} && {new}"}
        rules = [resource_rule(one, "CREATE", "UPDATE") for one in split_by_group(resources)]
        validations = (
            cel.amount_validations(dialect)
            + cel.compute_validations(pod, dialect)
            + cel.pod_validations(pod)
            + cel.container_validations("variables.containers", dialect)
        )
        validations += cel.not_forged(pod, dialect)
        name = f"templates-{resources[0].partition('.')[0]}"
        found.append(build_policy(name, rules, conditions, validations, cel.variables(pod, dialect)))
    return found


def _build_for_existing_pods(dialect: Dialect) -> list[Manifest]:
    """Existing pods: what is immutable, ephemeral containers, bindings."""
    strangers = {"is-not-ours": f"!(request.userInfo.username in {cel.texts(sorted(GPUSHARE_ACCOUNTS))})"}
    kept = Validation(
        f"!({cel.altered(dialect)})",
        f"allocation records, labels {SHARED} and {dialect.card_count}, and annotations "
        f"{', '.join(COMPUTE_ANNOTATIONS)} of a pod are immutable",
    )
    many = Validation(f"!({cel.adds_annotations()})", cel.TOO_MANY_ANNOTATIONS)
    devices = Validation(f"!({cel.adds_runtime_annotations()})", cel.ASKS_RUNTIME)
    joining = cel.container_validations("object.spec.?ephemeralContainers.orValue([])", dialect)
    binds = {"is-not-ours": f"request.userInfo.username != {cel.text(SCHEDULER_ACCOUNT)}"}
    labels = cel.carries("object", "labels", (SHARED, dialect.card_count))
    bound = Validation(
        f"!({cel.carries('object', 'annotations', record_annotations(dialect))} || {labels})",
        f"the binding carries allocation records, which only {SCHEDULER} writes; bind without them",
    )
    return [
        build_policy("records", [resource_rule(POD_UPDATES, "UPDATE")], strangers, [kept, many, devices], **_SHARED),
        build_policy("ephemeral", [resource_rule([f"pods/{EPHEMERAL}"], "UPDATE")], {}, joining, **_SHARED),
        build_policy("bindings", [resource_rule(BINDINGS, "CREATE")], binds, [bound]),
    ]
