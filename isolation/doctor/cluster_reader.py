# SPDX-License-Identifier: Apache-2.0
"""
A look at a cluster through its API server: lists, a few questions, two pods shown to admission and never made.

Decides what is asked and how long; judges nothing. Whatever is refused or does not answer is `Untold`.
Nothing is changed: the two pods are dry runs.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import ACK, EXEMPT, GROUP, RESERVATIONS, SCHEDULER, SHARED, SYSTEM_NAMESPACE
from isolation.doctor import cluster_reader_own
from isolation.doctor.checks.cluster.admission import PROBED
from isolation.doctor.checks.cluster.facts import Caller, ClusterFacts, NodeFacts, PodFacts, Probe, Untold, Workload
from isolation.doctor.checks.cluster.read import (
    asks_for_shares,
    caller,
    node_facts,
    pod_facts,
    table,
    ungoverned,
    unit_of,
    workload,
)
from isolation.doctor.checks.cluster.scalers import scales
from isolation.doctor.cluster_requests import Asking
from isolation.kube.access import Access, Deadlines
from isolation.kube.core.errors import ClusterError, RefusedError

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINES: Final = Deadlines(page=30.0, write=10.0)
_WHOLE_SECONDS: Final = 300.0
"""40,000 pods are read in half a minute."""
_LONGEST_WORDS: Final = 4_000
"""Of a refusal."""
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def look(kubeconfig: Path | None, context: str | None) -> ClusterFacts:
    """Everything, once."""
    try:
        async with asyncio.timeout(_WHOLE_SECONDS), Access(kubeconfig, context, _DEADLINES) as access:
            return await _all(Asking(access))
    except ClusterError as exc:
        return ClusterFacts(Untold(str(exc)))
    except TimeoutError:
        return ClusterFacts(Untold(f"timed out after {_WHOLE_SECONDS:.0f} s"))


async def _all(asking: Asking) -> ClusterFacts:
    version = await _version(asking)
    if isinstance(version, Untold):
        return ClusterFacts(version)
    mutating = await asking.list(f"{_ADMISSION}/mutatingwebhookconfigurations")
    validating = await asking.list(f"{_ADMISSION}/validatingwebhookconfigurations")
    nodes, workloads = await _nodes(asking), await _workloads(asking)
    pods, bare, callers = await _pods(asking, () if isinstance(nodes, Untold) else nodes)
    return ClusterFacts(
        version=version,
        definition=await asking.one(f"{_DEFINITIONS}/{RESERVATIONS}.{GROUP}"),
        webhooks=mutating if isinstance(mutating, Untold) else _both(mutating, validating),
        policies=await asking.list(f"{_ADMISSION}/validatingadmissionpolicies"),
        bindings=await asking.list(f"{_ADMISSION}/validatingadmissionpolicybindings"),
        services=await asking.list("/apis/apiregistration.k8s.io/v1/apiservices"),
        nodes=nodes,
        pods=pods,
        exempt=await _exempt(asking),
        workloads=workloads,
        lease=await asking.one(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{SCHEDULER}"),
        secrets=await cluster_reader_own.secrets(asking, workloads),
        autoscaler=await cluster_reader_own.autoscaler(asking, workloads, time.time()),
        scalers=await cluster_reader_own.scalers(
            asking, (*(() if isinstance(workloads, Untold) else workloads), *bare), callers
        ),
        monitoring=await cluster_reader_own.monitoring(asking),
        good=await _probe(asking, 2, 1),
        bad=await _probe(asking, 3, 2),
        rights=await cluster_reader_own.rights(asking),
    )


async def _version(asking: Asking) -> str | Untold:
    try:
        said = await asking.get("/version")
    except ClusterError as exc:
        return Untold(str(exc))
    version = said.get("gitVersion")
    return version if isinstance(version, str) else Untold("the server is not a Kubernetes API server")


async def _nodes(asking: Asking) -> tuple[NodeFacts, ...] | Untold:
    try:
        return tuple([node_facts(item) async for item in asking.items("/api/v1/nodes")])
    except ClusterError as exc:
        return Untold(str(exc))


async def _pods(
    asking: Asking, nodes: tuple[NodeFacts, ...]
) -> tuple[tuple[PodFacts, ...] | Untold, tuple[Workload, ...], tuple[Caller, ...]]:
    """Those with shares, cluster-autoscalers that no controller made, and those with the certificate for it."""
    known = {one.name: one.node for one in nodes if one.node is not None}
    unit = unit_of(nodes)
    found, bare, callers = [], [], []
    try:
        async for item in asking.items("/api/v1/pods"):
            if asks_for_shares(item):
                found.append(pod_facts(item, known, unit))
            elif (one := ungoverned(item)) is not None and scales(one):
                bare.append(one)
            if (shows := caller(item)) is not None:
                callers.append(shows)
    except ClusterError as exc:
        return Untold(str(exc)), (), ()
    return tuple(found), tuple(bare), tuple(callers)


async def _exempt(asking: Asking) -> tuple[str, ...] | Untold:
    found = await asking.list("/api/v1/namespaces", labelSelector=f"{EXEMPT}=true")
    return found if isinstance(found, Untold) else tuple(str(table(one, "metadata").get("name")) for one in found)


async def _workloads(asking: Asking) -> tuple[Workload, ...] | Untold:
    made: list[Workload] = []
    for kind, plural in (("Deployment", "deployments"), ("DaemonSet", "daemonsets")):
        found = await asking.list(f"/apis/apps/v1/{plural}")
        if isinstance(found, Untold):
            return found
        made += [workload(kind, one) for one in found]
    return tuple(made)


async def _probe(asking: Asking, units: int, cards: int) -> Probe | Untold:
    """A pod that asks so much, as a dry run."""
    limits = {ACK.memory: str(units)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpushare-doctor", "labels": {ACK.card_count: str(cards)} if cards > 1 else {}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    }
    try:
        made = await asking.post(f"/api/v1/namespaces/{PROBED}/pods?dryRun=All", pod)
    except RefusedError as exc:
        return Probe((exc.message or str(exc))[:_LONGEST_WORDS])
    except ClusterError as exc:
        return Untold(str(exc))
    labels = table(table(made, "metadata"), "labels")
    return Probe(shared=labels.get(SHARED) == "true", scheduler=str(table(made, "spec").get("schedulerName") or ""))


def _both(
    one: tuple[dict[str, Any], ...], other: tuple[dict[str, Any], ...] | Untold
) -> tuple[dict[str, Any], ...] | Untold:
    return other if isinstance(other, Untold) else one + other
