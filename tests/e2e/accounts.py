# SPDX-License-Identifier: Apache-2.0
"""
Our service accounts on a real control plane: roles and policies as the manifests have them, tokens as pods get them.

A node agent's token is bound to a pod on its node, so that the API server itself puts the node's name into it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from e2e.manifest_files import Cluster, documents

from autoscaler.kube import scale_bounds
from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

    from autoscaler.kube.core.config import PoolConfig

GRANTS = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")
GRANTS += ("ClusterRoleBinding", "RoleBinding", "Secret")
BY_HAND = "by-hand"
"""How the API server's log tells these requests from those of our processes."""
PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"


async def granted(client: ApiClient) -> None:
    """Accounts, roles and our kind of object; they stay."""
    cluster = Cluster(client)
    for thing in documents():
        if thing["kind"] in GRANTS:
            await cluster.ensure(thing)
    await client.until(bool, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/default")
    await client.until(
        lambda crd: any(
            c["type"] == "Established" and c["status"] == "True" for c in crd.get("status", {}).get("conditions", ())
        ),
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/reservations.gpushare.dev",
    )


def bounded(things: list[dict[str, Any]], pools: Iterable[PoolConfig]) -> list[dict[str, Any]]:
    """The policies with `gpushare autoscaler bounds`' patch for these pools."""
    test, replace = scale_bounds.patch(pools)
    assert ("/spec/variables/0/name", "/spec/variables/0/expression") == (test["path"], replace["path"])
    for one in things:
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", scale_bounds.POLICY):
            first = one["spec"]["variables"][0]
            assert test["value"] == first["name"]
            first["expression"] = replace["value"]
    return things


async def own_pod(client: ApiClient, account: str, name: str, node: str = "") -> dict[str, Any]:
    """The pod that a process of ours would be."""
    spec = {"serviceAccountName": account, "containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "spec": spec | ({"nodeName": node} if node else {}),
    }
    return await client.create(pod)


async def kubeconfig(plane: ControlPlane, client: ApiClient, folder: Path, account: str, pod: dict[str, Any]) -> Path:
    """Credentials of that pod: a token of its account, bound to it."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    wish = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/serviceaccounts/{account}/token"
    made = await client.call("POST", path, wish)
    file = folder / f"{pod['metadata']['name']}.token"
    file.write_text(made["status"]["token"])
    return plane.kubeconfig_of_token(pod["metadata"]["name"], file)


async def kubeconfig_of_secret(plane: ControlPlane, client: ApiClient, folder: Path, secret: str) -> Path:
    """Credentials of the account whose token Kubernetes has filled into this Secret."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{secret}"
    filled = await client.until(lambda found: "token" in found.get("data", {}), path)
    file = folder / f"{secret}.token"
    file.write_bytes(base64.b64decode(filled["data"]["token"]))
    return plane.kubeconfig_of_token(secret, file)


async def forget(client: ApiClient, *names: str) -> None:
    """The pods of our processes."""
    for name in names:
        await client.delete(f"{PODS}/{name}", force=True)


class Account:
    """One account's own requests, past our code: the API server's answers."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def says(self, method: str, path: str, body: object = None, kind: str = "application/json") -> int:
        """The status."""
        async with self._session.request(method, path, data=json.dumps(body), headers={"Content-Type": kind}) as answer:
            await answer.read()
            return answer.status


@contextlib.asynccontextmanager
async def account(plane: ControlPlane, config: Path) -> AsyncIterator[Account]:
    """By the token alone: a client certificate would win over it."""
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(plane.ca)))
    headers = {"Authorization": f"Bearer {_token(config)}", "User-Agent": BY_HAND}
    async with aiohttp.ClientSession(plane.url, connector=connector, headers=headers) as session:
        yield Account(session)


def _token(config: Path) -> str:
    return Path(json.loads(config.read_text())["users"][0]["user"]["tokenFile"]).read_text()
