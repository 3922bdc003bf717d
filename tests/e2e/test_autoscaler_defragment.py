# SPDX-License-Identifier: Apache-2.0
"""Cards that churn has left half empty are made whole again on a real control plane, exactly those that were named."""

from __future__ import annotations

import asyncio
import re

import pytest
from e2e.autoscaler_harness import NO_HOME_SECONDS, RESERVED, Deadly, Killed, Watcher
from e2e.fragments_harness import DEPLOYMENTS, WHOLE, fragmented, scaled
from e2e.sharing import PODS
from e2e.test_autoscaler_loop_drain import BUDGETS, budget
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.core.pressure import summarize_pools
from autoscaler.core.plan import ScaleUp

NAMED = re.compile(r"frees cards? ([\d, ]+) of (\S+), makes ([\d.]+) stranded idle")


def named(texts):
    """UUIDs of the cards that these sentences promise, and the sum of what they say will be useful."""
    found = [match for text in texts if (match := NAMED.search(text))]
    cards = [f"GPU-{match[2]}-{index}" for match in found for index in match[1].split(", ")]
    return cards, sum(float(match[3]) for match in found)


async def pods(s):
    """UIDs by Deployment."""
    found = {}
    for pod in (await s.client.get(PODS))["items"]:
        found.setdefault(pod["metadata"]["labels"]["app"], set()).add(pod["metadata"]["uid"])
    return found


async def lost(s):
    """Idle cards that are of no use to the pods that come, as the metric has them."""
    (room,) = summarize_pools(await s.world.observe())
    return room.lost_cards


async def until_calm(f, count):
    """
    Turns until it rests: below its low mark, or with nothing left that it may move; everybody runs again.

    A turn without a step counts once the budgets' controller has caught up: until then it may only have to wait for it.
    """
    s, rests = f.stage, 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while rests < 2:
            whole = await s.all_bound(count) and await all_healthy(s)
            try:
                await f.reconcile()
            except Killed:
                f.reborn()
                continue
            quiet = f.plans[-1].steps == () and not s.world.observed.observation.reserved
            rests = rests + 1 if whole and quiet and not (await s.client.get(RESERVED))["items"] else 0
            await asyncio.sleep(s.limits.scan_interval_seconds)


async def all_healthy(s):
    """Every budget counts all of its pods as healthy, so that none is held up by the move before."""
    listed = (await s.client.get(BUDGETS))["items"]
    return all(one["status"].get("currentHealthy") == one["status"].get("expectedPods") for one in listed)


def test_the_cards_that_were_named_come_free_though_the_controller_is_killed_at_every_write(plane, tmp_path):
    """
    Sixteen cards have one small pod each. One Deployment may be moved at will, one has a budget of one at a time, one
    has a budget with nothing left, one says no. Killed before and after every write: exactly the cards that were named
    come free, their worth is what the metric loses, the budgets hold, nobody moves twice or waits, and whole-card pods
    then run on all of them without a node more.
    """
    small = {"free": {}, "guarded": {}, "stuck": {}, "refuses": {"gpushare.dev/evict": "false"}}

    async def story():
        async with fragmented(plane, tmp_path, small) as f:
            s = f.stage
            for name, allowed in (("guarded", 1), ("stuck", 0)):
                await s.client.create(budget(name, name, allowed))
                observed = lambda b: b.get("status", {}).get("observedGeneration")  # noqa: E731
                await s.client.until(observed, f"{BUDGETS}/{name}")
            before, idle, worth = await pods(s), await f.free(), await lost(s)
            real, s.access = s.access, Deadly(s.access)
            s.reopen()
            async with (
                Watcher(s.client, "app=guarded").watching() as guarded,
                Watcher(s.client).watching() as everybody,
            ):
                await until_calm(f, 2 * WHOLE)
            deaths, s.access = s.access.deaths, real
            s.reopen()
            after, free = await pods(s), await f.free()
            gone = {app: before[app] - after[app] for app in before}
            moved = set().union(*gone.values())
            said = named(f.said[uid].reason for uid in moved)
            paid = worth - await lost(s)
            ended = {app: len(uids) for app, uids in gone.items() if uids}
            await scaled(s.client, "whole", WHOLE + len(free))
            bought = [step for plan in f.plans for step in plan.steps if isinstance(step, ScaleUp)]
            return idle, said, free, paid, ended, (guarded, everybody), deaths, bought

    idle, (cards, worth), free, paid, ended, (guarded, everybody), deaths, bought = asyncio.run(story())
    assert set() == idle
    assert sorted(cards) == sorted(free)
    assert len(cards) == sum(ended.values()) == len(everybody.ended) >= 4
    assert pytest.approx(worth, abs=0.01 * len(cards)) == paid  # two digits are said
    assert {"free", "guarded"} == set(ended)
    assert guarded.fewest >= 3
    assert everybody.longest_wait < NO_HOME_SECONDS
    assert deaths >= 2 * 2 * len(cards)  # a home and an eviction, each of them twice
    assert [] == bought


def test_who_needs_a_whole_card_gets_one_by_a_move_as_long_as_the_hour_has_moves(plane, tmp_path):
    """
    Three whole-card pods wait, no card is free and the pool may not grow. An hour has two moves: two small pods go,
    each for one of those who wait; the third goes on waiting, nothing is bought, and the fleet is left as it is.
    """

    async def story():
        async with fragmented(plane, tmp_path, {"a": {}, "b": {}, "c": {}, "d": {}}, max_moves_per_hour=2) as f:
            s = f.stage
            before = await pods(s)
            await s.client.merge(f"{DEPLOYMENTS}/whole/scale", {"spec": {"replicas": WHOLE + 3}})
            where = {"labelSelector": "app=whole"}
            waits = lambda p: sum(bool(one["status"].get("conditions")) for one in p["items"]) == WHOLE + 3  # noqa: E731
            await s.client.until(waits, PODS, **where)
            two_more = lambda p: sum(one["status"].get("phase") == "Running" for one in p["items"]) == WHOLE + 2  # noqa: E731
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not two_more(await s.client.get(PODS, **where)):
                    await f.reconcile()
                    await asyncio.sleep(s.limits.scan_interval_seconds)
            for _ in range(8):
                await f.reconcile()
                await asyncio.sleep(s.limits.scan_interval_seconds)
            after = await pods(s)
            moved = set().union(*(before[app] - after[app] for app in before))
            steps = [step for plan in f.plans for step in plan.steps]
            return moved, f.said, [s for s in steps if isinstance(s, ScaleUp)], list(s.memory.demand.capped.values())

    moved, said, bought, capped = asyncio.run(story())
    assert 2 == len(moved)
    assert {"make_room"} == {said[uid].kind for uid in moved}
    assert 2 == len({uid for one in moved for uid in said[one].pods})
    assert [] == bought
    assert 1 == len(capped)
