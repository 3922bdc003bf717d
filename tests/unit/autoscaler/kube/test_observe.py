# SPDX-License-Identifier: Apache-2.0
"""
What is read before anything is done: no right, no reading, wrong clocks, wrong state, a kind that is not there.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from support.autoscaler_harness import LIMITS, START, Api, Machines, Stand, a_node, a_pod, drained, home, run, two
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.plan import CancelDrain, Move, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.core.conditions import ConditionError, ConditionKind
from autoscaler.kube.observe.observed_cluster import observe
from isolation.contract.model import Placement, Slice
from isolation.contract.names import DRAIN
from isolation.contract.quantity import GIB
from isolation.contract.reservation import GANG, RESERVATIONS_PATH, Reservation, manifest_of
from isolation.kube.core.errors import RefusedError


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(ScaleUp("a", (), "more"), id="buy"),
        pytest.param(drained(), id="drain"),
        pytest.param(CancelDrain("n1", "x"), id="keep"),
        pytest.param(RemoveNode("n2", "x"), id="delete"),
        pytest.param(RemoveFailedNode("n2", "a", "x"), id="discard"),
        pytest.param(Move("p1", "n1", "o", home("p1", "n2"), "mitigate_hot_card", "hot"), id="move"),
    ],
)
def test_without_the_right_to_act_no_write_leaves(step):
    """
    Asked right before each.
    """
    api = Api([a_node("n1", taints=[{"key": DRAIN, "effect": "NoSchedule"}]), a_node("n2")], [a_pod("p1", "n1")])

    async def story(stand):
        await stand.world.observe()
        stand.fenced = "the Lease is lost"
        return await stand.world.apply(step), stand.machines.target

    refused, target = run(api, Machines("n1", "n2"), story)
    assert "Lease" in str(refused)
    assert 2 == target
    assert [] == api.writes


def test_a_reservation_whose_time_is_over_is_deleted_and_another_ones_is_not():
    """
    Ours by its annotation; anybody else's is its maker's to delete.
    """
    api = two()

    async def story(stand):
        await stand.world.observe()
        await stand.world.apply(drained())
        stranger = json.loads(json.dumps(next(iter(api.kinds[RESERVATIONS_PATH].values()))))
        stranger["metadata"] |= {"name": "preemption-x", "annotations": {}}
        await api.send("POST", RESERVATIONS_PATH, stranger)
        stand.seconds = 2000.0
        await stand.heard()
        await stand.world.nominate({})
        return set(api.kinds[RESERVATIONS_PATH])

    assert {"preemption-x"} == run(api, Machines("n1", "n2"), story, stale_seconds=1e9)


def test_a_node_that_waits_for_a_job_is_not_drained_until_its_reservation_is_over():
    """
    The scheduler has reserved cards on it for a ProvisioningRequest; without it the empty node would go.
    """
    api = Api([a_node("n1"), a_node("n2")], [])

    async def story(stand):
        made = Reservation(
            "gang-u-0",
            "u",
            Placement("n2", (Slice("GPU-n2", 0, GIB),)),
            START + 1500,
            "ml",
            GANG,
            provisioning_request="job",
        )
        await api.send("POST", RESERVATIONS_PATH, manifest_of(made))
        await stand.heard()
        kept = (await stand.world.observe()).kept
        stand.seconds = 2000.0
        return kept, (await stand.world.observe()).kept

    assert ({"n2"}, set()) == run(api, Machines("n1", "n2"), story, stale_seconds=1e9)


def test_a_clock_that_was_set_guards_every_pod_and_says_so():
    """
    An hour ahead: nobody may be moved; the machines' ages do not jump.
    """

    async def story(stand):
        before = await stand.world.observe()
        stand.ahead = 3600.0
        after = await stand.world.observe()
        return before, after, {condition.kind for condition in stand.world.conditions()}

    before, after, kinds = run(two(), Machines("n1", "n2"), story)
    assert {} == before.guarded
    assert {"p1", "p2"} == after.guarded.keys()
    assert before.at == after.at
    assert ConditionKind.CLOCK in kinds


def test_a_cluster_that_has_not_been_read_is_no_empty_cluster():
    """
    No observation at all, and the reason names what is missing.
    """

    async def story():
        stand = Stand(two(), Machines("n1"))
        with pytest.raises(ConditionError) as caught:
            await stand.world.observe()
        return caught.value.conditions, stand.world.conditions()

    raised, shown = asyncio.run(story())
    assert raised == shown
    assert "nodes" in raised[0].text
    assert raised[0].blocks


def test_where_nothing_can_be_reserved_pools_grow_and_nobody_moves():
    """
    The kind is not installed: a pod still gets its node, however long ago that was seen; a drain is refused.
    """
    api = Api([a_node("n1"), a_node("n2")], [a_pod("p1", "n1"), a_pod("big", units=8), a_pod("p2", "n2", app="other")])
    missing = RefusedError(404, "NotFound", "the server could not find the requested resource")
    api.fails = {RESERVATIONS_PATH: missing}
    real_page, real_lines = api.page, api.lines

    async def page(path, query):
        if path == RESERVATIONS_PATH:
            raise missing
        return await real_page(path, query)

    async def lines(path, query, idle_seconds):
        if path == RESERVATIONS_PATH:
            raise missing
        async for line in real_lines(path, query, idle_seconds):
            yield line

    api.page, api.lines = page, lines

    async def story(stand):
        plan, _ = await reconcile(stand.world, LIMITS, AutoscalerState())
        refused = await stand.world.apply(drained())
        return [type(step) for step in plan.steps], refused, stand.machines.target, stand.sources.age()

    began = time.monotonic()
    steps, refused, target, age = run(api, Machines("n1", "n2"), story)
    assert [ScaleUp] == steps
    assert 3 == target
    assert "cannot reserve a target" in str(refused)
    assert age is not None
    assert age <= time.monotonic() - began


def test_the_event_loop_goes_on_while_an_observation_is_built(monkeypatch):
    """
    The build waits for something that only the loop can give: on the loop itself it would never end.
    """
    given = threading.Event()

    def build(*arguments):
        assert given.wait(PATIENCE_SECONDS), "the event loop stood still"
        return observe(*arguments)

    monkeypatch.setattr("autoscaler.kube.cluster.observe", build)

    async def story(stand):
        asyncio.get_running_loop().call_later(0.05, given.set)
        return await stand.world.observe()

    assert {"p1", "p2"} == run(two(), Machines("n1", "n2"), story).pods.keys()


def test_what_the_watches_say_meanwhile_is_not_in_an_observation(monkeypatch):
    """
    It is of the moment of its snapshot, whatever comes while a thread builds it.
    """
    begun, changed = threading.Event(), threading.Event()

    def build(*arguments):
        begun.set()
        assert changed.wait(PATIENCE_SECONDS)
        return observe(*arguments)

    monkeypatch.setattr("autoscaler.kube.cluster.observe", build)

    async def story(stand):
        notes = stand.sources.notes
        reading = asyncio.create_task(stand.world.observe())
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        for uid in list(notes.pods):
            notes.pod_gone(uid)
        notes.node_gone("n2")
        changed.set()
        return await reading, await stand.world.observe()

    before, after = run(two(), Machines("n1", "n2"), story)
    assert ({"p1", "p2"}, {"n1", "n2"}) == (before.pods.keys(), before.engine.nodes.keys())
    assert ({}, {"n1"}) == (after.pods, after.engine.nodes.keys())
