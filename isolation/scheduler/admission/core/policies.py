# SPDX-License-Identifier: Apache-2.0
"""
The ValidatingAdmissionPolicies: the API server enforces them itself, also while the webhook is away.

Decides which validations belong to which policy. They are evaluated after the webhook, on the object as it will be
stored. Policies for gpushare's own service accounts are in `account_policies`.

Source: Kubernetes, "Validating Admission Policy" (1.30).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.dialects import explain_off, time_slices
from isolation.contract.names import ACK, COMPUTE_ANNOTATIONS, SCHEDULER, SHARED, TRUST_GROUP, WARNS_ONLY
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
    select_sliced_namespaces,
    split_by_group,
    workloads_by_path,
)
from isolation.scheduler.admission.core.pod_security import record_annotations
from isolation.scheduler.admission.core.serving import ONLY_ACK, Serving
from isolation.scheduler.admission.core.webhook import EPHEMERAL, GPUSHARE_ACCOUNTS, SCHEDULER_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.names import Dialect
    from isolation.scheduler.admission.core.matching import Manifest


_SHARED = {"namespaceSelector": select_namespaces(), "objectSelector": select_shared_pods()}


def build_policies(dialect: Dialect = ACK, scheduler: str = SCHEDULER, systems: Serving = ONLY_ACK) -> list[Manifest]:
    """Every ValidatingAdmissionPolicy; `scheduler`: another name where an existing scheduler calls our extender."""
    return [
        *_build_for_new_pods(dialect, scheduler, systems),
        *_build_for_workloads(dialect),
        *_build_for_others(systems),
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
            "spec": {
                "policyName": policy["metadata"]["name"],
                "validationActions": ["Warn" if policy["metadata"]["name"].startswith(WARNS_ONLY) else "Deny"],
            },
        }
        for policy in made
    ]


def _build_for_new_pods(dialect: Dialect, scheduler: str, systems: Serving) -> list[Manifest]:
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
    foreign = f" || {cel.speaks('object', systems.on, systems.left)}" if systems.on else ""
    both = {"concerns-shares": f"{forged} || {asks}{foreign}"}
    admitted = [
        Validation(f"{one.expression} || !variables.asks", one.message)
        for one in cel.admitted_validations("object", scheduler)
    ]
    admitted += cel.not_forged("object", dialect)
    if systems.on:
        admitted.append(cel.translated("object", systems.on, systems.left))
    sliced = []
    if any(one.name == time_slices.SYSTEM.name for one in systems.on):
        named = f"({cel.containers('object')}).exists(c, {cel.names_any(time_slices.SYSTEM.selected)})"
        left = Validation(
            "false",
            f"{dialect.whole} is time slices in this namespace, and the admission webhook, which translates them, was "
            "not called; check that the webhook configuration is installed",
        )
        where = {"namespaceSelector": select_sliced_namespaces()}
        sliced = [build_policy("time-slices", new, {"asks-for-slices": named}, [left], **where)]
    return [
        *sliced,
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


def _build_for_others(systems: Serving) -> list[Manifest]:
    """
    A warning for pods in dialects that are off: they get no card of ours, and nothing else would say so.

    By the API server alone, since the webhook is called for what it serves; with no word about a pod that cannot be
    judged.
    """
    if not systems.off:
        return []
    found = []
    for path, resources in [((), ["pods"]), *workloads_by_path().items()]:
        pod = ".".join(("object", *(str(step) for step in path)))
        conditions = {"speaks-another-dialect": f"has({pod}.spec) && {cel.speaks(pod, systems.off)}"}
        rules = [resource_rule(one, "CREATE") for one in split_by_group(resources)]
        warnings = [Validation(f"!{cel.speaks(pod, [one])}", explain_off(one)) for one in systems.off]
        name = f"{WARNS_ONLY.removeprefix('gpushare-')}-{resources[0].partition('.')[0]}"
        policy = build_policy(name, rules, conditions, warnings)
        policy["spec"]["failurePolicy"] = "Ignore"
        found.append(policy)
    return found


def _build_for_existing_pods(dialect: Dialect) -> list[Manifest]:
    """Existing pods: what is immutable, ephemeral containers, bindings."""
    strangers = {"is-not-ours": f"!(request.userInfo.username in {cel.texts(sorted(GPUSHARE_ACCOUNTS))})"}
    kept = Validation(
        f"!({cel.altered(dialect)})",
        f"allocation records, labels {SHARED} and {dialect.card_count}, and annotations "
        f"{', '.join(COMPUTE_ANNOTATIONS)} of a pod are immutable",
    )
    resizes = cel.may_resize()
    many = Validation(f"!({cel.adds_annotations()})", cel.TOO_MANY_ANNOTATIONS)
    devices = Validation(f"!({cel.adds_runtime_annotations()})", cel.ASKS_RUNTIME)
    joining = cel.container_validations("object.spec.?ephemeralContainers.orValue([])", dialect)
    binds = {"is-not-ours": f"request.userInfo.username != {cel.text(SCHEDULER_ACCOUNT)}"}
    labels = cel.carries("object", "labels", (SHARED, dialect.card_count))
    bound = Validation(
        f"!({cel.carries('object', 'annotations', (*record_annotations(dialect), TRUST_GROUP))} || {labels})",
        f"the binding carries allocation records, which only {SCHEDULER} writes; bind without them",
    )
    return [
        build_policy(
            "records", [resource_rule(POD_UPDATES, "UPDATE")], strangers, [kept, resizes, many, devices], **_SHARED
        ),
        build_policy("ephemeral", [resource_rule([f"pods/{EPHEMERAL}"], "UPDATE")], {}, joining, **_SHARED),
        build_policy("bindings", [resource_rule(BINDINGS, "CREATE")], binds, [bound]),
    ]
