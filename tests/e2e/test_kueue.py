# SPDX-License-Identifier: Apache-2.0
"""Jobs whose pods start together: ProvisioningRequests on a real API server, with a stand-in for Kueue."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from e2e.apiclient import connected
from e2e.faults import bad_day
from e2e.kubelets import Kubelets
from e2e.kueue_harness import (
    REQUESTS,
    RESERVATIONS,
    TEMPLATES,
    Job,
    annotated,
    conditions,
    install,
    job,
    uninstall,
)
from e2e.sharing import PODS, card_node, cards_of, clear, our_pod, prepare, replica, scheduler_file, sharing, untainted

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpushare-system/leases/gpushare-scheduler"


@contextlib.asynccontextmanager
async def queueing(plane, folder, *nodes):
    """A cluster with the kind, these nodes and our scheduler."""
    async with connected(plane) as early:
        await install(early)
    async with sharing(plane, folder) as (client, ours), Kubelets(client, nodes).alive():
        await untainted(client)
        try:
            yield client, ours
        finally:
            await uninstall(client)


def by_card(pods):
    """How many of these pods are on each card."""
    found = {}
    for pod in pods:
        for card in cards_of(pod):
            found[card] = found.get(card, 0) + 1
    return found


def test_a_gang_that_fits_starts_whole_and_nobody_takes_its_cards_meanwhile(plane, tmp_path):
    """
    Four cards of 15 GiB, a gang of four times 9: a pod of another job finds no card between the answer and the start.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("g1"), card_node("g2", cards=2)) as (client, _):
            await client.create(our_pod("early", 9, nodeSelector={"kubernetes.io/hostname": "g1"}))
            await client.until(lambda p: p["spec"].get("nodeName"), f"{PODS}/early")
            gang = job(client, "gang", (5, 9))
            await gang.ask()
            said = await gang.answer("Provisioned", "Failed")
            held = await client.get(RESERVATIONS)
            await client.create(our_pod("thief", 9))
            await client.until(lambda p: p["status"].get("conditions"), f"{PODS}/thief")
            await gang.start()
            pods = await gang.running()
            thief = await client.get(f"{PODS}/thief")
            await client.until(lambda r: not r["items"], RESERVATIONS)
            stored = await client.get(f"{REQUESTS}/{gang.request}")
            return said, held["items"], pods, thief, conditions(stored)

    said, held, pods, thief, after = asyncio.run(story())
    assert ("Provisioned", "cards are reserved for 5 pods, for 10 minutes") == said
    assert {"gang-cards-1"} == {one["spec"]["provisioningRequest"] for one in held}
    reserved = sorted(card["uuid"] for one in held for card in one["spec"]["cards"])
    assert reserved == sorted(card for pod in pods for card in cards_of(pod))
    assert {1} == set(by_card(pods).values())
    assert "nodeName" not in thief["spec"]
    assert {"Accepted", "Provisioned"} == after.keys()


def test_a_gang_that_fits_by_sum_and_not_by_card_fails_with_the_reason(plane, tmp_path):
    """
    Two cards with 15 GiB free each, three pods of 9: 30 GiB are free and 27 are asked for. Nothing stays reserved.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("sum", cards=2)) as (client, _):
            gang = job(client, "gang", (3, 9))
            await gang.ask()
            said = await gang.answer("Provisioned", "Failed")
            await client.until(lambda r: not r["items"], RESERVATIONS)
            return said

    state, message = asyncio.run(story())
    assert "Failed" == state
    assert message.startswith(
        "2 of 3 pods fit; a pod of template ppt-gang-cards-1-0 does not: 9 GiB on 1 card: 0 of 1 "
    )


def test_of_two_gangs_that_do_not_fit_together_one_starts_whole_and_the_other_later(plane, tmp_path):
    """
    Both ask at once, and again after each refusal; the second starts when the first has ended.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("pair")) as (client, _):
            one, two = job(client, "one", (3, 9)), job(client, "two", (2, 9), (1, 8))
            tasks = {"one": asyncio.create_task(one.run()), "two": asyncio.create_task(two.run())}
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            first, second = (one, two) if tasks["one"] in done else (two, one)
            pods = await first.running()
            await second.answer("Failed")  # whatever attempt it is at: it gets no room now
            await asyncio.sleep(2.5)
            between = await second.pods()
            await first.end()
            failed = await tasks[second.name]
            return len(pods), between, failed, len(await second.running())

    first, between, failed, second = asyncio.run(story())
    assert (3, [], 3) == (first, between, second)
    assert failed
    assert all("pods fit" in one for one in failed)


def test_a_gang_waits_for_room_as_long_as_its_request_says(plane, tmp_path):
    """
    With `ValidUntilSeconds` the request is not failed at once: it is provisioned when a pod has ended.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("wait", cards=2)) as (client, _):
            await client.create(our_pod("early", 9))
            await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/early")
            gang = job(client, "gang", (2, 9), ValidUntilSeconds="60")
            await gang.ask()
            path = f"{REQUESTS}/{gang.request}"
            waiting = await client.until(lambda r: r.get("status"), path)
            await client.delete(f"{PODS}/early", force=True)
            said = await gang.answer("Provisioned", "Failed")
            await gang.start()
            return waiting["status"]["conditions"], said, len(await gang.running())

    waiting, said, running = asyncio.run(story())
    (provisioned,) = [one for one in waiting if one["type"] == "Provisioned"]
    assert ("False", "CapacityIsNotFound") == (provisioned["status"], provisioned["reason"])
    assert ("Provisioned", 2) == (said[0], running)


def test_only_pods_of_the_same_namespace_and_of_the_reserved_size_use_a_reservation(plane, tmp_path):
    """
    A pod of another namespace and pods of other sizes carry the request's name: they take none of its cards.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("own", cards=2)) as (client, _):
            gang = job(client, "gang", (2, 9))
            await gang.ask()
            await gang.answer("Provisioned")
            with contextlib.suppress(Exception):
                await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
            await client.until(lambda a: a["metadata"]["uid"], "/api/v1/namespaces/other/serviceaccounts/default")
            await client.create(annotated(our_pod("x", 9), "stranger", gang.request), "other")
            for units in (8, 10):
                await client.create(annotated(our_pod("x", units), f"size-{units}", gang.request))
            others = [f"{PODS}/size-8", f"{PODS}/size-10", "/api/v1/namespaces/other/pods/stranger"]
            for path in others:
                await client.until(lambda p: p["status"].get("conditions"), path)
            await gang.start()
            await gang.running()
            found = [(await client.get(path))["spec"].get("nodeName") for path in others]
            await clear(client, "other")
            return found

    assert [None, None, None] == asyncio.run(story())


def test_bad_requests_fail_with_what_to_change_and_requests_of_other_classes_are_left_alone(plane, tmp_path):
    """
    Counts of a billion, templates that cannot be served or never come: each is answered; none stops the others.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("bad")) as (client, _):
            alien = job(client, "alien", (1, 4))
            await alien.ask("check-capacity.autoscaling.x-k8s.io")
            many = Job(client, "many", [our_pod("x", 1)], [1_000_000_000])
            foreign = Job(client, "foreign", [our_pod("x", 1, schedulerName="volcano")], [2])
            odd = Job(client, "odd", [our_pod("x", 3, cards=2)], [2])
            spread = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h"}]}}
            tied = Job(client, "tied", [our_pod("x", 1, affinity=spread)], [2])
            none = Job(client, "none", [our_pod("x", 0)], [2])
            found = {}
            for one in (many, foreign, odd, tied, none):
                await one.ask()
                found[one.name] = await one.answer("Failed")
            good = job(client, "good", (2, 4))
            await good.run()
            await good.running()
            return found, (await client.get(f"{REQUESTS}/{alien.request}")).get("status"), await client.get(TEMPLATES)

    found, alien, _ = asyncio.run(story())
    assert alien is None
    assert "1000000000 pods: 1 to 256 start together" == found["many"][1]
    assert "schedulerName volcano is another scheduler's" in found["foreign"][1]
    assert "3" in found["odd"][1]
    assert "required pod anti-affinity" in found["tied"][1]
    assert "no pod set requests shares" in found["none"][1]


def test_a_node_that_goes_revokes_the_reservations_and_a_request_that_goes_frees_them(plane, tmp_path):
    """
    One of two nodes is deleted before the pods start: the request says so, and no card of the other stays reserved.
    """

    async def story():
        async with queueing(plane, tmp_path, card_node("stay", cards=1), card_node("leave", cards=1)) as (client, _):
            gang = job(client, "gang", (2, 9))
            await gang.ask()
            await gang.answer("Provisioned")
            await client.delete("/api/v1/nodes/leave")
            said = await gang.answer("CapacityRevoked")
            await client.until(lambda r: not r["items"], RESERVATIONS)
            small = job(client, "small", (1, 9))
            await small.ask()
            await small.answer("Provisioned")
            await client.until(lambda r: r["items"], RESERVATIONS)
            await small.end()
            await client.until(lambda r: not r["items"], RESERVATIONS)
            return said

    state, message = asyncio.run(story())
    assert ("CapacityRevoked", "1 reserved places are gone (node leave): all reservations are released") == (
        state,
        message,
    )


def test_a_leader_that_is_killed_midway_leaves_no_gang_in_part(plane, tmp_path):
    """
    The leader dies when it has stored one gang and half of the next, and can undo nothing: each is whole in the end.
    """
    stored = 0

    def until_half_way(method, path):
        nonlocal stored
        stored += method == "POST" and path.endswith("/reservations")
        return 503 if method != "GET" and stored > 12 else None

    async def story():
        nodes = [card_node(f"kill-{at}") for at in range(3)]
        async with connected(plane) as client, bad_day(plane) as day:
            day.fault = until_half_way
            await prepare(client)
            await install(client)
            await client.delete(LEASE)
            with replica(plane, tmp_path, "one", day.kubeconfig) as one, replica(plane, tmp_path, "two") as two:
                one.start()
                await one.leads()
                plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, tmp_path, two.sidecar))
                try:
                    async with Kubelets(client, nodes).alive():
                        await untainted(client)
                        gangs = [job(client, f"gang{at}", (8, 4)) for at in range(4)]
                        for gang in gangs:
                            await gang.ask()
                        await client.until(lambda r: len(r["items"]) >= 12, RESERVATIONS)
                        one.end(signal.SIGKILL)
                        left = [conditions(await client.get(f"{REQUESTS}/{gang.request}")) for gang in gangs]
                        two.start()
                        await two.leads()
                        for gang in gangs:
                            await gang.answer("Provisioned", "Failed")
                        held = await client.get(RESERVATIONS)
                        for gang in gangs:
                            await gang.start()
                        running = [len(await gang.running()) for gang in gangs]
                        return left, len(held["items"]), running
                finally:
                    plane.kill("kube-scheduler-ours")
                    await clear(client)
                    await uninstall(client)

    left, held, running = asyncio.run(story())
    assert any("Provisioned" not in one for one in left), "the leader was done before it died: nothing is shown"
    assert (32, [8, 8, 8, 8]) == (held, running)


def test_without_the_kind_the_scheduler_serves_as_before_and_with_it_from_then_on(plane, tmp_path):
    """
    No ProvisioningRequests are known to this cluster: pods are placed. Installed later, the kind is served too.
    """

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, [card_node("plain")]).alive():
            await uninstall(client)
            await untainted(client)
            await client.create(our_pod("pod", 4))
            await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/pod")
            health = await ours.probe("/healthz")
            await install(client)
            try:
                late = job(client, "late", (2, 4))
                await late.run()
                return health, len(await late.running())
            finally:
                await uninstall(client)

    (status, _), late = asyncio.run(story())
    assert (200, 2) == (status, late)
