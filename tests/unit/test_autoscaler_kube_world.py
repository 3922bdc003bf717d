"""Steps against an API server that refuses, fails, forgets and is silent: what is done, undone, and said about it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from autoscaler.kube.config import PoolConfig
from autoscaler.kube.doubt import DoubtError, Kind
from autoscaler.kube.figures import Nothing
from autoscaler.kube.sources import RESERVATIONS_PATH, Sources
from autoscaler.kube.world import ANEW_SECONDS, FEW, KubeWorld, Parts
from autoscaler.lifecycle import State
from autoscaler.limits import Limits
from autoscaler.loop import turn
from autoscaler.memory import Memory
from autoscaler.observation import Reservation
from autoscaler.plan import Buy, Delete, Discard, Drain, Evict, Keep, Move
from autoscaler.providers.base import (
    ChangedError,
    DeniedError,
    Instance,
    OutOfStockError,
    PoolState,
    UnreachableError,
)
from autoscaler.providers.profile import template_of
from autoscaler.providers.registry import PoolSource, Providers
from isolation.cluster.failure import RefusedError
from isolation.cluster.failure import UnreachableError as SilentError
from isolation.contract.codec import encode_allocation, encode_cards
from isolation.contract.codec_node import node_of
from isolation.contract.codec_shape import At
from isolation.contract.model import Ask, Card, Placement, Request, Slice
from isolation.contract.names import ALLOCATION, CARDS, DRAIN, MOVED, SCHEDULER
from isolation.contract.quantity import GIB

START = 1_800_000_000.0
LIMITS = Limits(settle_seconds=0.0)


def a_node(name, **spec):
    """One card of 8 GiB."""
    room = {"cpu": "8", "memory": "64Gi", "pods": "50", "aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "1"}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"ack.node.gpu.schedule": "cgpu"},
            "annotations": {CARDS: encode_cards([Card(f"GPU-{name}", 0, 8 * GIB)])},
        },
        "spec": spec,
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod(name, node="", units=2, app="web", selector=None):
    """A replica on a node's card; without a node it waits."""
    request = Request(1, units * GIB, asks=(Ask("main", units * GIB),))
    record = {}
    if node:
        record = {
            ALLOCATION: encode_allocation(name, request, Placement(node, (Slice(f"GPU-{node}", 0, units * GIB),)))
        }
    owner = {"kind": "ReplicaSet", "name": app, "uid": f"rs-{app}", "controller": True, "apiVersion": "apps/v1"}
    limits = {"aliyun.com/gpu-mem": str(units)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "namespace": "default",
            "resourceVersion": "1",
            "labels": {"app": app},
            "annotations": record,
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeSelector": selector or {},
            "schedulerName": SCHEDULER,
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


class Api:
    """Objects in memory, listed and watched; writes are kept, and answered as a test wants."""

    def __init__(self, nodes, pods=(), budgets=()):
        self.kinds = {
            "/api/v1/nodes": {thing["metadata"]["name"]: thing for thing in nodes},
            "/api/v1/pods": {thing["metadata"]["name"]: thing for thing in pods},
            "/apis/policy/v1/poddisruptionbudgets": {thing["metadata"]["name"]: thing for thing in budgets},
            RESERVATIONS_PATH: {},
        }
        self.writes = []
        self.fails = {}
        self._news = {path: asyncio.Queue() for path in self.kinds}
        self._version = 1

    async def page(self, path, _):
        """As `Access.page`."""
        items = list(self.kinds[path].values())
        return json.dumps({"metadata": {"resourceVersion": str(self._version)}, "items": items}).encode()

    async def lines(self, path, *_):
        """As `Access.lines`."""
        yield b""
        while True:
            yield await self._news[path].get()

    def put(self, path, thing, kind="MODIFIED"):
        """As if somebody had written it."""
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._news[path].put_nowait(json.dumps({"type": kind, "object": thing}).encode())

    async def send(self, method, path, body=None, *_, **__):
        """As `Access.send`."""
        for part, exc in self.fails.items():
            if part in f"{method} {path}":
                raise exc
        where, _, name = path.rpartition("/")
        if method == "GET":
            if name not in self.kinds.get(where, {}):
                raise RefusedError(404, "NotFound", "not found")
            return json.dumps(self.kinds[where][name]).encode()
        self.writes.append((method, path))
        if method == "POST" and path == RESERVATIONS_PATH:
            thing = {**body, "metadata": {**body["metadata"], "creationTimestamp": "2027-01-15T08:00:00Z"}}
            self.kinds[path][body["metadata"]["name"]] = thing
            self.put(path, thing, "ADDED")
        elif method == "DELETE":
            gone = self.kinds[where].pop(name, None)
            if gone is None:
                raise RefusedError(404, "NotFound", "not found")
            self.put(where, gone, "DELETED")
        elif method == "PATCH":
            node = self.kinds[where][name]
            node["metadata"]["annotations"] |= body["metadata"]["annotations"]
            node["metadata"]["annotations"] = {
                k: v for k, v in node["metadata"]["annotations"].items() if v is not None
            }
            node["spec"] |= body["spec"]
            self.put(where, node)
        return b"{}"


class Machines:
    """A provider in memory, of one pool."""

    name = "memory"

    def __init__(self, *nodes, target=None, trouble=None):
        self.nodes, self.trouble = list(nodes), trouble
        self.target = len(nodes) if target is None else target

    async def pools(self):
        """As a provider."""
        return (PoolState("a", self.target, tuple(Instance(f"id-{name}", name) for name in self.nodes)),)

    async def grow(self, _, by, seen=None):
        """As a provider."""
        if self.trouble is not None:
            raise self.trouble
        if seen != self.target:
            raise ChangedError("somebody else")
        self.target += by
        return self.target

    async def remove(self, _, names):
        """As a provider."""
        gone = [name for name in names if name in self.nodes or name.removeprefix("id-") in self.nodes]
        self.nodes = [name for name in self.nodes if name not in names]
        self.target -= len(gone)
        return tuple(gone)

    async def cancel(self, _, by):
        """As a provider."""
        self.target -= by
        return self.target

    async def template(self, _):
        """Cannot tell."""
        return

    async def close(self):
        """Nothing is open."""
        return


class Silent:
    """Events that nobody reads."""

    async def node(self, *_, **__):
        """Nothing."""
        return

    async def pod(self, *_, **__):
        """Nothing."""
        return


class Stand:
    """A world over it all."""

    def __init__(self, api, machines, **more):
        self.api, self.machines = api, machines
        self.fenced, self.seconds, self.ahead = "", 0.0, 0.0
        self.sources = Sources(api)
        described = a_node("any")
        described["metadata"]["labels"]["disk"] = "fast"
        profile = template_of(node_of(described))
        config = PoolConfig("a", PoolSource("a", "memory", At({})), largest=5, profile=profile)
        providers = Providers({"a": machines})
        parts = Parts(
            api,
            self.sources,
            providers,
            Nothing(),
            Silent(),
            lambda: self.fenced,
            lambda: START + self.seconds + self.ahead,
            steady=lambda: self.seconds,
        )
        self.world = KubeWorld(replace(parts, **more), (config,), LIMITS)

    async def __aenter__(self):
        self._following = self.sources.following()
        await self._following.__aenter__()
        await self.sources.synced()
        return self

    async def __aexit__(self, *_):
        await self._following.__aexit__(None, None, None)

    async def heard(self):
        """Let the watches tell what was written."""
        await asyncio.sleep(0.05)
        return await self.world.observe()


def home(pod, to, units=2):
    """A place for it."""
    request = Request(1, units * GIB)
    place = Placement(to, (Slice(f"GPU-{to}", 0, units * GIB),))
    return Reservation(pod, request, place, START, START + 900)


def drained(node="n1", pod="p1", to="n2"):
    """A node that goes, and its one pod's home."""
    return Drain(node, (home(pod, to),), "idle")


def run(api, machines, story, **more):
    """A story on a stand."""

    async def told():
        async with Stand(api, machines, **more) as stand:
            return await story(stand)

    return asyncio.run(told())


def two():
    """Two nodes, one pod on the first."""
    return Api([a_node("n1"), a_node("n2")], [a_pod("p1", "n1"), a_pod("p2", "n2", app="other")])


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


async def evicted(stand, answer=None, times=1):
    """Evict the pod of a drained node; what came of it."""
    await stand.world.observe()
    await stand.world.apply(drained())
    await stand.heard()
    if answer is not None:
        stand.api.fails = {"/eviction": answer}
    return [await stand.world.apply(Evict("p1", "n1", "o", "to n2")) for _ in range(times)]


@pytest.mark.parametrize(
    ("answer", "refused", "kind"),
    [
        pytest.param(None, False, None, id="done"),
        pytest.param(RefusedError(404, "NotFound", "gone"), False, None, id="gone already"),
        pytest.param(RefusedError(409, "Conflict", "another UID"), False, None, id="another of that name"),
        pytest.param(RefusedError(429, "TooManyRequests", "budget"), True, Kind.CONFLICT, id="a budget says no"),
        pytest.param(RefusedError(500, "Internal", "two budgets"), True, Kind.EVICTION, id="the server fails"),
    ],
)
def test_an_evictions_answer_is_understood(answer, refused, kind):
    """
    Gone is done; a no is a refusal with its kind; the home stays for the next turn.
    """
    api = two()

    async def story(stand):
        (found,) = await evicted(stand, answer)
        return found, {doubt.kind for doubt in stand.world.doubts()}

    found, kinds = run(api, Machines("n1", "n2"), story)
    assert refused is (found is not None)
    assert ({kind} if kind else set()) == kinds
    assert 1 == len(api.kinds[RESERVATIONS_PATH])


def test_an_eviction_without_an_answer_is_not_a_refusal():
    """
    It may have happened: whoever counts evictions has to count it.
    """
    api = two()

    async def story(stand):
        with pytest.raises(SilentError):
            await evicted(stand, SilentError("no answer"))
        return [doubt.kind for doubt in stand.world.doubts()]

    assert [Kind.NOT_READ] == run(api, Machines("n1", "n2"), story)


def test_after_a_failure_of_the_server_nobody_is_evicted_for_a_while():
    """
    The second eviction is not even tried; when the time is over it is.
    """
    api = two()

    async def story(stand):
        await evicted(stand, RefusedError(500, "Internal", "two budgets"), times=2)
        stand.api.fails = {}
        before = [path for _, path in api.writes if path.endswith("/eviction")]
        held = await stand.world.apply(Evict("p1", "n1", "o", "to n2"))
        stand.seconds += LIMITS.backoff_longest_seconds + 1
        await stand.world.apply(Evict("p1", "n1", "o", "to n2"))
        return before, held, [doubt.kind for doubt in stand.world.doubts()]

    before, held, kinds = run(api, Machines("n1", "n2"), story)
    assert [] == before
    assert held is not None
    assert Kind.EVICTION in kinds


def test_nobody_is_evicted_without_a_home_that_stands():
    """
    The reservation was deleted, or its card is full by now, or its node is not ready: each is a refusal.
    """

    async def deleted(stand):
        api = stand.api
        api.kinds[RESERVATIONS_PATH].clear()

    async def full(stand):
        stand.api.put("/api/v1/pods", a_pod("late", "n2", units=5, app="late"), "ADDED")

    async def unready(stand):
        node = a_node("n2")
        node["status"]["conditions"][0]["status"] = "False"
        stand.api.put("/api/v1/nodes", node)

    for trouble in (deleted, full, unready):
        api = two()

        async def story(stand, trouble=trouble):
            await stand.world.observe()
            await stand.world.apply(drained())
            await stand.heard()
            await trouble(stand)
            await asyncio.sleep(0.05)
            return await stand.world.apply(Evict("p1", "n1", "o", "to n2"))

        refused = run(api, Machines("n1", "n2"), story)
        assert "home" in str(refused), trouble.__name__
        assert [] == [path for _, path in api.writes if path.endswith("/eviction")]


def test_a_move_that_is_refused_gives_its_home_back():
    """
    A budget says no: no reservation stays.
    """
    api = two()
    api.fails = {"/eviction": RefusedError(429, "TooManyRequests", "budget")}

    async def story(stand):
        await stand.world.observe()
        return await stand.world.apply(Move("p1", "n1", "o", home("p1", "n2"), "relieve", "hot"))

    assert run(api, Machines("n1", "n2"), story) is not None
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
    assert "not empty" in str(full)
    assert "not empty" in str(given_up)
    assert empty is None
    assert ["n2"] == left


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Buy("a", (), "more"), id="buy"),
        pytest.param(drained(), id="drain"),
        pytest.param(Keep("n1", "x"), id="keep"),
        pytest.param(Delete("n2", "x"), id="delete"),
        pytest.param(Discard("n2", "a", "x"), id="discard"),
        pytest.param(Move("p1", "n1", "o", home("p1", "n2"), "relieve", "hot"), id="move"),
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


def test_a_pool_that_will_not_sell_rests_and_is_asked_again_later():
    """
    The provider says no at once: the next turn gives the pool up for a while; then it is tried again.
    """
    api = Api([], [a_pod("p1")])
    machines = Machines(trouble=OutOfStockError("none left"))

    async def story(stand):
        memory, bought = Memory(), []
        for seconds in (0, 10, 20, 30, 400):
            stand.seconds = float(seconds)
            plan, memory = await turn(stand.world, LIMITS, memory)
            bought.append(sum(isinstance(step, Buy) for step in plan.steps))
        return bought, set(memory.closed)

    assert ([1, 0, 0, 0, 1], {"a"}) == run(api, machines, story, stale_seconds=1e9)


@pytest.mark.parametrize(
    "trouble", [ChangedError("somebody else"), UnreachableError("no answer")], ids=["changed", "lost"]
)
def test_a_purchase_of_unknown_outcome_is_looked_at_anew(trouble):
    """
    The pool does not rest: the next reading tells what became of it.
    """

    async def story(stand):
        _, memory = await turn(stand.world, LIMITS, Memory())
        return memory.closed, [doubt.kind for doubt in stand.world.doubts()]

    closed, kinds = run(Api([], [a_pod("p1")]), Machines(trouble=trouble), story)
    assert {} == closed
    assert [Kind.PROVIDER] == kinds


def test_a_machine_that_was_bought_is_expected_by_who_it_is_for_also_after_a_restart():
    """
    With the state lost, what the provider was asked for is still coming: nothing is bought twice.
    """
    machines = Machines()

    async def story(stand):
        plan, memory = await turn(stand.world, LIMITS, Memory())
        fresh = Stand(stand.api, machines)
        async with fresh:
            again, _ = await turn(fresh.world, LIMITS, Memory())
        once_more, _ = await turn(stand.world, LIMITS, memory)
        return len(plan.steps), again.steps, once_more.steps, set(once_more.homes)

    assert (1, (), (), {"p1"}) == run(Api([], [a_pod("p1")]), machines, story)
    assert 1 == machines.target


def test_a_pod_for_which_nodes_come_in_vain_is_not_bought_for_without_end():
    """
    The profile promises a label that real nodes have not: after two nodes nothing more is bought, and it says why.
    """
    api, machines = Api([], [a_pod("p1", selector={"disk": "fast"})]), Machines()

    async def story(stand):
        memory = Memory()
        for number in range(1, 7):
            for seconds in (1, 100):
                stand.seconds += seconds
                _, memory = await turn(stand.world, replace(LIMITS, fresh_seconds=1e6), memory)
            if machines.target > len(machines.nodes):
                machines.nodes.append(f"n{number}")
                api.put("/api/v1/nodes", a_node(f"n{number}"), "ADDED")
                await asyncio.sleep(0.05)
        return machines.target, dict(stand.world.unanswered()), [doubt.kind for doubt in stand.world.doubts()]

    target, unanswered, kinds = run(api, machines, story, stale_seconds=1e9)
    assert 2 == target
    assert {"p1"} == unanswered.keys()
    assert [Kind.UNMODELLED] == kinds


def test_a_reservation_whose_time_is_over_is_deleted_and_a_strangers_is_not():
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
        await stand.world.expect({})
        return set(api.kinds[RESERVATIONS_PATH])

    assert {"preemption-x"} == run(api, Machines("n1", "n2"), story, stale_seconds=1e9)


def test_a_clock_that_was_set_guards_every_pod_and_says_so():
    """
    An hour ahead: nobody may be moved; the machines' ages do not jump.
    """

    async def story(stand):
        before = await stand.world.observe()
        stand.ahead = 3600.0
        after = await stand.world.observe()
        return before, after, {doubt.kind for doubt in stand.world.doubts()}

    before, after, kinds = run(two(), Machines("n1", "n2"), story)
    assert {} == before.guarded
    assert {"p1", "p2"} == after.guarded.keys()
    assert before.at == after.at
    assert Kind.CLOCK in kinds


def test_a_cluster_that_has_not_been_read_is_no_empty_cluster():
    """
    No observation at all, and the reason names what is missing.
    """

    async def story():
        stand = Stand(two(), Machines("n1"))
        with pytest.raises(DoubtError) as caught:
            await stand.world.observe()
        return caught.value.doubts, stand.world.doubts()

    raised, shown = asyncio.run(story())
    assert raised == shown
    assert "nodes" in raised[0].text
    assert raised[0].blocks


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
        plan, _ = await turn(stand.world, LIMITS, Memory())
        refused = await stand.world.apply(drained())
        return [type(step) for step in plan.steps], refused, stand.machines.target, stand.sources.age()

    steps, refused, target, age = run(api, Machines("n1", "n2"), story)
    assert [Buy] == steps
    assert 3 == target
    assert "no home can be reserved" in str(refused)
    assert age is not None
    assert age < 5


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


class Counter(Machines):
    """Sells so many at once and so many at all, and counts what it is asked."""

    def __init__(self, *nodes, at_once=99, stock=99):
        super().__init__(*nodes)
        self.at_once, self.stock, self.asked = at_once, stock, []

    async def grow(self, pool, by, seen=None):
        """As a provider."""
        self.asked.append(by)
        if by > self.stock:
            raise OutOfStockError("none left")
        if by > self.at_once:
            raise DeniedError("not so many at once")
        self.stock -= by
        return await super().grow(pool, by, seen)


def bought_at_once(counter, count=5):
    """So many nodes in one turn: what each step became, and the machines that stand then."""

    async def story(stand):
        await stand.world.observe()
        refused = await stand.world.buy([Buy("a", (), f"want {number}") for number in range(count)])
        return [why is None for why in refused], sorted(stand.world.kept.machines), stand.world.doubts()

    return run(two(), counter, story)


@pytest.mark.parametrize(
    ("sells", "asked", "done"),
    [
        pytest.param({}, [5], 5, id="all in one call"),
        pytest.param({"at_once": 2}, [5, 2, 2, 1], 5, id="not so many at once"),
        pytest.param({"stock": 3}, [5, 2, 2, 1, 1], 3, id="has fewer"),
        pytest.param({"stock": 0}, [5, 2, 1], 0, id="has none"),
    ],
)
def test_a_turns_purchases_of_a_pool_are_as_few_calls_as_it_takes(sells, asked, done):
    """
    The first steps are served first; the others are refused, and the pool is known to be dry.
    """
    counter = Counter("n1", "n2", **sells)

    became, machines, doubts = bought_at_once(counter)

    assert asked == counter.asked
    assert [True] * done + [False] * (5 - done) == became
    assert ["n1", "n2", *[f"a/{number}" for number in range(done)]] == sorted(
        machines, key=lambda name: ("/" in name, name)
    )
    assert 2 + done == counter.target
    assert (done < 5) is bool(doubts)


def test_purchases_on_an_old_target_are_refused_as_one():
    """
    Somebody else has bought since the reading: nothing is bought, and every step says so.
    """
    counter = Counter("n1", "n2")

    async def story(stand):
        await stand.world.observe()
        counter.target += 1
        return await stand.world.buy([Buy("a", (), "want")] * 3)

    refused = run(two(), counter, story)

    assert [3] == counter.asked
    assert 3 == len([why for why in refused if why is not None and "somebody else" in why.reason])


def test_books_are_made_anew_from_time_to_time_and_wrong_ones_are_told(caplog):
    """
    Room that was lost in the books is there again after an hour, and the log says that it was lost.
    """

    async def story(stand):
        await stand.world.observe()
        lost = Placement("n2", (Slice("GPU-n2", 0, 3 * GIB),))
        stand.world._books.room._engine.hold("nobody", Request(1, 3 * GIB), lost)
        before = await stand.world.observe()
        stand.seconds += ANEW_SECONDS
        after = await stand.world.observe()
        return before.engine.room("n2"), after.engine.room("n2")

    before, after = run(two(), Machines("n1", "n2"), story)

    assert 3 * GIB == after[0][0] - before[0][0]
    assert ["what was kept of the cluster was not right, and is made anew: the room of node n2"] == [
        record.getMessage() for record in caplog.records if "made anew" in record.getMessage()
    ]


def test_others_get_their_turn_while_a_large_cluster_is_read():
    """
    The first reading of many pods gives way again and again, and is of one moment all the same.
    """
    api = Api([a_node("n1")], [a_pod(f"p{number}", "n1", units=1) for number in range(4 * FEW)])

    async def story(stand):
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(beat())
        seen = await stand.world.observe()
        other.cancel()
        return beats, len(seen.on["n1"]), len(seen.engine.holds)

    beats, pods, held = run(api, Machines("n1"), story)

    assert beats >= 4
    assert (4 * FEW, 4 * FEW) == (pods, held)
