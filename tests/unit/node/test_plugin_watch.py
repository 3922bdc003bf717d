# SPDX-License-Identifier: Apache-2.0
"""The agent's view of its pods: the server's last word, from memory, never emptied by what cannot be read."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from isolation.contract.names import ALLOCATION
from isolation.kube.core.errors import MalformedError
from isolation.node.watch import NodePods

RECORD = json.dumps(
    {
        "version": 1,
        "promise": "a",
        "cards": [{"uuid": "GPU-1", "index": 0, "bytes": 1 << 30, "core": 0}],
        "containers": [{"name": "main", "cards": [{"uuid": "GPU-1", "bytes": 1 << 30, "core": 0}]}],
    }
)


def pod(uid, units="1"):
    """A pod's object with more in it than anybody reads."""
    container = {"name": "main", "image": "x", "env": [{"name": "A", "value": "b"}]}
    container["resources"] = {"limits": {"aliyun.com/gpu-mem": units, "cpu": "1"}} if units else {}
    return {
        "metadata": {"name": f"pod-{uid}", "namespace": "ml", "uid": uid, "annotations": {ALLOCATION: RECORD}},
        "spec": {"nodeName": "n", "containers": [container], "volumes": [{"name": "v"}]},
        "status": {"phase": "Pending"},
    }


def raw(thing):
    """As the watch brings it."""
    return msgspec.Raw(json.dumps(thing).encode())


@pytest.fixture
def pods():
    return NodePods(None, "n")


def test_pods_that_ask_for_shares_are_known_until_they_are_gone(pods):
    """With their record, if it is their own; one that asks for nothing any more is let go of."""
    sink = pods._pods
    for thing in (pod("a"), pod("b"), pod("c"), pod("x", units=None)):
        sink.put(raw(thing))
    assert (["ml"], None) == ([pods.get("a").namespace], pods.get("x"))
    assert ("GPU-1", None) == (pods.get("a").part("main")[0].uuid, pods.get("b").allocation)
    sink.drop(raw(pod("a")))
    sink.put(raw(pod("b", units=None)))
    assert [None, None, "c"] == [found and found.uid for found in map(pods.get, "abc")]
    sink.only(frozenset({"d"}))
    assert pods.get("c") is None


@pytest.mark.parametrize("thing", [pod("a") | {"spec": {"containers": 5}}, {"metadata": {"name": "nobody"}}])
def test_a_pod_that_cannot_be_read_keeps_what_was_known(pods, thing):
    """It must not seem to have let go of anything."""
    pods._pods.put(raw(pod("a")))
    with pytest.raises(MalformedError):
        pods._pods.put(raw(thing))
    assert pods.get("a").allocation is not None


def test_exempt_namespaces_are_unknown_until_the_server_has_named_them(pods):
    """None is not nobody: what asks for every card waits meanwhile."""
    sink, follower = pods._namespaces, pods._exempt
    sink.put(raw({"metadata": {"name": "nvidia"}}))
    assert pods.exempt() is None
    follower.synced.set()
    sink.put(raw({"metadata": {"name": "other"}}))
    sink.drop(raw({"metadata": {"name": "nvidia"}}))
    assert {"other"} == pods.exempt()
    sink.only(frozenset())
    assert frozenset() == pods.exempt()


def test_no_namespace_is_unisolated_until_the_server_has_named_it(pods):
    """Whatever is not known yet is isolated."""
    assert frozenset() == pods.unisolated()
    pods._unisolated.put(raw({"metadata": {"name": "lab"}}))
    assert {"lab"} == pods.unisolated()


def test_a_watch_counts_while_it_is_heard(pods):
    """One that is silent for longer than bookmarks take may be dead: its silence says of nobody that it is gone."""
    assert not pods.synced()
    pods.follower.synced.set()
    assert not pods.synced()
    pods.follower.heard = time.monotonic()
    assert pods.synced()
    pods.follower.heard -= 101
    assert not pods.synced()


def test_this_nodes_pods_and_namespaces_with_our_labels_are_asked_for(pods):
    selections = {name: follower._selection for name, follower in pods.followers.items()}
    assert {"watch-pods", "watch-namespaces", "watch-unisolated-namespaces"} == set(selections)
    assert "spec.nodeName=n" in selections["watch-pods"].fields.split(",")
    assert "gpushare.dev/exempt=true" == selections["watch-namespaces"].labels
    assert "gpushare.dev/unisolated=true" == selections["watch-unisolated-namespaces"].labels
