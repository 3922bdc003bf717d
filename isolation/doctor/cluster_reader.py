# SPDX-License-Identifier: Apache-2.0
"""
What doctor reads of a cluster through its API server: lists, single objects, access reviews, two pods as dry runs.

Decides what is asked, how much is read and how long it may take; judges nothing. What is refused or does not answer is
`Unavailable`, what does not exist is None. Nothing is changed, and no private key is kept: of Secrets that our
workloads mount only the certificates are read.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from isolation.contract.codec.pools import KEY
from isolation.contract.names import (
    ACK,
    AUTOSCALER,
    AUTOSCALER_CLIENT,
    EXEMPT,
    GROUP,
    POOLS,
    PROVISIONING_GROUP,
    PROVISIONING_REQUESTS,
    RESERVATIONS,
    SCHEDULER,
    SHARED,
    SYSTEM_NAMESPACE,
    UNISOLATED,
)
from isolation.contract.rbac import PERMISSIONS, sentence
from isolation.doctor.checks.cluster.admission import PROBED, valid_limits
from isolation.doctor.checks.cluster.autoscaler import leader_of
from isolation.doctor.checks.cluster.certificates import WEBHOOK
from isolation.doctor.checks.cluster.facts import (
    AutoscalerFacts,
    Caller,
    ClusterFacts,
    ClusterNode,
    Monitoring,
    PodFacts,
    Probe,
    ScalerFacts,
    Secret,
    Unavailable,
    Workload,
)
from isolation.doctor.checks.cluster.parse import (
    asks_for_shares,
    caller,
    node_facts,
    pod_facts,
    secret,
    table,
    ungoverned,
    unit_of,
    workload,
)
from isolation.doctor.checks.cluster.scalers import is_cluster_autoscaler
from isolation.kube.access import Access, Deadlines
from isolation.kube.core.errors import ClusterError, MalformedError, NotFoundError, RefusedError
from isolation.kube.paging import list_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from isolation.contract.rbac import Permission

_DEADLINES: Final = Deadlines(page=30.0, write=10.0)
_WHOLE_SECONDS: Final = 300.0
"""40,000 pods are read in half a minute."""
_LONGEST_WORDS: Final = 4_000
"""Of a refusal."""
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OURS: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OPERATOR: Final = f"/apis/monitoring.coreos.com/v1/namespaces/{SYSTEM_NAMESPACE}"
_PART_OF: Final = "app.kubernetes.io/part-of=gpushare"
_DASHBOARD: Final = "grafana_dashboard=1"
_POD: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_PORT: Final = re.compile(r"--(?:listen|metrics-listen|metrics-port)=(?:.*:)?([0-9]{1,5})")
_USUAL_PORT: Final = "9448"
_MAX_SECRETS: Final = 20
_AT_ONCE: Final = 8
_LONGEST_TEXT: Final = 4 << 20
_TEXT_SECONDS: Final = 5.0


class ApiReader:
    """One way in, for all questions."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """What is there; ClusterError."""
        return _object(await self._access.page(path, query))

    async def one(self, path: str) -> Mapping[str, Any] | Unavailable | None:
        """One object."""
        try:
            return await self.get(path)
        except NotFoundError:
            return None
        except ClusterError as exc:
            return Unavailable(str(exc))

    async def items(self, path: str, **query: str) -> AsyncIterator[dict[str, Any]]:
        """Page by page; ClusterError."""
        async with aclosing(list_objects(self._access, path, query)) as found:
            async for raw in found:
                yield _object(raw)

    async def list(self, path: str, **query: str) -> tuple[dict[str, Any], ...] | Unavailable:
        """All of them."""
        try:
            return tuple([item async for item in self.items(path, **query)])
        except ClusterError as exc:
            return Unavailable(str(exc))

    async def post(self, path: str, body: object) -> dict[str, Any]:
        """A question that is asked by making something that is not kept; ClusterError."""
        async with self._gate:
            return _object(await self._access.send("POST", path, body))

    async def text(self, path: str) -> str | Unavailable:
        """What a process says through the API server."""
        try:
            found = await self._access.send("GET", path, seconds=_TEXT_SECONDS)
        except ClusterError as exc:
            return Unavailable(str(exc))
        return found[:_LONGEST_TEXT].decode(errors="replace")


def _object(text: bytes | msgspec.Raw) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise MalformedError("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise MalformedError("the answer is not a JSON object")
    return found


async def read_cluster(kubeconfig: Path | None, context: str | None) -> ClusterFacts:
    """Everything, once."""
    try:
        async with asyncio.timeout(_WHOLE_SECONDS), Access(kubeconfig, context, _DEADLINES) as access:
            return await _read_all(ApiReader(access))
    except ClusterError as exc:
        return ClusterFacts(Unavailable(str(exc)))
    except TimeoutError:
        return ClusterFacts(Unavailable(f"timed out after {_WHOLE_SECONDS:.0f} s"))


async def _read_all(api: ApiReader) -> ClusterFacts:
    version = await _read_version(api)
    if isinstance(version, Unavailable):
        return ClusterFacts(version)
    mutating = await api.list(f"{_ADMISSION}/mutatingwebhookconfigurations")
    validating = await api.list(f"{_ADMISSION}/validatingwebhookconfigurations")
    nodes, workloads = await _read_nodes(api), await _read_workloads(api)
    pods, bare, callers = await _read_pods(api, () if isinstance(nodes, Unavailable) else nodes)
    return ClusterFacts(
        version=version,
        definition=await api.one(f"{_DEFINITIONS}/{RESERVATIONS}.{GROUP}"),
        provisioning=await api.one(f"{_DEFINITIONS}/{PROVISIONING_REQUESTS}.{PROVISIONING_GROUP}"),
        webhooks=mutating if isinstance(mutating, Unavailable) else _both(mutating, validating),
        policies=await api.list(f"{_ADMISSION}/validatingadmissionpolicies"),
        bindings=await api.list(f"{_ADMISSION}/validatingadmissionpolicybindings"),
        services=await api.list("/apis/apiregistration.k8s.io/v1/apiservices"),
        nodes=nodes,
        pods=pods,
        exempt=await _read_labelled(api, EXEMPT),
        unisolated=await _read_labelled(api, UNISOLATED),
        workloads=workloads,
        lease=await api.one(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{SCHEDULER}"),
        secrets=await _read_secrets(api, workloads),
        autoscaler=await _read_autoscaler(api, workloads, time.time()),
        scalers=await _read_scalers(api, (*(() if isinstance(workloads, Unavailable) else workloads), *bare), callers),
        monitoring=await _read_monitoring(api),
        good=await _probe(api, valid_limits(() if isinstance(nodes, Unavailable) else nodes), 1),
        bad=await _probe(api, {ACK.memory: "3"}, 2),
        rights=await _read_rights(api),
    )


async def _read_version(api: ApiReader) -> str | Unavailable:
    try:
        said = await api.get("/version")
    except ClusterError as exc:
        return Unavailable(str(exc))
    version = said.get("gitVersion")
    return version if isinstance(version, str) else Unavailable("the server is not a Kubernetes API server")


async def _read_nodes(api: ApiReader) -> tuple[ClusterNode, ...] | Unavailable:
    try:
        return tuple([node_facts(item) async for item in api.items("/api/v1/nodes")])
    except ClusterError as exc:
        return Unavailable(str(exc))


async def _read_pods(
    api: ApiReader, nodes: tuple[ClusterNode, ...]
) -> tuple[tuple[PodFacts, ...] | Unavailable, tuple[Workload, ...], tuple[Caller, ...]]:
    """Those with shares, cluster-autoscalers that no controller made, and those with the certificate for it."""
    known = {one.name: one.node for one in nodes if one.node is not None}
    unit = unit_of(nodes)
    found, bare, callers = [], [], []
    try:
        async for item in api.items("/api/v1/pods"):
            if asks_for_shares(item):
                found.append(pod_facts(item, known, unit))
            elif (one := ungoverned(item)) is not None and is_cluster_autoscaler(one):
                bare.append(one)
            if (shows := caller(item)) is not None:
                callers.append(shows)
    except ClusterError as exc:
        return Unavailable(str(exc)), (), ()
    return tuple(found), tuple(bare), tuple(callers)


async def _read_labelled(api: ApiReader, label: str) -> tuple[str, ...] | Unavailable:
    """Names of namespaces."""
    found = await api.list("/api/v1/namespaces", labelSelector=f"{label}=true")
    return found if isinstance(found, Unavailable) else tuple(str(table(one, "metadata").get("name")) for one in found)


async def _read_workloads(api: ApiReader) -> tuple[Workload, ...] | Unavailable:
    made: list[Workload] = []
    for kind, plural in (("Deployment", "deployments"), ("DaemonSet", "daemonsets")):
        found = await api.list(f"/apis/apps/v1/{plural}")
        if isinstance(found, Unavailable):
            return found
        made += [workload(kind, one) for one in found]
    return tuple(made)


async def _probe(api: ApiReader, limits: Mapping[str, str], cards: int) -> Probe | Unavailable:
    """A pod with these limits, as a dry run."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpushare-doctor", "labels": {ACK.card_count: str(cards)} if cards > 1 else {}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": dict(limits)}}]},
    }
    try:
        made = await api.post(f"/api/v1/namespaces/{PROBED}/pods?dryRun=All", pod)
    except RefusedError as exc:
        return Probe((exc.message or str(exc))[:_LONGEST_WORDS])
    except ClusterError as exc:
        return Unavailable(str(exc))
    labels = table(table(made, "metadata"), "labels")
    return Probe(shared=labels.get(SHARED) == "true", scheduler=str(table(made, "spec").get("schedulerName") or ""))


def _both(
    one: tuple[dict[str, Any], ...], other: tuple[dict[str, Any], ...] | Unavailable
) -> tuple[dict[str, Any], ...] | Unavailable:
    return other if isinstance(other, Unavailable) else one + other


# What is ours in it.


async def _read_secrets(
    api: ApiReader, workloads: tuple[Workload, ...] | Unavailable
) -> dict[str, Secret | Unavailable | None]:
    """Of the webhook, and of everything that our workloads mount."""
    mine = () if isinstance(workloads, Unavailable) else _ours(workloads)
    names = sorted({name for one in mine for name in one.secrets})[:_MAX_SECRETS]
    found: dict[str, Secret | Unavailable | None] = {}
    for name in sorted({WEBHOOK, *names}):
        item = await api.one(f"{_OURS}/secrets/{quote(name, safe='')}")
        found[name] = item if item is None or isinstance(item, Unavailable) else secret(item)
    return found


async def _read_autoscaler(
    api: ApiReader, workloads: tuple[Workload, ...] | Unavailable, now: float
) -> AutoscalerFacts | None:
    """How it stands; None where it is not installed, or where nobody tells."""
    mine = () if isinstance(workloads, Unavailable) else _ours(workloads)
    found = next((one for one in mine if one.key == f"{SYSTEM_NAMESPACE}/{AUTOSCALER}"), None)
    if found is None:
        return None
    lease = await api.one(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{AUTOSCALER}")
    switch = await api.one(f"{_OURS}/configmaps/{AUTOSCALER}")
    data = switch if switch is None or isinstance(switch, Unavailable) else table(switch, "data")
    facts = AutoscalerFacts(lease, data)
    pod = leader_of(facts, now).rpartition("_")[0]
    if not _POD.fullmatch(pod):
        return facts
    ports = [match[1] for word in found.words if (match := _PORT.fullmatch(word))]
    port = ports[0] if ports else _USUAL_PORT
    return AutoscalerFacts(lease, data, await api.text(f"{_OURS}/pods/{pod}:{port}/proxy/metrics"))


async def _read_scalers(
    api: ApiReader, workloads: tuple[Workload, ...], callers: tuple[Caller, ...] = ()
) -> ScalerFacts:
    """Whoever scales nodes besides us, which pools are ours, and with which certificates they ask us."""
    found = await api.one(f"{_OURS}/configmaps/{POOLS}")
    pools = found if found is None or isinstance(found, Unavailable) else str(table(found, "data").get(KEY, ""))
    where = sorted({one.key.partition("/")[0] for one in callers})[:_MAX_SECRETS]
    shown: dict[str, Secret | Unavailable | None] = {}
    for namespace in {*where, SYSTEM_NAMESPACE} if where else ():
        item = await api.one(f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{AUTOSCALER_CLIENT}")
        shown[namespace] = item if item is None or isinstance(item, Unavailable) else secret(item)
    return ScalerFacts(tuple(one for one in workloads if is_cluster_autoscaler(one)), pools, callers, shown)


def _ours(workloads: tuple[Workload, ...]) -> list[Workload]:
    return [one for one in workloads if one.key.startswith(f"{SYSTEM_NAMESPACE}/")]


async def _read_monitoring(api: ApiReader) -> Monitoring | Unavailable:
    """What the Prometheus operator and Grafana's sidecar find in our namespace."""
    try:
        scrapes = await _count(api, f"{_OPERATOR}/servicemonitors", _PART_OF)
        rules = await _count(api, f"{_OPERATOR}/prometheusrules", _PART_OF)
        dashboards = await _count(api, f"{_OURS}/configmaps", _DASHBOARD)
    except NotFoundError:
        return Monitoring(operator=False)
    except ClusterError as exc:
        return Unavailable(str(exc))
    return Monitoring(operator=True, scrapes=scrapes, rules=rules, dashboards=dashboards)


async def _count(api: ApiReader, path: str, labels: str) -> int:
    return len([None async for _ in api.items(path, labelSelector=labels)])


async def _read_rights(api: ApiReader) -> dict[str, bool | None] | Unavailable:
    """Of the accounts that are there."""
    accounts = await api.list(f"{_OURS}/serviceaccounts")
    if isinstance(accounts, Unavailable):
        return accounts
    there = {str(table(one, "metadata").get("name")) for one in accounts}
    asked = [
        (account, permission, verb)
        for account, granted in PERMISSIONS.items()
        if account in there
        for permission in granted
        for verb in permission.verbs
    ]
    answers = await asyncio.gather(*(_may(api, *one) for one in asked))
    return dict(
        zip((sentence(account, verb, permission.resource) for account, permission, verb in asked), answers, strict=True)
    )


async def _may(api: ApiReader, account: str, permission: Permission, verb: str) -> bool | None:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"]
    wish: dict[str, Any] = {
        "group": permission.group,
        "resource": permission.plain,
        "subresource": permission.part,
        "verb": verb,
    }
    wish |= {"namespace": SYSTEM_NAMESPACE} if permission.local else {}
    wish |= {"name": permission.names[0]} if permission.names else {}
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
        allowed = table(await api.post(_REVIEWS, body), "status").get("allowed")
    except ClusterError:
        return None
    return allowed if isinstance(allowed, bool) else None
