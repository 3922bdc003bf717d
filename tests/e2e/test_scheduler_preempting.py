# SPDX-License-Identifier: Apache-2.0
"""Pre-emption frees one card that fits, not a sum: by the in-tree plugin, which we correct, and by the leader."""

from __future__ import annotations

import asyncio

from e2e.kubelets import Kubelets
from e2e.sharing import PODS, card_node, cards_of, our_pod, priorities, sharing, untainted, why_pending, workload

RESERVED = "/apis/gpushare.dev/v1alpha1/reservations"


async def scattered(client, node, count, units):
    """Low-priority replicas of a Deployment, one on each card of a node that spreads."""
    pod = our_pod("x", units, priorityClassName="low", nodeSelector={"kubernetes.io/hostname": node})
    await client.create(workload("Deployment", "scattered", count, pod))
    listed = await client.until(
        lambda p: [one["status"].get("phase") for one in p["items"]] == ["Running"] * count,
        PODS,
        labelSelector="app=scattered",
    )
    return listed["items"]


def test_a_pod_that_fits_by_sum_and_by_no_card_gets_one_card_freed(plane, tmp_path):
    """
    Four cards with 8 of 15 GiB taken: 28 GiB are free and 10 fit nowhere. One low pod ends, the high one has its
    card; nobody else is touched, and no reservation stays.
    """
    node = card_node("pieces", **{"ack.node.gpu.placement": "spread"})

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, [node]).alive():
            await untainted(client)
            await priorities(client)
            before = await scattered(client, "pieces", 4, 8)
            await client.create(our_pod("vip", 10, priorityClassName="high"))
            vip = await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/vip")
            after = await client.get(PODS, labelSelector="app=scattered")
            await client.until(lambda r: not r["items"], RESERVED)
            events = await client.get("/api/v1/namespaces/default/events", fieldSelector="reason=Preempted")
            return (
                before,
                vip,
                after["items"],
                events["items"],
                await ours.metric("gpushare_scheduler_preemption_attempts_total"),
            )

    before, vip, after, events, reliefs = asyncio.run(story())
    kept = {p["metadata"]["uid"] for p in before} & {
        p["metadata"]["uid"] for p in after if "deletionTimestamp" not in p["metadata"]
    }
    assert 3 == len(kept)
    ended = [p for p in before if p["metadata"]["uid"] not in kept]
    assert cards_of(ended[0]) == cards_of(vip)
    assert 1 == reliefs
    assert any(ended[0]["metadata"]["name"] == e["involvedObject"]["name"] for e in events)


def test_a_disruption_budget_is_kept(plane, tmp_path):
    """
    Nobody may be evicted: the high pod waits and says why, the reservation is given back.
    """
    node = card_node("kept", cards=2, **{"ack.node.gpu.placement": "spread"})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "scattered"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "scattered"}}},
    }

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, [node]).alive():
            await untainted(client)
            await priorities(client)
            await client.create(budget)
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/scattered"
            try:
                before = await scattered(client, "kept", 2, 8)
                await client.until(lambda b: b.get("status", {}).get("observedGeneration"), path)
                await client.create(our_pod("vip", 10, priorityClassName="high"))
                await client.until(why_pending, f"{PODS}/vip")
                for _ in range(3000):
                    blocked = await ours.metric("gpushare_scheduler_preemption_attempts_total")
                    if blocked:
                        break
                    await asyncio.sleep(0.1)
                await client.until(lambda r: not r["items"], RESERVED)
                after = await client.get(PODS, labelSelector="app=scattered")
                return before, after["items"], await client.get(f"{PODS}/vip"), blocked
            finally:
                await client.delete(path)

    before, after, vip, blocked = asyncio.run(story())
    assert {p["metadata"]["uid"] for p in before} == {p["metadata"]["uid"] for p in after}
    assert "nodeName" not in vip["spec"]
    assert 1 <= blocked


def test_the_in_tree_pre_emption_is_corrected_by_card(plane, tmp_path):
    """
    The sum does not fit: kube-scheduler proposes victims by sum, and those who go leave one card that fits.
    """
    node = card_node("full", cards=2, **{"ack.node.gpu.placement": "spread"})

    async def story():
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [node]).alive():
            await untainted(client)
            await priorities(client)
            before = await scattered(client, "full", 4, 7)
            await client.create(our_pod("vip", 14, priorityClassName="high"))
            vip = await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/vip")
            after = await client.get(PODS, labelSelector="app=scattered")
            return before, vip, after["items"]

    before, vip, after = asyncio.run(story())
    kept = {p["metadata"]["uid"] for p in before} & {
        p["metadata"]["uid"] for p in after if "deletionTimestamp" not in p["metadata"]
    }
    assert 2 == len(kept)
    assert {tuple(cards_of(vip))} == {tuple(cards_of(p)) for p in before if p["metadata"]["uid"] not in kept}


def test_pods_that_nobody_makes_again_go_too(plane, tmp_path):
    """
    Bare low pods of 8 of 15 GiB on each of two cards: 14 GiB are free and 10 fit nowhere. One of them ends, the high
    pod has its card.
    """
    node = card_node("bare", cards=2, **{"ack.node.gpu.placement": "spread"})

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, [node]).alive():
            await untainted(client)
            await priorities(client)
            for name in ("first", "second"):
                await client.create(our_pod(name, 8, priorityClassName="low"))
                await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/{name}")
            before = (await client.get(PODS))["items"]
            await client.create(our_pod("vip", 10, priorityClassName="high"))
            vip = await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/vip")
            after = {p["metadata"]["name"] for p in (await client.get(PODS))["items"]}
            return before, vip, after, await ours.metric("gpushare_scheduler_overcommitted_cards")

    before, vip, after, over = asyncio.run(story())
    ended = [pod for pod in before if pod["metadata"]["name"] not in after]
    assert 2 == len({tuple(cards_of(pod)) for pod in before})
    assert [cards_of(vip)] == [cards_of(pod) for pod in ended]
    assert 0 == over
