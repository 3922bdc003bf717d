# SPDX-License-Identifier: Apache-2.0
"""Pools grow on a real control plane: for who has no card, from nothing, no more than needed, and back again."""

from __future__ import annotations

import asyncio

import pytest
from e2e.autoscaler_harness import RESERVED, Stage, known_to_scheduler, pool, pool_node, profile_of, quick, stage
from e2e.machine_deployments import ROOT
from e2e.sharing import PODS, our_pod, untainted, why_pending, workload
from support.waiting import soon

from autoscaler.core.plan import ScaleUp
from autoscaler.kube.core.conditions import ConditionKind

TEMPLATE = profile_of(pool_node("any", "gpu-a"))


def spreading(name, of):
    """A node that puts each pod on the emptiest card."""
    return pool_node(name, of, **{"ack.node.gpu.placement": "spread"})


async def scaled(client, count, name="many"):
    """Another number of replicas."""
    await client.merge(f"/apis/apps/v1/namespaces/default/deployments/{name}/scale", {"spec": {"replicas": count}})


def test_pods_that_fit_by_node_sum_and_by_no_card_make_the_pool_grow(plane, tmp_path):
    """
    Two cards with 8 of 15 GiB taken: 14 GiB are free as a sum, and 10 fit on neither. One node comes, and the pod runs.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=3), start={"gpu-a": 1}, node_of=spreading) as s:
            await untainted(s.client)
            await s.client.create(workload("Deployment", "halves", 2, our_pod("x", 8)))
            await s.turns(lambda: s.all_bound(2), why="the first two fit")
            await s.client.create(our_pod("big", 10))
            await s.turns(lambda: s.all_bound(3), why="a node for the third")
            events = await s.client.get(
                "/api/v1/namespaces/default/events", fieldSelector="reason=TriggeredScaleUp,involvedObject.name=big"
            )
            return await s.machines.replicas("gpu-a"), s.steps(ScaleUp), await s.where(), events["items"]

    replicas, bought, where, events = asyncio.run(story())
    assert 2 == replicas
    assert [1] == [step.fragmented_pods for step in bought]
    assert 2 == len(set(where.values()))
    assert ["big"] == [event["involvedObject"]["name"] for event in events]


def test_one_pod_too_many_brings_one_node_more_from_zero_and_their_end_brings_it_back(plane, tmp_path):
    """
    A node takes three pods of 10 GiB on its three cards: 3 x 2 + 1 pods bring three nodes from none, no more; when all
    but six have gone, two nodes stay; when all have gone, none.
    """

    def three(name, of):
        return pool_node(name, of, cards=3)

    async def story():
        pools = pool("gpu-a", max_nodes=9, profile=profile_of(three("any", "gpu-a")))
        async with stage(plane, tmp_path, pools, node_of=three) as s:
            await s.client.create(workload("Deployment", "many", 7, our_pod("x", 10)))
            await s.turns(lambda: s.all_bound(7), why="seven run")
            most = await s.machines.replicas("gpu-a")

            async def as_many(count):
                return await s.machines.replicas("gpu-a") == count

            # the seventh goes: made cheap, so that the ReplicaSet ends this one
            where = await s.where()
            alone = next(name for name, node in where.items() if 1 == list(where.values()).count(node))
            cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-100"}}}
            await s.client.merge(f"{PODS}/{alone}", cost)
            await scaled(s.client, 6)
            await s.turns(lambda: as_many(2), why="the third node goes back")
            await s.turns(lambda: s.all_bound(6), why="six still run")
            await scaled(s.client, 0)
            await s.turns(lambda: as_many(0), why="every node goes back")
            return most, len(s.steps(ScaleUp)), await s.machines.settled("gpu-a")

    most, bought, left = asyncio.run(story())
    assert (3, 3) == (most, bought)
    assert [] == left


def test_a_pool_that_was_seen_once_grows_from_zero_after_a_restart(plane, tmp_path):
    """
    Nobody described the pool: its one node is learnt, goes back, the controller is killed, and a pod brings a node.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=2), start={"gpu-a": 1}) as s:
            await untainted(s.client)
            await s.turns(lambda: "gpu-a" in s.world.state.profiles, why="its node is learnt")
            [name] = await s.machines.settled("gpu-a")
            await s.client.merge(f"{ROOT}/machinedeployments/gpu-a/scale", {"spec": {"replicas": 0}})
            await s.machines.settled("gpu-a")
            await s.client.until(lambda nodes: not nodes["items"], "/api/v1/nodes")
            await known_to_scheduler(
                s.client, name
            )  # a machine goes before its node, and kube-scheduler hears of it last
            s.reborn()
            await s.client.create(our_pod("one", 10))
            await s.turns(lambda: s.all_bound(1), why="a node from what was learnt")
            return await s.machines.replicas("gpu-a")

    assert 1 == asyncio.run(story())


def test_a_pool_that_nobody_knows_stays_empty_and_says_so(plane, tmp_path):
    """
    No node, no profile, no description by the provider: nothing is bought on a guess.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=2)) as s:
            await s.client.create(our_pod("one", 10))
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/one")
            for _ in range(3):
                await s.reconcile()
            return await s.machines.replicas("gpu-a"), {condition.kind for condition in s.conditions}

    assert (0, {ConditionKind.TEMPLATE}) == asyncio.run(story())


def test_a_node_that_somebody_else_adds_meanwhile_is_not_bought_twice(plane, tmp_path):
    """
    While the purchase settles an operator raises the target: the purchase is refused, and their node serves the pod.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=5, profile=TEMPLATE)
        async with stage(plane, tmp_path, pools, limits=quick(action_validation_delay_seconds=0.5)) as s:
            await s.machines.pause()
            await s.client.create(our_pod("one", 10))
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/one")
            await asyncio.sleep(0.3)
            turning = asyncio.create_task(s.reconcile())
            await asyncio.sleep(0.25)
            await s.client.merge(f"{ROOT}/machinedeployments/gpu-a/scale", {"spec": {"replicas": 1}})
            plan = await turning
            for _ in range(3):
                await s.reconcile()
            frozen = await s.machines.replicas("gpu-a")
            s.machines.resume()
            await s.turns(lambda: s.all_bound(1), why="their node serves it")
            return plan, frozen, await s.machines.replicas("gpu-a")

    plan, frozen, replicas = asyncio.run(story())
    assert (1, 1) == (frozen, replicas)
    assert plan is not None


def test_a_pool_out_of_stock_backs_off_and_another_takes_over(plane, tmp_path):
    """
    The cheap pool has nothing left: what was asked for is taken back, the slow pool delivers, the cheap one rests.
    """

    async def story():
        pools = (
            pool("cheap", max_nodes=5, price=1.0, profile=profile_of(pool_node("any", "cheap"))),
            pool("costly", max_nodes=5, price=3.0, profile=profile_of(pool_node("any", "costly"))),
        )
        async with stage(plane, tmp_path, *pools, limits=quick(initial_pool_backoff_seconds=300.0)) as s:
            s.machines.stock["cheap"] = 0
            await s.client.create(our_pod("one", 10))
            await s.turns(lambda: s.all_bound(1), why="the other pool delivers")
            for _ in range(3):
                await s.reconcile()
            wishes = [await s.machines.replicas(name) for name in ("cheap", "costly")]
            bought = [step.pool for step in s.steps(ScaleUp)]
            return wishes, bought, set(s.memory.backoffs)

    wishes, bought, closed = asyncio.run(story())
    assert [0, 1] == wishes
    assert ["cheap", "costly"] == bought
    assert {"cheap"} == closed


def test_a_pod_for_one_mode_never_grows_a_pool_of_another(plane, tmp_path):
    """
    The pod asks for compute, which only `core_mem` nodes give; the cheaper pool serves memory alone.
    """

    def node(name, of):
        return pool_node(name, of, mode="core_mem" if of == "compute" else "cgpu")

    async def story():
        pools = (
            pool("memory", max_nodes=5, price=1.0, profile=profile_of(node("any", "memory"))),
            pool("compute", max_nodes=5, price=9.0, profile=profile_of(node("any", "compute"))),
        )
        async with stage(plane, tmp_path, *pools, node_of=node) as s:
            pod = our_pod("one", 4)
            pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = "30"
            await s.client.create(pod)
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/one")
            for _ in range(4):
                await s.reconcile()
            return [await s.machines.replicas(name) for name in ("memory", "compute")]

    assert [0, 1] == asyncio.run(story())


def test_what_the_provider_says_only_after_the_deadline_of_patience_is_given_back(plane, tmp_path):
    """
    A machine that never becomes a node is given up: the wish goes down again and the pool rests.
    """

    async def story():
        pools = pool("gpu-a", max_nodes=2, profile=TEMPLATE)
        limits = quick(max_node_provision_seconds=1.0, initial_pool_backoff_seconds=300.0)
        async with stage(plane, tmp_path, pools, limits=limits) as s:
            await s.machines.pause()
            await s.client.create(our_pod("one", 10))

            async def resting():
                return "gpu-a" in s.memory.backoffs

            await s.turns(resting, why="given up")
            for _ in range(3):
                await s.reconcile()
            return await s.machines.replicas("gpu-a"), len(s.steps(ScaleUp))

    assert (0, 1) == asyncio.run(story())


def test_replicas_that_spread_over_zones_bring_a_node_to_each_zone(plane, tmp_path):
    """
    Three replicas with a skew of one, and a cheap zone that could take them all: each zone gets what the constraint
    wants, and everybody runs.
    """
    zone = "topology.kubernetes.io/zone"

    def node(name, of):
        return pool_node(name, of, cards=4, **{zone: of})

    async def story():
        pools = tuple(
            pool(name, max_nodes=3, price=price, profile=profile_of(node("any", name)))
            for name, price in (("east", 1.0), ("west", 5.0))
        )
        async with stage(plane, tmp_path, *pools, node_of=node) as s:
            await s.machines.pause()
            spread = {
                "maxSkew": 1,
                "topologyKey": zone,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "spread"}},
            }
            await s.client.create(
                workload("Deployment", "spread", 3, our_pod("x", 4, topologySpreadConstraints=[spread]))
            )
            await s.client.until(lambda p: len(p["items"]) == 3, PODS)
            await asyncio.sleep(0.3)
            for _ in range(3):
                await s.reconcile()
            wishes = [await s.machines.replicas(name) for name in ("east", "west")]
            # the scheduler knows a zone when it has a node: had one come first, all three might go there
            s.machines.resume()
            await s.turns(lambda: s.all_bound(3), why="all three run")
            return wishes, [step.pool for step in s.steps(ScaleUp)]

    wishes, bought = asyncio.run(story())
    assert [1, 1] == wishes
    assert ["east", "west"] == sorted(bought)


def test_two_controllers_at_once_buy_no_more_than_one(plane, tmp_path):
    """
    Both see the waiting pod and both want a node: one of them is refused, and neither buys again.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=5, profile=TEMPLATE)) as s:
            await s.machines.pause()
            other = Stage(s.client, s.access, s.sources, s.machines, s.configs, s.limits)
            await s.client.create(our_pod("one", 10))
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/one")
            for _ in range(4):
                await asyncio.gather(s.reconcile(), other.reconcile())
            frozen = await s.machines.replicas("gpu-a")
            s.machines.resume()
            await s.turns(lambda: s.all_bound(1), why="it runs")
            return frozen, [d.kind for d in (*s.conditions, *other.conditions)]

    frozen, kinds = asyncio.run(story())
    assert 1 == frozen
    assert [ConditionKind.PROVIDER] == list(dict.fromkeys(kinds))


def test_a_purchase_survives_a_controller_that_forgot_everything(plane, tmp_path):
    """
    Killed right after the purchase, its state lost: the new one finds the wish, waits for it, and buys nothing.
    """

    async def story():
        async with stage(plane, tmp_path, pool("gpu-a", max_nodes=5, profile=TEMPLATE)) as s:
            await s.machines.pause()
            await s.client.create(our_pod("one", 10))
            await s.turns(lambda: s.steps(ScaleUp), why="bought")
            amnesia = Stage(s.client, s.access, s.sources, s.machines, s.configs, s.limits)
            for _ in range(3):
                await amnesia.reconcile()
            s.machines.resume()
            await amnesia.turns(lambda: amnesia.all_bound(1), why="it runs")
            return await s.machines.replicas("gpu-a"), amnesia.steps(ScaleUp)

    assert (1, []) == asyncio.run(story())


@pytest.mark.parametrize("killed", [False, True], ids=["", "the leader is killed after the purchase"])
def test_the_node_that_comes_first_serves_whom_it_was_bought_for(plane, tmp_path, killed):
    """
    Four small nodes and a large one are bought, the large one comes first: the small pods, older, leave it alone.

    Told why they wait. As many nodes as were bought serve all, and no reservation stays.
    """

    def node(name, of):
        return pool_node(name, of, cards=2) if of == "large" else pool_node(name, of, cards=1, gib=8)

    async def story():
        pools = (
            pool("small", max_nodes=9, price=1.0, profile=profile_of(node("any", "small"))),
            pool("large", max_nodes=9, price=9.0, profile=profile_of(node("any", "large"))),
        )
        async with stage(plane, tmp_path, *pools, node_of=node) as s:
            s.machines.held |= {"small", "large"}
            for number in range(4):
                await s.client.create(our_pod(f"small-{number}", 6))
            large = our_pod("large", 20, 2)
            large["metadata"]["labels"]["size"] = "large"
            await s.client.create(large)
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/large")

            async def ordered():
                return [await s.machines.replicas(name) for name in ("small", "large")] == [4, 1]

            async def reserved():
                return len((await s.client.get(RESERVED))["items"]) == 5

            await s.turns(ordered, why="five nodes are bought")
            if killed:
                await s.client.delete(RESERVED)
                await soon(lambda: not s.sources.reservations.all())  # else it believes that they still stand
                s.reborn()
                await s.turns(reserved, why="all five are reserved for again")
            s.machines.held.discard("large")
            await s.turns(lambda: s.all_bound(1, "size=large"), why="the large pod has its node")
            # kube-scheduler tries a pod again seconds after it found no nodes at all
            await s.client.until(lambda p: "next node of pool" in why_pending(p), f"{PODS}/small-0")
            for _ in range(5):
                await s.reconcile()
            reason = why_pending(await s.client.get(f"{PODS}/small-0"))
            early = await s.where()
            s.machines.held.clear()
            await s.turns(lambda: s.all_bound(5), why="the small ones have theirs")

            async def tidied():
                return not (await s.client.get(RESERVED))["items"]

            await s.turns(tidied, why="no reservation stays")
            return (
                early,
                reason,
                [await s.machines.replicas(name) for name in ("small", "large")],
                len(s.steps(ScaleUp)),
            )

    early, reason, replicas, bought = asyncio.run(story())
    assert {"large"} == set(early)
    assert "reserved for the pod on the next node of pool small" in reason
    assert ([4, 1], 5) == (replicas, bought)
