# SPDX-License-Identifier: Apache-2.0
"""How a node is marked, emptied and given back: homes first, and nothing stays of what fails."""

from __future__ import annotations

import pytest
from support.autoscaler_harness import LIMITS, Api, Machines, Stand, a_node, a_pod, drained, run, two

from autoscaler.core.lifecycle import MachineState
from autoscaler.core.plan import CancelDrain, Drain, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.core.conditions import ConditionKind
from autoscaler.providers.base import DeniedError, ProviderUnreachableError
from isolation.contract.names import DRAIN, MIRROR, MOVED
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import RefusedError


def test_a_drain_reserves_before_it_marks_and_is_found_again_from_objects_alone():
    """
    The home, then the mark; a controller that knows nothing sees a draining node and the pod's home on the other one.
    """
    api = two()

    async def story(stand):
        await stand.world.observe()
        refused = await stand.world.apply(drained())
        fresh = Stand(api, stand.machines)
        async with fresh:
            return refused, await fresh.world.observe()

    refused, seen = run(api, Machines("n1", "n2"), story)
    assert refused is None
    assert [("POST", RESERVATIONS_PATH), ("PATCH", "/api/v1/nodes/n1")] == api.writes
    assert MachineState.DRAINING is seen.machines["n1"].state
    assert "n2" == seen.reserved["p1"].placement.node
    assert seen.engine.nodes["n1"].cordoned


def test_a_mark_that_cannot_be_put_gives_the_homes_back():
    """
    Somebody changes the node all the time: nothing stays of the drain, and it is said.
    """
    api = two()
    api.fails = {"PATCH /api/v1/nodes/n1": RefusedError(409, "Conflict", "changed")}

    async def story(stand):
        await stand.world.observe()
        return await stand.world.apply(drained()), stand.world.conditions()

    refused, conditions = run(api, Machines("n1", "n2"), story)
    assert refused is not None
    assert {} == api.kinds[RESERVATIONS_PATH]
    assert [ConditionKind.CONFLICT] == [condition.kind for condition in conditions]


def test_a_node_that_somebody_has_cordoned_is_not_marked():
    """
    Read past the watch, at the last moment.
    """
    api = two()

    async def story(stand):
        await stand.world.observe()
        api.kinds["/api/v1/nodes"]["n1"]["spec"]["unschedulable"] = True
        return await stand.world.apply(drained())

    assert "cordoned" in str(run(api, Machines("n1", "n2"), story))
    assert DRAIN not in api.kinds["/api/v1/nodes"]["n1"]["metadata"]["annotations"]


def test_calling_a_drain_off_takes_the_homes_away_first():
    """
    Then the mark; foreign taints stay.
    """
    api = Api([a_node("n1", taints=[{"key": "team", "effect": "NoSchedule"}]), a_node("n2")], [a_pod("p1", "n1")])

    async def story(stand):
        await stand.world.observe()
        await stand.world.apply(drained())
        await stand.heard()
        return await stand.world.apply(CancelDrain("n1", "needed"))

    assert run(api, Machines("n1", "n2"), story) is None
    assert ["POST", "PATCH", "DELETE", "PATCH"] == [method for method, _ in api.writes]
    assert [{"key": "team", "effect": "NoSchedule"}] == api.kinds["/api/v1/nodes"]["n1"]["spec"]["taints"]
    assert {} == api.kinds[RESERVATIONS_PATH]


def test_a_node_is_given_back_only_empty():
    """
    A pod came at the last moment: the node stays.
    """
    api = two()

    async def story(stand):
        await stand.world.observe()
        untainted = await stand.world.apply(RemoveNode("n1", "empty"))
        await stand.world.apply(drained())
        early = await stand.world.apply(RemoveNode("n1", "empty"))
        stand.seconds = LIMITS.node_delete_delay_after_taint_seconds
        await stand.heard()
        full = await stand.world.apply(RemoveNode("n1", "empty"))
        api.put("/api/v1/pods", a_pod("p1", "n1"), "DELETED")
        await stand.heard()
        given_up = [
            await stand.world.apply(RemoveFailedNode("n2", "a", "late", has_node=known)) for known in (False, True)
        ]
        return (
            untainted,
            early,
            full,
            given_up,
            await stand.world.apply(RemoveNode("n1", "empty")),
            stand.machines.nodes,
        )

    untainted, early, full, given_up, empty, left = run(api, Machines("n1", "n2"), story)
    assert "no longer carries the drain taint" in str(untainted)
    assert "node n1 was tainted only 0 s ago" in str(early)
    assert "node n1 is not empty: pod default/p1" in str(full)
    assert all("node n2 is not empty: pod default/p2" in str(each) for each in given_up)
    assert empty is None
    assert ["n2"] == left


def a_story_of_hearsay(hidden, *more):
    """An empty node is drained; then a pod is bound there, of which the watch does not tell (yet)."""
    api = Api([a_node("n1"), a_node("n2")])

    async def story(stand):
        await stand.world.observe()
        await stand.world.apply(Drain("n1", (), "idle"))
        api.kinds["/api/v1/pods"][hidden["metadata"]["name"]] = hidden
        stand.seconds = LIMITS.node_delete_delay_after_taint_seconds + 1
        await stand.heard()
        plan, memory = await reconcile(stand.world, LIMITS, AutoscalerState())
        said = [condition.text for condition in stand.world.conditions()]
        await stand.heard()
        after, _ = await reconcile(stand.world, LIMITS, memory)
        return plan.steps, said, after.steps, stand.machines.nodes

    return run(api, Machines("n1", "n2", *more), story, stale_seconds=1e9)


def test_a_pod_that_the_watch_has_not_told_of_keeps_its_machine():
    """
    The watch says empty, one consistent list says otherwise: no removal, and the drain is called off.
    """
    first, said, then, left = a_story_of_hearsay(a_pod("hidden", "n1"))
    assert [RemoveNode] == [type(step) for step in first]
    assert ["node n1 is not empty: pod default/hidden"] == said
    assert (CancelDrain("n1", "node n1 is not empty: pod default/hidden"),) == then
    assert ["n1", "n2"] == left


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param({"status": {"phase": "Succeeded"}}, id="has ended"),
        pytest.param({"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}]}}),
        pytest.param({"metadata": {"annotations": {MIRROR: "x"}}}, id="the kubelet's own"),
        pytest.param({"metadata": {"deletionTimestamp": "2027-01-15T07:59:00Z"}}, id="should have ended long ago"),
    ],
)
def test_a_pod_that_is_not_lost_with_its_machine_does_not_keep_it(ends):
    """
    As for cluster-autoscaler.
    """
    hidden = a_pod("hidden", "n1")
    for part, fields in ends.items():
        hidden[part] |= fields
    first, said, _, left = a_story_of_hearsay(hidden)
    assert [RemoveNode] == [type(step) for step in first]
    assert ([], ["n2"]) == (said, left)


def test_a_failed_machine_with_a_node_is_tainted_first():
    """
    Somebody may be bound there at this moment: it is removed as a drained node is, and never kept for anybody.
    """
    api = Api([a_node("n1"), a_node("n2")], [a_pod("waits", units=7)])

    async def story(stand):
        stand.machines.failed = {"n1"}
        await stand.world.observe()
        steps, memory = [], AutoscalerState()
        for seconds in (0.0, 10.0, 299.0, 302.0):
            stand.seconds = seconds
            await stand.heard()
            plan, memory = await reconcile(stand.world, LIMITS, memory)
            steps.append([(type(step), step.node) for step in plan.steps])
        return steps, stand.machines.nodes

    steps, left = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    assert [[(RemoveFailedNode, "n1")], [], [], [(RemoveNode, "n1")]] == steps
    assert ["n2"] == left


@pytest.mark.parametrize(
    ("trouble", "kept"), [(ProviderUnreachableError("no answer"), False), (DeniedError("not this one"), True)]
)
def test_a_node_whose_removal_may_have_been_ordered_takes_no_pod_any_more(trouble, kept):
    """
    The provider's answer was lost: whoever waits gets another node. Where it has refused, the node may be kept.
    """
    api = Api([a_node("n1"), a_node("n2")], [a_pod("p2", "n2", units=7)])

    async def story(stand):
        await stand.world.observe()
        await stand.world.apply(Drain("n1", (), "idle"))
        await stand.heard()
        stand.machines.trouble, stand.seconds = trouble, LIMITS.node_delete_delay_after_taint_seconds
        await stand.world.apply(RemoveNode("n1", "empty"))
        api.put("/api/v1/pods", a_pod("waits", units=7), "ADDED")
        await stand.heard()
        plan, _ = await reconcile(stand.world, LIMITS, AutoscalerState())
        said = await stand.world.apply(CancelDrain("n1", "needed"))
        return [type(step) for step in plan.steps], said

    steps, said = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    assert [CancelDrain if kept else ScaleUp] == [kind for kind in steps if kind is not RemoveNode]
    assert kept is (said is None)


def test_a_machine_that_became_a_node_unseen_is_found_by_its_ids():
    """
    By the watch it never came up; the API server knows its node, and who runs there.
    """
    late = a_node("n3") | {"spec": {"providerID": "id-n3"}}
    api = two()

    async def story(stand):
        stand.machines.nodes.append("n3")
        await stand.world.observe()
        api.kinds["/api/v1/nodes"]["n3"] = late
        api.kinds["/api/v1/pods"]["hidden"] = a_pod("hidden", "n3")
        full = await stand.world.apply(RemoveFailedNode("id-n3", "a", "late"))
        del api.kinds["/api/v1/pods"]["hidden"]
        return full, await stand.world.apply(RemoveFailedNode("id-n3", "a", "late")), stand.machines.nodes

    full, tainted, left = run(api, Machines("n1", "n2"), story)
    assert "node n3 is not empty: pod default/hidden" in str(full)
    assert tainted is None
    assert DRAIN in api.kinds["/api/v1/nodes"]["n3"]["metadata"]["annotations"]
    assert ["n1", "n2", "n3"] == left


def test_a_home_names_the_pod_that_moves_and_its_controller():
    """
    As an object: who may use it, and for whom it was made.
    """
    api = two()

    async def story(stand):
        await stand.world.observe()
        await stand.world.apply(drained())

    run(api, Machines("n1", "n2"), story)
    (made,) = api.kinds[RESERVATIONS_PATH].values()
    assert {MOVED: "p1"} == made["metadata"]["annotations"]
    assert ("rs-web", "n2", "move") == tuple(made["spec"][key] for key in ("holder", "node", "reason"))


def test_a_node_of_a_pool_without_cards_is_never_emptied_under_its_pods():
    """
    Pods without cards have no home that could be reserved: their node stays, whatever it holds.
    """
    plain = a_node("n1")
    plain["metadata"] |= {"annotations": {}, "labels": {}}
    plain["status"] |= {"capacity": {"cpu": "8", "memory": "64Gi"}, "allocatable": {"cpu": "8", "memory": "64Gi"}}
    pod = a_pod("p1", "n1")
    pod["metadata"]["annotations"] = {}
    pod["spec"]["containers"][0]["resources"] = {}
    api = Api([plain, a_node("n2")], [pod])

    async def story(stand):
        memory, steps = AutoscalerState(), []
        for _ in range(8):
            stand.seconds += 2000.0
            plan, memory = await reconcile(stand.world, LIMITS, memory)
            steps += [step for step in plan.steps if getattr(step, "node", "") == "n1"]
        return steps, list(stand.machines.nodes)

    steps, left = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    assert [] == steps
    assert ["n1"] == left
