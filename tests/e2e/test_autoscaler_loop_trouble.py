# SPDX-License-Identifier: Apache-2.0
"""On bad knowledge nothing is done, and the reason is visible; what others do is neither overwritten nor repeated."""

from __future__ import annotations

import asyncio

from e2e.autoscaler_harness import RESERVED, only, pool, pool_node, profile_of, quick, stage
from e2e.machine_deployments import ROOT
from e2e.sharing import PODS, our_pod, untainted, workload
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.plan import Drain, ScaleUp
from autoscaler.kube.core.conditions import ConditionKind

TEMPLATE = profile_of(pool_node("any", "gpu-a"))


async def turns(s, count=6):
    """So many turns."""
    for _ in range(count):
        await s.reconcile()
        await asyncio.sleep(0.2)


async def waits(s, name="one", units=10):
    """A pod for which nothing has room, by the scheduler's word."""
    await s.client.create(our_pod(name, units))
    await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/{name}")


def test_with_more_than_a_third_of_the_nodes_unready_nothing_is_done(plane, tmp_path):
    """
    Two of five nodes stop being ready: nothing is bought for a waiting pod; as they come back, it is.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=9, profile=TEMPLATE)
        async with stage(
            plane, tmp_path, pools, start={"gpu-a": 5}, limits=quick(scale_down_unneeded_seconds=3600.0)
        ) as s:
            await untainted(s.client)
            nodes = await s.machines.settled("gpu-a")
            await s.client.create(workload("Deployment", "full", 10, our_pod("x", 15)))
            await s.turns(lambda: s.all_bound(10), why="every card is taken")

            async def ready(status):
                condition = {"type": "Ready", "status": status}
                for node in nodes[:2]:
                    path = f"/api/v1/nodes/{node}/status"
                    await s.client.merge(path, {"status": {"conditions": [condition]}})

            await ready("False")
            await asyncio.sleep(0.3)
            await waits(s)
            await turns(s)
            early, conditions = s.steps(ScaleUp), {d.kind for d in s.conditions}
            await ready("True")
            await s.turns(lambda: s.steps(ScaleUp), why="bought now")
            return early, conditions

    early, conditions = asyncio.run(story())
    assert [] == early
    assert ConditionKind.UNREADY in conditions


def test_a_silent_api_server_stops_everything_until_it_speaks_again(plane, tmp_path):
    """
    The API server freezes: turns end in a condition within their deadlines; it goes on, and so do we.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=2, profile=TEMPLATE)) as s:
            await waits(s)
            plane.freeze("kube-apiserver")
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await s.reconcile()
            finally:
                plane.thaw("kube-apiserver")
            silent, conditions = s.steps(ScaleUp), {d.kind for d in s.conditions}
            await s.turns(lambda: s.all_bound(1), why="it goes on")
            return silent, conditions, await s.machines.replicas("gpu-a")

    silent, conditions, replicas = asyncio.run(story())
    assert [] == silent
    assert conditions & {ConditionKind.PROVIDER, ConditionKind.NOT_READ}
    assert 1 == replicas


def test_a_wall_clock_that_was_set_keeps_pods_where_they_are(plane, tmp_path):
    """
    The clock jumps by an hour: nobody is moved, though a node could go; as it is right again the node goes.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=3)
        async with stage(plane, tmp_path, pools, start={"gpu-a": 2}) as s:
            await untainted(s.client)
            full, light = await s.machines.settled("gpu-a")
            for app, node, count, units in (("stay", full, 4, 5), ("move", light, 2, 2)):
                await only(s.client, node)
                await s.client.create(workload("Deployment", app, count, our_pod("x", units)))
                running = lambda p, n=count: [o["status"].get("phase") for o in p["items"]] == ["Running"] * n  # noqa: E731
                await s.client.until(running, PODS, labelSelector=f"app={app}")
            await only(s.client, "")
            s.ahead = 3600.0
            await turns(s, 12)
            early, conditions = s.steps(Drain), {d.kind for d in s.conditions}
            s.ahead = 0.0

            async def gone():
                return await s.machines.replicas("gpu-a") == 1

            await s.turns(gone, why="the node goes")
            return early, conditions, (await s.client.get(RESERVED))["items"]

    early, conditions, _ = asyncio.run(story())
    assert [] == early
    assert ConditionKind.CLOCK in conditions


def test_a_node_that_somebody_else_takes_out_of_service_is_left_alone(plane, tmp_path):
    """
    Between decision and act an operator cordons the empty node: it is not marked; it stays theirs, and is named.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=3)
        async with stage(
            plane, tmp_path, pools, start={"gpu-a": 2}, limits=quick(action_validation_delay_seconds=0.0)
        ) as s:
            await untainted(s.client)
            one, two = await s.machines.settled("gpu-a")
            await s.reconcile()
            for node in (one, two):
                await s.client.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
            await turns(s, 12)
            nodes = (await s.client.get("/api/v1/nodes"))["items"]
            marks = [
                t["key"] for n in nodes for t in n["spec"].get("taints", ()) if t["key"].startswith("gpushare.dev/")
            ]
            return (
                marks,
                await s.machines.replicas("gpu-a"),
                [d.node for d in s.conditions if d.kind is ConditionKind.LOST],
                (one, two),
            )

    marks, replicas, lost, both = asyncio.run(story())
    assert [] == marks
    assert 2 == replicas
    assert set(both) == set(lost)


def test_a_provider_that_cannot_tell_stops_its_own_pool_only(plane, tmp_path):
    """
    One pool's object is gone: its pool is named and left alone, the other one grows.
    """

    async def story():
        pools = (pool("gone", price=0.1, profile=TEMPLATE), pool("gpu-a", max_nodes=2, profile=TEMPLATE))
        async with stage(plane, tmp_path, *pools) as s:
            await s.client.delete(f"{ROOT}/machinedeployments/gone")
            await waits(s)
            await s.turns(lambda: s.all_bound(1), why="the other pool grows")
            return [d.pool for d in s.conditions if d.kind is ConditionKind.PROVIDER], await s.machines.replicas(
                "gpu-a"
            )

    named, replicas = asyncio.run(story())
    assert {"gone"} == set(named)
    assert 1 == replicas


def test_who_may_not_write_any_more_writes_nothing(plane, tmp_path):
    """
    The Lease is lost between decision and act: no purchase leaves.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=2, profile=TEMPLATE)) as s:
            await waits(s)
            s.fenced = "the Lease is somebody else's"
            await turns(s, 3)
            return await s.machines.replicas("gpu-a"), len(s.steps(ScaleUp)), {d.kind for d in s.conditions}

    replicas, planned, conditions = asyncio.run(story())
    assert 0 == replicas
    assert planned >= 1
    assert {ConditionKind.CONFLICT} == conditions
