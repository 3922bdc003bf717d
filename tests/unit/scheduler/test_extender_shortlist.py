# SPDX-License-Identifier: Apache-2.0
"""The shortlist: the best nodes where only we weigh, every node that fits where others do."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.extender_harness import NODES, cluster
from support.scheduler_endpoints import args, bind_args, extending, pod
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ALLOCATION, QUOTA
from isolation.scheduler import extender

SOFTLY = "preferredDuringSchedulingIgnoredDuringExecution"
RATHER = [{"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}}]
NEAR = {SOFTLY: [{"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]}
SPREAD = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine is no server that does not answer."""
    for name in ("PATIENCE_SECONDS", "LIVE_READ_SECONDS"):
        monkeypatch.setattr(extender, name, PATIENCE_SECONDS)


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
            return answers, len(world.unschedulable)

    (short, whole), waiting = asyncio.run(story())
    assert whole == short
    assert ({"a", "b", "z"}, "no_fit", 1) == (set(json.loads(short.body)["FailedNodes"]), short.outcome, waiting)


def test_a_pod_whose_binding_is_open_gets_the_node_that_it_is_going_to():
    """
    Asked about again before the watch has told: that node, and why no other.
    """
    server = cluster("a", "b", "c", pods=[held("x", "b")])

    async def story():
        async with extending(server) as (verbs, _):
            bound = json.loads((await verbs.filter(args(pod("u", 5), "c"))).body), await verbs.bind(bind_args("u", "c"))
            return bound[0], json.loads((await verbs.shortlist(args(pod("u", 5), "a", "b", "c"))).body)

    before, after = asyncio.run(story())
    assert (["c"], ["c"]) == (before["NodeNames"], after["NodeNames"])
    assert ["a", "b"] == sorted(after["FailedNodes"])


def test_a_namespace_with_a_quota_gets_what_the_filter_says():
    """
    Whether a node may be used then depends on more than its room.
    """
    server = cluster("a", "b", "c", pods=[held("x", "b")])
    quota = {QUOTA: json.dumps({"Tesla-T4": 9})}
    server.objects["/api/v1/namespaces"] = [{"metadata": {"name": "default", "annotations": quota}}]

    short, whole, _ = shortlisted(server, pod("u", 6), "a", "b", "c")

    assert whole == short
    assert ["a", "b", "c"] == sorted(whole["FailedNodes"])


def held(uid, node_name, card=0, units=4):
    """A pod that has part of a card."""
    part = {"uuid": f"GPU-{node_name}-{card}", "bytes": units << 30, "core": 0}
    record = {"version": 1, "promise": uid, "cards": [part | {"index": card}], "containers": []}
    thing = pod(uid, units, nodeName=node_name)
    thing["metadata"] |= {"annotations": {ALLOCATION: json.dumps(record)}}
    return thing | {"status": {"phase": "Running"}}
