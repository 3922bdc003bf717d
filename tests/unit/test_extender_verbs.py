"""The verbs over a whole scheduler: who answers, about which pod, and what it does to the next question."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_doors import Desk, Server, args, bind_args, extending, node, pod

from isolation.cluster.lease import Record
from isolation.contract.codec import decode_allocation
from isolation.contract.names import ALLOCATION, SHARED
from isolation.scheduler.picture import RESERVATIONS_PATH

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


def cluster(*names, pods=(), **rest):
    """A server with these nodes and pods."""
    return Server({NODES: [node(name, **rest) for name in names], PODS: list(pods)})


def bound_pod(uid, node_name, record):
    """The pod as the watch shows it later."""
    thing = pod(uid)
    return thing | {
        "metadata": thing["metadata"] | {"annotations": dict(record)},
        "spec": thing["spec"] | {"nodeName": node_name},
    }


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


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (pod("u", 0), "asks for no share"),
        (pod("u", 4, label=False), SHARED),
        (pod("u", "2.5"), "2.5"),
        (pod("u", 4) | {"metadata": {"name": "p", "labels": {SHARED: "true"}}}, "no UID"),
        (pod("u", 4) | {"metadata": pod("u")["metadata"] | {"uid": "reservation/r"}}, "no UID"),
        ({"metadata": {"uid": "u"}, "spec": {"containers": 5}}, "cannot be read"),
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


SOFTLY = "preferredDuringSchedulingIgnoredDuringExecution"
RATHER = [{"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}}]
NEAR = {SOFTLY: [{"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]}
SPREAD = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]


def shortlisted(server, asked, *names):
    """What the shortlist and the filter answer, and how often each node comes before the others by score."""

    async def story():
        async with extending(server) as (verbs, _):
            answers = [await verbs.answer(verb, args(asked, *names)) for verb in ("shortlist", "filter", "prioritize")]
            return [json.loads(answer.body) for answer in answers]

    short, whole, scores = asyncio.run(story())
    best = max(row["Score"] for row in scores)
    return short, whole, [row["Host"] for row in scores if row["Score"] == best]


@pytest.mark.parametrize("units", [2, 5, 10, 15])
def test_the_shortlist_has_the_nodes_that_score_best(units):
    """
    Three nodes of which one has begun a card: those with the highest score of all that fit, and nothing else.
    """
    server = cluster("a", "b", "c", pods=[held("x", "b")])

    short, whole, best = shortlisted(server, pod("u", units), "a", "b", "c")

    assert ["a", "b", "c"] == sorted(whole["NodeNames"])
    assert sorted(best) == sorted(short["NodeNames"])
    assert ({}, {}, "") == (short["FailedNodes"], short["FailedAndUnresolvableNodes"], short["Error"])


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {SOFTLY: RATHER}}},
        {"affinity": {"podAffinity": NEAR}},
        {"affinity": {"podAntiAffinity": NEAR}},
        {"topologySpreadConstraints": SPREAD},
    ],
    ids=["node", "near", "away", "spread"],
)
def test_a_pod_with_wishes_of_its_own_gets_every_node_that_fits(spec):
    """
    Which node is best then depends on what only kube-scheduler weighs.
    """
    short, whole, best = shortlisted(cluster("a", "b", "c", pods=[held("x", "b")]), pod("u", 5, **spec), "a", "b", "c")

    assert len(best) < len(whole["NodeNames"])
    assert whole == short


def test_a_best_node_that_should_rather_be_left_alone_is_not_the_only_answer():
    """
    A PreferNoSchedule taint on it: all that fit are answered, and the taint is weighed in-tree.
    """
    server = cluster("a", "b", "c", pods=[held("x", "b")])
    server.objects[NODES][1]["spec"]["taints"] = [{"key": "soon-gone", "effect": "PreferNoSchedule"}]

    short, whole, best = shortlisted(server, pod("u", 5), "a", "b", "c")

    assert ["b"] == best
    assert whole == short


def test_where_nothing_fits_the_shortlist_says_why():
    """
    The reasons are those of the filter: pre-emption depends on them.
    """
    server = cluster("a", "b", cards=1, pods=[held("x", "a"), held("y", "b")])

    async def story():
        async with extending(server) as (verbs, world):
            answers = [await verbs.answer(verb, args(pod("u", 12), "a", "b", "z")) for verb in ("shortlist", "filter")]
            return answers, len(world.waiting)

    (short, whole), waiting = asyncio.run(story())
    assert whole == short
    assert ({"a", "b", "z"}, "no_fit", 1) == (set(json.loads(short.body)["FailedNodes"]), short.outcome, waiting)


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
            await asyncio.sleep(0.1)

    asyncio.run(story())
    ends, patience = zip(*(watches[path] for path in (RESERVATIONS_PATH, "/api/v1/namespaces")), strict=True)
    assert max(ends) < min(patience)
    assert max(patience) <= 120.0  # a dead connection is noticed all the same


def held(uid, node_name, card=0, units=4):
    """A pod that has part of a card."""
    part = {"uuid": f"GPU-{node_name}-{card}", "bytes": units << 30, "core": 0}
    record = {"version": 1, "promise": uid, "cards": [part | {"index": card}], "containers": []}
    thing = pod(uid, units, nodeName=node_name)
    thing["metadata"] |= {"annotations": {ALLOCATION: json.dumps(record)}}
    return thing | {"status": {"phase": "Running"}}


def test_only_the_leader_answers_about_pods():
    """
    Another holds the Lease: an error, which is no word about nodes; scores are equal, nothing is bound.
    """

    async def story():
        desk = Desk(Record("7", "another", 60.0, 3))
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
    assert ["closed"] * 4 == [reply.outcome for reply in replies]
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
        desk = Desk(Record("7", "another", 0.2, 3))
        async with extending(cluster("a"), desk, leads=False) as (verbs, _):
            return await verbs.filter(args(pod("u"), "a"))

    assert "fit" == asyncio.run(story()).outcome


def test_what_the_watch_has_not_told_is_asked_before_the_first_bind():
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
    assert ("broken", "unknown", []) == (wrong.outcome, unknown.outcome, bindings)


def test_a_defect_of_ours_is_an_answer_too():
    """
    Books that fail: an error for filter and bind, 503 for the others; the process goes on.
    """

    async def story():
        async with extending(cluster("a")) as (verbs, world):
            world.books.filter = world.books.prioritize = world.books.preempt = None
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


def test_quotas_and_reservations_reach_the_books():
    """
    A namespace's annotation limits it, a stored reservation keeps room; one that cannot be read keeps none.
    """

    async def story():
        server = cluster("a", cards=1)
        quota = {"metadata": {"name": "default", "annotations": {"gpushare.dev/quota": '{"Tesla-T4": 3}'}}}
        server.objects["/api/v1/namespaces"] = [quota]
        server.objects[RESERVATIONS_PATH] = [{"metadata": {"name": "broken"}, "spec": {"holder": "x"}}]
        said = []
        async with extending(server) as (verbs, world):
            world.picture.on_freed(lambda: said.append("room"))
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
            return limited, free, taken, mine, again, len(world.picture.reservations.known)

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


@settings(max_examples=300, deadline=None)
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
