# SPDX-License-Identifier: Apache-2.0
"""Pools of providers behind cluster-autoscaler's port, and the orders that our own loop gives through it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from support.rpc_harness import GENERATIONS, channel_to
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.core.node_groups import NodeGroupError
from autoscaler.apis.rpc.handler import CallPolicy
from autoscaler.apis.rpc.provider_groups import OfferedPool, OrderingProvider, ProviderGroups
from autoscaler.providers import base
from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.kube.core.errors import UnreachableError

BOTH = Ours(buys=True, drains=True)
CODE = grpc.StatusCode
CLIENT = GENERATIONS[1]
COMING, RUNNING = base.InstanceState.COMING, base.InstanceState.RUNNING


class Shelf:
    """A provider in memory; one pool, whose machines come when the test says so."""

    name = "shelf"

    def __init__(self, target=0, nodes=(), **rest):
        self.state = base.PoolState("a", target, tuple(base.ProviderInstance(f"shelf://{n}", n) for n in nodes), **rest)
        self.bought_by_another = 0
        self.fails = None
        self.asked = []

    async def pools(self):
        """The one pool."""
        self._check()
        return (self.state,)

    async def grow(self, pool, by, seen=None):
        """As a provider does, with its check of what was seen."""
        self._check("grow", pool, by)
        if self.bought_by_another:
            self.state = replace(self.state, target=self.state.target + self.bought_by_another)
            self.bought_by_another = 0
        if seen not in (None, self.state.target):
            raise base.ChangedError("somebody else has bought")
        self.state = replace(self.state, target=self.state.target + by)
        return self.state.target

    async def remove(self, pool, names):
        """By node or by ID."""
        self._check("remove", pool, tuple(names))
        gone = tuple(n for n in self.state.nodes if {n.id, n.node} & set(names))
        left = tuple(n for n in self.state.nodes if n not in gone)
        self.state = replace(self.state, nodes=left, target=self.state.target - len(gone))
        return tuple(n.id for n in gone)

    async def cancel(self, pool, by):
        """Never below what stands."""
        self._check("cancel", pool, by)
        self.state = replace(self.state, target=self.state.target - min(by, self.state.missing))
        return self.state.target

    def _check(self, *what):
        if what:
            self.asked.append(what)
        if self.fails is not None:
            raise self.fails


def played(shelf, play, occupied=None, **offer):
    """Run `play(relay, client)` with a server in between, after a first look."""

    async def run():
        relay = ProviderGroups([OfferedPool("a", shelf, **offer)], occupied)
        async with channel_to(CloudProvider(relay, CallPolicy(seconds=PATIENCE_SECONDS))) as channel:
            client = CLIENT.provider(channel)
            await client["Refresh"]()
            return await play(relay, client)

    return asyncio.run(run())


async def status(call):
    """The status with which a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return CODE.OK


def test_a_command_is_a_smallest_size_until_the_target_has_reached_it():
    """
    With --enforce-node-group-min-size cluster-autoscaler brings the group there; then it is free again to shrink.
    """
    shelf = Shelf(1, ["n1"])

    async def play(relay, client):
        relay.command("a", 3)
        (before,) = (await client["NodeGroups"]()).nodeGroups
        await client["NodeGroupIncreaseSize"](id="a", delta=before.minSize - 1)
        (after,) = (await client["NodeGroups"]()).nodeGroups
        return before.minSize, after.minSize, (await client["NodeGroupTargetSize"](id="a")).targetSize

    assert (3, 0, 3) == played(shelf, play)
    assert [("grow", "a", 2)] == shelf.asked


def test_our_loop_buys_through_the_command_and_never_twice():
    """
    What is ordered counts as asked for at once; a second loop that saw less is told to look again.
    """
    shelf = Shelf(1, ["n1"])

    async def play(relay, client):
        ours = OrderingProvider(relay, shelf)
        grown = await ours.grow("a", 2, 1)
        (seen,) = await ours.pools()
        with pytest.raises(base.ChangedError):
            await ours.grow("a", 2, 1)
        floor = (await client["NodeGroups"]()).nodeGroups[0].minSize
        return grown, seen.target, seen.missing, floor

    assert (3, 3, 2, 3) == played(shelf, play)
    assert [] == shelf.asked


@pytest.mark.parametrize(("by", "target", "cancelled"), [(1, 3, []), (2, 2, []), (3, 1, [("cancel", "a", 1)])])
def test_an_order_is_taken_back_before_the_provider_is_asked(by, target, cancelled):
    """
    First what only stands in the command, then what is asked for and has not come.
    """
    shelf = Shelf(2, ["n1"])

    async def play(relay, _client):
        ours = OrderingProvider(relay, shelf)
        await ours.grow("a", 2)
        return await ours.cancel("a", by), (await ours.pools())[0].target

    assert (target, target) == played(shelf, play)
    assert cancelled == shelf.asked


def test_an_order_that_is_being_carried_out_is_not_taken_back():
    """
    Not while the provider is asked, nor afterwards; before that it is forgotten without asking anybody.
    """
    shelf = Shelf(1, ["n1"])
    began, may = asyncio.Event(), asyncio.Event()

    async def play(relay, client):
        ours = OrderingProvider(relay, shelf)
        await ours.grow("a", 3, 1)
        back = [await ours.take_back("a", 1)]
        quick = shelf.grow

        async def slow(*asked):
            began.set()
            await may.wait()
            return await quick(*asked)

        shelf.grow = slow
        buying = asyncio.ensure_future(client["NodeGroupIncreaseSize"](id="a", delta=1))
        await began.wait()
        (during,) = await ours.pools()
        back.append(await ours.take_back("a", 5))
        may.set()
        await buying
        return back, during.ordered, await ours.take_back("a", 5), shelf.state.target, relay.commanded("a")

    assert ([1, 1], 1, 0, 2, 0) == played(shelf, play)
    assert [("grow", "a", 1)] == shelf.asked


def test_an_order_that_our_loop_no_longer_confirms_is_not_reported():
    """
    Whoever stood still does not know for whom it ordered; a turn later it is told again.
    """
    shelf, clock = Shelf(1, ["n1"]), [0.0]
    relay = ProviderGroups([OfferedPool("a", shelf)], steady=lambda: clock[0])

    async def play():
        await relay.refresh()
        relay.command("a", 2)
        floors = []
        for moment, confirmed in ((0, True), (10, False), (10.1, False), (100, True)):
            clock[0] = moment
            if confirmed:
                relay.confirm(10.0)
            floors.append((relay.groups()[0].floor, (await OrderingProvider(relay, shelf).pools())[0].target))
        return floors

    assert [(2, 2), (2, 2), (0, 2), (2, 2)] == asyncio.run(play())


@pytest.mark.parametrize(("another", "asked", "target"), [(1, [2, 1], 3), (2, [2], 3), (3, [2], 4)])
def test_what_somebody_else_has_bought_is_not_bought_twice(another, asked, target):
    """
    An increase means a size: what is there meanwhile counts towards it.
    """
    shelf = Shelf(1, ["n1"])

    async def play(_relay, client):
        shelf.bought_by_another = another
        return await status(client["NodeGroupIncreaseSize"](id="a", delta=2))

    assert CODE.OK == played(shelf, play)
    assert (asked, target) == ([by for what, _, by in shelf.asked], shelf.state.target)


def test_machines_that_are_not_to_be_had_stand_there_as_out_of_stock():
    """
    cluster-autoscaler sees them, backs off and names them to be deleted: then nobody waits for them any more.
    """
    shelf = Shelf(3, ["n1"], short="no T4 in zone a")

    async def play(_relay, client):
        instances = (await client["NodeGroupNodes"](id="a")).instances
        missing = [one for one in instances if one.status.errorInfo.errorCode]
        nodes = [{"name": one.id, "providerID": one.id} for one in missing]
        await client["NodeGroupDeleteNodes"](id="a", nodes=nodes)
        return [(m.status.instanceState, m.status.errorInfo.instanceErrorClass) for m in missing]

    assert [(2, 1), (2, 1)] == played(shelf, play, min_nodes=1)
    assert ([("cancel", "a", 2)], 1) == (shelf.asked, shelf.state.target)


def test_states_of_machines_are_reported():
    """
    Coming, running, leaving, and failed with the provider's word for it.
    """
    nodes = tuple(base.ProviderInstance(f"i-{state}", "", state, "why") for state in base.InstanceState)
    shelf = Shelf(4)
    shelf.state = replace(shelf.state, nodes=nodes)

    async def play(_relay, client):
        instances = (await client["NodeGroupNodes"](id="a")).instances
        return {one.id: (one.status.instanceState, one.status.errorInfo.errorMessage) for one in instances}

    expected = {"i-coming": (2, ""), "i-running": (1, ""), "i-leaving": (3, ""), "i-failed": (2, "why")}
    assert expected == played(shelf, play)


def test_a_removed_machine_is_leaving_before_the_next_look():
    """
    So that it is not removed twice, nor counted for the target.
    """
    shelf = Shelf(2, ["n1", "n2"])

    async def play(_relay, client):
        for _ in range(2):
            await client["NodeGroupDeleteNodes"](id="a", nodes=[{"name": "n1"}])
        instances = (await client["NodeGroupNodes"](id="a")).instances
        return {one.id: one.status.instanceState for one in instances}, (
            await client["NodeGroupTargetSize"](id="a")
        ).targetSize

    assert ({"shelf://n1": 3, "shelf://n2": 1}, 1) == played(shelf, play)
    assert [("remove", "a", ("shelf://n1",))] == shelf.asked


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (base.OutOfStockError("none"), CODE.RESOURCE_EXHAUSTED),
        (base.ProviderUnreachableError("silent"), CODE.UNAVAILABLE),
        (base.DeniedError("no right"), CODE.FAILED_PRECONDITION),
        (base.ChangedError("busy"), CODE.FAILED_PRECONDITION),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_providers_failure_is_reported_and_a_look_that_failed_changes_nothing(error, code):
    """
    A Refresh that fails makes cluster-autoscaler leave out the loop; what was known is still reported.
    """
    shelf = Shelf(1, ["n1"])

    async def play(_relay, client):
        shelf.fails = error
        codes = await status(client["Refresh"]()), await status(client["NodeGroupIncreaseSize"](id="a", delta=1))
        return codes, (await client["NodeGroupTargetSize"](id="a")).targetSize

    assert ((code, code), 1) == played(shelf, play)


def test_the_providers_own_bounds_hold_too():
    """
    The narrower of the two ends counts.
    """

    async def play(_relay, client):
        (group,) = (await client["NodeGroups"]()).nodeGroups
        return group.minSize, group.maxSize

    assert (2, 4) == played(Shelf(2, min_nodes=2, max_nodes=9), play, min_nodes=1, max_nodes=4)


def test_a_look_that_began_before_a_purchase_does_not_undo_it():
    """
    A slow answer about the past would otherwise make cluster-autoscaler buy again.
    """
    shelf = Shelf(1, ["n1"])
    began, may = asyncio.Event(), asyncio.Event()

    async def play(relay, client):
        quick, old = shelf.pools, shelf.state

        async def slow():
            began.set()
            await may.wait()
            return (old,)

        shelf.pools = slow
        looking = asyncio.ensure_future(client["Refresh"]())
        await began.wait()
        await client["NodeGroupIncreaseSize"](id="a", delta=2)
        may.set()
        await looking
        shelf.pools = quick
        return relay.groups()[0].target

    assert 3 == played(shelf, play)


def test_a_pool_that_nobody_offers_cannot_be_commanded():
    """
    A misspelt name is an error, not an order to nobody.
    """
    with pytest.raises(NodeGroupError, match="pool b does not exist"):
        ProviderGroups([OfferedPool("a", Shelf())]).command("b", 1)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ("", CODE.OK),
        ("default/web-0", CODE.FAILED_PRECONDITION),
        (UnreachableError("no answer"), CODE.FAILED_PRECONDITION),
    ],
)
def test_a_machine_under_a_pod_is_not_deleted_whoever_asks(found, code):
    """What cluster-autoscaler believes to be empty is asked of the API server again; all of a request or nothing."""
    shelf, asked = Shelf(2, ["n1", "n2"]), []

    async def occupied(machine, node):
        asked.append((machine, node))
        if isinstance(found, Exception):
            raise found
        return found if machine == "shelf://n2" else ""

    async def play(_relay, client):
        nodes = [{"providerID": f"shelf://{name}", "name": name} for name in ("n1", "n2")]
        return await status(client["NodeGroupDeleteNodes"](id="a", nodes=nodes))

    assert code is played(shelf, play, occupied)
    assert ("remove" in [each[0] for each in shelf.asked]) is (code is CODE.OK)
    assert "shelf://n1" == asked[0][0]


def test_an_order_stands_only_where_we_buy():
    """
    Where we do not any more, cluster-autoscaler sees the pods itself and would buy on top.
    """
    shelf = Shelf(1, ["n1"])

    async def play(relay, client):
        relay.command("a", 3)
        (offer,) = relay._offers.values()
        floors = []
        for each in (BOTH, Ours()):
            relay.offer([replace(offer, ours=each)])
            (group,) = (await client["NodeGroups"]()).nodeGroups
            floors.append(group.minSize)
        return floors

    assert [3, 0] == played(shelf, play)


@pytest.mark.parametrize(
    ("ours", "answer"), [(BOTH, CODE.FAILED_PRECONDITION), (Ours(buys=True), CODE.OK), (Ours(), CODE.OK)]
)
def test_a_node_that_is_kept_for_a_waiting_pod_is_not_given_back_where_we_drain(ours, answer):
    """
    It is empty, and would be bought again; one that nobody waits for goes.
    """
    shelf = Shelf(2, ["n1", "n2"])

    async def play(_, client):
        kept = await status(client["NodeGroupDeleteNodes"](id="a", nodes=[{"name": "n1"}]))
        return kept, await status(client["NodeGroupDeleteNodes"](id="a", nodes=[{"name": "n2"}]))

    assert (answer, CODE.OK) == played(shelf, play, ours=ours, needed={"n1": "pod default/waits"})
