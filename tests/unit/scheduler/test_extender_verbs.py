# SPDX-License-Identifier: Apache-2.0
"""The verbs over a whole scheduler: about which pod, whatever is sent, and what it does to the next question."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.extender_harness import cluster
from support.scheduler_endpoints import args, bind_args, extending, pod
from support.waiting import PATIENCE_SECONDS

from isolation.contract.codec import decode_allocation
from isolation.contract.names import ALLOCATION, SHARED
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.scheduler import extender


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine is no server that does not answer."""
    for name in ("PATIENCE_SECONDS", "LIVE_READ_SECONDS"):
        monkeypatch.setattr(extender, name, PATIENCE_SECONDS)


def test_a_pod_is_filtered_scored_and_bound():
    """
    The nodes that fit, scores in their order, one binding with both records; asked again, room is gone.
    """

    async def story():
        server = cluster("a", "b", cards=1)
        async with extending(server) as (verbs, _):
            found = json.loads((await verbs.filter(args(pod("u", 10), "a", "b", "c"))).body)
            scores = json.loads((await verbs.prioritize(args(pod("u", 10), "b", "a"))).body)
            done = await verbs.bind(bind_args("u", "a"))
            after = json.loads((await verbs.filter(args(pod("v", 10), "a", "b"))).body)
            return found, scores, done, after, server.bindings

    found, scores, done, after, bindings = asyncio.run(story())
    assert ["a", "b"] == sorted(found["NodeNames"])
    assert ["c"] == list(found["FailedNodes"] | found["FailedAndUnresolvableNodes"])
    assert ["b", "a"] == [row["Host"] for row in scores]
    assert (b'{"Error":""}', "bound") == (done.body, done.outcome)
    assert ["b"] == after["NodeNames"]
    uid, where, records = bindings[0]
    assert ("u", "a") == (uid, where)
    assert ["GPU-a-0"] == [part.uuid for part in decode_allocation(records[ALLOCATION]).slices]


def test_a_bind_whose_look_at_the_node_gets_no_answer_says_so(monkeypatch):
    """
    The API server does not tell in time who is on the node: nothing is bound, and the Event has the reason.
    """
    monkeypatch.setattr(extender, "LIVE_READ_SECONDS", 0.25)

    async def story():
        server = cluster("a")
        async with extending(server) as (verbs, _):
            at_once = server.page

            async def late(path, query):
                await asyncio.sleep(3600 if "spec.nodeName" in query.get("fieldSelector", "") else 0)
                return await at_once(path, query)

            await verbs.filter(args(pod("u", 10), "a"))
            server.page = late
            return await verbs.bind(bind_args("u", "a")), server.bindings

    said, bindings = asyncio.run(story())
    text = "cannot list pods of node a (timed out after 0.25 s); kube-scheduler will retry the pod"
    assert (text, "not_ready", []) == (json.loads(said.body)["Error"], said.outcome, bindings)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (pod("u", 0), "requests no GPU share"),
        (pod("u", 4, label=False), SHARED),
        (pod("u", "2.5"), "2.5"),
        (pod("u", 4) | {"metadata": {"name": "p", "labels": {SHARED: "true"}}}, "no valid UID"),
        (pod("u", 4) | {"metadata": pod("u")["metadata"] | {"uid": "reservation/r"}}, "no valid UID"),
        ({"metadata": {"uid": "u"}, "spec": {"containers": 5}}, "cannot read the pod"),
        ({"metadata": {"uid": "u", "labels": {"aliyun.com/gpu-count": "3"}}, "spec": pod("u", 4)["spec"]}, "3 cards"),
    ],
    ids=["none", "unlabelled", "fraction", "anonymous", "forged", "wrong-shape", "uneven"],
)
def test_a_pod_that_is_none_of_ours_fits_nowhere_and_is_told_why(thing, said):
    """
    The reason stands with every node, as one that no pre-emption changes.
    """

    async def story():
        async with extending(cluster("a")) as (verbs, _):
            return json.loads((await verbs.filter(args(thing, "a"))).body)

    found = asyncio.run(story())
    assert ([], "") == (found["NodeNames"], found["Error"])
    assert said in found["FailedAndUnresolvableNodes"]["a"]


def test_a_bind_for_another_pod_of_that_name_is_refused():
    """
    The UID decides; a name that does not go with it is a mistake of the caller.
    """

    async def story():
        server = cluster("a")
        async with extending(server) as (verbs, _):
            await verbs.filter(args(pod("u"), "a"))
            wrong = await verbs.bind(bind_args("u", "a", "another"))
            unknown = await verbs.bind(bind_args("nobody", "a"))
            return wrong, unknown, server.bindings

    wrong, unknown, bindings = asyncio.run(story())
    assert ("bad_request", "unknown", []) == (wrong.outcome, unknown.outcome, bindings)


def test_a_defect_of_ours_is_an_answer_too():
    """
    A cache that fails: an error for filter and bind, 503 for the others; the process goes on.
    """

    async def story():
        async with extending(cluster("a")) as (verbs, world):
            world.cache.filter = world.cache.shortlist = world.cache.prioritize = world.cache.preempt = None
            return [
                await verbs.answer("filter", args(pod("u"), "a")),
                await verbs.answer("shortlist", args(pod("u"), "a")),
                await verbs.answer("prioritize", args(pod("u"), "a")),
                await verbs.answer("preempt", json.dumps({"Pod": pod("u")}).encode()),
            ]

    replies = asyncio.run(story())
    assert ["failed"] * 4 == [reply.outcome for reply in replies]
    assert [200, 200, 503, 503] == [reply.status for reply in replies]
    assert all(json.loads(reply.body)["Error"] for reply in replies[:2])


def test_quotas_and_reservations_reach_the_cache():
    """
    A namespace's annotation limits it, a stored reservation keeps room; one that cannot be read keeps none.
    """

    async def story():
        server = cluster("a", cards=1)
        quota = {"metadata": {"name": "default", "annotations": {"gpushare.dev/gpu-memory-quota": '{"Tesla-T4": 3}'}}}
        server.objects["/api/v1/namespaces"] = [quota]
        server.objects[RESERVATIONS_PATH] = [{"metadata": {"name": "broken"}, "spec": {"holder": "x"}}]
        said = []
        async with extending(server) as (verbs, world):
            world.informers.on_capacity_freed(lambda: said.append("room"))
            limited = json.loads((await verbs.filter(args(pod("u", 4), "a"))).body)
            await server.tell("/api/v1/namespaces", "MODIFIED", {"metadata": {"name": "default"}})
            assert ["room"] == said  # who waits for a larger quota is told
            free = json.loads((await verbs.filter(args(pod("u", 4), "a"))).body)
            kept = {"holder": "v", "node": "a", "expires": "2099-01-01T00:00:00Z"}
            kept["cards"] = [{"uuid": "GPU-a-0", "index": 0, "bytes": 14 << 30}]
            await server.tell(RESERVATIONS_PATH, "ADDED", {"metadata": {"name": "r"}, "spec": kept})
            taken = json.loads((await verbs.filter(args(pod("u", 4), "a"))).body)
            mine = json.loads((await verbs.filter(args(pod("v", 14), "a"))).body)
            await server.tell(RESERVATIONS_PATH, "DELETED", {"metadata": {"name": "r"}, "spec": kept})
            again = json.loads((await verbs.filter(args(pod("u", 4), "a"))).body)
            return limited, free, taken, mine, again, len(world.informers.reservations.known)

    limited, free, taken, mine, again, known = asyncio.run(story())
    assert "quota" in limited["FailedNodes"]["a"]
    assert [["a"], [], ["a"], ["a"]] == [one["NodeNames"] for one in (free, taken, mine, again)]
    assert 0 == known


_LEAF = st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.text(max_size=6) | st.just("aliyun.com/gpu-mem")
_JSON = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["limits", "requests", "name", "aliyun.com/gpu-mem", "value"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def ask():
    """One scheduler for many questions."""
    loop = asyncio.new_event_loop()
    opened = extending(cluster("a"))
    verbs, _ = loop.run_until_complete(opened.__aenter__())
    yield lambda verb, body: loop.run_until_complete(verbs.answer(verb, body))
    loop.run_until_complete(opened.__aexit__(None, None, None))
    loop.close()


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _JSON, max_size=3),
    st.booleans(),
    st.lists(st.text(max_size=4), max_size=4),
    st.sampled_from(["filter", "shortlist", "prioritize", "bind", "preempt"]),
)
def test_whatever_a_caller_sends_there_is_an_answer_and_no_defect(ask, thing, named, names, verb):
    """
    Pods of any shape on nodes of any name: read, refused or broken, and never our own failure.
    """
    if named:
        thing = pod("u") | thing | {"metadata": pod("u")["metadata"]}

    assert "failed" != ask(verb, args(thing, *names)).outcome
