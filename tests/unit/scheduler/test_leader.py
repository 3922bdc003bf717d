# SPDX-License-Identifier: Apache-2.0
"""Who answers: the leader alone, and only when it knows what the one before it has done."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.extender_harness import PODS, cluster
from support.scheduler_endpoints import Desk, args, bind_args, extending, pod
from support.waiting import PATIENCE_SECONDS, soon

from isolation.contract.names import ALLOCATION
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.lease import LeaseRecord
from isolation.scheduler import extender


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine is no server that does not answer."""
    for name in ("PATIENCE_SECONDS", "LIVE_READ_SECONDS"):
        monkeypatch.setattr(extender, name, PATIENCE_SECONDS)


def bound_pod(uid, node_name, record):
    """The pod as the watch shows it later."""
    thing = pod(uid)
    return thing | {
        "metadata": thing["metadata"] | {"annotations": dict(record)},
        "spec": thing["spec"] | {"nodeName": node_name},
    }


def test_the_server_ends_a_quiet_watch_before_its_silence_is_trouble():
    """
    Reservations and namespaces may not change for hours: no watch of theirs is taken for dead meanwhile.
    """
    server, watches = cluster("a"), {}
    server.objects[RESERVATIONS_PATH] = []
    feed = server.lines

    def lines(path, query, idle):
        watches[path] = (float(query["timeoutSeconds"]), idle)
        return feed(path, query, idle)

    async def story():
        server.lines = lines
        async with extending(server):
            await soon(lambda: {RESERVATIONS_PATH, "/api/v1/namespaces"} <= watches.keys())

    asyncio.run(story())
    ends, patience = zip(*(watches[path] for path in (RESERVATIONS_PATH, "/api/v1/namespaces")), strict=True)
    assert max(ends) < min(patience)
    assert max(patience) <= 120.0  # a dead connection is noticed all the same


def test_only_the_leader_answers_about_pods(monkeypatch):
    """
    Another holds the Lease: an error, which is no word about nodes; scores are equal, nothing is bound.
    """
    monkeypatch.setattr(extender, "PATIENCE_SECONDS", 0.1)

    async def story():
        desk = Desk(LeaseRecord("7", "another", 60.0, 3))
        server = cluster("a")
        async with extending(server, desk, leads=False) as (verbs, _):
            replies = [
                await verbs.filter(args(pod("u"), "a")),
                await verbs.prioritize(args(pod("u"), "a")),
                await verbs.bind(bind_args("u", "a")),
                await verbs.preempt(json.dumps({"Pod": pod("u"), "NodeNameToMetaVictims": {}}).encode()),
            ]
            return replies, server.bindings

    replies, bindings = asyncio.run(story())
    assert ["not_ready"] * 4 == [reply.outcome for reply in replies]
    filtered = json.loads(replies[0].body)
    assert "another" in filtered["Error"]
    assert not filtered.get("NodeNames")
    assert [{"Host": "a", "Score": 0}] == json.loads(replies[1].body)
    assert 503 == replies[3].status
    assert [] == bindings


def test_a_request_waits_for_a_lease_that_changes_hands():
    """
    The holder gives up in a moment: the answer is a real one.
    """

    async def story():
        desk = Desk(LeaseRecord("7", "another", 0.2, 3))
        async with extending(cluster("a"), desk, leads=False) as (verbs, _):
            return await verbs.filter(args(pod("u"), "a"))

    assert "fit" == asyncio.run(story()).outcome


def test_what_the_watch_has_not_reported_is_asked_before_the_first_bind():
    """
    A pod that the holder before us has bound, unknown to our watch, holds its card: no card is promised twice.
    """

    async def story():
        server = cluster("a", cards=1)
        async with extending(server) as (verbs, world):
            await verbs.filter(args(pod("mine", 12), "a"))
            record = {ALLOCATION: json.dumps(RECORD)}
            server.objects[PODS] = [bound_pod("theirs", "a", record)]
            first = await verbs.bind(bind_args("mine", "a"))
            asked = server.pages
            await verbs.bind(bind_args("mine", "a"))
            return first, server.bindings, world.store.pods.keys(), server.pages - asked

    first, bindings, known, again = asyncio.run(story())
    assert "refused" == first.outcome
    assert [] == bindings
    assert {"theirs"} == set(known)
    assert 0 == again


RECORD = {
    "version": 1,
    "promise": "theirs",
    "cards": [{"uuid": "GPU-a-0", "index": 0, "bytes": 12 << 30}],
    "containers": [],
}


def test_an_answer_about_a_node_does_not_bring_back_who_has_gone():
    """
    The watch tells of the end while the answer is on its way.
    """

    async def story():
        server = cluster("a", cards=1)
        async with extending(server) as (verbs, world):
            thing = bound_pod("gone", "a", {ALLOCATION: json.dumps(RECORD)})
            await server.tell(PODS, "ADDED", thing)
            server.objects[PODS] = [thing]
            whole = server.page

            async def slow(path, query):
                body = await whole(path, query)
                await server.tell(PODS, "DELETED", thing)
                return body

            server.page = slow
            await verbs.filter(args(pod("u", 10), "a"))
            done = await verbs.bind(bind_args("u", "a"))
            return done, set(world.store.pods)

    done, known = asyncio.run(story())
    assert "bound" == done.outcome
    assert set() == known
