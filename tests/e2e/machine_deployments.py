# SPDX-License-Identifier: Apache-2.0
"""
Machine deployments as Cluster API's controllers would run them: kinds, and a controller that makes machines and nodes.

It keeps the documented manners: a MachineDeployment's `/scale`, Machines selected by label, a member with the
delete-machine annotation goes first. `stock` bounds what can be had; `pause` holds the controller still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from e2e.apiclient import ApiClient

GROUP = "cluster.x-k8s.io"
ROOT = f"/apis/{GROUP}/v1beta1/namespaces/default"
DELETE = f"{GROUP}/delete-machine"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NO_STOCK = "InsufficientInstanceCapacity: We currently do not have sufficient capacity in the zone you requested"


def _definition(kind: str, plural: str, **sub: Any) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema, "subresources": sub}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # a group of Kubernetes' own needs this word of approval
        "metadata": {"name": f"{plural}.{GROUP}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


async def install(client: ApiClient) -> None:
    """Both kinds, served."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    for thing in (
        _definition("MachineDeployment", "machinedeployments", status={}, scale=scale),
        _definition("Machine", "machines"),
    ):
        with contextlib.suppress(RefusedError):
            await client.create(thing)
        await client.until(
            lambda crd: any(
                c["type"] == "Established" and c["status"] == "True"
                for c in crd.get("status", {}).get("conditions") or ()
            ),
            f"{_CRDS}/{thing['metadata']['name']}",
        )


class MachineDeployments:
    """The controller; each machine becomes a node by `node_of(node name, pool)`, if that is given."""

    def __init__(self, client: ApiClient, node_of: Callable[[str, str], dict[str, Any]] | None = None) -> None:
        self._client, self._node_of = client, node_of
        self.stock: dict[str, int] = {}
        self._gate, self._still = asyncio.Event(), asyncio.Event()
        self._gate.set()
        self.held: set[str] = set()
        """Pools whose machines do not come up yet."""
        self.made: Counter[str] = Counter()
        """Machines ever made, by pool."""

    async def pause(self) -> None:
        """Do nothing from now on: what was under way has ended when this returns."""
        self._gate.clear()
        await self._still.wait()

    def resume(self) -> None:
        """Go on."""
        self._gate.set()

    async def create(self, name: str, replicas: int = 0, **annotations: str) -> None:
        """One pool."""
        await self._client.call(
            "POST",
            f"{ROOT}/machinedeployments",
            {
                "apiVersion": f"{GROUP}/v1beta1",
                "kind": "MachineDeployment",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"replicas": replicas},
            },
        )
        await self._client.merge(
            f"{ROOT}/machinedeployments/{name}/status", {"status": {"replicas": 0, "selector": f"deployment={name}"}}
        )

    async def machines(self, name: str) -> list[dict[str, Any]]:
        """Of one pool."""
        return (await self._client.get(f"{ROOT}/machines", labelSelector=f"deployment={name}"))["items"]

    async def replicas(self, name: str) -> int:
        """The wish."""
        return (await self._client.get(f"{ROOT}/machinedeployments/{name}"))["spec"]["replicas"]

    async def settled(self, name: str) -> list[str]:
        """Names of the nodes once there are as many as wished."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = await self.machines(name)
                ready = [m for m in found if m["status"].get("nodeRef")]
                if len(ready) == len(found) == await self.replicas(name):
                    return sorted(m["status"]["nodeRef"]["name"] for m in ready)
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[MachineDeployments]:
        """While the block lasts; then nothing of it stays."""
        await install(self._client)
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._client.delete(f"{ROOT}/machinedeployments")
            for machine in (await self._client.get(f"{ROOT}/machines"))["items"]:
                await self._end(machine)

    async def _run(self) -> None:
        while True:
            if not self._gate.is_set():
                self._still.set()
                await self._gate.wait()
                self._still.clear()
            for pool in (await self._client.get(f"{ROOT}/machinedeployments"))["items"]:
                with contextlib.suppress(RefusedError):
                    await self._reconcile(pool["metadata"]["name"], pool["spec"]["replicas"])
            await asyncio.sleep(0.03)

    async def _reconcile(self, name: str, wish: int) -> None:
        have = await self.machines(name)
        for _ in range(wish - len(have)):
            await self._make(name)
        # marked ones first, then the newest: never by chance what the test hopes for
        order = sorted(
            have, key=lambda m: (not m["metadata"].get("annotations", {}).get(DELETE), m["metadata"]["name"])
        )
        for machine in order[: max(0, len(have) - wish)]:
            await self._end(machine)
        if wish != len(have):
            await self._client.merge(f"{ROOT}/machinedeployments/{name}/status", {"status": {"replicas": wish}})
        for machine in have[:wish]:
            if not machine["status"].get("nodeRef") and name not in self.held:
                await self._boot(name, machine)

    async def _make(self, name: str) -> None:
        self.made[name] += 1
        await self._client.call(
            "POST",
            f"{ROOT}/machines",
            {
                "apiVersion": f"{GROUP}/v1beta1",
                "kind": "Machine",
                "metadata": {"name": f"{name}-m{self.made.total():03}", "labels": {"deployment": name}},
                "spec": {},
                "status": {"phase": "Provisioning"},
            },
        )

    async def _boot(self, pool: str, machine: dict[str, Any]) -> None:
        path = f"{ROOT}/machines/{machine['metadata']['name']}"
        up = [m for m in await self.machines(pool) if m["status"].get("nodeRef")]
        if pool in self.stock and len(up) >= self.stock[pool]:
            trouble = {"type": "InfrastructureReady", "status": "False", "reason": "Failed", "message": NO_STOCK}
            if not machine["status"].get("conditions"):
                await self._client.merge(path, {"status": {"conditions": [trouble]}})
            return
        node = machine["metadata"]["name"].replace("-m", "-n")
        provider_id = f"test://zone/{node}"
        if self._node_of is not None:
            made = self._node_of(node, pool)
            await self._client.create(made | {"spec": {**made.get("spec", {}), "providerID": provider_id}})
        running = {"phase": "Running", "nodeRef": {"kind": "Node", "name": node}, "conditions": None}
        await self._client.merge(path, {"spec": {"providerID": provider_id}, "status": running})

    async def _end(self, machine: dict[str, Any]) -> None:
        await self._client.delete(f"{ROOT}/machines/{machine['metadata']['name']}")
        node = machine["status"].get("nodeRef", {}).get("name")
        if node and self._node_of is not None:
            await self._client.delete(f"/api/v1/nodes/{node}")
