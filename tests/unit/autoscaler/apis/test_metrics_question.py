# SPDX-License-Identifier: Apache-2.0
"""What requests ask, read from their targets: recorded ones, and those that nobody honest sends."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.apis.metrics.core.catalogue import POD_METRICS, POOL_METRICS
from autoscaler.apis.metrics.core.request import (
    ALL,
    NAMESPACE,
    NODE,
    DiscoveryRequest,
    PodsRequest,
    ResourceAttributes,
    make_attributes,
    parse_request,
)
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL, StatusReply

BOTH = (CUSTOM, EXTERNAL)
BASE = f"/apis/{CUSTOM}/v1beta2/namespaces/default"
POOLS = f"/apis/{EXTERNAL}/v1beta1/namespaces/default"
SAMPLES = Path(__file__).resolve().parents[4].parent / "shared" / "samples"
here = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded payloads (../shared/samples) are not here")


def recorded(name):
    """The path that was sent."""
    return json.loads((SAMPLES / f"metrics-{name}.json").read_text())["path"]


@here
def test_what_hpa_asked_of_pods_is_understood():
    """
    The star is percent-encoded, both selectors are there.
    """
    asked = parse_request(
        recorded("hpa-apis-custom.metrics.k8s.io-v1beta2-namespaces-default-pods-STAR-gpu_mem_used_bytes"), BOTH
    )

    assert isinstance(asked, PodsRequest)
    assert ("v1beta2", "default", ALL, "gpu_mem_used_bytes") == (
        asked.version,
        asked.namespace,
        asked.pod,
        asked.metric,
    )
    assert asked.selector.matches({"app": "web2"})
    assert not asked.selector.matches({"app": "web"})
    assert asked.parts.matches({"card": "0"})
    wish = ResourceAttributes("get", CUSTOM, "v1beta2", "default", "pods", "gpu_mem_used_bytes", ALL)
    assert wish == make_attributes(asked)


@here
def test_what_hpa_asked_of_another_external_metric_names_those_there_are():
    """
    Refused as not found, with the names that would be.
    """
    path = recorded("hpa-apis-external.metrics.k8s.io-v1beta1-namespaces-default-gpu_mem_util")

    assert f"metrics: {', '.join(sorted(POOL_METRICS))}" in parse_request(path, BOTH).message
    asked = parse_request(path.replace("gpu_mem_util", "gpu_mem_pending_bytes").replace("node+in", "pool+in"), BOTH)
    assert asked.selector.text == "pool in (n1,n2),pool=a"
    wish = ResourceAttributes("list", EXTERNAL, "v1beta1", "default", "gpu_mem_pending_bytes")
    assert wish == make_attributes(asked)


@here
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("apiserver-apis-custom.metrics.k8s.io-v1beta2", DiscoveryRequest(CUSTOM, "v1beta2")),
        ("health-check-apis-external.metrics.k8s.io-v1beta1", DiscoveryRequest(EXTERNAL, "v1beta1")),
        ("apiserver-apis", None),
        ("apiserver-openapi-v2", None),
        ("apiserver-openapi-v3", None),
    ],
)
def test_what_the_aggregator_asks_is_understood_or_not_found(name, expected):
    """
    It lives with 404 where there is nothing.
    """
    asked = parse_request(recorded(name), BOTH)
    assert expected == asked if expected else HTTPStatus.NOT_FOUND == asked.status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"{BASE}/pods/*/nothing", 404),
        (f"{BASE}/nodes/n1/gpu_mem_used_bytes", 404),
        (f"{BASE}/metrics/nothing", 404),
        (f"/apis/{CUSTOM}/v1beta2/namespaces/%2A/metrics/gpu_mem_used_bytes", 400),
        (f"{BASE}/services/web/gpu_mem_used_bytes", 404),
        (f"{BASE}/metrics/gpu_mem_used_bytes?labelSelector=team%3Da", 400),
        (f"{BASE}/metrics/gpu_mem_used_bytes?metricLabelSelector=app%3Dweb", 400),
        (f"{BASE}/pods/a%2Fb", 404),
        (f"{BASE}/pods//gpu_mem_used_bytes", 404),
        (f"{BASE}/pods/*/gpu_mem_used_bytes/more", 404),
        (f"/apis/{CUSTOM}/v1beta3", 404),
        (f"/apis/{CUSTOM}/v1beta2/nodes/n1", 404),
        (f"/apis/{CUSTOM}/v1beta2/nodes/n1/nothing", 404),
        (f"/apis/{CUSTOM}/v1beta2/nodes/*/gpu_mem_used_bytes?labelSelector=zone%3Da", 400),
        (f"https://host{BASE}/pods/*/gpu_mem_used_bytes", 404),
        (f"{BASE}/pods/%FF/gpu_mem_used_bytes", 400),
        (f"{BASE}/pods/*/gpu_mem_used_bytes?labelSelector=a&labelSelector=b", 400),
        (f"{BASE}/pods/*/gpu_mem_used_bytes?labelSelector=a+b", 400),
        (f"{BASE}/pods/*/gpu_mem_used_bytes?labelSelector=%FF", 400),
        (f"{BASE}/pods/*/gpu_mem_used_bytes?metricLabelSelector=app%3Dweb", 400),
        (f"{BASE}/pods/*/gpu_mem_used_bytes?{'a=1&' * 40}", 400),
        (f"{BASE}/pods/{'x' * 254}/gpu_mem_used_bytes", 404),
        (f"{BASE}/pods/{'x' * 20000}/gpu_mem_used_bytes", 400),
        (f"{POOLS}/gpu_mem_largest_free_bytes?labelSelector=namespace%3Da", 400),
    ],
    ids=range(24),
)
def test_what_cannot_be_asked_is_refused(target, status):
    """
    Never with another question's answer.
    """
    found = parse_request(target, BOTH)
    assert isinstance(found, StatusReply)
    assert status == found.status


def test_nodes_and_namespaces_are_asked_by_their_own_paths():
    """
    As k8s.io/metrics' clients write them, and as kube-apiserver's authorizers read the same paths.
    """
    node, everywhere, namespace = (
        parse_request(f"/apis/{CUSTOM}/v1beta2/{path}", BOTH)
        for path in (
            "nodes/n1/gpu_mem_used_bytes",
            "nodes/%2A/gpu_mem_used_bytes",
            "namespaces/ml/metrics/gpu_mem_used_bytes",
        )
    )
    assert (NODE, "n1", "gpu_mem_used_bytes") == (node.kind, node.name, node.metric)
    assert (NODE, ALL) == (everywhere.kind, everywhere.name)
    assert (NAMESPACE, "ml", "gpu_mem_used_bytes") == (namespace.kind, namespace.name, namespace.metric)
    assert ResourceAttributes("get", CUSTOM, "v1beta2", "", "nodes", "gpu_mem_used_bytes", "n1") == make_attributes(
        node
    )
    assert ResourceAttributes("get", CUSTOM, "v1beta2", "ml", "metrics", "", "gpu_mem_used_bytes") == make_attributes(
        namespace
    )


def test_nodes_are_not_shown_through_a_namespace():
    """
    An autoscaler of a tenant would ask so, and its status would show what other tenants use.
    """
    found = parse_request(f"{BASE}/nodes/n1/gpu_mem_used_bytes", BOTH)
    assert HTTPStatus.NOT_FOUND == found.status
    assert "its own Namespace" in found.message


def test_a_group_that_is_not_served_is_not_there():
    """
    Each is opt-in.
    """
    assert isinstance(parse_request(f"/apis/{EXTERNAL}/v1beta1", (CUSTOM,)), StatusReply)
    assert isinstance(parse_request(f"/apis/{EXTERNAL}/v1beta1", BOTH), DiscoveryRequest)


@given(st.text(max_size=80), st.sampled_from(["", "/", f"{BASE}/pods/*/{next(iter(POD_METRICS))}?", f"{POOLS}/"]))
def test_any_target_is_a_question_or_a_problem(text, prefix):
    """
    Nothing that a client sends breaks the reading.
    """
    assert parse_request(prefix + text, BOTH) is not None
