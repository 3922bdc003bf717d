# SPDX-License-Identifier: Apache-2.0
"""Single moves on a real control plane: room for who waits, cool cards, whole cards; each with its home first."""

from __future__ import annotations

import asyncio

from e2e.autoscaler_harness import (
    NO_HOME_SECONDS,
    RESERVED,
    Deadly,
    Killed,
    Watcher,
    only,
    pool,
    pool_node,
    quick,
    stage,
)
from e2e.sharing import PODS, cards_of, our_pod, untainted, workload
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.plan import Move, ScaleUp
from autoscaler.kube.usage import Measured

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def one_card(name, of):
    """A node of one card."""
    return pool_node(name, of, cards=1)


async def one_each(s, app, nodes, units):
    """A Deployment with one replica on each of these nodes."""
    await s.client.create(workload("Deployment", app, 0, our_pod("x", units)))
    for count, node in enumerate(nodes, 1):
        await only(s.client, node)
        await s.client.merge(f"{DEPLOYMENTS}/{app}/scale", {"spec": {"replicas": count}})
        running = lambda p, n=count: [one["status"].get("phase") for one in p["items"]] == ["Running"] * n  # noqa: E731
        await s.client.until(running, PODS, labelSelector=f"app={app}")
    await only(s.client, "")


def test_who_waits_gets_room_by_a_move_where_nothing_may_be_bought(plane, tmp_path):
    """
    One replica of 6 GiB on each of two cards; 10 GiB fit on neither and the pool is as large as it may be. One replica
    moves to the other card, killed before and after every write; the pod runs, nobody is homeless, nothing is bought.
    """

    async def story():
        limits = quick(scale_down_unneeded_seconds=3600.0)
        config = pool("gpu-a", max_nodes=2, min_nodes=2)
        async with stage(plane, tmp_path, config, start={"gpu-a": 2}, node_of=one_card, limits=limits) as s:
            await untainted(s.client)
            nodes = await s.machines.settled("gpu-a")
            await one_each(s, "small", nodes, 6)
            await s.client.create(our_pod("big", 10))
            await s.client.until(lambda p: p["status"].get("conditions"), f"{PODS}/big")
            real, s.access = s.access, Deadly(s.access)
            s.reopen()
            async with Watcher(s.client, "app=small").watching() as seen, asyncio.timeout(PATIENCE_SECONDS):
                while not await s.all_bound(3):
                    try:
                        await s.reconcile()
                    except Killed:
                        s.reborn()
                    await asyncio.sleep(s.limits.scan_interval_seconds)
            deaths, s.access = s.access.deaths, real
            s.reopen()
            for _ in range(3):
                await s.reconcile()
            kept = (await s.client.get(RESERVED))["items"]
            where = await s.where()
            return where, seen, deaths, kept, s.steps(ScaleUp)

    where, seen, deaths, kept, bought = asyncio.run(story())
    assert 2 == len(set(where.values()))
    assert 1 == len({node for pod, node in where.items() if pod.startswith("small-")})
    assert 1 == len(seen.ended)
    assert seen.longest_wait < NO_HOME_SECONDS
    assert deaths >= 4
    assert ([], []) == (kept, bought)


class Busy(Measured):
    """Every pod uses a third of its card."""

    def used(self, _, spots):
        """Of those that have a card at all."""
        return 0.3 if spots else None


class Exporters:
    """Cards are as hot as pods are many on them; told, or too old to tell."""

    def __init__(self, s, nodes):
        self._s, self._nodes, self.fresh = s, nodes, False

    async def read(self, _):
        """As `figures.Exporters`."""
        placed = [pod.placement.node for pod in self._s.sources.notes.pods.values() if pod.placement]
        heat = {f"GPU-{node}-0": min(1.0, 0.25 * placed.count(node)) for node in self._nodes}
        return Busy({"every pod": None}, heat=heat) if self.fresh else Measured(stale=frozenset(self._nodes))


def test_a_hot_card_is_relieved_only_while_its_figures_are_fresh(plane, tmp_path):
    """
    Two Deployments share a hot card and another card is idle. While the figures are stale nothing moves; as they are
    fresh one pod moves to the idle card.
    """

    async def story():
        limits = quick(scale_down_unneeded_seconds=3600.0, hot_card_seconds=0.5)
        config = pool("gpu-a", max_nodes=2, min_nodes=2)
        async with stage(plane, tmp_path, config, start={"gpu-a": 2}, node_of=one_card, limits=limits) as s:
            await untainted(s.client)
            first, second = await s.machines.settled("gpu-a")
            for app in ("left", "right"):
                await one_each(s, app, (first, first), 2)
            figures = s.figures = Exporters(s, (first, second))
            s.reopen()
            for _ in range(8):
                await s.reconcile()
                await asyncio.sleep(0.2)
            early = s.steps(Move)
            figures.fresh = True

            async def moved():
                return second in (await s.where()).values()

            await s.turns(moved, why="one pod goes to the idle card")
            await s.turns(lambda: s.all_bound(4), why="everybody runs")
            found = (await s.client.get(PODS))["items"]
            return early, s.steps(Move), [cards_of(p)[0] for p in found], second

    early, moves, cards, second = asyncio.run(story())
    assert [] == early
    assert {"mitigate_hot_card"} == {move.kind for move in moves}
    assert cards.count(f"GPU-{second}-0") in {1, 2}  # a figure may be from before the first move
