# SPDX-License-Identifier: Apache-2.0
"""Which figures are reported, and which are not."""

from __future__ import annotations

import ast
import json
from http import HTTPStatus
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import ask

from autoscaler.apis.metrics.core.answer import Clocks, build_reply
from autoscaler.apis.metrics.core.readings import (
    CardKey,
    ContainerCardUse,
    MetricsSnapshot,
    PendingPod,
    PodUse,
    PoolCapacity,
    UseSample,
    pod_uses,
)
from autoscaler.apis.metrics.core.request import parse_request
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL, StatusReply, format_quantity
from isolation.contract.model import Ask, Phase, Placement, Pod, Slice
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB

NOW = Clocks(steady=1000.0, wall=1_800_000_000.0, fresh_seconds=45.0)
HALF = ContainerCardUse("main", "GPU-0", 0, 4 * GIB, 0.5, 2 * GIB, 0.25)
OTHER = ContainerCardUse("side", "GPU-1", 1, 4 * GIB, None, GIB, 0.05)
NONE = ContainerCardUse("main", "GPU-0", 0, 4 * GIB)


def pod(name, *uses, measured=990.0, **labels):
    """A running pod."""
    return PodUse("default", name, "n1", uses, labels, measured)


def picture(*pods, at=995.0, **rest):
    """A reading five seconds ago."""
    return MetricsSnapshot(at, {"default": pods}, **rest)


def figures(target, seen, now=NOW):
    """Names and values, or the problem."""
    reply = build_reply(parse_request(target, (CUSTOM, EXTERNAL)), seen, now)
    if isinstance(reply, StatusReply):
        return reply
    items = json.loads(reply.body)["items"]
    return {
        i["describedObject"]["name"] if "describedObject" in i else str(i["metricLabels"]): i["value"] for i in items
    }


def of_pods(metric, seen, parts="", name="*", labels=""):
    """A metric of pods in `default`."""
    query = f"labelSelector={quote(labels)}&metricLabelSelector={quote(parts)}"
    return figures(f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/{name}/{metric}?{query}", seen)


def of_pools(metric, seen, selector="", namespace="default"):
    """A metric of pools in the eyes of a namespace."""
    return figures(f"/apis/{EXTERNAL}/v1beta1/namespaces/{namespace}/{metric}?labelSelector={quote(selector)}", seen)


@pytest.mark.parametrize(
    ("metric", "parts", "expected"),
    [
        ("gpu_mem_used_bytes", "", str(3 * GIB)),
        ("gpu_mem_used_bytes", "card=1", str(GIB)),
        ("gpu_mem_used_bytes", "container in (main),node=n1", str(2 * GIB)),
        ("gpu_mem_allocated_bytes", "uuid=GPU-0", str(4 * GIB)),
        ("gpu_mem_used_ratio", "", "375m"),
        ("gpu_core_used_ratio", "card=0", "500m"),
        ("gpu_core_used_ratio", "card=1", "50m"),
    ],
)
def test_a_figure_is_over_the_parts_selected(metric, parts, expected):
    """
    Sums of bytes; ratios of what was promised, or of whole cards where no compute was.
    """
    assert {"web": expected} == of_pods(metric, picture(pod("web", HALF, OTHER)), parts)


def test_an_idle_pod_has_a_figure_and_one_that_is_unknown_has_none():
    """
    0 is known; absence is not 0, and a sum with an unknown part is unknown.
    """
    idle = ContainerCardUse("main", "GPU-0", 0, 4 * GIB, 0.5, 0, 0.0)
    seen = picture(pod("idle", idle), pod("dark", NONE), pod("half", HALF, ContainerCardUse("side", "GPU-1", 1, GIB)))
    assert {"idle": "0"} == of_pods("gpu_mem_used_bytes", seen)
    assert {"idle": "0"} == of_pods("gpu_core_used_ratio", seen)
    assert 3 == len(of_pods("gpu_mem_allocated_bytes", seen))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_figure_that_is_none_is_not_reported(wrong):
    """
    Whatever an exporter says.
    """
    seen = picture(pod("odd", ContainerCardUse("main", "GPU-0", 0, GIB, None, 0, wrong)), pod("web", HALF))
    assert ["web"] == list(of_pods("gpu_core_used_ratio", seen))


@pytest.mark.parametrize(
    ("measured", "reported"), [(955.0, True), (954.9, False), (None, False), (1000.9, True), (1002.0, False)]
)
def test_a_stale_figure_is_absent(measured, reported):
    """
    Older than three scrapes, never measured, or measured in the future.
    """
    seen = picture(pod("old", HALF, measured=measured), pod("new", HALF))
    assert (["old"] if reported else []) + ["new"] == list(of_pods("gpu_mem_used_bytes", seen))
    assert ["old", "new"] == list(of_pods("gpu_mem_allocated_bytes", seen))


def test_where_nothing_is_known_the_answer_says_why():
    """
    An error: an empty list would say nothing, and zeros would be lies.
    """
    stale = of_pods("gpu_mem_used_bytes", picture(pod("a", HALF, measured=900.0), pod("b", HALF, measured=None)))
    assert HTTPStatus.SERVICE_UNAVAILABLE == stale.status
    assert (
        "no value for any of 2 pods; default/a: "
        "its measurement from the exporter on node n1 is 100 s old (maximum 45 s)" in stale.message
    )
    dark = of_pods("gpu_mem_used_bytes", picture(pod("a", HALF)), "card=9")
    assert "card=9" in dark.message
    for seen in (MetricsSnapshot(), picture(pod("a", HALF), at=900.0)):
        for asked in (of_pods("gpu_mem_allocated_bytes", seen), of_pools("gpu_mem_pending_bytes", seen)):
            assert HTTPStatus.SERVICE_UNAVAILABLE == asked.status


def test_pods_are_chosen_by_label_or_name():
    """
    No pod at all is an empty list; a name that is none is not found.
    """
    seen = picture(pod("a", HALF, tier="x"), pod("b", HALF, tier="y"))
    assert ["b"] == list(of_pods("gpu_mem_used_bytes", seen, labels="tier notin (x)"))
    assert ["a"] == list(of_pods("gpu_mem_used_bytes", seen, name="a"))
    assert {} == of_pods("gpu_mem_used_bytes", seen, labels="tier=z")
    assert HTTPStatus.NOT_FOUND == of_pods("gpu_mem_used_bytes", seen, name="c").status


def test_what_is_waited_for_adds_up_to_the_namespace_and_is_0_where_nobody_waits():
    """
    Each pool has a figure; another namespace's pods count for the system's namespace only.
    """
    rooms = (PoolCapacity("a", 0, 1, 0), PoolCapacity("b", 0, 1, 0))
    seen = picture(
        pools=rooms, waiting=(PendingPod("default", "b", 8 * GIB), PendingPod("x", "b", GIB), PendingPod("x", "", GIB))
    )
    mine = of_pools("gpu_mem_pending_bytes", seen)
    assert {"": "0", "a": "0", "b": str(8 * GIB)} == {
        ast.literal_eval(key)["pool"]: value for key, value in mine.items()
    }
    assert str(8 * GIB) in of_pools("gpu_mem_pending_bytes", seen, "pool=b").values()
    every = of_pools("gpu_mem_pending_bytes", seen, "pool=b", SYSTEM_NAMESPACE)
    assert sorted(["0", str(GIB), str(8 * GIB)]) == sorted(every.values())


def test_slices_and_fragments_are_one_figure_for_all_pools_selected():
    """
    HorizontalPodAutoscaler adds figures up: largest slices and ratios of several pools must not be.
    """
    seen = picture(
        pools=(PoolCapacity("a", 3 * GIB, 4, 1), PoolCapacity("b", 7 * GIB, 4, 3), PoolCapacity("full", 0, 0, 0))
    )
    assert {"{}": str(7 * GIB)} == of_pools("gpu_mem_largest_free_bytes", seen)
    assert {"{}": str(3 * GIB)} == of_pools("gpu_mem_largest_free_bytes", seen, "pool!=b")
    assert {"{}": "500m"} == of_pools("gpu_fragmentation_ratio", seen)
    assert {"{}": "0"} == of_pools("gpu_fragmentation_ratio", seen, "pool=full")
    odd = picture(pools=(PoolCapacity("a", GIB, 1, float("nan")), PoolCapacity("b", GIB, 1, 0)))
    assert HTTPStatus.SERVICE_UNAVAILABLE == of_pools("gpu_fragmentation_ratio", odd).status
    unknown = of_pools("gpu_fragmentation_ratio", seen, "pool=c")
    assert HTTPStatus.NOT_FOUND == unknown.status
    assert "pools: a, b, full" in unknown.message


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (12, "12"), (0.85, "850m"), (1.5, "1500m"), (2.0**60, str(2**60)), (0.0004, "0")]
)
def test_amounts_are_written_as_kubernetes_reads_them(value, expected):
    """
    To the thousandth, which is as fine as HorizontalPodAutoscaler looks.
    """
    assert expected == format_quantity(value)


@given(st.integers(0, 2**53))
def test_whole_amounts_are_exact(value):
    """
    Bytes do not lose any.
    """
    assert str(value) == format_quantity(float(value))


def test_both_versions_say_the_same_in_their_own_words():
    """
    Shapes as in k8s.io/metrics; the stamp is the wall's clock, whatever the other one says.
    """
    target = f"/apis/{CUSTOM}/{{}}/namespaces/default/pods/*/gpu_mem_used_ratio?metricLabelSelector=card%3D0"
    old, new = (
        json.loads(build_reply(parse_request(target.format(version), (CUSTOM,)), picture(pod("a", HALF)), NOW).body)
        for version in ("v1beta1", "v1beta2")
    )
    selector = {"matchExpressions": [{"key": "card", "operator": "In", "values": ["0"]}]}
    common = {
        "describedObject": {"kind": "Pod", "namespace": "default", "name": "a", "apiVersion": "/v1"},
        "timestamp": "2027-01-15T07:59:50Z",
        "value": "500m",
    }
    assert [common | {"metricName": "gpu_mem_used_ratio", "selector": selector}] == old["items"]
    assert [common | {"metric": {"name": "gpu_mem_used_ratio", "selector": selector}}] == new["items"]
    assert "MetricValueList" == old["kind"] == new["kind"]


def of_node(metric, seen, name="*"):
    """A metric of nodes."""
    return figures(f"/apis/{CUSTOM}/v1beta2/nodes/{name}/{metric}", seen)


def of_namespace(metric, seen, name="default", parts=""):
    """A metric of a namespace."""
    target = f"/apis/{CUSTOM}/v1beta2/namespaces/{name}/metrics/{metric}?metricLabelSelector={quote(parts)}"
    return figures(target, seen)


def test_nodes_and_namespaces_have_what_their_pods_have_together():
    """
    Sums of bytes, and ratios of sums: compute of the pod without a promise counts by its whole card.
    """
    away = PodUse("default", "c", "n2", (HALF,), {}, 980.0)
    seen = MetricsSnapshot(
        995.0, {"default": (pod("a", HALF), away), "ml": (pod("b", OTHER),)}, nodes=frozenset({"n1", "n2", "n3"})
    )

    assert {"n1": str(3 * GIB), "n2": str(2 * GIB), "n3": "0"} == of_node("gpu_mem_used_bytes", seen)
    assert {"n1": str(3 * GIB)} == of_node("gpu_mem_used_bytes", seen, "n1")
    assert {"default": str(4 * GIB)} == of_namespace("gpu_mem_used_bytes", seen)
    assert {"default": str(2 * GIB)} == of_namespace("gpu_mem_used_bytes", seen, parts="node=n2")
    assert {"default": "500m"} == of_namespace("gpu_core_used_ratio", seen)
    assert {"n1": "200m", "n2": "500m"} == of_node("gpu_core_used_ratio", seen)  # (0.25 + 0.05) / (0.5 + 1)
    assert {"default": str(8 * GIB)} == of_namespace("gpu_mem_allocated_bytes", seen)
    assert {"quiet": "0"} == of_namespace("gpu_mem_used_bytes", seen, "quiet")


@pytest.mark.parametrize(
    "lacking", [pod("b", HALF, measured=None), pod("b", HALF, measured=900.0), pod("b", NONE), pod("b")], ids=range(4)
)
def test_part_of_a_sum_is_no_sum(lacking):
    """
    One pod that is not measured, or whose cards are unknown, leaves its node and its namespace without a figure.
    """
    seen = picture(pod("a", HALF), lacking)
    for problem in (of_node("gpu_mem_used_bytes", seen, "n1"), of_namespace("gpu_mem_used_bytes", seen)):
        assert HTTPStatus.SERVICE_UNAVAILABLE == problem.status
        assert "default/b" in problem.message


def test_what_has_no_figure_says_why():
    """
    A node that is not there; a ratio of nothing.
    """
    seen = picture(pod("a", HALF))
    assert HTTPStatus.NOT_FOUND == of_node("gpu_mem_used_bytes", seen, "n9").status
    assert {} == of_node("gpu_mem_used_bytes", MetricsSnapshot(995.0))
    assert "no running pod" in of_namespace("gpu_mem_used_ratio", seen, "quiet").message


def test_objects_are_described_and_discovered_by_their_scope():
    """
    A Namespace and a Node have no namespace; discovery names all three kinds.
    """
    seen = picture(pod("a", HALF))
    items = [
        json.loads(build_reply(parse_request(f"/apis/{CUSTOM}/v1beta2/{path}", (CUSTOM,)), seen, NOW).body)["items"]
        for path in ("nodes/n1/gpu_mem_used_bytes", "namespaces/default/metrics/gpu_mem_used_bytes")
    ]
    assert [{"kind": "Node", "name": "n1", "apiVersion": "/v1"}] == [each["describedObject"] for each in items[0]]
    assert [{"kind": "Namespace", "name": "default", "apiVersion": "/v1"}] == [
        each["describedObject"] for each in items[1]
    ]
    reply = build_reply(parse_request(f"/apis/{CUSTOM}/v1beta2", (CUSTOM,)), seen, NOW)
    found = {each["name"]: each["namespaced"] for each in json.loads(reply.body)["resources"]}
    named = {prefix: found[f"{prefix}/gpu_mem_used_ratio"] for prefix in ("pods", "nodes", "namespaces")}
    assert {"pods": True, "nodes": False, "namespaces": False} == named


def promised(name, phase=Phase.RUNNING, **rest):
    """A pod with 4 GiB and half the compute of one card, in the model."""
    request = ask(4, core=50, asks=(Ask("main", 4 * GIB, 50),))
    placed = Placement("n1", (Slice("GPU-0", 0, 4 * GIB, 50),))
    return Pod(name, name, request=request, placement=placed, phase=phase, **rest)


def test_running_pods_with_shares_are_joined_with_what_their_exporters_told():
    """
    Promises from the record; one that the exporter does not name is not measured; others are left out.
    """
    pods = [
        promised("told"),
        promised("untold"),
        promised("pending", Phase.PENDING),
        promised("ending", deleting=True),
        Pod("plain", "plain", phase=Phase.RUNNING, placement=Placement("n1")),
    ]
    samples = {CardKey("default", "told", "main", "GPU-0"): UseSample(GIB, 0.2)}
    found = pod_uses(pods, samples, {"n1": 990.0})
    assert {"default": (990.0, None)} == {key: tuple(each.measured for each in value) for key, value in found.items()}
    seen = MetricsSnapshot(995.0, found)
    assert {"told": "400m"} == of_pods("gpu_core_used_ratio", seen)
    assert {"told": str(4 * GIB), "untold": str(4 * GIB)} == of_pods("gpu_mem_allocated_bytes", seen)
