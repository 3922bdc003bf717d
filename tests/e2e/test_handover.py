# SPDX-License-Identifier: Apache-2.0
"""Beside a cluster-autoscaler: who buys and who drains is what pods say, and they say it as long as it is so."""

from __future__ import annotations

import asyncio
import json
import signal

from e2e.admission_harness import _installed, tried, until_tried
from e2e.autoscaler_harness import pool_node
from e2e.autoscaler_process import PROFILE, autoscaler, config, eventually, fleet, one_pool, switch
from e2e.kubelets import share_pod
from e2e.sharing import PODS, our_pod, workload
from e2e.test_scheduler_admission import door, hooked
from support.ports import free_port

from isolation.contract.cluster_autoscaler_annotations import HANDOVER
from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY, USER_SAFE_TO_EVICT, USER_SCALE_UP_DELAY
from isolation.scheduler.admission.objects import build_objects

BUYS = {SCALE_UP_DELAY: "8760h", USER_SCALE_UP_DELAY: ""}
DRAINS = {SAFE_TO_EVICT: "false", USER_SAFE_TO_EVICT: ""}
WORDS = {SAFE_TO_EVICT: "true", SCALE_UP_DELAY: "600s"}
"""Of an owner."""
MOVED = BUYS | DRAINS | {USER_SAFE_TO_EVICT: "true", USER_SCALE_UP_DELAY: "600s"}
LEFT = "gpushare_autoscaler_handover_pending_pods"
POOL = one_pool("gpu-a", max_nodes=1)


def saying(name, units=8, **annotations):
    """A pod with words of its owner's."""
    pod = our_pod(name, units)
    pod["metadata"]["annotations"] = annotations
    return pod


async def annotations_of(client, name):
    """What the pod's annotations tell cluster-autoscaler, and us of its owner's wish."""
    found = await client.get(f"{PODS}/{name}")
    return {key: value for key, value in found["metadata"].get("annotations", {}).items() if key in HANDOVER}


async def until(client, name, **wanted):
    """Wait until the pod says this and no more."""

    async def claim():
        return await annotations_of(client, name) == wanted

    if not await eventually(claim):
        raise AssertionError(f"{name} says {await annotations_of(client, name)}, not {wanted}")


def test_pods_that_exist_follow_the_settings_and_the_switch(plane, tmp_path):
    """
    A dry run writes to nobody. Once it acts: who waits for a pool of ours or runs there, never who could go to none.

    The owner's own word is moved and comes back, also one that is written meanwhile.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=1) as (client, _):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(POOL))
                await client.create(saying("runs"))
                await client.create(saying("safe", **WORDS))
                for name in ("runs", "safe"):
                    await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/{name}")
                await client.create(saying("waits", 15))
                await client.create(saying("too-large", 64))
                one.start("--dry-run")
                await one.shows(LEFT, 0)
                dry = [await annotations_of(client, name) for name in ("runs", "safe", "waits")]

                await switch(client, dryRun="false")
                for name in ("runs", "waits"):
                    await until(client, name, **BUYS, **DRAINS)
                await until(client, "safe", **MOVED)
                large = await annotations_of(client, "too-large")
                await client.merge(f"{PODS}/runs", {"metadata": {"annotations": {SAFE_TO_EVICT: "true"}}})
                await until(client, "runs", **BUYS, **DRAINS | {USER_SAFE_TO_EVICT: "true"})

                one.config.write_text(config(POOL | {"scale_down": "cluster-autoscaler"}))
                await until(client, "waits", **BUYS)
                await until(client, "runs", **BUYS, **{SAFE_TO_EVICT: "true"})

                await switch(client, enabled="false")
                await until(client, "waits")
                await until(client, "runs", **{SAFE_TO_EVICT: "true"})
                await until(client, "safe", **WORDS)
                return dry, large, one.end(signal.SIGTERM), one.log()

    dry, large, status, log = asyncio.run(story())
    assert [{}, WORDS, {}] == dry
    assert {} == large
    assert 0 == status
    assert "Traceback" not in log


def test_who_is_dead_for_long_is_replaced_by_hand(plane, tmp_path):
    """
    While it lives the command refuses; afterwards the pods are cluster-autoscaler's, and so is what comes.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=1) as (client, _):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(POOL))
                await client.create(saying("safe", **WORDS))
                await client.create(saying("waits", 15))
                one.start()
                await until(client, "safe", **MOVED)
                await until(client, "waits", **BUYS, **DRAINS)
                alive = await one.run("hand-back")
                one.end(signal.SIGKILL)
                tried = await one.run("hand-back", "--dry-run")
                kept = await annotations_of(client, "waits")
                done = await one.run("hand-back")
                await until(client, "safe", **WORDS)
                await until(client, "waits")
                return alive, tried, kept, done, await one.run("hand-back")

    alive, tried, kept, done, again = asyncio.run(story())
    assert 1 == alive[0]
    assert "the autoscaler is running" in alive[2]
    assert (0, "2 pods would be handed to cluster-autoscaler") == (tried[0], tried[1].strip().partition(" and ")[2])
    assert BUYS | DRAINS == kept
    assert (0, "2 pods handed to cluster-autoscaler") == (done[0], done[1].strip().partition(" and ")[2]), done
    assert (0, "0 pools and 0 pods handed to cluster-autoscaler") == (again[0], again[1].strip())


def notes(pod):
    """Of these annotations, what a pod has."""
    return {key: value for key, value in pod["metadata"].get("annotations", {}).items() if key in HANDOVER}


async def admitted(client, pod):
    """What admission makes of a pod; it is not stored."""
    return notes(await client.call("POST", f"{PODS}?dryRun=All", pod))


def test_new_pods_say_it_at_once_and_templates_never(plane, tmp_path):
    """
    By the pools that the autoscaler has published, on the pod alone, with the policies in force.

    Nobody says anything in a dry run, nor of a pod that no pool of ours could host.
    """
    port = free_port()
    asked = share_pod("asked", units=8)
    said = share_pod("said", units=8)
    said["metadata"]["annotations"] = WORDS | {"x": "y"}
    elsewhere = share_pod("elsewhere", units=8, nodeSelector={"gpushare.dev/pool": "nobodys"})

    async def becomes(client, wanted):
        async def claim():
            return await admitted(client, asked) == wanted

        return await eventually(claim)

    async def story():
        async with (
            fleet(plane, tmp_path, "gpu-a", scheduler=door(plane, port)) as (client, _),
            hooked(plane, client, port),
            _installed(client, build_objects("policies.yaml")),
        ):
            with autoscaler(plane, tmp_path, "auto") as one:
                one.config.write_text(config(POOL))
                one.start("--dry-run")
                await one.shows(LEFT, 0)
                dry = await admitted(client, asked)
                await switch(client, dryRun="false")
                acts = await becomes(client, BUYS | DRAINS)
                found = [await admitted(client, pod) for pod in (said, elsewhere)]
                await client.create(workload("Deployment", "web", 1, share_pod("x", units=8)))
                pods = await client.until(lambda listed: listed["items"], PODS)
                web = await client.get("/apis/apps/v1/namespaces/default/deployments/web")
                await switch(client, enabled="false")
                off = await becomes(client, {})
                return dry, acts, found, [notes(one) for one in pods["items"]], web["spec"]["template"], off

    dry, acts, found, pods, template, off = asyncio.run(story())
    assert {} == dry
    assert acts
    assert [MOVED, {}] == found
    assert [BUYS | DRAINS] == pods
    assert {} == notes(template)
    assert off


def test_a_pool_of_larger_cards_grows_from_zero_beside_small_ones(plane, tmp_path):
    """
    Cards of 15 GiB are up and 20 are asked for: refused while nobody knows of the empty pool with 24, then served.

    What neither a node nor a pool could ever hold is refused, naming both.
    """
    port = free_port()

    def node(name, of):
        return pool_node(name, of, gib=24 if of == "gpu-large" else 15)

    async def story():
        async with (
            fleet(plane, tmp_path, scheduler=door(plane, port), node_of=node) as (client, machines),
            hooked(plane, client, port),
        ):
            await machines.create("gpu-small", 1)
            await machines.create("gpu-large", 0)
            await machines.settled("gpu-small")
            await until_tried(client, share_pod("asked", units=20), "the largest card offers 15;")
            with autoscaler(plane, tmp_path, "auto") as one:
                large = json.loads(json.dumps(PROFILE).replace(str(15 << 30), str(24 << 30)))
                one.config.write_text(
                    config(one_pool("gpu-small", min_nodes=1), one_pool("gpu-large", node_template=large))
                )
                await switch(client, dryRun="false")
                one.start()
                await until_tried(client, share_pod("asked", units=20), "")
                refused = await tried(client, share_pod("asked", units=30))
                await client.create(share_pod("asked", units=20))
                running = await client.until(lambda pod: pod["status"].get("phase") == "Running", f"{PODS}/asked")
                at = await client.get(f"/api/v1/nodes/{running['spec']['nodeName']}")
                return refused, at["metadata"]["labels"]["gpushare.dev/pool"], await machines.replicas("gpu-large")

    refused, pool, bought = asyncio.run(story())
    assert "the largest card offers 15 on existing nodes and 24 on nodes that the pools can add" in refused
    assert ("gpu-large", 1) == (pool, bought)
