# SPDX-License-Identifier: Apache-2.0
"""Where the stock kube-scheduler puts our own controllers: not on nodes that come and go for others."""

from __future__ import annotations

import asyncio
import copy

import pytest
from e2e.apiclient import connected
from e2e.kubelets import Kubelets, shared_node
from e2e.manifest_build import objects
from e2e.sharing import PODS, card_node, clear, untainted

from isolation.contract.names import AUTOSCALER, POOL, SCHEDULER

LINUX = {"kubernetes.io/os": "linux"}
KEPT = ("affinity", "nodeSelector", "tolerations")
"""What of a pod's template says where it goes."""


def shipped(name, overlay):
    """A Deployment as it is shipped, of containers that ask for nothing."""
    one = next(one for one in objects(overlay) if (one["kind"], one["metadata"]["name"]) == ("Deployment", name))
    made = copy.deepcopy(one)
    made["metadata"] = {"name": name}
    spec = made["spec"]["template"]["spec"]
    made["spec"]["template"]["spec"] = {key: spec[key] for key in KEPT} | {
        "containers": [{"name": "main", "image": "none"}],
        "terminationGracePeriodSeconds": 0,
    }
    return made


@pytest.mark.parametrize("overlay", ["self-signed", "demo"])
@pytest.mark.parametrize("name", [AUTOSCALER, SCHEDULER])
def test_our_controllers_stay_off_nodes_of_pools(plane, name, overlay):
    """
    Both replicas go to the one node of no pool, although its cards count against it; none goes to the pool's.
    """
    pool = card_node("of-a-pool", **LINUX, **{POOL: "gpu-a"})
    alone = card_node("of-no-pool", **LINUX)

    async def story():
        async with connected(plane) as client, Kubelets(client, [pool, alone]).alive():
            await untainted(client)
            await client.create(shipped(name, overlay))
            try:
                found = await client.until(
                    lambda pods: len([p for p in pods["items"] if p["spec"].get("nodeName")]) == 2, PODS
                )
                return [pod["spec"]["nodeName"] for pod in found["items"]]
            finally:
                await clear(client)

    assert ["of-no-pool"] * 2 == asyncio.run(story())


def test_of_nodes_of_no_pool_those_without_cards_come_first(plane):
    """
    As long as there is room; one replica on each of the two.
    """
    nodes = [shared_node(f"plain-{at}", 0, **LINUX) for at in range(2)]
    for node in nodes:
        node["metadata"]["labels"].pop("ack.node.gpu.schedule", None)

    async def story():
        async with connected(plane) as client, Kubelets(client, [card_node("cards", **LINUX), *nodes]).alive():
            await untainted(client)
            await client.create(shipped(AUTOSCALER, "self-signed"))
            try:
                found = await client.until(
                    lambda pods: len([p for p in pods["items"] if p["spec"].get("nodeName")]) == 2, PODS
                )
                return {pod["spec"]["nodeName"] for pod in found["items"]}
            finally:
                await clear(client)

    assert {"plain-0", "plain-1"} == asyncio.run(story())
