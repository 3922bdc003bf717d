# SPDX-License-Identifier: Apache-2.0
"""Nodes are emptied on a real control plane: each pod has its home first, budgets hold, and a crash costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time

from e2e.apiclient import connected
from e2e.autoscaler_harness import NO_HOME_SECONDS, RESERVED, Deadly, Killed, Watcher, only, pool, quick, stage
from e2e.kubelets import share_pod, shared_node
from e2e.sharing import PODS, our_pod, untainted, workload
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.plan import CancelDrain, Drain, Evict
from autoscaler.kube.node_pods import find_node, lost_with
from isolation.contract.names import MOVED
from isolation.kube.access import Access
from isolation.kube.writes import PodRef, Writer

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def budget(name, app, allowed):
    """A disruption budget."""
    spec = {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


async def placed(s, app, node, count, units, **annotations):
    """A Deployment whose pods all went to one node, and may go anywhere from now on."""
    await only(s.client, node)
    thing = workload("Deployment", app, count, our_pod("x", units))
    thing["spec"]["template"]["metadata"]["annotations"] = annotations
    await s.client.create(thing)
    running = lambda p: [one["status"].get("phase") for one in p["items"]] == ["Running"] * count  # noqa: E731
    await s.client.until(running, PODS, labelSelector=f"app={app}")
    await only(s.client, "")


@contextlib.asynccontextmanager
async def two_nodes(plane, tmp_path, **limits):
    """A pool of two nodes of two cards, both up."""
    async with stage(plane, tmp_path, pool("gpu-a", max_nodes=3), start={"gpu-a": 2}, limits=quick(**limits)) as s:
        await untainted(s.client)
        yield s, *(await s.machines.settled("gpu-a"))


def test_a_node_is_emptied_and_given_back_though_the_controller_is_killed_at_every_write(plane, tmp_path):
    """
    Before and after every single write the controller dies and starts over. The emptier node goes, each evicted pod has
    its home reserved at that moment, nobody waits for long, the budget is never broken, and nothing stays behind.
    """

    async def story():
        async with two_nodes(plane, tmp_path) as (s, full, light):
            await placed(s, "staying", full, 4, 5)
            await placed(s, "moving", light, 3, 2)
            await s.client.create(budget("moving", "moving", 1))
            path = f"{BUDGETS}/moving"
            await s.client.until(lambda b: b.get("status", {}).get("disruptionsAllowed") == 1, path)
            unreserved = []

            async def reserved(path):
                uid = (await s.client.get(path.removesuffix("/eviction")))["metadata"]["uid"]
                homes = (await s.client.get(RESERVED))["items"]
                if not any(home["metadata"]["annotations"][MOVED] == uid for home in homes):
                    unreserved.append(path)

            real = s.access
            s.access = deadly = Deadly(real, reserved)
            s.reopen()

            async def over():
                return await s.machines.replicas("gpu-a") == 1

            async with Watcher(s.client, "app=moving").watching() as seen, asyncio.timeout(PATIENCE_SECONDS):
                while not await over():
                    try:
                        await s.reconcile()
                    except Killed:
                        s.reborn()
                    await asyncio.sleep(s.limits.scan_interval_seconds)
                s.access = real
                s.reopen()
                await s.turns(lambda: s.all_bound(7), why="everybody runs")
            left = await s.machines.settled("gpu-a")
            for _ in range(3):
                await s.reconcile()
            names = [r["metadata"]["name"] for r in (await s.client.get(RESERVED))["items"]]
            nodes = (await s.client.get("/api/v1/nodes"))["items"]
            marks = [t for n in nodes for t in n["spec"].get("taints", ()) if t["key"].startswith("gpushare.dev/")]
            return full, left, set((await s.where()).values()), seen, unreserved, names, marks, deadly

    full, left, where, seen, unreserved, names, marks, deadly = asyncio.run(story())
    assert [full] == left
    assert {full} == where
    assert [] == unreserved
    assert ([], []) == (names, marks)
    assert seen.fewest >= 2
    assert 3 == len(seen.ended)
    assert seen.longest_wait < NO_HOME_SECONDS
    # three homes, the node's mark, three evictions, the machine's mark, the wish: each of them twice
    assert deadly.deaths >= 2 * 8


def test_who_may_not_go_is_never_evicted_and_keeps_its_node(plane, tmp_path):
    """
    A pod that says no, a budget with nothing left, a single replica: three reasons, each on a node by itself with a pod
    that could move; nothing is drained and nobody is evicted.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=5), start={"gpu-a": 4}, limits=quick()) as s:
            await untainted(s.client)
            roomy, one, two, three = await s.machines.settled("gpu-a")
            await placed(s, "roomy", roomy, 4, 5)
            await placed(s, "refuses", one, 2, 2, **{"gpushare.dev/evict": "false"})
            await placed(s, "guarded", two, 2, 2)
            await placed(s, "single", three, 1, 2)
            await s.client.create(budget("guarded", "guarded", 0))
            await s.client.until(lambda b: b.get("status", {}).get("observedGeneration"), f"{BUDGETS}/guarded")
            before = await s.where()
            await asyncio.sleep(1.0)
            for _ in range(20):
                await s.reconcile()
                await asyncio.sleep(0.2)
            return before, await s.where(), s.steps(Evict), s.steps(Drain), (await s.client.get(RESERVED))["items"]

    before, after, evicted, drained, reserved = asyncio.run(story())
    assert before == after
    assert ([], [], []) == (evicted, drained, reserved)


def test_scattered_pods_are_packed_and_as_many_cards_come_free_as_were_promised(plane, tmp_path):
    """
    Two Deployments with a replica on each of four nodes: all of it fits on one node, so three go with their six cards.
    No drain is called off, no pod moves twice, no owner has more than one on the move.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=4), start={"gpu-a": 4}, limits=quick()) as s:
            await untainted(s.client)
            nodes = await s.machines.settled("gpu-a")
            for app in ("web", "api"):
                await s.client.create(workload("Deployment", app, 0, our_pod("x", 3)))
                for count, node in enumerate(nodes, 1):
                    await only(s.client, node)
                    path = f"/apis/apps/v1/namespaces/default/deployments/{app}/scale"
                    await s.client.merge(path, {"spec": {"replicas": count}})
                    running = lambda p, n=count: [o["status"].get("phase") for o in p["items"]] == ["Running"] * n  # noqa: E731
                    await s.client.until(running, PODS, labelSelector=f"app={app}")
            await only(s.client, "")

            async def one_left():
                return await s.machines.replicas("gpu-a") == 1

            async with Watcher(s.client, "app=web").watching() as seen:
                await s.turns(one_left, why="three nodes go")
                await s.turns(lambda: s.all_bound(8), why="everybody runs")
            return s.steps(Drain), s.steps(CancelDrain), s.steps(Evict), seen, set((await s.where()).values())

    drains, kept, evicted, seen, where = asyncio.run(story())
    assert 1 == len(where)
    assert [] == kept
    assert 3 == len({step.node for step in drains})
    assert 6 == len({step.pod for step in evicted})
    assert seen.fewest >= 3
    assert seen.longest_wait < NO_HOME_SECONDS


def test_the_api_servers_own_list_tells_who_would_be_lost_with_a_node(plane):
    """
    Whoever is bound there and has not ended, but for a DaemonSet's pods; a machine's node is found by both its names.
    """
    controller = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "d", "controller": True}

    async def story():
        async with connected(plane) as client, Access(plane.kubeconfig) as access:
            node = shared_node("lost-node", 0) | {"spec": {"providerID": "test://lost/7", "unschedulable": True}}
            await client.create(node)
            try:
                for name, node_name in (("runs", "lost-node"), ("over", "lost-node"), ("elsewhere", "other")):
                    made = await client.create(share_pod(name, 0, schedulerName="nobody"))
                    target = PodRef("default", name, made["metadata"]["uid"])
                    assert await Writer(access, "test").bind(target, node_name, {})
                # bound from the start: the garbage collector deletes what belongs to a DaemonSet that there is not
                pod = share_pod("agent", 0, nodeName="lost-node")
                pod["metadata"]["ownerReferences"] = [controller]
                await client.create(pod)
                await client.merge(f"{PODS}/over/status", {"status": {"phase": "Succeeded"}})
                found = [await find_node(access, name) for name in ("lost-node", "test://lost/7", "test://lost/8")]
                return await lost_with(access, "lost-node", time.time()), found
            finally:
                for name in ("runs", "over", "agent", "elsewhere"):
                    await client.delete(f"{PODS}/{name}", force=True)
                await client.delete("/api/v1/nodes/lost-node")

    lost, found = asyncio.run(story())
    assert ["default/runs"] == lost
    assert ["lost-node", "lost-node", ""] == found
