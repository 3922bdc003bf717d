# SPDX-License-Identifier: Apache-2.0
"""
Kubelets that run nothing: nodes with shared cards, alive by their leases, whose pods reach Running and end when asked.

They admit whatever is bound to them. A Job's pod ends by its annotation `test/ends-after` (seconds).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from e2e.apiclient import ApiClient

ENDS_AFTER = "test/ends-after"
LEASE_SECONDS = 10.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def shared_node(name: str, cards: int = 4, gib: int = 15, mode: str = "cgpu", **labels: str) -> dict[str, Any]:
    """A node whose cards are shared; 0 cards make a plain one."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    if cards:
        room |= {"aliyun.com/gpu-mem": str(cards * gib), "aliyun.com/gpu-count": str(cards)}
        labels = {"ack.node.gpu.schedule": mode, **labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"capacity": room, "allocatable": room, "conditions": [_condition("Ready")]},
    }


def share_pod(name: str, units: int = 2, cards: int = 1, **spec: Any) -> dict[str, Any]:
    """A pod that asks for `units` of memory over `cards` cards; 0 units ask for none."""
    limits = {"aliyun.com/gpu-mem": str(units)} if units else {}
    labels = {"aliyun.com/gpu-count": str(cards)} if cards > 1 else {}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


class Kubelets:
    """All the kubelets of a test."""

    def __init__(self, client: ApiClient, nodes: Iterable[dict[str, Any]], *, at_once: int = 20) -> None:
        self._client = client
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._gate = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: set[str] = set()

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[Kubelets]:
        """Nodes exist, are Ready and serve pods until the block ends."""
        await asyncio.gather(*(self._join(node) for node in self._nodes.values()))
        self._keep(self._renew())
        self._keep(self._serve())
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(self._client.delete(f"/api/v1/nodes/{name}") for name in self._nodes))

    async def _join(self, node: dict[str, Any]) -> None:
        async with self._gate:
            await self._client.create(node)  # the API server takes a new node's status as it is
            await self._lease(node["metadata"]["name"])

    async def _lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _micro()}
        try:
            await self._client.merge(f"{_LEASES}/{name}", {"spec": spec})
        except RefusedError as exc:
            if exc.status != 404:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
            await self._client.create(lease, "kube-node-lease")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS)
            for name in self._nodes:
                with contextlib.suppress(Exception):  # the API server may be down: that is some test's subject
                    await self._lease(name)

    async def _serve(self) -> None:
        """Watch all pods; begin again with a list whenever the watch ends, for whatever reason."""
        while True:
            with contextlib.suppress(Exception):
                listed = await self._client.get("/api/v1/pods")
                for pod in listed["items"]:
                    self._look(pod)
                version = listed["metadata"]["resourceVersion"]
                async for event in self._client.watch("/api/v1/pods", resourceVersion=version):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._look(event["object"])
                    elif event["type"] == "ERROR":
                        break
            await asyncio.sleep(0.2)

    def _look(self, pod: dict[str, Any]) -> None:
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        meta, phase = pod["metadata"], pod["status"].get("phase")
        if "deletionTimestamp" in meta:
            self._keep(self._finish(pod))
        elif phase == "Pending":
            self._keep(self._run(pod))
        elif phase == "Running" and ENDS_AFTER in meta.get("annotations", {}) and meta["uid"] not in self._ended:
            self._ended.add(meta["uid"])
            self._keep(self._succeed(pod, float(meta["annotations"][ENDS_AFTER])))

    async def _run(self, pod: dict[str, Any]) -> None:
        await self._report(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)

    async def _succeed(self, pod: dict[str, Any], seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._report(pod, "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}}, ready=False)

    async def _report(self, pod: dict[str, Any], phase: str, state: dict[str, Any], *, ready: bool) -> None:
        statuses = [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state}
            for c in pod["spec"]["containers"]
        ]
        conditions = [_condition(kind, "True" if ready else "False") for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "podIP": "198.18.0.1", "containerStatuses": statuses, "conditions": conditions}
        await self._tell(
            "PATCH", f"{_path(pod)}/status", {"status": status, "metadata": {"uid": pod["metadata"]["uid"]}}
        )

    async def _finish(self, pod: dict[str, Any]) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._tell("DELETE", _path(pod), body)

    async def _tell(self, method: str, path: str, body: dict[str, Any]) -> None:
        async with self._gate:
            with contextlib.suppress(RefusedError):  # gone, or another pod of that name by now
                await self._client.call(method, path, body, "merge" if method == "PATCH" else "json")

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "lastHeartbeatTime": _now(), "lastTransitionTime": _now()}


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
