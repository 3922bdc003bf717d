# SPDX-License-Identifier: Apache-2.0
"""Pools behind `/scale` on a real API server: who is counted, what is written, and what is never overwritten."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from e2e.apiclient import connected
from e2e.machine_deployments import DELETE, ROOT, MachineDeployments

from autoscaler.providers.base import ChangedError, DeniedError, InstanceState, ProviderUnreachableError
from autoscaler.providers.registry import PoolSource, open_providers
from autoscaler.providers.scale import ScaleProvider, parse_settings
from isolation.contract.codec.cursor import At
from isolation.kube.access import Access


@contextlib.asynccontextmanager
async def pool(plane, name, replicas=0, **annotations):
    """One MachineDeployment with its controller, and the provider for it."""
    async with (
        connected(plane) as client,
        Access(plane.kubeconfig) as access,
        MachineDeployments(client).running() as world,
    ):
        await world.create(name, replicas, **annotations)
        yield client, world, ScaleProvider(access, {name: parse_settings(At({"name": name}))})


async def short_of_stock(provider):
    """The pool's state once it says why nothing comes."""
    for _ in range(200):
        state = (await provider.pools())[0]
        if state.short:
            return state
        await asyncio.sleep(0.05)
    raise AssertionError("never said")


def states(state):
    """By node, the states of a pool's machines."""
    return {one.node: one.state for one in state.nodes}


def test_a_pool_grows_from_zero_and_gives_back_the_machine_that_is_named(plane):
    """
    Three are asked for and come; the one in the middle goes, though the controller would have taken another.
    """

    async def story():
        async with pool(plane, "grow") as (_, world, provider):
            empty = (await provider.pools())[0]
            target = await provider.grow("grow", 3, seen=0)
            nodes = await world.settled("grow")
            full = (await provider.pools())[0]
            gone = await provider.remove("grow", [nodes[1]])
            left = await world.settled("grow")
            return empty, target, nodes, full, gone, left

    empty, target, nodes, full, gone, left = asyncio.run(story())

    assert (0, (), 0) == (empty.target, empty.nodes, empty.missing)
    assert (3, 3) == (target, full.target)
    assert dict.fromkeys(nodes, InstanceState.RUNNING) == states(full)
    assert {f"test://zone/{node}" for node in nodes} == {one.id for one in full.nodes}
    assert (nodes[1],) == gone
    assert [nodes[0], nodes[2]] == left


def test_what_somebody_else_has_bought_meanwhile_is_not_bought_twice(plane):
    """
    The target is not the one that the buyer saw: nothing is written.
    """

    async def story():
        async with pool(plane, "twice") as (client, world, provider):
            await client.merge(f"{ROOT}/machinedeployments/twice/scale", {"spec": {"replicas": 1}})
            with pytest.raises(ChangedError, match="another client"):
                await provider.grow("twice", 1, seen=0)
            return await world.replicas("twice")

    assert 1 == asyncio.run(story())


def test_writers_at_the_same_moment_lose_none_of_their_wishes(plane):
    """
    Twelve buyers and a status that changes all the time: each purchase is in the target or was refused.
    """

    async def story():
        async with pool(plane, "race") as (client, world, provider):
            await world.pause()

            async def noise():
                for number in range(60):
                    await client.merge(f"{ROOT}/machinedeployments/race/status", {"status": {"noise": number}})

            noisy = asyncio.create_task(noise())
            answers = await asyncio.gather(*(provider.grow("race", 1) for _ in range(12)), return_exceptions=True)
            await noisy
            bought = [answer for answer in answers if isinstance(answer, int)]
            lost = [answer for answer in answers if not isinstance(answer, int | ChangedError)]
            return len(bought), await world.replicas("race"), lost

    bought, target, lost = asyncio.run(story())

    assert [] == lost
    assert bought == target
    assert bought >= 1


def test_a_status_that_changes_all_the_time_keeps_nobody_from_buying(plane):
    """
    The object's version moves with its status; a wish that nobody touched is written all the same.
    """

    async def story():
        async with pool(plane, "noise") as (client, world, provider):
            await world.pause()
            over = asyncio.Event()

            async def noise():
                number = 0
                while not over.is_set():
                    number += 1
                    began = time.monotonic()
                    await client.merge(f"{ROOT}/machinedeployments/noise/status", {"status": {"noise": number}})
                    # Six tries in a row must not all meet a write; where a write takes long, so does a try
                    await asyncio.sleep(max(0.02, 4 * (time.monotonic() - began)))

            noisy = asyncio.create_task(noise())
            for _ in range(5):
                await provider.grow("noise", 1)
            over.set()
            await noisy
            return await world.replicas("noise")

    assert 5 == asyncio.run(story())


@pytest.mark.parametrize("crash", ["after-mark", "after-lower"])
def test_a_removal_cut_off_in_the_middle_is_finished_and_not_doubled(plane, crash):
    """
    Marked and not lowered, or lowered and not deleted yet: asked again, exactly that one machine goes.
    """

    async def story():
        async with pool(plane, "crash", 4) as (client, world, provider):
            nodes = await world.settled("crash")
            await world.pause()
            machine = nodes[2].replace("-n", "-m")
            await client.merge(
                f"{ROOT}/machines/{machine}", {"metadata": {"annotations": {DELETE: "gpushare-autoscaler"}}}
            )
            if crash == "after-lower":
                await client.merge(f"{ROOT}/machinedeployments/crash/scale", {"spec": {"replicas": 3}})
            before = (await provider.pools())[0]
            for _ in range(3):
                await provider.remove("crash", [nodes[2]])
            lowered = await world.replicas("crash")
            marked = (await provider.pools())[0]
            world.resume()
            return nodes, before, lowered, marked, await world.settled("crash")

    nodes, before, lowered, marked, left = asyncio.run(story())

    assert 3 == lowered
    assert (InstanceState.LEAVING if crash == "after-lower" else InstanceState.RUNNING) == states(before)[nodes[2]]
    assert 0 == before.missing == marked.missing
    assert InstanceState.LEAVING == states(marked)[nodes[2]]
    assert [nodes[0], nodes[1], nodes[3]] == left


def test_a_mark_that_nobody_asks_for_any_more_costs_no_other_machine(plane):
    """
    A drain was called off after its machine was marked: the next removal takes the machine it names.
    """

    async def story():
        async with pool(plane, "stale", 3) as (client, world, provider):
            nodes = await world.settled("stale")
            stale = nodes[0].replace("-n", "-m")
            await client.merge(
                f"{ROOT}/machines/{stale}", {"metadata": {"annotations": {DELETE: "gpushare-autoscaler"}}}
            )
            await provider.remove("stale", [nodes[2]])
            return nodes, await world.settled("stale")

    nodes, left = asyncio.run(story())

    assert nodes[:2] == left


def test_growing_waits_until_what_was_removed_is_gone(plane):
    """
    A higher target would call the removal off: it is refused until the marked machine has left.
    """

    async def story():
        async with pool(plane, "wait", 2) as (_, world, provider):
            nodes = await world.settled("wait")
            await world.pause()
            await provider.remove("wait", [nodes[0]])
            with pytest.raises(ChangedError, match="still being deleted"):
                await provider.grow("wait", 1)
            world.resume()
            await world.settled("wait")
            return await provider.grow("wait", 1), nodes, await world.settled("wait")

    target, nodes, left = asyncio.run(story())

    assert 2 == target == len(left)
    assert nodes[0] not in left


def test_two_removals_one_after_the_other_take_two_machines(plane):
    """
    The second does not take the first's lowered target for its own.
    """

    async def story():
        async with pool(plane, "two", 4) as (_, world, provider):
            nodes = await world.settled("two")
            await world.pause()
            await provider.remove("two", [nodes[0]])
            await provider.remove("two", [nodes[3]])
            world.resume()
            return nodes, await world.settled("two")

    nodes, left = asyncio.run(story())

    assert nodes[1:3] == left


def test_out_of_stock_is_said_and_what_does_not_come_can_be_given_up(plane):
    """
    The pool says why; the machine that never came is removed by its ID and the target is what stands.
    """

    async def story():
        async with pool(plane, "stock") as (_, world, provider):
            world.stock["stock"] = 1
            await provider.grow("stock", 2)
            state = await short_of_stock(provider)
            waiting = [one for one in state.nodes if one.state is InstanceState.COMING]
            gone = await provider.remove("stock", [waiting[0].id])
            left = await world.settled("stock")
            return state, gone, waiting, left, (await provider.pools())[0]

    state, gone, waiting, left, after = asyncio.run(story())

    assert "sufficient capacity" in state.short
    assert (waiting[0].id,) == gone
    assert 1 == len(left) == after.target
    assert "" == after.short


def test_machines_that_were_only_asked_for_can_be_asked_for_no_more(plane):
    """
    Never below what stands, however many are given up.
    """

    async def story():
        async with pool(plane, "cancel", 1) as (_, world, provider):
            await world.settled("cancel")
            await world.pause()
            await provider.grow("cancel", 3)
            missing = (await provider.pools())[0].missing
            return missing, await provider.cancel("cancel", 1), await provider.cancel("cancel", 99)

    assert (3, 3, 1) == asyncio.run(story())


def test_names_that_the_pool_does_not_have_cost_nothing(plane):
    """
    A node of another pool, and one that is gone: nothing is marked, nothing lowered.
    """

    async def story():
        async with pool(plane, "names", 2) as (_, world, provider):
            await world.settled("names")
            gone = await provider.remove("names", ["somebody-elses", ""])
            return gone, await world.replicas("names")

    assert ((), 2) == asyncio.run(story())


def test_a_scale_without_a_selector_counts_nobody(plane):
    """
    An empty selector would make every machine of the namespace a member: it is refused, with the remedy.
    """

    async def story():
        async with pool(plane, "blind", 1) as (client, world, provider):
            await world.settled("blind")
            await client.merge(f"{ROOT}/machinedeployments/blind/status", {"status": {"selector": None}})
            with pytest.raises(DeniedError, match="set `selector`"):
                await provider.remove("blind", ["x"])
            with pytest.raises(DeniedError, match="set `selector`"):
                await provider.pools()

    asyncio.run(story())


def test_an_object_without_machines_is_counted_by_its_nodes_and_marks_them(plane):
    """
    Any kind with /scale: members are nodes of a label, and without a known mark nothing is given back by name.
    """

    async def story():
        async with (
            connected(plane) as client,
            Access(plane.kubeconfig) as access,
            MachineDeployments(client).running() as world,
        ):
            await world.pause()
            await world.create("plain", 2)
            for name in ("plain-a", "plain-b"):
                await client.create(
                    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"fleet": "plain"}}}
                )
            asked = {"name": "plain", "nodes": "fleet=plain"}
            blunt = ScaleProvider(access, {"plain": parse_settings(At(asked))})
            able = ScaleProvider(access, {"plain": parse_settings(At(asked | {"mark": "example.com/first"}))})
            try:
                with pytest.raises(DeniedError, match="set `mark`"):
                    await blunt.remove("plain", ["plain-b"])
                gone = await able.remove("plain", ["plain-b"])
                node = await client.get("/api/v1/nodes/plain-b")
                return gone, await world.replicas("plain"), node["metadata"]["annotations"]["example.com/first"]
            finally:
                for name in ("plain-a", "plain-b"):
                    await client.delete(f"/api/v1/nodes/{name}")

    assert (("plain-b",), 1, "gpushare-autoscaler") == asyncio.run(story())


def test_a_template_from_zero_is_read_from_the_objects_annotations(plane):
    """
    Cluster API's own annotations; an object that says nothing has no template.
    """
    key = "capacity.cluster-autoscaler.kubernetes.io"
    said = {
        f"{key}/cpu": "16",
        f"{key}/memory": "64Gi",
        f"{key}/gpu-type": "nvidia.com/gpu",
        f"{key}/gpu-count": "2",
        f"{key}/labels": "zone=a,tier=gpu",
        f"{key}/taints": "dedicated=gpu:NoSchedule",
    }

    async def story():
        async with pool(plane, "told", **said) as (_, world, provider):
            await world.create("silent")
            described = await provider.template("told")
            other = ScaleProvider(provider._clients["told"]._access, {"silent": parse_settings(At({"name": "silent"}))})
            return described, await other.template("silent")

    described, silent = asyncio.run(story())

    assert silent is None
    assert (16_000, 64 << 30, 2) == (described.cpu_milli, described.memory_bytes, len(described.cards))
    assert {"zone": "a", "tier": "gpu"} == dict(described.labels)
    assert ("dedicated", "gpu", "NoSchedule") == (
        described.taints[0].key,
        described.taints[0].value,
        described.taints[0].effect,
    )


def test_a_pool_in_trouble_hides_no_other(plane):
    """
    One MachineDeployment is not there (any more), the server stops answering: what is unknown is distinguished.
    """

    async def story():
        async with pool(plane, "there", 1) as (_, world, _), Access(plane.kubeconfig) as access:
            await world.settled("there")
            sources = [PoolSource(name, "scale", At({"name": name})) for name in ("there", "not-there")]
            providers = open_providers(sources, access)
            well = await providers.read()
            plane.freeze("kube-apiserver")
            try:
                with pytest.raises(ProviderUnreachableError):
                    await providers.grow("there", 1)
                ill = await providers.read()
            finally:
                plane.thaw("kube-apiserver")
            return well, ill

    well, ill = asyncio.run(story())

    assert ["there"] == list(well.states)
    assert isinstance(well.failed["not-there"], DeniedError)
    assert {} == ill.states
    assert {"there", "not-there"} == set(ill.failed)
    assert all(isinstance(error, ProviderUnreachableError) for error in ill.failed.values())
