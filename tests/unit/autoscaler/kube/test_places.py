# SPDX-License-Identifier: Apache-2.0
"""Places on machines to come, as the scheduler is told of them: who has one, for how long, and in any trouble."""

from __future__ import annotations

from collections import Counter

import pytest
from support.autoscaler_harness import LIMITS, START, Api, Machines, Stand, a_pod, run

from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.observe.nominations import HOME_SECONDS
from autoscaler.kube.planned_nodes import REFUSED_SECONDS
from isolation.contract.quantity import GIB
from isolation.contract.reservation import PURCHASE, RESERVATIONS_PATH, reservation_of
from isolation.kube.core.errors import RefusedError, UnreachableError

PODS = "/api/v1/pods"


def kept(api):
    """What is stored, by the pod that it is for."""
    found = (reservation_of(one) for one in api.kinds[RESERVATIONS_PATH].values())
    return {one.holder: one for one in found}


async def turned(stand, memory=None, seconds=0.0):
    """One more turn, once the watches have told everything."""
    stand.seconds += seconds
    await stand.heard()
    return (await reconcile(stand.world, LIMITS, memory or AutoscalerState()))[1]


def halves(count):
    """Pods that wait, two to a node."""
    return [a_pod(f"p{i}", units=4) for i in range(count)]


def test_a_purchase_keeps_a_place_for_each_pod_that_it_is_for():
    """
    By pool, position and lot, for as long as a machine may take to come; whoever comes later joins a lot with room.
    """
    api, machines = Api([], halves(3)), Machines()

    async def story(stand):
        memory = await turned(stand)
        first, writes = kept(api), len(api.writes)
        memory = await turned(stand, memory, 10.0)
        again = len(api.writes) - writes
        api.put(PODS, a_pod("p3", units=4), "ADDED")
        await turned(stand, memory, 10.0)
        return first, again, kept(api)

    first, again, later = run(api, machines, story, stale_seconds=1e9)
    assert ({"p0", "p1", "p2"}, 0, 2) == (first.keys(), again, machines.target)
    assert {("a", "", PURCHASE, "default")} == {
        (r.pool, r.placement.node, r.reason, r.namespace) for r in first.values()
    }
    assert {(0, 4 * GIB)} == {(part.index, part.bytes) for r in first.values() for part in r.placement.slices}
    assert {START + LIMITS.max_node_provision_seconds + 2 * HOME_SECONDS} == {r.expires for r in first.values()}
    assert [1, 2] == sorted(Counter(r.planned_node for r in first.values()).values())
    assert [2, 2] == sorted(Counter(r.planned_node for r in later.values()).values())
    assert first == {uid: later[uid] for uid in first}


def test_a_leader_that_ends_after_the_purchase_leaves_it_to_the_next():
    """The reservations are not stored, or their answer is lost: whoever comes next stores each once."""
    api, machines = Api([], halves(2)), Machines()

    async def story(stand):
        api.fails = {f"POST {RESERVATIONS_PATH}": UnreachableError("cut")}
        await turned(stand)
        none, bought, api.fails = kept(api), machines.target, {}
        async with Stand(api, machines) as fresh:
            memory = await turned(fresh)
            await turned(fresh, memory)
        return none, bought, kept(api).keys(), len(api.kinds[RESERVATIONS_PATH])

    assert ({}, 1, {"p0", "p1"}, 2) == run(api, machines, story)
    assert 1 == machines.target


@pytest.mark.parametrize(
    ("trouble", "missing"),
    [
        (RefusedError(404, "NotFound", "no kind"), "not installed"),
        (RefusedError(403, "Forbidden", "no right"), "may not write them"),
        (RefusedError(422, "Invalid", "old kind"), "of another version"),
    ],
)
def test_without_the_kind_or_the_right_nodes_are_bought_all_the_same(trouble, missing, caplog):
    """
    As before there were places to keep. What is missing is said once, and it is tried again now and then only.
    """
    api, machines = Api([], halves(2)), Machines()

    async def story(stand):
        api.fails, tried = {f"POST {RESERVATIONS_PATH}": trouble}, []
        memory = AutoscalerState()
        for seconds in (0.0, 10.0, 10.0, REFUSED_SECONDS, 10.0):
            memory = await turned(stand, memory, seconds)
            tried.append(len(api.failed))
        api.fails = {}
        await turned(stand, memory, REFUSED_SECONDS)
        return tried, kept(api).keys()

    assert ([1, 1, 1, 2, 2], {"p0", "p1"}) == run(api, machines, story, stale_seconds=1e9)
    assert 1 == machines.target
    assert [True] == [missing in line for line in caplog.messages if "cannot reserve memory" in line]


def test_nothing_is_stored_or_deleted_without_the_right_to_act():
    """The Lease was lost: the places are the next leader's business."""
    api, machines = Api([], halves(2)), Machines()

    async def story(stand):
        memory = await turned(stand)
        first = kept(api)
        stand.fenced = "the Lease is lost"
        api.put(PODS, api.kinds[PODS]["p0"], "DELETED")
        await turned(stand, memory, 10 * HOME_SECONDS)
        return first == kept(api)

    assert run(api, machines, story, stale_seconds=1e9)


def test_a_place_that_nobody_is_expected_on_any_more_is_given_up():
    """
    The pod is where its machine is, or it never was: for a while the scheduler may still be about to bind it.
    """
    api, machines = Api([], halves(2)), Machines()

    async def story(stand):
        memory = await turned(stand)
        api.put(PODS, api.kinds[PODS]["p0"], "DELETED")
        found = []
        for seconds in (1.0, HOME_SECONDS / 2, HOME_SECONDS):
            memory = await turned(stand, memory, seconds)
            found.append(set(kept(api)))
        return found

    assert [{"p0", "p1"}, {"p0", "p1"}, {"p1"}] == run(api, machines, story, stale_seconds=1e9)
