# SPDX-License-Identifier: Apache-2.0
"""What real clusters have and tidy ones do not: taints of unhealthy nodes, agents away, pods nobody recorded."""

from __future__ import annotations

import json

import pytest
from support.views_harness import api, fleet_of_cards, inside, kubeconfig, node_json, page_of, pod_json, serving, usage

from dashboards.terminal.read.aggregation import summarize_cards
from dashboards.terminal.read.fleet import CardRequest, Fleet, FleetPod
from isolation.contract.model import Card, Mode
from isolation.contract.names import ACK, AGENT
from isolation.contract.quantity import GIB

TEAM, OURS = "/api/v1/namespaces/team", "/api/v1/namespaces/gpushare-system/pods"
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
DEDICATED = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


def unhealthy(name, *taints, ready="True", cordoned=False, agent=""):
    """A node as the API server shows one with which something is wrong."""
    made = node_json(name, 1, 16)
    made["spec"] = {"taints": list(taints), "unschedulable": cordoned}
    made["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    made["metadata"]["annotations"] |= {AGENT: agent} if agent else {}
    return made


def explain_pod(tmp_path, nodes, pod, others=()):
    """What `explain` says of the pod, as data and as one text."""
    objects = {"/api/v1/nodes": nodes, "/api/v1/pods": [pod, *others], f"{TEAM}/pods/w": pod, f"{TEAM}/events": []}
    objects |= {f"/api/v1/nodes/{one['metadata']['name']}": one for one in nodes}
    with serving(api(objects)) as (url, _):
        words = ["explain", "team/w", "--kubeconfig", kubeconfig(url, tmp_path)]
        document, shown = inside(*words, "-o", "json"), inside(*words)
    assert (0, 0) == (document.returncode, shown.returncode)
    return json.loads(document.stdout), " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (unhealthy("n", UNSCHEDULABLE, cordoned=True), "cordoned"),
        (unhealthy("n", NOT_READY, ready="Unknown"), "not ready"),
        (unhealthy("n", NOT_READY, UNSCHEDULABLE, ready="False", cordoned=True), "not ready and cordoned"),
        (unhealthy("n", agent="stopping"), "without its node agent"),
    ],
    ids=["cordoned", "not-ready", "both", "no-agent"],
)
def test_a_node_that_only_has_to_come_back_is_named_with_all_that_is_wrong(tmp_path, node, wrong):
    """
    The taints that Kubernetes gives such a node go with it; and nobody says that there is room on it before.
    """
    document, _ = explain_pod(tmp_path, [node], pod_json("w", "", 8))
    assert document["pending"]["placement"] is None
    texts = [one["text"] for one in document["pending"]["remedies"]]
    assert f"node n is {wrong}; when it is usable again, the pod fits n (card 0)" in texts


def test_no_help_leads_to_a_node_without_its_agent(tmp_path):
    """
    There the scheduler binds no share, however small.
    """
    away = unhealthy("away", agent="stopping")
    document, shown = explain_pod(
        tmp_path, [away, node_json("full", 1, 16)], pod_json("w", "", 12), [pod_json("x", "full", 8)]
    )
    texts = {one["kind"]: one["text"] for one in document["pending"]["remedies"]}
    assert "request 8 GiB (aliyun.com/gpu-mem: 8): fits full (card 0)" == texts["smaller"]
    assert "away: its node agent is stopping" in shown


def test_a_node_of_the_pool_without_a_taint_stands_for_a_new_one(tmp_path):
    """
    Though another of its likes, earlier by name, has one that the pod does not tolerate.
    """
    document, _ = explain_pod(
        tmp_path, [unhealthy("a", DEDICATED), unhealthy("b")], pod_json("w", "", 12), [pod_json("x", "b", 8)]
    )
    assert ["a new node like b (1 x A100, cgpu): the pod fits"] == [
        one["text"] for one in document["pending"]["remedies"] if one["kind"] == "pool"
    ]


def test_where_nothing_helps_it_is_said_what_was_tried(tmp_path):
    """
    And not that only another kind of node would do: the pod could tolerate this one's taint.
    """
    document, shown = explain_pod(tmp_path, [unhealthy("a", DEDICATED)], pod_json("w", "", 8))
    assert [] == document["pending"]["remedies"]
    assert "a: taint dedicated=x:NoSchedule is not tolerated" in shown
    assert "No remedy found. Tried: a smaller request," in shown
    assert "Resolve the reasons above, or add a node of another kind" in shown


def test_a_node_short_of_cpu_does_not_fit_in_the_table_either(tmp_path):
    """
    Its cards would do.
    """
    limits = {ACK.memory: "8", "cpu": "500"}
    pod = pod_json("w", "", 8, containers=[{"name": "main", "resources": {"limits": limits, "requests": limits}}])
    document, shown = explain_pod(tmp_path, [unhealthy("n")], pod)
    assert "cpu" == document["pending"]["why"]
    assert "100 % nodes short of CPU" in shown


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(tmp_path, phase):
    """
    Whatever its record says: no cards, no faults, no advice.
    """
    pod = pod_json("w", "n", 8) | {"status": {"phase": phase}}
    document, shown = explain_pod(tmp_path, [unhealthy("n")], pod)
    assert (None, None, []) == (document["bound"], document["pending"], document["problems"])
    assert f"team/w: ended ({phase}) on node n: its cards are released" in shown
    assert "record" not in shown
    assert "annotation" not in shown


def test_of_a_pod_that_asks_nothing_of_cards_nothing_is_claimed(tmp_path):
    """
    No room, no advice: who places it knows.
    """
    pod = {"metadata": {"name": "w", "namespace": "team", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
    document, shown = explain_pod(tmp_path, [unhealthy("n")], pod | {"status": {"phase": "Pending"}})
    assert document["pending"] is None
    assert "requests no cards: see its scheduler and its Events for why it is pending" in shown


def test_shares_that_nobody_recorded_take_no_whole_cards():
    """
    Two such pods on a node of two cards: at least nothing is promised of each, and not all of it.
    """
    fleet, _ = fleet_of_cards(8)
    (node,) = fleet.nodes
    cards = tuple(Card(f"GPU-{i}", i, 16 * GIB) for i in range(2))
    machine = type(node)("n", Mode.CGPU, cards)
    bare = tuple(FleetPod("team", f"p{i}", f"u{i}", "n", CardRequest(1, 4 * GIB)) for i in range(2))
    found = summarize_cards(Fleet((machine,), bare), usage(Fleet(), ()))
    assert [(0, True, 16 * GIB)] * 2 == [(one.promised, one.partly, one.free) for one in found]


def test_every_reason_why_an_exporter_is_not_heard_is_reported(tmp_path):
    """
    Each with its own nodes; a page that tells of no cards is one of them.
    """
    nodes = [node_json(f"n{i}", 1, 16) for i in range(4)]
    page = page_of(usage(Fleet(()), ())).encode()
    pods = [{"metadata": {"name": f"e{i}"}, "spec": {"nodeName": f"n{i}"}} for i in range(4)]
    proxy = {f"{OURS}/e{i}:9445/proxy/metrics": answer for i, answer in enumerate([
        (200, page), (200, b"<html>"), (503, b'{"message": "connection refused"}'), (500, b"boom"),
    ])}  # fmt: skip
    with serving(api({"/api/v1/nodes": nodes, "/api/v1/pods": [], OURS: pods} | proxy)) as (url, _):
        document = json.loads(inside("top", "-o", "json", "--kubeconfig", kubeconfig(url, tmp_path)).stdout)
    assert [
        "memory in use on n0, n1 is unknown: the exporter reports no cards; see its log",
        "memory in use on n2 is unknown: 503 : connection refused",
        "memory in use on n3 is unknown: 500 : boom",
    ] == document["notes"]


@pytest.mark.parametrize(
    ("status", "word"),
    [(401, "log in again"), (403, "needs the right to list nodes and pods")],
    ids=["unauthorized", "forbidden"],
)
def test_a_server_that_refuses_is_one_line_with_what_to_do(tmp_path, status, word):
    """
    Credentials that have ended, and an account without the rights.
    """
    with serving(lambda *_: (status, b'{"message": "no\\u001b[2J"}')) as (url, _):
        done = inside("top", "--kubeconfig", kubeconfig(url, tmp_path))
    assert (3, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert word in done.stderr
    assert "\x1b" not in done.stderr


def test_a_server_that_is_not_there_is_one_line_with_what_to_do(tmp_path):
    """
    Which other places could be read.
    """
    with serving(lambda *_: (200, b"")) as (url, _):
        config = kubeconfig(url, tmp_path)
    done = inside("top", "--kubeconfig", config)
    assert (3, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "set --kubeconfig or --context, or use --local to read this machine" in done.stderr


@pytest.mark.parametrize("command", [("explain", "p"), ("recommend",)])
def test_a_command_that_reads_no_machine_does_not_advise_it(command, tmp_path):
    """
    Where `--local` would be refused, it is no way out.
    """
    with serving(lambda *_: (200, b"")) as (url, _):
        config = kubeconfig(url, tmp_path)
    done = inside(*command, "--kubeconfig", config)
    assert (3, "") == (done.returncode, done.stdout)
    assert "set --kubeconfig or --context" in done.stderr
    assert "--local" not in done.stderr
