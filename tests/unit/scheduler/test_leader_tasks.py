# SPDX-License-Identifier: Apache-2.0
"""What the leader does of its own: room that is promised to a pod first, victims after; waking; tidying."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace

from support.scheduler_endpoints import Server, args, extending, node, pod
from support.waiting import soon

from isolation.contract.names import AGENT, ALLOCATION, WOKEN
from isolation.contract.reservation import RESERVATIONS_PATH, reservation_of
from isolation.kube.core.errors import RefusedError
from isolation.kube.writes import Outcome, WriteResult
from isolation.scheduler.leader_tasks import LeaderTasks
from isolation.scheduler.metrics import Metrics
from isolation.scheduler.resizer import Resizer
from isolation.scheduler.writes import ObjectWriter

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


class Hands:
    """The API server's write side: a list of what was done, and what it says to evictions."""

    def __init__(self):
        self.done = []
        self.evictions = {}
        self.refuses = {}
        self.asked = lambda: None
        """Called while a request is under way."""

    async def send(self, method, path, body=None, _kind="json", _seconds=None):
        """Reservations and patches."""
        self.done.append((method, path, body))
        self.asked()
        status = self.refuses.get((method, path.rsplit("/", 1)[0] if method != "POST" else path))
        if status:
            raise RefusedError(status, "Conflict")
        return b"{}"

    async def evict(self, target, _seconds=None):
        """As the test says, by UID."""
        self.done.append(("EVICT", target.uid, None))
        return WriteResult(self.evictions.get(target.uid, Outcome.DONE))

    async def event(self, *_args, **_more):
        """Always taken."""
        return WriteResult(Outcome.DONE)


def held(uid, card, priority=0, units=9):
    """A pod that runs on a card of node a."""
    thing = pod(uid, units, priority=priority, nodeName="a")
    record = {
        "version": 1,
        "promise": uid,
        "cards": [{"uuid": f"GPU-a-{card}", "index": card, "bytes": units << 30, "core": 0}],
        "containers": [],
    }
    owner = {"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    thing["metadata"] |= {"annotations": {ALLOCATION: json.dumps(record)}, "ownerReferences": [owner]}
    return thing | {"status": {"phase": "Running"}}


class Clock:
    """Time as the test says."""

    now = 1_800_000_000.0

    def __call__(self):
        """Seconds since the epoch."""
        return self.now


@contextlib.asynccontextmanager
async def working(pods):
    """Errands on node a of two cards with these pods; time is what the test says."""
    server, hands = Server({NODES: [node("a")], PODS: pods, RESERVATIONS_PATH: []}), Hands()
    async with extending(server, clock=Clock()) as (verbs, world):
        metrics = Metrics()
        tasks = LeaderTasks(world, ObjectWriter(hands), hands, metrics, Resizer(world, hands, hands))
        yield server, hands, verbs, world, tasks


def writes(hands, kind):
    """What was done, of a kind."""
    return [one for one in hands.done if one[0] == kind]


def test_a_pod_that_no_node_could_serve_is_woken_when_one_can():
    """
    The node agent was away as it was asked about: such a node is hopeless for pre-emption, not for ever.
    """

    async def story():
        async with working([pod("w", 12)]) as (server, hands, verbs, world, tasks):
            gone, back = node("a"), node("a")
            gone["metadata"]["annotations"] |= {AGENT: "stopping"}
            await server.tell(NODES, "MODIFIED", gone)
            refused = json.loads((await verbs.filter(args(pod("w", 12), "a"))).body)
            world.clock.now += 0.01
            await server.tell(NODES, "MODIFIED", back)
            world.clock.now += 0.5
            await tasks.run_cycle()
            return refused, hands.done

    refused, done = asyncio.run(story())
    assert (["a"], ["PATCH"]) == (list(refused["FailedAndUnresolvableNodes"]), [one[0] for one in done])


def test_reserved_room_is_taken_before_the_server_is_asked_and_given_back_if_it_refuses():
    """
    Nobody may be placed on it meanwhile; and nobody is evicted for a reservation that does not exist.
    """

    async def story():
        pods = [held("v0", 0), held("v1", 1), pod("vip", 10, priority=100)]
        async with working(pods) as (_, hands, verbs, world, tasks):
            await verbs.filter(args(pod("vip", 10, priority=100), "a"))
            world.clock.now += 0.6
            known = world.informers.reservations.known
            meanwhile = []
            hands.asked = lambda: meanwhile.append(len(known))
            hands.refuses["POST", RESERVATIONS_PATH] = 409
            await tasks.run_cycle()
            fits = json.loads((await verbs.filter(args(pod("late", 5), "a"))).body)
            return meanwhile, len(known), writes(hands, "EVICT"), fits["NodeNames"]

    assert ([1], 0, [], ["a"]) == asyncio.run(story())


def test_room_is_reserved_before_anybody_is_evicted():
    """
    A pod that fits by sum and by no card: a reservation in its name on one card, then that card's pod alone.
    """

    async def story():
        async with working([held("v0", 0), held("v1", 1), pod("vip", 10, priority=100)]) as (
            _,
            hands,
            verbs,
            world,
            tasks,
        ):
            refused = json.loads((await verbs.filter(args(pod("vip", 10, priority=100), "a"))).body)
            world.clock.now += 0.6
            await tasks.run_cycle()
            await tasks.run_cycle()
            fits = json.loads((await verbs.filter(args(pod("late", 5), "a"))).body)
            return refused, hands.done, list(world.informers.reservations.known.values()), fits

    refused, done, known, fits = asyncio.run(story())
    assert ["a"] == list(refused["FailedNodes"])
    assert ["POST", "EVICT"] == [one[0] for one in done]
    made = reservation_of(done[0][2])
    victim = done[1][1]
    assert ("vip", "preemption") == (made.holder, made.reason)
    assert [f"GPU-a-{victim[1]}"] == [part.uuid for part in made.placement.slices]
    assert [made.name] == [one.name for one in known]
    assert ["a"] == fits["NodeNames"]  # the other card is free for others


def test_a_budget_that_says_no_gives_the_room_back_and_is_left_alone():
    """
    The reservation goes, the node is not tried again at once, nobody else is evicted.
    """

    async def story():
        async with working([held("v0", 0), held("v1", 1), pod("vip", 10, priority=100)]) as (
            _,
            hands,
            verbs,
            world,
            tasks,
        ):
            hands.evictions = {"v0": Outcome.BLOCKED, "v1": Outcome.BLOCKED}
            await verbs.filter(args(pod("vip", 10, priority=100), "a"))
            world.clock.now += 0.6
            for _ in range(3):
                await tasks.run_cycle()
            return [one[0] for one in hands.done]

    assert ["POST", "EVICT", "DELETE"] == asyncio.run(story())


def test_a_reservation_that_somebody_made_already_is_not_made_twice():
    """
    After a crash between reserving and evicting: the stored one is known, nobody else is chosen.
    """

    async def story():
        async with working([held("v0", 0), held("v1", 1), pod("vip", 10, priority=100)]) as (
            _,
            hands,
            verbs,
            world,
            tasks,
        ):
            hands.refuses = {("POST", RESERVATIONS_PATH): 409}
            await verbs.filter(args(pod("vip", 10, priority=100), "a"))
            world.clock.now += 0.6
            await tasks.run_cycle()
            return [one[0] for one in hands.done]

    assert ["POST"] == asyncio.run(story())


def test_a_pod_that_was_tried_too_early_is_woken_once():
    """
    Refused, then room: one patch of the waiting pod; not where it would still not fit.
    """

    async def story():
        holder = held("h0", 0, units=14)
        async with working([holder, held("h1", 1, units=14), pod("w", 12), pod("x", 16)]) as (
            server,
            hands,
            verbs,
            world,
            tasks,
        ):
            await verbs.filter(args(pod("w", 12), "a"))
            await verbs.filter(args(pod("x", 16), "a"))
            world.clock.now += 0.01
            await server.tell(PODS, "DELETED", holder)
            await tasks.run_cycle()
            early = len(hands.done)
            world.clock.now += 0.5
            await tasks.run_cycle()
            await tasks.run_cycle()
            return early, hands.done

    early, done = asyncio.run(story())
    assert 0 == early
    assert [("PATCH", "/api/v1/namespaces/default/pods/pod-w/status")] == [one[:2] for one in done]
    assert WOKEN in done[0][2]["metadata"]["annotations"]
    assert "w" == done[0][2]["metadata"]["uid"]


def test_who_waits_is_looked_after_each_time_the_lead_begins(monkeypatch):
    """
    Refused by another leader in between, so not known here: it fits, and is woken though nothing changed since.

    Where the right to act had only lapsed nobody else was asked, and nobody is woken.
    """
    monkeypatch.setattr("isolation.scheduler.leader_tasks.CYCLE_SECONDS", 0.01)

    async def story():
        async with working([pod("w", 12)]) as (_, hands, _, world, tasks):
            fence, sweep, turns, counts = world.leadership.fence, tasks._check_assumed, [], []
            tasks._check_assumed = lambda now: turns.append(now) or sweep(now)
            running = asyncio.create_task(tasks.run())
            for others in (0, None, 0, None, 1):
                world.leadership.fence = lambda led=others: None if led is None else later(fence(), led)
                world.unschedulable.remove("w")
                for _ in range(3):
                    world.clock.now += 0.5
                    end = len(turns) + 2
                    await soon(lambda end=end: len(turns) == end)
                counts.append(len(writes(hands, "PATCH")))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return counts

    def later(right, led):
        return replace(right, epoch=right.epoch + led)

    assert [1, 1, 1, 1, 2] == asyncio.run(story())


def test_what_is_expired_is_deleted():
    """
    By its UID, so that a new one of the same name stays.
    """

    async def story():
        async with working([]) as (server, hands, _, _, tasks):
            card = {"uuid": "GPU-a-0", "index": 0, "bytes": 1 << 30}
            spec = {"holder": "x", "node": "a", "cards": [card], "expires": "2020-01-01T00:00:00Z"}
            await server.tell(RESERVATIONS_PATH, "ADDED", {"metadata": {"name": "old", "uid": "r-1"}, "spec": spec})
            await tasks.run_cycle()
            return hands.done

    done = asyncio.run(story())
    assert [("DELETE", f"{RESERVATIONS_PATH}/old")] == [one[:2] for one in done]
    assert {"uid": "r-1"} == done[0][2]["preconditions"]
