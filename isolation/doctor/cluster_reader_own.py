# SPDX-License-Identifier: Apache-2.0
"""
A look at what is ours in a cluster: certificates, the autoscaler, rights of our accounts, what Prometheus is told.

Decides what is asked; judges nothing. Rights are asked of accounts that are there, certificates of Secrets that our
workloads mount, and a key is never kept.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from isolation.contract.codec.pools import KEY
from isolation.contract.names import AUTOSCALER, AUTOSCALER_CLIENT, POOLS, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.autoscaler import acting
from isolation.doctor.checks.cluster.certificates import WEBHOOK
from isolation.doctor.checks.cluster.facts import AutoscalerFacts, Monitoring, ScalerFacts, Secret, Untold
from isolation.doctor.checks.cluster.read import secret, table
from isolation.doctor.checks.cluster.scalers import scales
from isolation.doctor.checks.rights import RIGHTS, sentence
from isolation.kube.core.errors import ClusterError, NotFoundError

if TYPE_CHECKING:
    from isolation.doctor.checks.cluster.facts import Caller, Workload
    from isolation.doctor.checks.rights import Right
    from isolation.doctor.cluster_requests import Asking

_OURS: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OPERATOR: Final = f"/apis/monitoring.coreos.com/v1/namespaces/{SYSTEM_NAMESPACE}"
_PART_OF: Final = "app.kubernetes.io/part-of=gpushare"
_DASHBOARD: Final = "grafana_dashboard=1"
_POD: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_PORT: Final = re.compile(r"--(?:listen|metrics-listen|metrics-port)=(?:.*:)?([0-9]{1,5})")
_USUAL_PORT: Final = "9448"
_MOST_SECRETS: Final = 20


async def secrets(asking: Asking, workloads: tuple[Workload, ...] | Untold) -> dict[str, Secret | Untold | None]:
    """Of the webhook, and of everything that our workloads mount."""
    mine = () if isinstance(workloads, Untold) else _ours(workloads)
    names = sorted({name for one in mine for name in one.secrets})[:_MOST_SECRETS]
    found: dict[str, Secret | Untold | None] = {}
    for name in sorted({WEBHOOK, *names}):
        item = await asking.one(f"{_OURS}/secrets/{quote(name, safe='')}")
        found[name] = item if item is None or isinstance(item, Untold) else secret(item)
    return found


async def autoscaler(asking: Asking, workloads: tuple[Workload, ...] | Untold, now: float) -> AutoscalerFacts | None:
    """How it stands; None where it is not installed, or where nobody tells."""
    mine = () if isinstance(workloads, Untold) else _ours(workloads)
    found = next((one for one in mine if one.key == f"{SYSTEM_NAMESPACE}/{AUTOSCALER}"), None)
    if found is None:
        return None
    lease = await asking.one(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{AUTOSCALER}")
    switch = await asking.one(f"{_OURS}/configmaps/{AUTOSCALER}")
    data = switch if switch is None or isinstance(switch, Untold) else table(switch, "data")
    facts = AutoscalerFacts(lease, data)
    pod = acting(facts, now).rpartition("_")[0]
    if not _POD.fullmatch(pod):
        return facts
    ports = [match[1] for word in found.words if (match := _PORT.fullmatch(word))]
    port = ports[0] if ports else _USUAL_PORT
    return AutoscalerFacts(lease, data, await asking.text(f"{_OURS}/pods/{pod}:{port}/proxy/metrics"))


async def scalers(asking: Asking, workloads: tuple[Workload, ...], callers: tuple[Caller, ...] = ()) -> ScalerFacts:
    """Whoever scales nodes besides us, which pools are ours, and with which certificates they ask us."""
    found = await asking.one(f"{_OURS}/configmaps/{POOLS}")
    pools = found if found is None or isinstance(found, Untold) else str(table(found, "data").get(KEY, ""))
    where = sorted({one.key.partition("/")[0] for one in callers})[:_MOST_SECRETS]
    shown: dict[str, Secret | Untold | None] = {}
    for namespace in {*where, SYSTEM_NAMESPACE} if where else ():
        item = await asking.one(f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{AUTOSCALER_CLIENT}")
        shown[namespace] = item if item is None or isinstance(item, Untold) else secret(item)
    return ScalerFacts(tuple(one for one in workloads if scales(one)), pools, callers, shown)


def _ours(workloads: tuple[Workload, ...]) -> list[Workload]:
    return [one for one in workloads if one.key.startswith(f"{SYSTEM_NAMESPACE}/")]


async def monitoring(asking: Asking) -> Monitoring | Untold:
    """What the Prometheus operator and Grafana's sidecar find in our namespace."""
    try:
        scrapes = await _count(asking, f"{_OPERATOR}/servicemonitors", _PART_OF)
        rules = await _count(asking, f"{_OPERATOR}/prometheusrules", _PART_OF)
        dashboards = await _count(asking, f"{_OURS}/configmaps", _DASHBOARD)
    except NotFoundError:
        return Monitoring(operator=False)
    except ClusterError as exc:
        return Untold(str(exc))
    return Monitoring(operator=True, scrapes=scrapes, rules=rules, dashboards=dashboards)


async def _count(asking: Asking, path: str, labels: str) -> int:
    return len([None async for _ in asking.items(path, labelSelector=labels)])


async def rights(asking: Asking) -> dict[str, bool | None] | Untold:
    """Of the accounts that are there."""
    accounts = await asking.list(f"{_OURS}/serviceaccounts")
    if isinstance(accounts, Untold):
        return accounts
    there = {str(table(one, "metadata").get("name")) for one in accounts}
    asked = [
        (account, right, verb)
        for account, granted in RIGHTS.items()
        if account in there
        for right in granted
        for verb in right.verbs
    ]
    answers = await asyncio.gather(*(_may(asking, *one) for one in asked))
    return dict(zip((sentence(account, verb, right.resource) for account, right, verb in asked), answers, strict=True))


async def _may(asking: Asking, account: str, right: Right, verb: str) -> bool | None:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"]
    wish: dict[str, Any] = {"group": right.group, "resource": right.plain, "subresource": right.part, "verb": verb}
    wish |= {"namespace": SYSTEM_NAMESPACE} if right.local else {}
    wish |= {"name": right.names[0]} if right.names else {}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}",
            "groups": groups,
            "resourceAttributes": wish,
        },
    }
    try:
        allowed = table(await asking.post(_REVIEWS, body), "status").get("allowed")
    except ClusterError:
        return None
    return allowed if isinstance(allowed, bool) else None
