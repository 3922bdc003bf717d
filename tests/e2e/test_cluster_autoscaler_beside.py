# SPDX-License-Identifier: Apache-2.0
"""
Beside a cluster-autoscaler that behaves as 1.36.1 does: nobody is evicted, nothing is bought for nobody.

The autoscaler is a stand-in (`e2e.cluster_autoscaler`): its own process, real gRPC, real API server, its own fast time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from e2e.autoscaler_process import eventually, one_pool
from e2e.cluster_autoscaler.harness import Beside, beside
from e2e.cluster_autoscaler.objects import SAFE_TO_EVICT, SCALE_UP_DELAY
from e2e.kubelets import Kubelets, shared_node
from e2e.sharing import PODS, ordinary_workload, our_pod, untainted, why_pending, workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OLD_PAGE = ("--enforce-node-group-min-size", "--allowed-scheduler-names=default-scheduler")
SHIPPED = ("--enforce-node-group-min-size",)
THEIRS = {"scale_up": "cluster-autoscaler", "scale_down": "cluster-autoscaler"}
"""Settings of a pool under which its pods say nothing to cluster-autoscaler."""
NODES, ON_NODE = 3, 2


def share_workload(replicas: int, cpu: str) -> dict[str, Any]:
    """Replicas of 10 GiB: one on a card of 15, and by sums three on a node of two."""
    pod = our_pod("any", 10)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu, "aliyun.com/gpu-mem": "10"}
    return workload("Deployment", "share", replicas, pod)


async def running(b: Beside, app: str, count: int) -> set[str]:
    """UIDs of an app's pods, once so many run."""
    found: set[str] = set()

    async def claim() -> bool:
        nonlocal found
        pods = (await b.client.get(PODS, labelSelector=f"app={app}"))["items"]
        found = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}
        return len(found) == count == len(pods)

    if not await eventually(claim):
        raise AssertionError(f"{app}: {len(found)} of {count} run: {b.theirs.status()}: {b.theirs.log()[-3000:]}")
    return found


async def full_of_shares(b: Beside, cpu: str) -> set[str]:
    """Every node full: a pod on each card."""
    await b.client.create(share_workload(NODES * ON_NODE, cpu))
    return await running(b, "share", NODES * ON_NODE)


async def handed_over(b: Beside, app: str) -> None:
    """Wait until the pods tell cluster-autoscaler that they are not its own."""

    def is_handed_over(pods: dict[str, Any]) -> bool:
        said = [pod["metadata"].get("annotations", {}) for pod in pods["items"]]
        return all(one.get(SAFE_TO_EVICT) == "false" and one.get(SCALE_UP_DELAY) == "8760h" for one in said)

    await b.client.until(is_handed_over, PODS, labelSelector=f"app={app}")


@contextlib.asynccontextmanager
async def plain_node(b: Beside) -> AsyncIterator[None]:
    """One of no pool and without cards, 8 CPUs, as whatever a cluster has besides."""
    node = shared_node("plain", 0)
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["cpu"] = "8"
    async with Kubelets(b.client, [node]).alive():
        await untainted(b.client)
        yield


@pytest.mark.parametrize("flags", [OLD_PAGE, SHIPPED], ids=["flag of the old page", "no annotations"])
def test_without_the_handover_running_share_pods_are_evicted(plane, tmp_path, flags):
    """
    `--allowed-scheduler-names` hides them from the whole model: full nodes look empty, and where an ordinary pod stands
    the node is drained of everybody. Without flag and annotations they fit elsewhere by sums, and on no card.
    """

    async def story():
        async with beside(plane, tmp_path, one_pool(max_nodes=5, **THEIRS), start=NODES) as b:
            before = await full_of_shares(b, "1")
            await b.client.create(ordinary_workload("small", 1, "2"))
            await running(b, "small", 1)
            async with plain_node(b):
                b.theirs.start(*flags)
                await b.theirs.counts("evictions", ON_NODE)
                after = (await b.client.get(PODS, labelSelector="app=share"))["items"]
            kept = {pod["metadata"]["uid"] for pod in after if "deletionTimestamp" not in pod["metadata"]}
            return before - kept

    assert len(asyncio.run(story())) >= ON_NODE


def test_an_ordinary_pod_waits_for_ever_with_the_flag_of_the_old_page(plane, tmp_path):
    """It is told that it fits on nodes that are full, and nothing is bought for it."""

    async def story():
        async with beside(plane, tmp_path, one_pool(max_nodes=5, **THEIRS), start=NODES) as b:
            await full_of_shares(b, "30")
            await b.client.create(ordinary_workload("large", 1, "30"))
            await b.client.until(lambda pods: all(map(why_pending, pods["items"])), PODS, labelSelector="app=large")
            b.theirs.start(*OLD_PAGE, "--scale-down-enabled=false")
            await b.theirs.passes(10.0)
            pods = (await b.client.get(PODS, labelSelector="app=large"))["items"]
            return b.theirs.status()["bought"], [pod["spec"].get("nodeName") for pod in pods]

    assert ({}, [None]) == asyncio.run(story())


@pytest.mark.parametrize("cpu", ["1", "30"], ids=["idle CPUs", "full CPUs"])
def test_mixed_nodes_under_its_scale_down_lose_nobody(plane, tmp_path, cpu):
    """
    Share nodes full by card, with idle and with full CPUs, and ordinary pods on them and waiting: through a whole
    scale-down no share pod is evicted, ordinary pods are served, and as many nodes are bought as they need.
    """
    needed = 1 if cpu == "30" else 0

    async def story():
        async with beside(plane, tmp_path, one_pool(max_nodes=6), start=NODES) as b:
            before = await full_of_shares(b, cpu)
            await handed_over(b, "share")
            await b.client.create(ordinary_workload("small", NODES, "1"))
            await running(b, "small", NODES)
            async with plain_node(b):
                b.theirs.start(*SHIPPED)
                await b.client.create(ordinary_workload("large", 2, "25"))
                await running(b, "large", 2)
                # ten minutes of cooldown after a purchase, ten until a node is unneeded, and some in which it may drain
                await b.theirs.passes(25.0)
                after = await running(b, "share", NODES * ON_NODE)
                await running(b, "small", NODES)
                await running(b, "large", 2)
            return before, after, await b.machines.replicas("gpu-a"), b.machines.made["gpu-a"], b.theirs.status()

    before, after, replicas, made, status = asyncio.run(story())
    assert before == after
    assert (NODES + needed, NODES + needed) == (replicas, made), status
    assert all(status["kept"].get(f"gpu-a-n{at:03}") for at in range(1, NODES + 1)), status
