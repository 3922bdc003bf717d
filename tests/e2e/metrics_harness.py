# SPDX-License-Identifier: Apache-2.0
"""
The metrics APIs in front of a real API server, and HorizontalPodAutoscalers that read them.

The test says what pods use; which pods run is asked of the API server. Our account has the rights of the
manifests and no others. Everything made here is gone afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.apiclient import RefusedError, connected
from support.ports import free_port

from autoscaler.apis.metrics.app import MetricsApiSettings, serve_metrics_api
from autoscaler.apis.metrics.core.readings import (
    ContainerCardUse,
    LatestSnapshot,
    MetricsSnapshot,
    PendingPod,
    PodUse,
    PoolCapacity,
)
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL, VERSIONS
from autoscaler.apis.metrics.registration import PATH as APISERVICES
from autoscaler.apis.metrics.registration import ServiceRef
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.kube.access import Access
from isolation.kube.background import Background
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

COMPONENTS = Path(__file__).resolve().parents[2] / "manifests" / "components"
NAME = "gpushare-autoscaler-metrics"
ACCOUNT = "system:serviceaccount:gpushare-system:gpushare-autoscaler"
HPAS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
PODS = "/api/v1/namespaces/default/pods"
PROMISED = 4 * GIB
_GRANTS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


class Figures:
    """What the test claims; a picture of it is put up several times a second."""

    def __init__(self, client: ApiClient) -> None:
        self.board = LatestSnapshot()
        self.used: Callable[[str], float | None] = lambda _name: 0.5
        """By pod: part of the promise in use; None: not told."""
        self.silent_since: float | None = None
        """Since then the exporter has said nothing (boot clock)."""
        self.waiting: tuple[PendingPod, ...] = ()
        self.closed = ""
        """Why no figures are reported."""
        self.frozen = False
        """Nobody puts up pictures any more."""
        self.port = 0
        self.outage: Callable[[], Awaitable[None]]
        """Ends the server."""
        self._client = client

    async def run(self) -> None:
        """Keep the picture up to date until cancelled."""
        while True:
            with contextlib.suppress(RefusedError, OSError):
                used = self.used  # before the pods: what a test sets after a deletion never describes what was deleted
                pods = (await self._client.get(PODS))["items"]
                if not self.frozen:
                    self.board.put(self._picture(pods, used))
            await asyncio.sleep(0.2)

    def _picture(self, pods: list[dict[str, Any]], used: Callable[[str], float | None]) -> MetricsSnapshot:
        now = boottime()
        measured = now if self.silent_since is None else self.silent_since
        uses = []
        for pod in pods:
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
                name, part = pod["metadata"]["name"], used(pod["metadata"]["name"])
                amount = None if part is None else int(part * PROMISED)
                use = ContainerCardUse("main", "GPU-0", 0, PROMISED, used_bytes=amount, used_core=part)
                uses.append(PodUse("default", name, "n1", (use,), pod["metadata"].get("labels", {}), measured))
        rooms = (PoolCapacity("a", 3 * GIB, 4.0, 1.0), PoolCapacity("b", 7 * GIB, 4.0, 0.0))
        return MetricsSnapshot(now, {"default": tuple(uses)}, rooms, self.waiting)


def settings(plane: ControlPlane, *groups: str, name: str = NAME, **more: Any) -> MetricsApiSettings:
    """A server of ours, reached at a free port."""
    port = free_port()
    pair = plane.serving_pair(name, (f"{name}.{SYSTEM_NAMESPACE}.svc",))
    given = {"host": own_address(), "port": port, "authority": plane.ca}
    service = ServiceRef(SYSTEM_NAMESPACE, name)
    return MetricsApiSettings(pair.certificate, pair.key, frozenset(groups), service=service, **(given | more))


@contextlib.asynccontextmanager
async def granted(client: ApiClient) -> AsyncIterator[None]:
    """Rights and policy as the components have them; the Service leads here."""
    made = []
    for file in sorted((COMPONENTS / "metrics-api").glob("*.yaml")):
        things = yaml.safe_load_all(file.read_text())
        made += [each for each in things if isinstance(each, dict) and each["kind"] in _GRANTS]
    with contextlib.suppress(RefusedError):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
    paths = []
    try:
        for thing in made:
            path = _GRANTS[thing["kind"]].format(thing["metadata"].get("namespace"))
            await client.call("POST", path, thing)
            paths.append(f"{path}/{thing['metadata']['name']}")
        yield
    finally:
        for path in reversed(paths):
            await client.delete(path)


def own_address() -> str:
    """An address of this machine that an EndpointSlice may name: not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("no address but loopback, which kube-apiserver does not take for an endpoint")
        return probe.getsockname()[0]


@contextlib.asynccontextmanager
async def leads_here(client: ApiClient, port: int, name: str = NAME) -> AsyncIterator[None]:
    """A Service of that name leads to this port; no APIService stays afterwards."""
    spec = {"ports": [{"name": "metrics-api", "port": 443}]}
    await client.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}, SYSTEM_NAMESPACE
    )
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/endpointslices"
    here = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "metrics-api", "port": port}],
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
    }
    try:
        await client.call("POST", slices, here)
        yield
    finally:
        for group, versions in VERSIONS.items():
            for version in versions:
                await client.delete(f"{APISERVICES}/{version}.{group}")
        await client.delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/services/{name}")
        await client.delete(f"{slices}/{name}")


@contextlib.asynccontextmanager
async def served(plane: ControlPlane, fresh: float = 4.0, **more: Any) -> AsyncIterator[tuple[ApiClient, Figures]]:
    """Both APIs, available at the API server; older pictures than `fresh` seconds are none."""
    wish = settings(plane, CUSTOM, EXTERNAL, **more)
    async with connected(plane) as client, granted(client), leads_here(client, wish.port):
        figures = Figures(client)
        task = asyncio.create_task(figures.run())
        account = plane.kubeconfig_for(ACCOUNT)
        try:
            async with contextlib.AsyncExitStack() as stack:
                figures.outage = stack.aclose
                access = await stack.enter_async_context(Access(account))
                figures.port = await stack.enter_async_context(
                    serve_metrics_api(
                        access, figures.board, wish, Background(), closed=lambda: figures.closed, fresh=lambda: fresh
                    )
                )
                await available(client)
                yield client, figures
        finally:
            task.cancel()


async def available(client: ApiClient) -> None:
    """Until kube-apiserver forwards every version."""
    for group, versions in VERSIONS.items():
        for version in versions:
            await client.until(
                lambda found: any(
                    c["type"] == "Available" and c["status"] == "True"
                    for c in found.get("status", {}).get("conditions", ())
                ),
                f"{APISERVICES}/{version}.{group}",
            )
            await client.until(lambda listed: listed["resources"], f"/apis/{group}/{version}")


def autoscaler(name: str, metric: dict[str, Any], most: int = 5) -> dict[str, Any]:
    """A HorizontalPodAutoscaler that goes up and down at once."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}, "scaleUp": {"stabilizationWindowSeconds": 0}},
        },
    }


def pods_metric(name: str, average: str, **selector: str) -> dict[str, Any]:
    """By a figure of the Deployment's pods."""
    metric = {"name": name} | ({"selector": {"matchLabels": selector}} if selector else {})
    return {"type": "Pods", "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": average}}}


def object_metric(name: str, of: str, kind: str, amount: str, described: str = "Pod") -> dict[str, Any]:
    """By a figure of one object; `kind`: Value or AverageValue."""
    target = {"type": kind, kind[0].lower() + kind[1:]: amount}
    who = {"apiVersion": "v1", "kind": described, "name": of}
    return {"type": "Object", "object": {"describedObject": who, "metric": {"name": name}, "target": target}}


def external_metric(name: str, average: str, selector: dict[str, Any] | None = None) -> dict[str, Any]:
    """By a figure of pools."""
    metric = {"name": name} | ({"selector": selector} if selector else {})
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "External", "external": {"metric": metric, "target": target}}
