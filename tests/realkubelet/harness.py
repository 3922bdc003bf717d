# SPDX-License-Identifier: Apache-2.0
"""
A real node with simulated cards and our agent on it, and pods bound to it with records written here.

Decides what a test need not say: the order of the beginning, the bindings, and that nothing of a pod stays on
the node when it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pytest
from e2e.apiclient import connected
from realkubelet.found import find
from realkubelet.listed import devices_of
from realkubelet.pods import MEMORY, PODS, record
from realkubelet.realnode import RealNode
from support.waiting import PATIENCE_SECONDS

from isolation.contract.abi import unpack_limits
from isolation.simgpu.hardware import Box, create

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

T = TypeVar("T")
REPOSITORY = Path(__file__).parents[2]
ALLOCATION = "gpushare.dev/allocation"
_AGENT = "from isolation.node.cli import node; node()"
_MPS = "from isolation.node.mps.cli import mps; mps()"
_DEVICE_PLUGIN = "from isolation.node.device_plugin.cli import device_plugin; device_plugin()"
DEVICE_PLUGIN = "device-plugin"
_CONNECTED = "session: connected to the container runtime: "


@contextlib.contextmanager
def real_node(
    plane: ControlPlane, root: Path, *models: str, node: type[RealNode] = RealNode, **labels: str
) -> Iterator[Stage]:
    """A node that serves; a skip with the reason where there can be none."""
    programs = find(node.needs)
    if isinstance(programs, str):
        pytest.skip(programs)
    with Stage(plane, programs, root, *models, node=node).running() as made:

        async def begin() -> None:
            async with connected(plane) as client:
                await made.serve(client, **labels)

        async def end() -> None:
            async with connected(plane) as client:
                await client.delete(PODS, force=True)
                await client.delete(f"/api/v1/nodes/{made.node.name}")

        try:
            asyncio.run(begin())
            yield made
        finally:
            made.node.stop()
            asyncio.run(end())


def play(stage: Stage, story: Callable[[ApiClient], Awaitable[T]]) -> T:
    """A story with a client; then every pod goes, and nothing of any may stay on the node."""

    async def whole() -> T:
        async with connected(stage.plane) as client:
            try:
                told = await story(client)
            finally:
                await client.delete(PODS)
            await client.until(lambda pods: not pods["items"], PODS)
            await stage.only_stand()
            return told

    return asyncio.run(whole())


class Stage:
    """A real node, its box of cards, and the agent."""

    def __init__(
        self,
        plane: ControlPlane,
        programs: Mapping[str, Path],
        root: Path,
        *models: str,
        node: type[RealNode] = RealNode,
    ) -> None:
        self.plane = plane
        self.node = node(plane, programs, root, f"real-{root.name}")
        self.file = root / "cards"
        create(self.file, models or ["t4", "t4"], {})
        self.box = Box(self.file)
        self._begun = 0
        """Characters of the agent's log before its latest start."""
        self.cards = tuple(f"GPU-{UUID(bytes=bytes(card.model.uuid))}" for card in self.box.cards())

    @contextlib.contextmanager
    def running(self) -> Iterator[Stage]:
        """The node without the agent; all of it gone afterwards."""
        try:
            self.node.start()
            yield self
        finally:
            self.node.stop()
            self.box.close()

    async def serve(self, client: ApiClient, mode: str = "cgpu", **labels: str) -> None:
        """Label the node, start the agent (and the MPS keeper of such a node), wait until both are ready."""
        path = f"/api/v1/nodes/{self.node.name}"
        await client.until(_ready, path)
        await client.merge(path, {"metadata": {"labels": {"ack.node.gpu.schedule": mode, **labels}}})
        if mode == "mps":
            self.start_mps()
        self.start_agent()
        await self.ready(client)

    async def ready(self, client: ApiClient) -> None:
        """
        Until the agent says that it is ready and the kubelet counts its units.

        Both outlive an agent that was killed, so what the new one logs counts too.
        """
        path, end = f"/api/v1/nodes/{self.node.name}", time.monotonic() + PATIENCE_SECONDS
        while True:
            node = await client.get(path)
            said = node["metadata"].get("annotations", {}).get("gpushare.dev/agent")
            connected = _CONNECTED in self.node.log("agent")[self._begun :]
            if said == "ready" and connected and int(node["status"]["allocatable"].get(MEMORY, "0")) > 0:
                return
            if time.monotonic() > end or not self.node.alive("agent"):
                logs = "\n".join(self.node.log(name)[-3000:] for name in (DEVICE_PLUGIN, "agent"))
                raise AssertionError(f"the node is not served: {said}\n{logs}")
            await asyncio.sleep(0.1)

    def start_agent(self, packages: Path = REPOSITORY) -> None:
        """
        As the DaemonSet would, with every path at its default; `packages`: where its code lies.

        The device plugin first, if it does not run.
        """
        self.start_device_plugin(packages)
        self._begun = len(self.node.log("agent")) if self.node.has_log("agent") else 0
        config = self.plane.kubeconfig
        words = [sys.executable, "-P", "-c", _AGENT, "--node-name", self.node.name, "--simgpu", self.file]
        words += ["--kubeconfig", config, "--metrics-host", "127.0.0.1", "--metrics-port", "0"]
        self.node.start_agent(words, {"PYTHONPATH": str(packages)})

    def start_device_plugin(self, packages: Path = REPOSITORY) -> None:
        """If it does not run."""
        if not self.node.alive(DEVICE_PLUGIN):
            words = [sys.executable, "-P", "-c", _DEVICE_PLUGIN]
            self.node.start_agent(words, {"PYTHONPATH": str(packages)}, DEVICE_PLUGIN)

    def start_mps(self) -> None:
        """The keeper of MPS daemons."""
        words = [sys.executable, "-P", "-c", _MPS, "--simgpu", self.file]
        self.node.start_agent(words, {"PYTHONPATH": str(REPOSITORY)}, "mps")

    def stop_agent(self, how: signal.Signals = signal.SIGTERM) -> None:
        """And wait for its end; the device plugin goes on."""
        self.node.kill("agent", how)

    def replace_pod(self) -> None:
        """As a rolling update: the agent is told to end, after it the device plugin; then both are new."""
        self.stop_agent()
        self.node.kill(DEVICE_PLUGIN, signal.SIGTERM)
        self.start_agent()

    def wait_connected(self) -> None:
        """Until the agent that was started last is shown what the runtime creates."""
        end = time.monotonic() + PATIENCE_SECONDS
        while _CONNECTED not in self.node.log("agent")[self._begun :]:
            assert time.monotonic() < end, self.node.log("agent")[-3000:]
            time.sleep(0.05)

    # What stands on the node.

    def allocations(self) -> dict[str, Path]:
        """Folders of containers by promise id."""
        folder = self.node.machine.path("/var/lib/gpushare/alloc")
        return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}

    def limits(self, pod: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Bytes by card that the limits files of a pod's containers say."""
        found = {}
        for name, file in self.limits_files(pod).items():
            limits = unpack_limits(file.read_bytes())
            found[name] = {f"GPU-{card.uuid}": card.memory_bytes for card in limits.cards}
        return found

    def limits_files(self, pod: dict[str, Any]) -> dict[str, Path]:
        """The limits file of each of a pod's containers."""
        found = {}
        for folder in self.allocations().values():
            hold = json.loads((folder / "promise.json").read_text()) if (folder / "promise.json").exists() else {}
            owner = (hold.get("pod") or ["", "", "", ""])[2:]
            if owner[0] == pod["metadata"]["uid"]:
                found[owner[1]] = folder / "limits/limits"
        return found

    async def named(self, pod: dict[str, Any], name: str) -> list[str]:
        """The containers that the files of a pod are for, once this one is among them."""
        end = time.monotonic() + PATIENCE_SECONDS
        while name not in self.limits(pod) and time.monotonic() < end:  # noqa: ASYNC110 (files of another process)
            await asyncio.sleep(0.1)
        return list(self.limits(pod))

    def devices(self, pod: dict[str, Any]) -> dict[str, list[str]]:
        """What the kubelet says of a pod, by container: its devices, one for each unit."""
        return devices_of(self.node.machine.path("/var/lib/kubelet/pod-resources/kubelet.sock"), pod, MEMORY)

    async def only_stand(self, count: int = 0) -> None:
        """Until the agent has released everything but the devices of so many containers."""
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.allocations()) > count:
            if time.monotonic() > end:
                stands = [*self.allocations()]
                raise AssertionError(f"{stands} stand after {PATIENCE_SECONDS:.0f} s\n{self.node.log('agent')[-3000:]}")
            await asyncio.sleep(0.1)

    async def agent_says(self, text: str, since: int = 0) -> None:
        """Until the agent has logged this, after so many characters of its log."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in self.node.log("agent")[since:]:
            if time.monotonic() > end:
                raise AssertionError(f"the agent does not say {text!r}\n{self.node.log('agent')[-3000:]}")
            await asyncio.sleep(0.05)

    # Pods.

    async def bind(self, client: ApiClient, pod: dict[str, Any], records: Mapping[str, str] | None = None) -> None:
        """What a scheduler does: the binding, with the record."""
        meta = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": dict(records or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node.name},
        }
        await client.call("POST", f"{PODS}/{meta['name']}/binding", body)

    async def bind_to(self, client: ApiClient, pod: dict[str, Any], *cards: int) -> None:
        """Bind a pod to these cards, every container evenly over all of them."""
        await self.bind(client, pod, {ALLOCATION: json.dumps(record(pod, [(i, self.cards[i]) for i in cards]))})

    async def place(self, client: ApiClient, pod: dict[str, Any], *cards: int) -> dict[str, Any]:
        """Create a pod and bind it."""
        made = await client.create(pod)
        await self.bind_to(client, made, *cards)
        return made

    async def running_pod(self, client: ApiClient, name: str, restarts: int = 0) -> dict[str, Any]:
        """The pod once it runs with all its containers ready, one of them after at least so many restarts."""
        try:
            return await client.until(lambda pod: _runs(pod) and restarts_of(pod) >= restarts, f"{PODS}/{name}")
        except AssertionError as exc:
            listed = await client.get("/api/v1/namespaces/default/events")
            told = "\n".join(e["message"] for e in listed["items"] if e["involvedObject"]["name"] == name)
            log = self.node.log("agent")[-3000:] if self.node.has_log("agent") else ""
            raise AssertionError(f"{exc}\n{told}\n{log}") from None

    def said(self, pod: dict[str, Any], container: str = "main", restarts: int = 0) -> list[str]:
        """
        What a container wrote from that many restarts on, once its client has said everything in one of these lives.

        Of lives before, the kubelet keeps the last one's, which may be a start that failed on a busy machine.
        """
        meta, end = pod["metadata"], time.monotonic() + PATIENCE_SECONDS
        while True:
            lines = self.node.said(meta["namespace"], meta["name"], meta["uid"], container, restarts)
            if "ready 1" in lines or time.monotonic() > end:
                return lines
            time.sleep(0.1)


def restarts_of(pod: dict[str, Any]) -> int:
    """The most of any of its containers."""
    return max((status["restartCount"] for status in pod["status"].get("containerStatuses", ())), default=0)


def _ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def _runs(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return pod["status"].get("phase") == "Running" and all(status["ready"] for status in statuses)
