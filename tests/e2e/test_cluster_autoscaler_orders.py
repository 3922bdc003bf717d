# SPDX-License-Identifier: Apache-2.0
"""
Orders that a cluster-autoscaler carries out: bought is what is needed, once, whoever is killed or frozen meanwhile.

The stand-in (`e2e.cluster_autoscaler`) buys; `gpushare autoscaler` decides, and counts card by card.
"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
from e2e.autoscaler_harness import pool_node
from e2e.autoscaler_process import PROFILE, eventually, one_pool
from e2e.cluster_autoscaler.harness import beside
from e2e.sharing import PODS, our_pod, why_pending
from support.budget import examples

if TYPE_CHECKING:
    from e2e.cluster_autoscaler.harness import Beside

FLAGS = ("--enforce-node-group-min-size",)
MORE = 3.0
"""Minutes of cluster-autoscaler's time in which a second purchase would have come: eighteen loops."""
TWO_POOLS = (one_pool("gpu-a", price=1.0), one_pool("gpu-b", price=2.0))


async def served(b: Beside, *names: str) -> None:
    """Wait until all of them run."""
    for name in names:
        try:
            await b.client.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/{name}")
        except AssertionError as exc:
            said = f"{b.theirs.status()}: {b.theirs.log()[-1500:]}: {b.ours.log()[-1500:]}"
            raise AssertionError(f"{exc}: {said}") from None


async def ordered(b: Beside, pool: str = "gpu-a", count: int = 1) -> None:
    """Wait until our loop has ordered so many."""
    done = 'gpushare_autoscaler_actions_total{action="scale_up",outcome="done"}'
    await b.ours.reaches(done, count)
    await b.ours.says(f"scale_up {pool}")


async def wishes(b: Beside, **pools: int) -> None:
    """Wait until the pools want so many machines."""

    async def claim() -> bool:
        return {name: await b.machines.replicas(name.replace("_", "-")) for name in pools} == pools

    if not await eventually(claim):
        raise AssertionError(f"not {pools}: {b.theirs.status()}: {b.theirs.log()[-2000:]}")


async def bought(b: Beside) -> dict[str, int]:
    """Machines ever made, once nothing more would come: who is killed while it buys never hears that it has."""
    await b.theirs.passes(MORE)
    return dict(b.machines.made)


def test_from_zero_and_beyond_sums(plane, tmp_path):
    """
    The first node of an empty pool; then a pod that fits on the node by sums and on no card: one more, never two.
    """

    async def story():
        async with beside(plane, tmp_path, one_pool()) as b:
            b.theirs.start(*FLAGS)
            for name in ("first", "second"):
                await b.client.create(our_pod(name, 10))
            await served(b, "first", "second")
            zero = await bought(b)
            await b.client.create(our_pod("fragmented", 8))
            await served(b, "fragmented")
            return zero, await bought(b), b.theirs.status()["asked"]

    zero, both, asked = asyncio.run(story())
    assert ({"gpu-a": 1}, {"gpu-a": 2}) == (zero, both)
    assert asked["NodeGroupNodes"] < asked["NodeGroups"]


def test_the_leader_is_killed_before_and_after_the_purchase(plane, tmp_path):
    """An order that nobody has heard of is given again by the next leader; one that was carried out is not."""

    async def story():
        async with beside(plane, tmp_path, one_pool()) as b:
            b.theirs.start(*FLAGS)
            await b.theirs.passes(0.5)
            b.theirs.send(signal.SIGSTOP)
            await b.client.create(our_pod("before", 10))
            await ordered(b)
            b.ours.end(signal.SIGKILL)
            b.theirs.send(signal.SIGCONT)
            nobody = await bought(b)
            b.start_ours()
            await served(b, "before")
            once = await bought(b)

            await b.machines.pause()
            await b.client.create(our_pod("after", 30, 2))
            await wishes(b, gpu_a=2)
            b.ours.end(signal.SIGKILL)
            b.start_ours()
            await b.ours.shows("gpushare_autoscaler_leader", 1)
            await b.theirs.passes(MORE)
            b.machines.resume()
            await served(b, "after")
            return nobody, once, await bought(b)

    assert ({}, {"gpu-a": 1}, {"gpu-a": 2}) == asyncio.run(story())


def test_out_of_stock_another_pool_is_asked(plane, tmp_path):
    """The cheaper pool cannot deliver: its order is given up, the other one's is carried out, once."""

    async def story():
        async with beside(plane, tmp_path, *TWO_POOLS) as b:
            b.machines.stock = {"gpu-a": 0}
            b.theirs.start(*FLAGS)
            await b.client.create(our_pod("waits", 10))
            await served(b, "waits")
            await wishes(b, gpu_a=0, gpu_b=1)
            return await bought(b)

    assert {"gpu-a": 1, "gpu-b": 1} == asyncio.run(story())


def test_frozen_and_with_new_certificates_nothing_is_bought_twice(plane, tmp_path):
    """
    Our process stands still with an order in it; then its certificate and its client's are issued again by the same
    authority while cluster-autoscaler still shows the old one, which it read at its start.
    """

    async def story():
        async with beside(plane, tmp_path, one_pool()) as b:
            b.theirs.start(*FLAGS)
            await b.theirs.passes(0.5)
            await b.client.create(our_pod("first", 10))
            await b.client.until(why_pending, f"{PODS}/first")
            b.ours.send(signal.SIGSTOP)
            await b.theirs.counts("loops given up")
            b.ours.send(signal.SIGCONT)
            await served(b, "first")
            frozen = await bought(b)

            b.authority.issue("gpushare-autoscaler", hosts=("localhost", "127.0.0.1"))
            b.authority.issue("cluster-autoscaler")
            await b.client.create(our_pod("second", 30, 2))
            await served(b, "second")
            return frozen, await bought(b)

    assert ({"gpu-a": 1}, {"gpu-a": 2}) == asyncio.run(story())


def test_the_first_node_up_is_left_to_those_it_was_bought_for(plane, tmp_path):
    """Small and large pods wait, and the larger node is up first: who only fits there finds its place."""

    def node_of(name: str, pool: str) -> dict[str, Any]:
        return pool_node(name, pool, gib=30 if pool == "gpu-b" else 15)

    cards = PROFILE["cards"]["cards"]
    large = PROFILE | {"cards": {"version": 1, "cards": [card | {"total": 30 << 30} for card in cards]}}

    async def story():
        pools = one_pool("gpu-a", price=1.0), one_pool("gpu-b", price=2.0, node_template=large)
        async with beside(plane, tmp_path, *pools, node_of=node_of) as b:
            b.machines.held = {"gpu-a", "gpu-b"}
            b.theirs.start(*FLAGS)
            small, big = [f"small{at}" for at in range(4)], ["big0", "big1"]
            for name in small:
                await b.client.create(our_pod(name, 15))
            for name in big:
                await b.client.create(our_pod(name, 30))
            await wishes(b, gpu_a=2, gpu_b=1)
            b.machines.held = {"gpu-a"}
            await b.machines.settled("gpu-b")
            await b.theirs.passes(MORE)
            b.machines.held = set()
            await served(b, *small, *big)
            return await bought(b)

    assert {"gpu-a": 2, "gpu-b": 1} == asyncio.run(story())


SEEDS = examples(3)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_story_ends_with_everybody_served_and_nothing_spare(plane, tmp_path, seed):
    """
    Pods come and go, either process is killed or frozen, certificates are issued again: at the end everybody who waits
    runs, and there are no more machines than pods.

    The stories of tests/simulated_cards/test_cluster_autoscaler_stories.py are many; these have real processes.
    """
    draw = random.Random(seed)  # noqa: S311 (chance, no secret)

    async def story():
        async with beside(plane, tmp_path, *TWO_POOLS) as b:
            b.theirs.start(*FLAGS)
            living: list[str] = []
            for number in range(8):
                name = f"p{number}"
                await b.client.create(our_pod(name, draw.choice((4, 8, 15))))
                living.append(name)
                match draw.choice(("nothing", "kill ours", "kill theirs", "freeze", "delete", "certificates")):
                    case "kill ours":
                        await asyncio.to_thread(b.ours.end, signal.SIGKILL)
                        b.start_ours()
                    case "kill theirs":
                        await asyncio.to_thread(b.theirs.end)
                        b.theirs.start(*FLAGS)
                    case "freeze":
                        b.ours.send(signal.SIGSTOP)
                        await asyncio.sleep(draw.uniform(0.5, 6.0))
                        b.ours.send(signal.SIGCONT)
                    case "delete":
                        gone = living.pop(draw.randrange(len(living)))
                        await b.client.delete(f"{PODS}/{gone}", force=True)
                    case "certificates":
                        b.authority.issue("gpushare-autoscaler", hosts=("localhost", "127.0.0.1"))
                await asyncio.sleep(draw.uniform(0.0, 3.0))
            await served(b, *living)
            await b.theirs.passes(MORE)
            machines = [await b.machines.replicas(pool["name"]) for pool in TWO_POOLS]
            return living, sum(machines)

    living, machines = asyncio.run(story())
    assert machines <= len(living)
