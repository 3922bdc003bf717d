# SPDX-License-Identifier: Apache-2.0
"""
One node of the real control plane with a stand-in kubelet and a real `gpushare node` process, and what is right there.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from pathlib import Path

from e2e.apiclient import connected
from e2e.managed_node import ManagedNode
from e2e.node_process import NodeProcess, cards
from support.device_manager import DeviceManager
from support.device_runtime import Runtime
from support.waiting import PATIENCE_SECONDS

from isolation.contract import abi
from isolation.contract.codec import decode_cards, encode_allocation, node_of, request_of
from isolation.contract.model import ComputePolicy, Placement, Slice
from isolation.contract.names import AGENT, ALLOCATION, CARDS, GATE_DEVICE
from isolation.contract.quantity import GIB

PODS = "/api/v1/namespaces/default/pods"
MEMORY, COUNT, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"


class Stage:
    """One node with its kubelet and its agent."""

    def __init__(self, client, node, agent, kubelet):
        self.client, self.node, self.agent, self.kubelet = client, node, agent, kubelet
        self.cards = ()
        self.policy = ComputePolicy.FIXED
        """Of the node when pods are bound, as a scheduler reads it."""

    async def ready(self):
        """Until the schedulers are told so and the kubelet offers shares."""

        def is_reported(node):
            return node["metadata"].get("annotations", {}).get(AGENT) == "ready" and node["status"]["allocatable"].get(
                MEMORY, "0"
            ) not in ("0", None)

        found = await self.client.until(is_reported, self.node.path)
        self.cards = decode_cards(found["metadata"]["annotations"][CARDS])
        return found

    async def bind(self, manifest, *at):
        """Create the pod and bind it to these cards, by index; its UID."""
        manifest = {**manifest, "spec": {**manifest["spec"], "schedulerName": "nobody"}}
        made = await self.client.create(manifest)
        self.policy = node_of(await self.client.get(self.node.path)).policy
        meta = made["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": self.record(made, *at)},
            "target": {"kind": "Node", "name": self.node.name},
        }
        await self.client.call("POST", f"{PODS}/{meta['name']}/binding", binding)
        return meta["uid"]

    def record(self, pod, *at):
        """The annotation that gives the pod these cards."""
        request = request_of(pod["metadata"], pod["spec"])
        chosen = [self.cards[index] for index in at]
        slices = tuple(Slice(card.uuid, card.index, request.card_bytes, request.card_core) for card in chosen)
        uid, placement = pod["metadata"]["uid"], Placement(self.node.name, slices)
        return {ALLOCATION: encode_allocation(uid, request, placement, self.policy)}

    async def until(self, claim):
        """Wait for a claim about the stand-in or the agent."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := claim()):
            assert time.monotonic() < end, (inspect.getsource(claim), *self.kubelet.known.values())
            await asyncio.sleep(0.02)
        return found

    async def running(self, uid):
        """The pod once it runs."""
        pod = await self.until(lambda: self.node.pods.get(uid))
        await self.until(lambda: pod.phase == "Running")
        return pod

    async def remove(self, *names, force=False):
        """Delete pods and wait until they are gone."""
        for name in names:
            await self.client.delete(f"{PODS}/{name}", force=force)
        await self.client.until(lambda pods: not {p["metadata"]["name"] for p in pods["items"]} & set(names), PODS)


@contextlib.asynccontextmanager
async def stage(
    plane,
    tmp_path,
    name,
    *,
    mode="cgpu",
    number=2,
    pace=0.05,
    model="t4",
    watching=True,
    machine=None,
    runtime=Runtime,
    **labels,
):
    """Everything up and ready; without `watching` the test tells the kubelet of pods. `machine`: its cards, if made."""
    with DeviceManager(pace=pace, seed=3, runtime=runtime) as kubelet:
        async with (
            connected(plane) as client,
            ManagedNode(client, name, kubelet, mode, watching=watching, **labels).alive() as node,
        ):
            machine = machine or cards(tmp_path / "cards", number, model)
            with NodeProcess(tmp_path, kubelet, name, plane.kubeconfig, machine) as agent:
                made = Stage(client, node, agent, kubelet)
                try:
                    await made.ready()
                    yield made
                except BaseException:
                    print(agent.words(), *kubelet.known.values(), sep="\n")  # noqa: T201 (pytest shows it with the failure)
                    raise
                finally:
                    await client.delete(PODS, force=True)


def right(stage, pod, name, at, units):
    """Record = promise = limits = what the container was given, and it was given by this agent."""
    started = pod.boxes[name]
    hold = stage.agent.hold(pod.uid, name)
    uuids = [stage.cards[index].uuid for index in at]
    parts = [(uuid, units // len(at) * GIB) for uuid in uuids]
    assert units == len(started.ids)
    assert parts == [(card["uuid"], card["bytes"]) for card in hold["cards"]]
    assert [pod.namespace, pod.name, pod.uid, name] == hold["pod"]
    assert (",".join(uuids), str(units // len(at))) == (
        started.env["NVIDIA_VISIBLE_DEVICES"],
        started.env["ALIYUN_COM_GPU_MEM_CONTAINER"],
    )
    assert (GATE_DEVICE, ()) == (started.cdi[0], started.missing)
    assert not (stage.kubelet.runtime.marks / started.cid).exists()
    if hold["policy"] != "none":
        limits = abi.unpack_limits((Path(started.mounts["/run/gpushare/limits"]) / "limits").read_bytes())
        assert [one.memory_bytes for one in limits.cards] == [amount for _, amount in parts]
        assert "/etc/ld.so.preload" in started.mounts
    return started
