"""How a node is marked, emptied and given back: homes first, and nothing stays of what fails."""

from __future__ import annotations

from kube_world_stand import LIMITS, Api, Machines, Stand, a_node, a_pod, drained, run, two

from autoscaler.kube.doubt import Kind
from autoscaler.kube.sources import RESERVATIONS_PATH
from autoscaler.lifecycle import State
from autoscaler.loop import turn
from autoscaler.memory import Memory
from autoscaler.plan import Delete, Discard, Keep
from isolation.cluster.failure import RefusedError
from isolation.contract.names import DRAIN, MOVED


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
    assert State.DRAINING is seen.machines["n1"].state
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
        return await stand.world.apply(drained()), stand.world.doubts()

    refused, doubts = run(api, Machines("n1", "n2"), story)
    assert refused is not None
    assert {} == api.kinds[RESERVATIONS_PATH]
    assert [Kind.CONFLICT] == [doubt.kind for doubt in doubts]


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
        return await stand.world.apply(Keep("n1", "needed"))

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
        full = await stand.world.apply(Delete("n1", "empty"))
        api.put("/api/v1/pods", a_pod("p1", "n1"), "DELETED")
        await stand.heard()
        given_up = await stand.world.apply(Discard("n2", "a", "late"))
        return full, given_up, await stand.world.apply(Delete("n1", "empty")), stand.machines.nodes

    full, given_up, empty, left = run(api, Machines("n1", "n2"), story)
    assert "no longer empty" in str(full)
    assert "no longer empty" in str(given_up)
    assert empty is None
    assert ["n2"] == left


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
        memory, steps = Memory(), []
        for _ in range(8):
            stand.seconds += 2000.0
            plan, memory = await turn(stand.world, LIMITS, memory)
            steps += [step for step in plan.steps if getattr(step, "node", "") == "n1"]
        return steps, list(stand.machines.nodes)

    steps, left = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    assert [] == steps
    assert ["n1"] == left
