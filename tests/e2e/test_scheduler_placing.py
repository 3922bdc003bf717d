# SPDX-License-Identifier: Apache-2.0
"""Pods with shares on a real control plane: the right node, the right cards, the right records."""

from __future__ import annotations

import asyncio
import time

from e2e.kubelets import ENDS_AFTER, Kubelets
from e2e.sharing import (
    PODS,
    bound,
    card_node,
    cards_of,
    our_pod,
    sharing,
    taken,
    untainted,
    vendor_record,
    why_pending,
    workload,
)

from isolation.contract.model import CardChoice
from isolation.contract.names import ACK


def chosen(choice):
    """The label by which a node says how its cards are chosen."""
    return {ACK.choice_label: choice.value}


async def running(client, app, count):
    """So many pods of an app, all running."""
    listed = await client.until(
        lambda pods: [p["status"].get("phase") for p in pods["items"]] == ["Running"] * count,
        PODS,
        labelSelector=f"app={app}",
    )
    return listed["items"]


def test_a_stateful_set_over_four_cards_gets_an_equal_part_of_each(plane, tmp_path):
    """
    8 GiB over 4 cards: 2 GiB of four different cards of one node, in our record and in the vendor's.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [card_node("quad")]).alive():
            await client.create(workload("StatefulSet", "seed", 1, our_pod("x", 8, 4), serviceName="seed"))
            return (await running(client, "seed", 1))[0]

    pod = asyncio.run(story())
    assert "quad" == pod["spec"]["nodeName"]
    assert [f"GPU-quad-{i}" for i in range(4)] == sorted(cards_of(pod))
    assert {"0": {"0": 2, "1": 2, "2": 2, "3": 2}} == vendor_record(pod)


def test_cards_are_packed_or_spread_as_the_node_says(plane, tmp_path):
    """
    Four replicas of 3 GiB: one card where the node packs, four where it spreads; also on a node that enforces nothing.
    """

    async def story():
        nodes = [
            card_node("packs", mode="share", **chosen(CardChoice.BINPACK)),
            card_node("spreads", **chosen(CardChoice.SPREAD)),
        ]
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, nodes).alive():
            for name in ("packs", "spreads"):
                pod = our_pod("x", 3, nodeSelector={"kubernetes.io/hostname": name})
                await client.create(workload("Deployment", name, 4, pod))
            return [await running(client, name, 4) for name in ("packs", "spreads")]

    packed, spread = asyncio.run(story())
    assert [12] == list(taken(packed).values())
    assert [3, 3, 3, 3] == list(taken(spread).values())


def test_a_pod_that_fits_on_no_card_is_told_why(plane, tmp_path):
    """
    The sum of a node's cards does not count; the reason stands in the pod's condition, and others go on.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [card_node("small", cards=2)]).alive():
            await untainted(client)
            answers = {}
            for name, units, cards in (
                ("wide", 16, 1),
                ("many", 6, 3),
                ("half-0", 9, 1),
                ("half-1", 9, 1),
                ("late", 9, 1),
            ):
                await client.create(our_pod(name, units, cards))
                # not the first reason: kube-scheduler's own picture of the node may be a moment behind ours
                fits = name.startswith("half")
                pod = await client.until(
                    lambda p, fits=fits: p["spec"].get("nodeName") or (not fits and "card" in why_pending(p)),
                    f"{PODS}/{name}",
                )
                answers[name] = why_pending(pod)
            listed = await client.get(PODS)
            return answers, taken(listed["items"])

    answers, cards = asyncio.run(story())
    assert {"GPU-small-0": 9, "GPU-small-1": 9} == cards
    assert ["", ""] == [answers.pop("half-0"), answers.pop("half-1")]
    for reason in answers.values():
        assert "0/1 nodes are available" in reason
        assert "card" in reason


def test_three_hundred_pods_at_once(plane, tmp_path):
    """
    More pods than there is room for: every card is filled to the last unit and none beyond it.
    """
    nodes = [card_node(f"crowd-{i}") for i in range(10)]

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, nodes).alive():
            await client.create(workload("Deployment", "crowd", 310, our_pod("x", 2)))
            began = time.monotonic()
            # 15 GiB a card: seven pods of 2 GiB on each of 40 cards.
            await client.until(lambda pods: len(bound(pods)) >= 280, PODS, labelSelector="app=crowd")
            took = time.monotonic() - began
            await asyncio.sleep(1)
            listed = await client.get(PODS, labelSelector="app=crowd")
            answered = await ours.metric("gpushare_scheduler_requests_total")
            return listed["items"], took, answered, await ours.metric("gpushare_scheduler_overcommitted_cards")

    pods, took, answered, over = asyncio.run(story())
    print(f"280 pods bound in {took:.1f} s")  # noqa: T201 (a figure for whoever looks)
    assert 280 == len(bound({"items": pods}))
    assert {14} == set(taken(pods).values())
    assert 40 == len(taken(pods))
    assert 560 <= answered  # each was asked about and bound, by us
    assert 0 == over


def test_a_waiting_pod_gets_what_another_leaves(plane, tmp_path):
    """
    A job's pod ends, a pod is deleted: the one that waited is bound at once, time and again, and not
    when kube-scheduler looks again by itself, after five minutes.
    """

    async def story():
        waits = []
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [card_node("one", cards=1)]).alive():
            for turn in range(6):
                holder = our_pod(f"holder-{turn}", 12)
                await client.create(holder)
                await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/holder-{turn}")
                await client.create(our_pod(f"waiter-{turn}", 12))
                await client.until(why_pending, f"{PODS}/waiter-{turn}")
                await asyncio.sleep(0.5 * turn)
                left = time.monotonic()
                if turn % 2:
                    await client.merge(f"{PODS}/holder-{turn}", {"metadata": {"annotations": {ENDS_AFTER: "0"}}})
                    await client.until(lambda p: p["status"].get("phase") == "Succeeded", f"{PODS}/holder-{turn}")
                    left = time.monotonic()
                else:
                    await client.delete(f"{PODS}/holder-{turn}", force=True)
                await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/waiter-{turn}")
                waits.append(time.monotonic() - left)
                await client.delete(f"{PODS}/waiter-{turn}", force=True)
        return waits

    waits = asyncio.run(story())
    print(f"release to bound: {', '.join(f'{wait:.2f}' for wait in waits)} s")  # noqa: T201
    assert max(waits) < 5 * 60 / 3
