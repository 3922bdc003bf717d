# SPDX-License-Identifier: Apache-2.0
"""
How compute is shared, on a real control plane: the node's label, what a pod says, its record, its limits.

What the limits then do to programs on a card, `python -m benchmarks.policies` measures.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from e2e.kubelets import Kubelets, share_pod
from e2e.node_harness import CORE, PODS, stage
from e2e.sharing import card_node, our_pod, sharing, why_pending

from isolation.contract import abi
from isolation.contract.codec import decode_allocation, encode_allocation, request_of
from isolation.contract.model import Compute, ComputePolicy, Placement
from isolation.contract.names import ALLOCATION, COMPUTE_POLICY, CORE_LIMIT, ONLINE, WEIGHT

BURST, WEIGHTED, PRIORITY = ComputePolicy.BURST, ComputePolicy.WEIGHT, ComputePolicy.PRIORITY


def pod_with(made, core=0, **said):
    """A pod with compute, and annotations by short name."""
    names = {"online": ONLINE, "weight": WEIGHT, "ceiling": CORE_LIMIT}
    made["metadata"].setdefault("annotations", {}).update({names[key]: value for key, value in said.items()})
    if core:
        made["spec"]["containers"][0]["resources"]["limits"][CORE] = str(core)
    return made


async def relabel(client, node, policy):
    """The node has this policy from now on."""
    await client.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": {COMPUTE_POLICY: policy}}})


async def placed(client, name):
    """The pod once it has a node."""
    return await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/{name}")


async def refused(client, name):
    """The pod once it has been told why it waits."""
    return await client.until(why_pending, f"{PODS}/{name}")


def compute_of(pod):
    """What the scheduler wrote down."""
    return decode_allocation(pod["metadata"]["annotations"][ALLOCATION]).compute


def test_the_scheduler_writes_down_what_the_node_and_the_pod_say(plane, tmp_path):
    """
    A relabelled node changes who comes, not who runs; a pod without compute waits until the policy lets it beside
    others, an offline pod until the node makes it yield.
    """

    async def story():
        node = card_node("pool", mode="core_mem", **{COMPUTE_POLICY: "burst"})
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts[CORE] = "400"
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [node]).alive():
            await client.create(pod_with(our_pod("first", 2), core=30, ceiling="80"))
            await placed(client, "first")
            await client.create(pod_with(our_pod("plain", 2), weight="3"))
            await client.create(pod_with(our_pod("offline", 2), online="false"))
            reasons = [why_pending(await refused(client, name)) for name in ("plain", "offline")]
            await relabel(client, "pool", "weight")
            await placed(client, "plain")
            await relabel(client, "pool", "priority")
            await placed(client, "offline")
            pods = [await client.get(f"{PODS}/{name}") for name in ("first", "plain", "offline")]
            return reasons, [compute_of(pod) for pod in pods]

    reasons, computes = asyncio.run(story())
    assert "core_mem" not in reasons[0]
    assert "cgpu or core_mem with gpushare.dev/compute-policy=priority" in reasons[1]
    assert [Compute(BURST, ceiling=80), Compute(WEIGHTED, weight=3), Compute(PRIORITY, online=False)] == computes


def limits_of(pod):
    """What the library reads."""
    file = Path(pod.boxes["main"].mounts["/run/gpushare/limits"]) / "limits"
    (card,) = abi.unpack_limits(file.read_bytes()).cards
    return card.policy.name, card.core_ppm, card.weight, card.online, card.ceiling_ppm


def test_limits_follow_the_record_and_not_the_label_of_the_moment(plane, tmp_path):
    """
    A pod that restarts under another label keeps its policy; a record that is changed changes the running container.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-policies", mode="core_mem", **{COMPUTE_POLICY: "burst"}) as at:
            first = await at.running(await at.bind(pod_with(share_pod("first", 2), core=30, ceiling="80"), 0))
            bursts = limits_of(first)
            await relabel(at.client, at.node.name, "priority")
            offline = await at.running(await at.bind(pod_with(share_pod("offline", 2), online="false"), 0))
            at.kubelet.crash(first, "main")
            await at.until(lambda: first.boxes["main"].starts == 2)
            kept, yields = limits_of(first), limits_of(offline)

            thing = await at.client.get(f"{PODS}/first")
            request = request_of(thing["metadata"], thing["spec"])
            request = replace(request, compute=Compute(weight=7))
            placement = Placement(at.node.name, decode_allocation(thing["metadata"]["annotations"][ALLOCATION]).slices)
            record = {ALLOCATION: encode_allocation(first.uid, request, placement, WEIGHTED)}
            await at.client.merge(f"{PODS}/first", {"metadata": {"annotations": record}})
            await at.until(lambda: at.agent.hold(first.uid, "main")["policy"] == "weight")
            promise = json.loads(at.agent.promise(first.uid, "main").read_text())
            return bursts, kept, yields, limits_of(first), (promise["weight"], promise["ceiling"], promise["enforced"])

    bursts, kept, yields, live, promise = asyncio.run(story())
    assert ("BURST", 300_000, 30, True, 800_000) == bursts == kept
    assert ("PRIORITY", 10_000, 1, False, 0) == yields
    assert ("WEIGHT", 300_000, 7, True, 0) == live
    assert (7, 0, True) == promise
