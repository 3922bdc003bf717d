# SPDX-License-Identifier: Apache-2.0
"""
The MutatingWebhookConfiguration: which requests call the webhook, and what happens while it is away.

Only requests about GPU shares call it, and those are denied while it does not answer. Each webhook has one match
condition: the API server evaluates all match conditions whatever the first one says, while `&&` ends at the first that
is false. `caBundle` is filled in at installation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.dialects import time_slices
from isolation.contract.names import ACK, GROUP, SCHEDULER, SYSTEM_NAMESPACE
from isolation.scheduler.admission.core import cel
from isolation.scheduler.admission.core.matching import (
    BINDINGS,
    POD_UPDATES,
    resource_rule,
    select_namespaces,
    select_shared_pods,
    select_sliced_namespaces,
    split_by_group,
    workloads_by_path,
)
from isolation.scheduler.admission.core.serving import ONLY_ACK, Serving
from isolation.scheduler.admission.core.webhook import EPHEMERAL, GPUSHARE_ACCOUNTS, SCHEDULER_ACCOUNT, SLICED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.names import Dialect
    from isolation.scheduler.admission.core.matching import Manifest

TIMEOUT_SECONDS: Final = 5
BINDING_TIMEOUT_SECONDS: Final = 2
"""Bindings of other schedulers wait no longer than this for a webhook that does not answer."""
STOCK_SCHEDULER: Final = "system:kube-scheduler"
"""It never binds pods with shares (admission has set `schedulerName`): its bindings skip the webhook."""


def build_webhooks(dialect: Dialect = ACK, systems: Serving = ONLY_ACK) -> Manifest:
    """The MutatingWebhookConfiguration."""

    def about_shares(pod: str) -> str:
        foreign = f" || {cel.speaks(pod, systems.on, systems.left)}" if systems.on else ""
        return f"({cel.asks(pod, dialect)} || {cel.marked(pod, dialect)}{foreign})"

    concerned = f"{_has_containers('object')} && {about_shares('object')}"
    hooks = [_build_webhook("pods", [resource_rule(["pods"], "CREATE")], {"concerns-shares": concerned})]
    for path, resources in workloads_by_path().items():
        template = ".".join(("object", *(str(step) for step in path)))
        before = template.replace("object", "oldObject", 1)
        new = f"(request.operation == 'CREATE' || {template} != {before})"
        conditions = {
            "concerns-shares": f"has({template}) && {_has_containers(template)} && {about_shares(template)} && {new}"
        }
        rules = [resource_rule(one, "CREATE", "UPDATE") for one in split_by_group(resources)]
        hooks.append(_build_webhook("templates", rules, conditions, name=f"{resources[0].partition('.')[0]}.templates"))
    if any(one.name == time_slices.SYSTEM.name for one in systems.on):
        named = f"({cel.containers('object')}).exists(c, {cel.names_any(time_slices.SYSTEM.selected)})"
        conditions = {"asks-for-slices": f"{_has_containers('object')} && {named}"}
        sliced = _build_webhook(SLICED, [resource_rule(["pods"], "CREATE")], conditions)
        hooks.append(sliced | {"namespaceSelector": select_sliced_namespaces()})
    joins = f"request.?subResource.orValue('') == {cel.text(EPHEMERAL)}"
    others = f"!(request.userInfo.username in {cel.texts(sorted(GPUSHARE_ACCOUNTS))})"
    touches = f"{cel.altered(dialect)} || ({cel.adds_annotations()}) || ({cel.adds_runtime_annotations()})"
    changes = {"concerns-shares": f"{joins} || {others} && ({touches})"}
    hooks.append(
        _build_webhook("updates", [resource_rule(POD_UPDATES, "UPDATE")], changes)
        | {"objectSelector": select_shared_pods()}
    )
    strangers = f"!(request.userInfo.username in {cel.texts([STOCK_SCHEDULER, SCHEDULER_ACCOUNT])})"
    binding = _build_webhook("bindings", [resource_rule(BINDINGS, "CREATE")], {"is-a-stranger": strangers})
    # Pods without shares are bound by others too: they must not depend on us. Forged records are
    # refused by policy all the same, and the node agent starts nothing that has no record.
    hooks.append(binding | {"failurePolicy": "Ignore", "timeoutSeconds": BINDING_TIMEOUT_SECONDS})
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": SCHEDULER},
        "webhooks": hooks,
    }


def _has_containers(pod: str) -> str:
    """
    Whether there are containers at all: webhooks are asked before the API server validates.

    Asked first, so that such an object is refused by the API server in its own words and not by our failing condition.
    """
    return f"{pod}.spec.?containers.orValue(null) != null"


def _build_webhook(path: str, rules: list[Manifest], conditions: Mapping[str, str], name: str = "") -> Manifest:
    service = {"name": SCHEDULER, "namespace": SYSTEM_NAMESPACE, "path": f"/admit/{path}", "port": 443}
    return {
        "name": f"{name or path}.{GROUP}",
        "clientConfig": {"service": service},
        "rules": rules,
        "namespaceSelector": select_namespaces(),
        "matchConditions": [{"name": key, "expression": value} for key, value in conditions.items()],
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1"],
    }
