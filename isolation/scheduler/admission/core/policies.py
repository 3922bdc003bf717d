# SPDX-License-Identifier: Apache-2.0
"""
The rules as the API server's own policies: in force also without us, and without our webhook.

Decides which claims stand in which policy. They are asked after the webhook, about the object as
it will be stored. What our own accounts are held to is said in `accounts`.

Source: Kubernetes, "Validating Admission Policy" (1.30).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.names import ACK, SCHEDULER, SHARED
from isolation.scheduler.admission.core import account_policies, cel
from isolation.scheduler.admission.core.cel import Claim
from isolation.scheduler.admission.core.matching import (
    BINDINGS,
    POD_UPDATES,
    VERSION,
    by_group,
    by_path,
    elsewhere,
    labelled,
    policy,
    rule,
)
from isolation.scheduler.admission.core.pod_security import records
from isolation.scheduler.admission.core.webhook import ACCOUNTS, BINDER, EPHEMERAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.names import Dialect
    from isolation.scheduler.admission.core.matching import Manifest


_SHARED = {"namespaceSelector": elsewhere(), "objectSelector": labelled()}


def policies(dialect: Dialect = ACK, scheduler: str = SCHEDULER) -> list[Manifest]:
    """Every ValidatingAdmissionPolicy; another scheduler's name where an existing one asks our extender."""
    return [*_pods(dialect, scheduler), *_templates(dialect), *_running(dialect), *account_policies.policies()]


def bindings_of(made: Sequence[Manifest]) -> list[Manifest]:
    """What puts the policies in force, everywhere."""
    return [
        {
            "apiVersion": VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": one["metadata"]["name"]},
            "spec": {"policyName": one["metadata"]["name"], "validationActions": ["Deny"]},
        }
        for one in made
    ]


def _pods(dialect: Dialect, scheduler: str) -> list[Manifest]:
    """New pods: those with shares, and those that pretend to have been admitted."""
    new, asks = [rule(["pods"], "CREATE")], cel.asks("object", dialect)
    forged = f"{cel.carries('object', 'annotations', records(dialect))} || {cel.carries('object', 'labels', (SHARED,))}"
    claims = cel.amounts(dialect) + cel.of_pod("object") + cel.of_containers("variables.containers", dialect)
    # Whatever was not labelled by the webhook is refused by the second, which alone looks at everybody's pods.
    both = {"concerns-shares": f"{forged} || {asks}"}
    admitted = [Claim(f"{one.expression} || !variables.asks", one.message) for one in cel.admitted("object", scheduler)]
    admitted += cel.made("object", dialect)
    return [
        policy("pods", new, {"asks-for-shares": asks}, claims, cel.variables("object", dialect), **_SHARED),
        policy("admitted", new, both, admitted, {"asks": asks}),
    ]


def _templates(dialect: Dialect) -> list[Manifest]:
    """Whatever makes pods, one policy by the place where it keeps them."""
    found = []
    for path, resources in by_path().items():
        pod = ".".join(("object", *(str(step) for step in path)))
        before = pod.replace("object", "oldObject", 1)
        new = f"(request.operation == 'CREATE' || {pod} != {before})"
        conditions = {"asks-for-shares": f"has({pod}) && {cel.asks(pod, dialect)} && {new}"}
        rules = [rule(one, "CREATE", "UPDATE") for one in by_group(resources)]
        claims = cel.amounts(dialect) + cel.of_pod(pod) + cel.of_containers("variables.containers", dialect)
        claims += cel.made(pod, dialect)
        name = f"templates-{resources[0].partition('.')[0]}"
        found.append(policy(name, rules, conditions, claims, cel.variables(pod, dialect)))
    return found


def _running(dialect: Dialect) -> list[Manifest]:
    """Pods that exist: what is kept, what joins them, who binds them."""
    strangers = {"is-not-ours": f"!(request.userInfo.username in {cel.texts(sorted(ACCOUNTS))})"}
    kept = Claim(
        f"!({cel.altered(dialect)})",
        f"allocation records and labels {SHARED} and {dialect.card_count} of a pod are immutable",
    )
    many = Claim(f"!({cel.adds_annotations()})", cel.TOO_MANY_ANNOTATIONS)
    devices = Claim(f"!({cel.joins_runtime()})", cel.ASKS_RUNTIME)
    joining = cel.of_containers("object.spec.?ephemeralContainers.orValue([])", dialect)
    binds = {"is-not-ours": f"request.userInfo.username != {cel.text(BINDER)}"}
    labels = cel.carries("object", "labels", (SHARED, dialect.card_count))
    bound = Claim(
        f"!({cel.carries('object', 'annotations', records(dialect))} || {labels})",
        f"the binding carries allocation records, which only {SCHEDULER} writes; bind without them",
    )
    return [
        policy("records", [rule(POD_UPDATES, "UPDATE")], strangers, [kept, many, devices], **_SHARED),
        policy("ephemeral", [rule([f"pods/{EPHEMERAL}"], "UPDATE")], {}, joining, **_SHARED),
        policy("bindings", [rule(BINDINGS, "CREATE")], binds, [bound]),
    ]
