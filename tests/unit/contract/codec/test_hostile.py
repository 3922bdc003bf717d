# SPDX-License-Identifier: Apache-2.0
"""
Whatever a stranger sends, the codec answers with a value or with CodecError.

One sound object of every kind is damaged in every single place in turn by everything that JSON,
YAML or a careless caller can put there.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.damage import damaged, places

from isolation.contract.codec import (
    CodecError,
    decode_allocation,
    decode_cards,
    decode_vendor,
    encode_cards,
    node_of,
    objects_in,
    owner_of,
    pod_of,
    pods_of,
    request_of,
)
from isolation.contract.model import Card, Node, Pod, Refusal, Request

ALLOCATION = {
    "version": 1,
    "promise": "u",
    "cards": [{"uuid": "G", "index": 0, "bytes": 1 << 32, "core": 5}],
    "containers": [{"name": "c", "cards": [{"uuid": "G", "bytes": 4, "core": 0}]}],
}
LIMITS = {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": "30", "cpu": "1", "memory": "1Gi"}
NEED = {"key": "a", "operator": "In", "values": ["b"]}
TERMS = [{"matchExpressions": [NEED], "matchFields": [{**NEED, "key": "metadata.name"}]}]
SPEC = {
    "nodeName": "n1",
    "priority": 1,
    "nodeSelector": {"a": "b"},
    "overhead": {"cpu": "1"},
    "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}},
    "runtimeClassName": "x",
    "hostNetwork": True,
    "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]},
    },
    "volumes": [{"name": "v", "persistentVolumeClaim": {}}],
    "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"aliyun.com/gpu-mem": 2}}}],
    "containers": [
        {"name": "c", "ports": [{"hostPort": 1}], "resources": {"limits": LIMITS, "requests": {"cpu": "1"}}}
    ],
}
METADATA = {
    "name": "p",
    "namespace": "ns",
    "uid": "u",
    "creationTimestamp": "2026-11-20T22:27:57Z",
    "labels": {"aliyun.com/gpu-count": "2"},
    "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
    "annotations": {
        "gpushare.dev/allocation": json.dumps(ALLOCATION),
        "scheduler.framework.gpushare.allocation": '{"0":{"0":4}}',
    },
}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": METADATA, "spec": SPEC, "status": {"phase": "Running"}}
TEMPLATE = {"metadata": {"labels": {}}, "spec": SPEC}
DEPLOYMENT = {**POD, "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 2, "template": TEMPLATE}}
JOB = {"parallelism": 2, "completions": 1, "template": TEMPLATE}
CRON = {**POD, "apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": JOB}}}
SMALL = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
LIST = {"apiVersion": "v1", "kind": "List", "items": [SMALL, {"apiVersion": "v1", "kind": "PodList", "items": [SMALL]}]}
STATES = {"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-count": "4", "nvidia.com/gpu": "1", "cpu": "1", "pods": "9"}
NODE = {
    "metadata": {
        "name": "n1",
        "labels": {"ack.node.gpu.schedule": "cgpu"},
        "annotations": {"gpushare.dev/cards": encode_cards([Card("u", 0, 1 << 34)])},
    },
    "spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {"capacity": STATES, "allocatable": STATES, "conditions": [{"type": "Ready", "status": "True"}]},
}
JUNK = (
    *(None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 10**5000, -(10**30)),
    *("", "x", "8", "1e99", "\x00\x1b[31m", "\ud800", "9" * 5000, "[" * 5000),
    *([], {}, [None], [{}], {"a": None}, {1: 2}, [[]], (1,), b"x", object()),
)


def everything_damaged(value):
    """One copy for every place and every kind of junk."""
    return (damaged(value, path, junk) for path in places(value) for junk in JUNK)


def read(function, *arguments):
    """The answer, None for the one error that is allowed, which must be printable."""
    try:
        return function(*arguments)
    except CodecError as exc:
        if not str(exc).isprintable():
            pytest.fail(f"not fit for a terminal: {exc!r}")
        return None


def made(document):
    """What every object of a document makes."""
    return [pods_of(at.value) for _, at in objects_in(document)]


@pytest.mark.parametrize("sound", [POD, DEPLOYMENT, CRON, LIST], ids=lambda o: o["kind"])
def test_a_damaged_workload_is_planned_refused_skipped_or_an_error(sound):
    """Never another exception; the sound one is planned."""
    assert made(sound)
    for broken in everything_damaged(sound):
        read(made, broken)


def test_a_damaged_pod_is_a_pod_a_refusal_or_an_error():
    """And amounts never leave 64 bits."""
    assert isinstance(pod_of(POD), Pod)
    for broken in everything_damaged(POD):
        answer = read(pod_of, broken)
        assert isinstance(answer, Pod | Refusal | None)
        if isinstance(answer, Pod):
            assert 0 <= answer.request.card_bytes < 1 << 62
            assert 0 <= max(answer.request.cpu_milli, answer.request.memory_bytes) < 1 << 62


def test_a_damaged_node_is_a_node_or_an_error():
    """And its cards are of sizes that a machine can have."""
    assert 1 == len(node_of(NODE).cards)
    for notes in ({}, NODE["metadata"]["annotations"]):
        sound = {**NODE, "metadata": {**NODE["metadata"], "annotations": notes}}
        for broken in everything_damaged(sound):
            answer = read(node_of, broken)
            assert isinstance(answer, Node | None)
            if answer is not None:
                assert all(0 <= card.total_bytes < 1 << 62 for card in answer.cards)


@pytest.mark.parametrize("decode", [decode_allocation, decode_cards, lambda text: decode_vendor(text, {}, "n1")])
@pytest.mark.parametrize("sound", [ALLOCATION, json.loads(encode_cards([Card("u", 0, 5)])), {"0": {"1": 4}}])
def test_a_damaged_record_is_a_record_or_an_error(decode, sound):
    """As text, as it would come in an annotation."""
    for broken in everything_damaged(sound):
        try:
            text = json.dumps(broken)
        except (TypeError, ValueError):
            continue
        read(decode, text)
    for length in range(len(json.dumps(sound))):
        read(decode, json.dumps(sound)[:length])


LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(["8", "In", "c"])
)
KEYS = st.sampled_from(sorted({str(step) for o in (LIST, CRON, NODE, POD) for path in places(o) for step in path}))
ANYTHING = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=25
)


@settings(max_examples=examples(300), deadline=None)
@given(ANYTHING, ANYTHING)
def test_values_out_of_nowhere_never_break_the_codec(one, other):
    """Any nesting of any values under the names that matter."""
    assert isinstance(read(request_of, one, other), Request | Refusal | None)
    for function in (node_of, pod_of, owner_of, made):
        read(function, one)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_two_wounds_at_once_never_break_the_codec(data):
    """Two places of a sound pod damaged together."""
    broken = POD
    for _ in range(2):
        path = data.draw(st.sampled_from(list(places(broken))))
        broken = damaged(broken, path, data.draw(ANYTHING))
    read(pod_of, broken)
    read(made, broken)
