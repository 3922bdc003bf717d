# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around the scheduler on a real control plane: nothing is lost, no card is promised twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time

from e2e.apiclient import connected
from e2e.faults import bad_day
from e2e.kubelets import Kubelets
from e2e.proxy import wire
from e2e.sharing import (
    PODS,
    bound,
    card_node,
    clear,
    our_pod,
    prepare,
    replica,
    scheduler_file,
    sharing,
    taken,
    untainted,
    workload,
)

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{SCHEDULER}"
GIB_PER_CARD = 15
CROWD = 60  # pods of 2 GiB: more than the 2 nodes of 4 cards (56) hold
ROOM = 56


def nodes(prefix):
    """Two nodes of four cards."""
    return [card_node(f"{prefix}-{i}") for i in range(2)]


@contextlib.asynccontextmanager
async def through(plane, folder, kubeconfig):
    """One replica that reaches the server by this kubeconfig, and a kube-scheduler that reaches it directly."""
    async with connected(plane) as client:
        await prepare(client)
        with replica(plane, folder, "far", kubeconfig) as made:
            made.start()
            plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, folder, made.sidecar))
            try:
                await made.leads()
                yield client, made
            finally:
                plane.kill("kube-scheduler-ours")
                await clear(client)


async def filled(client, app):
    """All pods of the crowd once the room is used up."""
    return (await client.until(lambda p: len(bound(p)) >= ROOM, PODS, labelSelector=f"app={app}"))["items"]


def assert_exact(pods):
    """Every card filled to the last whole pod, none beyond."""
    assert ROOM == len(bound({"items": pods}))
    assert {GIB_PER_CARD - 1} == set(taken(pods).values())


def test_refusals_and_lost_answers_of_the_server(plane, tmp_path):
    """
    409, 429, 503, answers that get lost after the deed and answers that are late: every pod is bound once, as
    recorded; without trouble a pod costs one write.
    """
    draw = random.Random(5)  # noqa: S311 (no secret)

    def trouble(method, path):
        if method == "POST" and path.endswith("/binding") and draw.random() < 0.4:
            return draw.choice([409, 429, 500, 503, "lost", "lost", "slow"])
        return None

    async def story():
        async with (
            bad_day(plane) as day,
            through(plane, tmp_path, day.kubeconfig) as (client, ours),
            Kubelets(client, nodes("rough")).alive(),
        ):
            await untainted(client)
            await client.create(workload("Deployment", "calm", 8, our_pod("x", 2)))
            await client.until(lambda p: len(bound(p)) == 8, PODS, labelSelector="app=calm")
            await client.delete("/apis/apps/v1/namespaces/default/deployments/calm?propagationPolicy=Background")
            await client.until(lambda p: not p["items"], PODS)
            calm = day.writes("/pods/")  # a write is noted when its answer has passed, later than it can be seen
            day.fault = trouble
            await client.create(workload("Deployment", "rough", CROWD, our_pod("x", 2)))
            pods = await filled(client, "rough")
            day.fault = lambda _method, _path: None
            await asyncio.sleep(2)
            return pods, calm, await ours.metric("gpushare_scheduler_overcommitted_cards")

    pods, calm, over = asyncio.run(story())
    assert_exact(pods)
    assert 8 == len(calm), calm
    assert 0 == over


def test_a_wire_that_goes_silent_and_comes_back(plane, tmp_path):
    """
    Half-open: watches and writes hang, the right to act ends, other pods wait; with the wire back all are bound.
    """

    async def story():
        async with wire(plane.port) as silent:
            kubeconfig = plane.kubeconfig_for("admin", port=silent.port)
            async with (
                through(plane, tmp_path, kubeconfig) as (client, ours),
                Kubelets(client, nodes("silent")).alive(),
            ):
                await untainted(client)
                await client.create(workload("Deployment", "silent", 20, our_pod("x", 2)))
                await client.until(lambda p: len(bound(p)) >= 5, PODS, labelSelector="app=silent")
                silent.passing.clear()
                await client.create(workload("Deployment", "late", 8, our_pod("x", 2)))
                await asyncio.sleep(7)
                status, _ = await ours.probe("/leader")
                silent.passing.set()
                back = time.monotonic()
                await client.until(lambda p: len(bound(p)) == 28, PODS)
                took = time.monotonic() - back
                listed = await client.get(PODS)
                return status, taken(listed["items"]), took

    status, cards, took = asyncio.run(story())
    print(f"bound again {took:.1f} s after the wire came back")  # noqa: T201
    assert 503 == status
    assert max(cards.values()) < GIB_PER_CARD
    assert 56 == sum(cards.values())


def test_the_api_server_frozen_killed_and_back(plane, tmp_path):
    """
    In the middle of a crowd: frozen for longer than a deadline, then killed; afterwards everything is bound.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, nodes("down")).alive():
            await untainted(client)
            await client.create(workload("Deployment", "down", CROWD, our_pod("x", 2)))
            await client.until(lambda p: len(bound(p)) >= 5, PODS, labelSelector="app=down")
            plane.freeze("kube-apiserver")
            await asyncio.sleep(6)
            plane.thaw("kube-apiserver")
            await asyncio.sleep(1)
            await asyncio.to_thread(plane.restart_apiserver)
            pods = await filled(client, "down")
            await asyncio.sleep(1)
            return pods, await ours.metric("gpushare_scheduler_overcommitted_cards")

    pods, over = asyncio.run(story())
    assert_exact(pods)
    assert 0 == over


def test_killed_in_mid_crowd_and_started_again(plane, tmp_path):
    """
    Whatever was under way: the next process knows every promise and goes on.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, nodes("again")).alive():
            await untainted(client)
            await client.create(workload("Deployment", "again", CROWD, our_pod("x", 2)))
            for at in (10, 25):
                await client.until(lambda p, at=at: len(bound(p)) >= at, PODS, labelSelector="app=again")
                ours.end(signal.SIGKILL)
                ours.start()
            return await filled(client, "again")

    assert_exact(asyncio.run(story()))


def test_told_to_stop_it_finishes_and_gives_the_lease_back(plane, tmp_path):
    """
    SIGTERM in mid-crowd: status 0, the Lease is nobody's, and a successor leads.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, nodes("stop")).alive():
            await untainted(client)
            await client.create(workload("Deployment", "stop", CROWD, our_pod("x", 2)))
            await client.until(lambda p: len(bound(p)) >= 10, PODS, labelSelector="app=stop")
            status = await asyncio.to_thread(ours.end, signal.SIGTERM)
            holder = (await client.get(LEASE))["spec"].get("holderIdentity")
            with replica(plane, tmp_path, "two") as second:
                second.sidecar = ours.sidecar
                second.start()
                await second.leads()
                return status, holder, await filled(client, "stop")

    status, holder, pods = asyncio.run(story())
    assert 0 == status
    assert not holder
    assert_exact(pods)
