# SPDX-License-Identifier: Apache-2.0
"""
A real Node of the control plane whose kubelet is the stand-in with a device manager.

    async with ManagedNode(client, "n1", kubelet, mode="cgpu").alive() as node: ...

Pods bound to the node are admitted, started and ended by the stand-in; what becomes of them is reported as a
kubelet reports it, and so is what the device plugin offers. A pod that vanishes without having ended first
was force-deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from e2e.apiclient import RefusedError
from e2e.kubelets import ENDS_AFTER, Kubelets
from support.device_manager import Box, ManagedPod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.apiclient import ApiClient
    from support.device_manager import DeviceManager

_ROOM = {"cpu": "64", "memory": "256Gi", "pods": "250"}
MODE = "ack.node.gpu.schedule"


def pod_of(thing: dict[str, Any], resource: str) -> ManagedPod:
    """A pod's object as the stand-in takes it."""
    meta, spec = thing["metadata"], thing["spec"]
    after = meta.get("annotations", {}).get(ENDS_AFTER)
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec.get("volumes", ()) if "hostPath" in volume}

    def box(container: dict[str, Any], *, app: bool) -> Box:
        units = int(container.get("resources", {}).get("limits", {}).get(resource, 0))
        return Box(
            container["name"],
            {resource: units} if units else {},
            sidecar=container.get("restartPolicy") == "Always",
            env={one["name"]: one.get("value", "") for one in container.get("env", ())},
            mounts={
                m["mountPath"]: volumes[m["name"]] for m in container.get("volumeMounts", ()) if m["name"] in volumes
            },
            seconds=float(after) if after and app else None,
        )

    return ManagedPod(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        apps=[box(one, app=True) for one in spec["containers"]],
        inits=[box(one, app=False) for one in spec.get("initContainers", ())],
        annotations=meta.get("annotations", {}),
    )


class ManagedNode:
    """See the module."""

    def __init__(
        self,
        client: ApiClient,
        name: str,
        kubelet: DeviceManager,
        mode: str = "cgpu",
        *,
        watching: bool = True,
        **labels: str,
    ) -> None:
        self._watching = watching
        self._client, self.name, self.kubelet = client, name, kubelet
        self._labels = {"kubernetes.io/hostname": name, MODE: mode, **labels}
        self.path = f"/api/v1/nodes/{name}"
        self.pods: dict[str, ManagedPod] = {}
        """Every pod that was ever bound here, by UID."""
        self._objects: dict[str, dict[str, Any]] = {}
        self._told: tuple[int, int] | None = None
        self._changes: asyncio.Queue[ManagedPod] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[ManagedNode]:
        """The node exists, is Ready and serves pods until the block ends."""
        loop = asyncio.get_running_loop()
        self.kubelet.on_change = lambda pod: loop.call_soon_threadsafe(self._changes.put_nowait, pod)
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": None}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": self._labels},
            "status": {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [condition]},
        }
        leases = Kubelets(self._client, [node])
        await leases._join(node)
        tasks = [asyncio.create_task(one) for one in (leases._renew(), self._watch(), self._report(), self._state())]
        try:
            yield self
        finally:
            self.kubelet.on_change = lambda _: None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._client.delete(self.path)

    async def _watch(self) -> None:
        """Pods of this node; begin again with a list whenever the watch ends."""
        where = {"fieldSelector": f"spec.nodeName={self.name}"}
        while self._watching:
            with contextlib.suppress(Exception):
                listed = await self._client.get("/api/v1/pods", **where)
                for pod in listed["items"]:
                    self._look(pod)
                for uid in set(self._objects) - {pod["metadata"]["uid"] for pod in listed["items"]}:
                    self._vanished(uid)
                version = listed["metadata"]["resourceVersion"]
                async for event in self._client.watch("/api/v1/pods", resourceVersion=version, **where):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._look(event["object"])
                    elif event["type"] == "DELETED":
                        self._vanished(event["object"]["metadata"]["uid"])
                    else:
                        break
            await asyncio.sleep(0.2)

    def _look(self, thing: dict[str, Any]) -> None:
        uid = thing["metadata"]["uid"]
        known = self.pods.get(uid)
        if known is None:
            self._objects[uid] = thing
            self.pods[uid] = self.kubelet.bind(pod_of(thing, self.kubelet.resource))
        elif "deletionTimestamp" in thing["metadata"] and not known.ending.is_set():
            known.ending.set()
            self.kubelet.delete(known)

    def _vanished(self, uid: str) -> None:
        self._objects.pop(uid, None)
        pod = self.pods[uid]
        if pod.phase != "Gone":
            self.kubelet.force_delete(pod)

    async def _report(self) -> None:
        while True:
            pod = await self._changes.get()
            thing = self._objects.get(pod.uid)
            if thing is None:
                continue
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
            for _ in range(50):  # the API server may be away for a while
                try:
                    if pod.phase == "Gone":
                        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
                        await self._client.call("DELETE", path, body)
                    else:
                        status = {"status": _status(pod, thing), "metadata": {"uid": pod.uid}}
                        await self._client.call("PATCH", f"{path}/status", status, "merge")
                    break
                except RefusedError:
                    break  # gone, or another pod of that name by now
                except Exception:  # noqa: BLE001 (whatever the connection says)
                    await asyncio.sleep(0.2)

    async def _state(self) -> None:
        """What the plugin offers, into the node's status."""
        while True:
            with contextlib.suppress(Exception):
                now = self.kubelet.status()
                if now != self._told:
                    stated = {self.kubelet.resource: str(now[0])}
                    left = {self.kubelet.resource: str(now[1])}
                    await self._client.merge(
                        f"{self.path}/status", {"status": {"capacity": stated, "allocatable": left}}
                    )
                    self._told = now
            await asyncio.sleep(0.05)


def _status(pod: ManagedPod, thing: dict[str, Any]) -> dict[str, Any]:
    def one(container: dict[str, Any]) -> dict[str, Any]:
        started = pod.boxes[container["name"]]
        state: dict[str, Any] = {"waiting": {"reason": started.reason or "PodInitializing", "message": started.message}}
        if started.state == "running":
            state = {"running": {"startedAt": None}}
        elif started.state == "ended":
            state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": started.state == "running",
            "restartCount": max(0, started.starts - 1),
            "containerID": f"containerd://{started.cid}" if started.cid else "",
            "state": state,
        }

    spec = thing["spec"]
    ready = "True" if pod.phase == "Running" else "False"
    return {
        "phase": pod.phase,
        "reason": pod.reason or None,
        "message": pod.message or None,
        "podIP": "198.18.0.1",
        "containerStatuses": [one(c) for c in spec["containers"]],
        "initContainerStatuses": [one(c) for c in spec.get("initContainers", ())],
        "conditions": [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")],
    }
