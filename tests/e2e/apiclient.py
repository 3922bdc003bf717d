# SPDX-License-Identifier: Apache-2.0
"""
A small client of the API server for tests: JSON in, JSON out, nothing of the code under test.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from e2e.plane import ControlPlane

_KINDS = {"json": "application/json", "merge": "application/merge-patch+json"}
_PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
}


class RefusedError(Exception):
    """The API server's answer was not 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:2000]}")
        self.status = status


class ApiClient:
    """One user's connection."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def call(self, method: str, path: str, body: object = None, kind: str = "json", **params: Any) -> Any:
        """One request; raises RefusedError."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": _KINDS[kind]}
        async with self._session.request(method, path, data=content, headers=headers, params=params) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RefusedError(answer.status, text)
            return json.loads(text) if text.startswith(("{", "[")) else text

    async def create(self, thing: dict[str, Any], namespace: str = "default") -> Any:
        """A manifest, as `kubectl create` would."""
        namespace = thing["metadata"].get("namespace", namespace)
        return await self.call("POST", _PLURALS[thing["kind"]].format(namespace), thing)

    async def get(self, path: str, **params: Any) -> Any:
        """One object or list."""
        return await self.call("GET", path, **params)

    async def discovery(self) -> dict[str, Any]:
        """All groups as controllers discover them, from kube-apiserver's copy: Stale where a server is away."""
        accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
        async with self._session.get("/apis", headers=accept) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def merge(self, path: str, patch: dict[str, Any], **params: Any) -> Any:
        """A merge patch."""
        return await self.call("PATCH", path, patch, "merge", **params)

    async def delete(self, path: str, *, force: bool = False) -> None:
        """One object, or a collection; what is gone already is fine."""
        body = {"gracePeriodSeconds": 0} if force else {}
        try:
            await self.call("DELETE", path, body)
        except RefusedError as exc:
            if exc.status != 404:
                raise

    async def watch(self, path: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """Events until the server ends the connection."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
        params = {"watch": "true", **params}
        async with self._session.get(path, params=params, timeout=timeout) as answer:
            async for line in answer.content:
                yield json.loads(line)

    async def until(
        self, claim: Callable[[Any], bool], path: str, seconds: float = PATIENCE_SECONDS, **params: Any
    ) -> Any:
        """The object once the claim about it holds."""
        last: object = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        last = await self.get(path, **params)
                        if claim(last):
                            return last
                    except RefusedError as exc:
                        last = exc
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{path} after {seconds} s: {str(last)[:2000]}") from None


@asynccontextmanager
async def connected(plane: ControlPlane, user: str = "admin") -> AsyncIterator[ApiClient]:
    """A client of this plane."""
    connector = aiohttp.TCPConnector(ssl=plane.tls(user), limit=50)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(plane.url, connector=connector, timeout=timeout, read_bufsize=1 << 22) as session:
        yield ApiClient(session)
