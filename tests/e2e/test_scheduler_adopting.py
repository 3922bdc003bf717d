# SPDX-License-Identifier: Apache-2.0
"""Pods that another scheduler placed before gpushare came: what they have of their cards is theirs."""

from __future__ import annotations

import asyncio
import contextlib

from e2e.apiclient import connected
from e2e.kubelets import Kubelets, share_pod
from e2e.sharing import PODS, bound, card_node, cards_of, clear, our_pod, prepare, sharing, untainted, why_pending

from isolation.contract.names import CLASSIC_CARD, CLASSIC_UNITS, SHARED


def classic(name, card, units, node="old"):
    """As the classic gpushare-scheduler-extender leaves it: two annotations, and none of our labels."""
    pod = share_pod(name, units, nodeName=node)
    pod["metadata"]["annotations"] = {
        CLASSIC_CARD: str(card),
        CLASSIC_UNITS: str(units),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1764000000000000000",
    }
    return pod


@contextlib.asynccontextmanager
async def before_us(plane, *pods):
    """A node of two cards of 15 GiB on which these pods run; nothing of gpushare does yet."""
    async with connected(plane) as client:
        await prepare(client)
        async with Kubelets(client, [card_node("old", cards=2)]).alive():
            await untainted(client)
            for pod in pods:
                await client.create(pod)
            await client.until(lambda found: len(bound(found)) == len(pods), PODS)
            try:
                yield client
            finally:
                await clear(client)


def test_the_cards_of_classic_pods_are_held_from_the_first_decision(plane, tmp_path):
    """
    10 of 15 GiB of card 0 and 4 of card 1 are taken: 6 GiB go to card 1, as much again nowhere; when the pod of card 0
    has ended, there.
    """

    async def story():
        older = classic("a", 0, 10), classic("b", 1, 4)
        async with before_us(plane, *older) as client, sharing(plane, tmp_path) as (_, ours):
            await client.create(our_pod("first", 6))
            placed = await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/first")
            await client.create(our_pod("second", 6))
            waits = await client.until(why_pending, f"{PODS}/second")
            await client.delete(f"{PODS}/a?gracePeriodSeconds=0", force=True)
            later = await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/second")
            return placed, waits, later, ours.log()

    first, waits, second, log = asyncio.run(story())
    assert ["GPU-old-1"] == cards_of(first)
    assert "nodeName" not in waits["spec"]
    assert ["GPU-old-0"] == cards_of(second)
    assert "2 pods of other schedulers are adopted" in log


def test_pods_that_only_say_so_hold_nothing(plane, tmp_path):
    """
    An annotation without a request, and one of a card that is none: no label, and all of a card for the next pod.
    """
    idle = classic("idle", 0, 0)
    wrong = classic("wrong", 0, 15)
    wrong["metadata"]["annotations"][CLASSIC_CARD] = "x"

    async def story():
        async with before_us(plane, idle, wrong) as client, sharing(plane, tmp_path):
            await client.create(our_pod("first", 15))
            await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/first")
            return [await client.get(f"{PODS}/{name}") for name in ("idle", "wrong")]

    for pod in asyncio.run(story()):
        assert SHARED not in pod["metadata"].get("labels", {})
