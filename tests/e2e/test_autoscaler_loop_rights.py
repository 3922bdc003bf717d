# SPDX-License-Identifier: Apache-2.0
"""The loop with the rights of the manifests and under their admission policies: nothing more is needed."""

from __future__ import annotations

import asyncio

from e2e.accounts import bounded, forget, granted, kubeconfig, own_pod
from e2e.apiclient import connected
from e2e.autoscaler_harness import RESERVED, only, pool, pool_node, profile_of, stage
from e2e.manifest_files import BASE, Cluster, documents
from e2e.sharing import PODS, our_pod, workload
from support.waiting import soon

from autoscaler.core.plan import Drain, Evict, RemoveNode, ScaleUp
from isolation.contract.names import AUTOSCALER

GROWN = profile_of(pool_node("any", "gpu-a"))


def test_the_rights_of_the_manifests_are_enough_to_grow_to_drain_and_to_give_back(plane, tmp_path):
    """
    As the service account itself: two nodes are bought, one is emptied pod by pod and goes back; no step is refused.
    """

    async def story():
        async with connected(plane) as admin:
            await granted(admin)
            cluster = Cluster(admin)
            grown = pool("gpu-a", max_nodes=3, profile=GROWN)
            own = [*documents(BASE / "autoscaler"), *documents(BASE.parent / "components" / "cluster-api")]
            own = bounded(own, [grown])
            for thing in own:
                if thing["kind"] not in {"Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service", "ConfigMap"}:
                    await cluster.ensure(thing)
            pod = await own_pod(admin, AUTOSCALER, "autoscaler-rights")
            config = await kubeconfig(plane, admin, tmp_path, AUTOSCALER, pod)
            try:
                async with stage(plane, tmp_path, grown, kubeconfig=config) as s:
                    await s.client.create(workload("Deployment", "wide", 4, our_pod("x", 8)))
                    await s.turns(lambda: s.all_bound(4), why="two nodes for four pods")
                    keep, _ = await s.machines.settled("gpu-a")
                    await s.client.delete(
                        "/apis/apps/v1/namespaces/default/deployments/wide?propagationPolicy=Background"
                    )
                    await s.client.until(lambda p: not p["items"], PODS)
                    for node in (await s.machines.settled("gpu-a"))[::-1]:
                        await only(s.client, node)
                        name = "stay" if node == keep else "move"
                        await s.client.create(workload("Deployment", name, 2, our_pod("x", 7 if name == "stay" else 2)))
                        running = lambda p: [o["status"].get("phase") for o in p["items"]] == ["Running"] * 2  # noqa: E731
                        await s.client.until(running, PODS, labelSelector=f"app={name}")
                    await only(s.client, "")
                    await soon(lambda: not any(node.cordoned for node in s.sources.notes.nodes.values()))
                    s.conditions.clear()

                    async def one_left():
                        return await s.machines.replicas("gpu-a") == 1

                    await s.turns(one_left, why="one goes back")
                    await s.turns(lambda: s.all_bound(4), why="everybody runs")
                    for _ in range(3):
                        await s.reconcile()
                    left = (await s.client.get(RESERVED))["items"]
                    return [bool(s.steps(kind)) for kind in (ScaleUp, Drain, Evict, RemoveNode)], s.conditions, left
            finally:
                await forget(admin, "autoscaler-rights")
                for thing in own:
                    if thing["kind"].startswith("Validating"):
                        await cluster.remove(thing)

    steps, conditions, left = asyncio.run(story())
    assert [True] * 4 == steps
    assert [] == conditions
    assert [] == left
