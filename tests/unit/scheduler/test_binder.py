# SPDX-License-Identifier: Apache-2.0
"""One bind under every trouble that an API server and a Lease can make: room is never given twice, never lost."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from support.builders import node
from support.scheduler_harness import Clock, Server, at, bound, pod, reserve, until
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import decode_allocation, pod_of
from isolation.contract.names import ACK, ALLOCATION, RESERVATION
from isolation.contract.quantity import gib
from isolation.scheduler import binder as binding
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache

if TYPE_CHECKING:
    from isolation.contract.model import Pod


class Scheduler:
    """A binder with its cache, its clock and its server."""

    def __init__(self, server: Server, *pods: Pod, cards: int = 1, size: int = 8) -> None:
        self.cache, self.clock, self.server = SchedulerCache(), Clock(), server
        for name in ("n", "m"):
            self.cache.set_node(node(name, cards, size))
        server.alive |= {one.uid for one in pods}
        clock = self.clock
        self.binder = Binder(self.cache, server, clock.fence, clock=clock, wall=clock, sleep=clock.sleep)

    def used(self, name: str = "n") -> int:
        """GiB promised on a node."""
        return self.cache.inspect(name)[0].used


def test_the_binding_carries_both_records_and_the_reservation():
    """One write: ours, the vendor's by container position and card index, and what was used up."""
    shape = {"limits": {ACK.memory: "4"}, "requests": {ACK.memory: "4"}}
    sidecar = {"name": "log", "image": "x"}
    spec = {"containers": [sidecar, {"name": "main", "image": "x", "resources": shape}]}
    meta = {"name": "pod", "namespace": "ml", "uid": "u", "labels": {ACK.card_count: "2"}}
    asked = pod_of({"metadata": meta, "spec": spec, "status": {}})

    async def story() -> Server:
        world = Scheduler(Server(), asked, cards=4)
        world.cache.set_reservation(reserve("kept", "u", at("n", 2, 3, size=2)))
        assert "" == await world.binder.bind(asked, "n")
        return world.server

    records = asyncio.run(story()).records["u"]
    ours = decode_allocation(records[ALLOCATION])
    assert {ALLOCATION, ACK.allocation_annotation, RESERVATION} == set(records)
    assert ("u", [2, 3], {gib(2)}) == (ours.promise, [s.index for s in ours.slices], {s.bytes for s in ours.slices})
    assert {"1": {"2": 2, "3": 2}} == json.loads(records[ACK.allocation_annotation])
    assert "kept" == records[RESERVATION]


@pytest.mark.parametrize(
    "script",
    [["lost"], ["dropped"], ["dropped", "lost"], ["blocked"], ["blocked", "dropped", "blocked", "lost"]],
    ids=",".join,
)
def test_a_bind_whose_answer_was_lost_ends_bound_where_it_was_assumed(script):
    """Trap 4: applied or not, the server is asked by UID, and the same binding is sent again."""

    async def story() -> None:
        world = Scheduler(Server(script=list(script)), pod("a", 5))
        assert "" == await world.binder.bind(pod("a", 5), "n")
        assert "n" == world.server.nodes["a"]
        world.cache.set_pod(world.server.seen(pod("a", 5)))
        assert (5, {}, 0) == (world.used(), world.cache.assumed_pods(), world.binder.open)

    asyncio.run(story())


def test_a_refused_bind_gives_its_room_back_and_says_why():
    """A policy or quota of the cluster said no, and nothing was under way."""

    async def story() -> None:
        world = Scheduler(Server(script=["refused"]), pod("a", 5))
        assert "as scripted" == await world.binder.bind(pod("a", 5), "n")
        assert (0, {}) == (world.used(), world.cache.assumed_pods())

    asyncio.run(story())


def test_room_is_kept_while_nobody_can_tell_and_given_back_when_the_request_cannot_come_any_more():
    """The server is down for longer than anybody wants the pod there; the pod is found unbound at the end."""

    async def story() -> None:
        world = Scheduler(Server(down=True), pod("a", 5), pod("b", 5))
        answer = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        for _ in range(200):
            await asyncio.sleep(0)
            if world.clock.now < 100 + binding.HORIZON_SECONDS:
                assert 5 == world.used()
                assert await world.binder.bind(pod("b", 5), "n")
        world.server.down = False
        assert "no answer" in await answer
        assert (0, {}) == (world.used(), world.cache.assumed_pods())
        assert "" == await world.binder.bind(pod("b", 5), "n")

    asyncio.run(story())


def test_a_request_that_may_still_be_under_way_keeps_its_room():
    """The server says "unbound", but a lost request may arrive later: nobody else gets the card before the horizon."""

    async def story() -> None:
        world = Scheduler(Server(script=["dropped"]), pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await until(lambda: world.server.posts)
        world.clock.leads = False
        await until(lambda: not world.binder.open or world.used() != 5)
        assert 0 == world.binder.open
        assert "timed out" in await bind
        assert world.clock.now >= 100 + binding.HORIZON_SECONDS
        assert 0 == world.used()
        assert 1 == world.server.posts

    asyncio.run(story())


@pytest.mark.parametrize("after", [1.0, 45.0, 60.0])
def test_a_bind_that_commits_after_its_answer_was_lost_finds_its_room_still_kept(after):
    """The API server may carry a request out until its --request-timeout, 60 s by default: nobody else has the card."""

    async def story() -> None:
        world = Scheduler(Server(script=["dropped"]), pod("a", 5), pod("b", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await until(lambda: world.server.posts)
        began, world.clock.leads = world.clock.now, False
        await until(lambda: world.clock.now >= began + after)
        world.clock.leads = True
        assert await world.binder.bind(pod("b", 5), "n")
        world.clock.leads = False
        world.server.arrive("a")
        assert "" == await bind
        assert (5, {"a": "n"}) == (world.used(), world.server.nodes)

    asyncio.run(story())


def test_a_binding_is_not_sent_again_onto_cards_that_another_leader_has_given_away():
    """The request was lost, another replica led and bound a pod there: the card is not promised twice."""

    async def story() -> None:
        world = Scheduler(Server(script=["dropped"]), pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await until(lambda: world.server.posts)
        world.clock.leads = False
        world.cache.set_pod(bound(pod("b", 5), at("n", 0, size=5)))
        world.clock.leads = True
        assert "another pod was bound to them" in await bind
        assert (1, 5, {}) == (world.server.posts, world.used(), world.cache.assumed_pods())

    asyncio.run(story())


def test_the_last_request_that_may_still_be_under_way_counts():
    """Several got no answer: the room is kept until the last of them cannot come any more."""

    async def story() -> None:
        world = Scheduler(Server(script=["dropped"] * 6), pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await until(lambda: world.server.posts == 6)
        last = world.clock.now
        world.clock.leads = False
        await until(lambda: not world.binder.open or world.used() != 5)
        assert "timed out" in await bind
        assert last > 102
        assert world.clock.now >= last + binding.HORIZON_SECONDS

    asyncio.run(story())


def test_the_same_bind_asked_twice_at_once_is_one_request():
    """kube-scheduler's retry joins the bind under way; another node is refused until it is settled."""

    async def story() -> None:
        world = Scheduler(Server(gate=asyncio.Event()), pod("a", 5))
        tries = [asyncio.create_task(world.binder.bind(pod("a", 5), "n")) for _ in range(3)]
        await asyncio.sleep(0)
        assert "being bound to n" in await world.binder.bind(pod("a", 5), "m")
        world.server.gate.set()
        assert ["", "", ""] == await asyncio.gather(*tries)
        assert (1, 5, 0) == (world.server.posts, world.used(), world.used("m"))

    asyncio.run(story())


def test_a_caller_who_hangs_up_does_not_stop_the_bind():
    """The connection of the extender call may break at any time."""

    async def story() -> None:
        world = Scheduler(Server(gate=asyncio.Event()), pod("a", 5))
        call = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        world.server.gate.set()
        await world.binder.drain(1.0)
        assert "n" == world.server.nodes["a"]
        assert 5 == world.used()

    asyncio.run(story())


@pytest.mark.parametrize("answered", [True, False])
def test_what_was_let_go_of_is_never_settled(answered):
    """A bind that had no answer when we left may take effect afterwards: the Lease is not given back."""

    async def story() -> tuple[bool, bool, bool]:
        world = Scheduler(Server(gate=asyncio.Event()), pod("a", 5))
        before = world.binder.settled()
        call = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await asyncio.sleep(0)
        during = world.binder.settled()
        if answered:
            world.server.gate.set()
        await world.binder.drain(PATIENCE_SECONDS if answered else 0.2)
        await asyncio.gather(call, return_exceptions=True)
        return before, during, world.binder.settled()

    assert (True, False, answered) == asyncio.run(story())


def test_a_caller_is_answered_in_time_while_the_bind_goes_on(monkeypatch):
    """The answer says that it is not known yet; asking again joins the same bind."""

    async def story() -> None:
        world = Scheduler(Server(gate=asyncio.Event()), pod("a", 5))
        with monkeypatch.context() as patch:
            patch.setattr(binding, "PATIENCE_SECONDS", 0.01)
            assert "not confirmed yet" in await world.binder.bind(pod("a", 5), "n")
        assert (5, 1) == (world.used(), world.binder.open)
        world.server.gate.set()
        assert "" == await world.binder.bind(pod("a", 5), "n")
        assert 1 == world.server.posts

    asyncio.run(story())


def test_without_the_lease_nothing_is_assumed_and_nothing_sent():
    """Trap 6: the right to act is asked for at the last moment."""

    async def story() -> None:
        world = Scheduler(Server(), pod("a", 5))
        world.clock.leads = False
        assert "not the leader" in await world.binder.bind(pod("a", 5), "n")
        assert (0, 0) == (world.server.posts, world.used())

    asyncio.run(story())


def test_the_lease_lost_between_the_wish_and_the_request_ends_the_bind():
    """Room was taken, nothing was sent: it is given back."""

    async def story() -> None:
        world = Scheduler(Server(), pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await asyncio.sleep(0)
        world.clock.leads = False
        assert "lead" in await bind
        assert (0, 0) == (world.server.posts, world.used())

    asyncio.run(story())


def test_the_lease_lost_after_the_request_does_not_lose_the_hold():
    """The answer was lost with the Lease; the server says that the pod is bound by our own record."""

    async def story() -> None:
        server = Server(script=["lost"])
        world = Scheduler(server, pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await until(lambda: server.posts)
        world.clock.leads = False
        assert "" == await bind
        assert 5 == world.used()

    asyncio.run(story())


def test_a_pod_that_is_gone_or_another_of_its_name_leaves_nothing():
    """404 for the name, or 409 for the UID."""

    async def story() -> None:
        world = Scheduler(Server())
        assert "the pod no longer exists" == await world.binder.bind(pod("a", 5), "n")
        assert (0, {}) == (world.used(), world.cache.assumed_pods())

    asyncio.run(story())


def test_a_pod_bound_by_somebody_else_is_booked_where_it_is():
    """Its room is known there before the watch tells, and given back here."""

    async def story() -> None:
        world = Scheduler(Server(), pod("a", 5))
        other = Scheduler(world.server, pod("a", 5))
        assert "" == await other.binder.bind(pod("a", 5), "m")
        assert "the pod is already bound to m by another replica" == await world.binder.bind(pod("a", 5), "n")
        assert (0, 5, True) == (world.used(), world.used("m"), world.cache.assumed_pods()["a"].confirmed)
        world.server.alive.add("b")
        world.server.nodes["b"], world.server.records["b"] = "m", {ALLOCATION: "{"}
        assert "the pod is already bound to m by a client that wrote no allocation record" == await world.binder.bind(
            pod("b", 2), "n"
        )
        assert (0, 5) == (world.used(), world.used("m"))

    asyncio.run(story())


def test_the_watch_may_be_faster_than_the_answer():
    """Bound, ended and gone before the POST is answered: the answer brings nothing back."""

    async def story() -> None:
        world = Scheduler(Server(gate=asyncio.Event()), pod("a", 5))
        bind = asyncio.create_task(world.binder.bind(pod("a", 5), "n"))
        await asyncio.sleep(0)
        placed = world.cache.assumed_pods()["a"].assumed.placement
        world.cache.set_pod(bound(pod("a", 5), placed))
        world.cache.remove_pod("a")
        world.server.gate.set()
        await bind
        assert (0, {}) == (world.used(), world.cache.assumed_pods())

    asyncio.run(story())


@pytest.mark.parametrize("end", ["gone", "ended", "bound"])
def test_a_pod_that_the_watch_never_shows_is_asked_for_until_its_end(end):
    """Bound, and over before any watch knew of it, because that was cut: its room does not leak."""

    async def story() -> None:
        world = Scheduler(Server(), pod("a", 5))
        await world.binder.bind(pod("a", 5), "n")
        await world.binder.sweep()
        assert {"a"} == set(world.cache.assumed_pods())
        if end == "gone":
            world.server.alive.discard("a")
        elif end == "ended":
            world.server.ended.add("a")
        world.clock.now += binding.OBSERVED_SECONDS
        await world.binder.sweep()
        assert (5 if end == "bound" else 0) == world.used()
        world.server.alive.discard("a")
        world.clock.now += binding.OBSERVED_SECONDS
        await world.binder.sweep()
        assert (0, {}) == (world.used(), world.cache.assumed_pods())

    asyncio.run(story())


def test_binds_onto_one_node_do_not_wait_for_one_another():
    """A hundred pods alike on one node are all on their way at once, and no card is over."""

    async def story() -> None:
        pods = [pod(f"p{i}", 1) for i in range(100)]
        world = Scheduler(Server(gate=asyncio.Event()), *pods, cards=8, size=16)
        binds = [asyncio.create_task(world.binder.bind(one, "n")) for one in pods]
        for _ in range(3):
            await asyncio.sleep(0)
        assert (100, 100) == (world.server.posts, world.used())
        world.server.gate.set()
        assert {""} == set(await asyncio.gather(*binds))
        assert [] == world.cache.find_overcommitted()

    asyncio.run(story())
