# SPDX-License-Identifier: Apache-2.0
"""The fleet that the views show, from the nodes and pods of an API server's lists."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from support.views_harness import node_json, pod_json

from dashboards.terminal.read.api_server import read_into
from dashboards.terminal.read.cluster import fleet_nodes, fleet_pods
from isolation.contract.model import Mode
from isolation.contract.names import ACK, AGENT, ALLOCATION, CARDS, DRAIN, POOL
from isolation.contract.quantity import GIB
from isolation.kube.store import Store


def view_of(nodes=(), pods=()):
    """The store's view after these lists."""
    store = Store()
    for node in nodes:
        store.node_is(msgspec.Raw(json.dumps(node).encode()))
    for pod in pods:
        store.pod_is(msgspec.Raw(json.dumps(pod).encode()))
    return store.view()


def the_pod(pod):
    """The pod in a fleet with one node of four named cards; None if it is not in the fleet."""
    return next(iter(fleet_pods(view_of([node_json("n-0", 4, 15)], [pod]))), None)


def cards_of(pod):
    """Card and GiB of each slice."""
    return [(part.uuid, part.index, part.bytes // GIB) for part in pod.slices]


def vendor_pod(name, **annotations):
    """A pod with the vendor's record, by index."""
    pod = pod_json(name, "n-0", 6)
    pod["metadata"]["annotations"] = annotations | {ACK.allocation_annotation: json.dumps({"0": {"1": 6}})}
    return pod


def changed_record(name, units, old, new):
    """A pod whose allocation record was changed."""
    pod = pod_json(name, "n-0", units)
    annotations = pod["metadata"]["annotations"]
    annotations[ALLOCATION] = annotations[ALLOCATION].replace(old, new)
    return pod


LIMITS = {"resources": {"limits": {ACK.memory: 9}, "requests": {ACK.memory: 9}}}


@pytest.mark.parametrize(
    ("pod", "cards"),
    [
        (pod_json("plain", "n-0", 8, (0, 1)), [("GPU-n-0-0", 0, 4), ("GPU-n-0-1", 1, 4)]),
        (vendor_pod("vendor"), [("GPU-n-0-1", 1, 6)]),
        (vendor_pod("broken", **{ALLOCATION: "{"}), []),
        (changed_record("early", 5, "GPU-n-0-0", "n-0/0"), [("GPU-n-0-0", 0, 5)]),
        (changed_record("wrong-amount", 3, str(3 * GIB), str(30 * GIB)), [("GPU-n-0-0", 0, 3)]),
        (pod_json("init", "n-0", 3, initContainers=[{"name": "before", **LIMITS}]), [("GPU-n-0-0", 0, 9)]),
        (pod_json("lost", "gone", 3), [("GPU-gone-0", 0, 3)]),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
def test_a_bound_pod_has_the_cards_of_its_record_and_the_amounts_of_its_spec(pod, cards):
    """
    By either record; a card that had no name yet when the record was written has the name that its node gives it.
    """
    found = the_pod(pod)
    assert (cards, pod["spec"]["nodeName"]) == (cards_of(found), found.node)


def test_a_pending_pod_has_what_it_requests():
    """
    Cards, bytes of each, and no node.
    """
    found = the_pod(pod_json("waits", "", 8, (0, 1)))
    assert (2, 4 * GIB, 0, False) == (found.wanted.cards, found.wanted.bytes, found.wanted.core, found.wanted.whole)
    assert ("", ()) == (found.node, found.slices)


def test_whole_cards_are_counted():
    """
    Which of them is not in the record of a pod with shares.
    """
    found = the_pod(
        pod_json("whole", "n-0", 3, containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 2}}}])
    )
    assert (2, True, ()) == (found.wanted.cards, found.wanted.whole, found.slices)


@pytest.mark.parametrize("where", ["", "n-0"])
def test_a_pod_with_an_invalid_request_says_why(where):
    """
    Three units over two cards; bound by something else, it is on its node.
    """
    pod = pod_json("odd", where, 3, (0, 1))
    pod["metadata"]["annotations"] = {}
    found = the_pod(pod)
    assert ("odd", "team", where, ()) == (found.name, found.namespace, found.node, found.slices)
    assert "divide evenly" in found.fault


def test_pods_without_cards_and_pods_that_have_ended_are_not_of_the_fleet():
    """
    Nor is a pod that cannot be read.
    """
    ended = pod_json("ended", "n-0", 3) | {"status": {"phase": "Succeeded"}}
    text = pod_json("text", "", 3, containers=[{"name": "main", "resources": {"limits": {ACK.memory: []}}}])
    without = pod_json("without", "n-0", 3, containers=[{"name": "main"}])
    view = view_of([], [ended, text, without])
    assert [] == fleet_pods(view)
    assert ["pod/uid-text"] == list(view.unreadable)


def without_annotations(node):
    """A node whose agent has not named its cards."""
    del node["metadata"]["annotations"]
    return node


def annotated(node, name, value):
    """A node with one annotation changed."""
    node["metadata"]["annotations"][name] = value
    return node


WHOLE = {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi"}
NOT_READY = {"status": node_json("n-5", 1)["status"] | {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


@pytest.mark.parametrize(
    ("node", "mode", "cards", "state"),
    [
        (node_json("n-1", 4, 15), Mode.CGPU, ["GPU-n-1-0", "GPU-n-1-1", "GPU-n-1-2", "GPU-n-1-3"], ""),
        (without_annotations(node_json("n-2", 2, 15)), Mode.CGPU, ["n-2/0", "n-2/1"], ""),
        (node_json("n-4", 1) | {"spec": {"unschedulable": True}}, Mode.CGPU, ["GPU-n-4-0"], "cordoned"),
        (node_json("n-3", 1) | {"spec": {"taints": [{"key": DRAIN}]}}, Mode.CGPU, ["GPU-n-3-0"], "draining"),
        (node_json("n-5", 1) | NOT_READY, Mode.CGPU, ["GPU-n-5-0"], "not ready"),
        (annotated(node_json("n-6", 1), AGENT, "stopping"), Mode.CGPU, ["GPU-n-6-0"], "no agent"),
        (annotated(node_json("n-7", 2, 15), CARDS, '{"version": 9}'), Mode.CGPU, ["n-7/0", "n-7/1"], ""),
        (node_json("n-10", 1, mode="core_mem"), Mode.CORE_MEM, ["GPU-n-10-0"], ""),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_node_has_its_cards_its_mode_and_its_state(node, mode, cards, state):
    """
    An unreadable record leaves what the kubelet states.
    """
    [found] = fleet_nodes(view_of([node]))
    assert (node["metadata"]["name"], mode, cards) == (found.name, found.mode, [card.uuid for card in found.cards])
    assert (state, "192.0.2.7") == (found.state, found.address)


def test_a_node_of_whole_cards_and_a_pool_are_shown():
    """
    A label names the model and the pool.
    """
    whole = without_annotations(node_json("n-8", mode="default"))
    whole["status"] |= {"capacity": WHOLE, "allocatable": WHOLE}
    labelled = node_json("n-3", 2, 15, **{POOL: "p", "aliyun.accelerator/nvidia_name": "Tesla-T4"})
    first, second = fleet_nodes(view_of([whole, labelled]))
    assert (Mode.EXCLUSIVE, 4) == (first.mode, len(first.cards))
    assert ("p", {"Tesla-T4"}) == (second.pool, {card.model for card in second.cards})


def test_nodes_that_serve_no_cards_are_not_of_the_fleet():
    """
    By their label, or because they have none.
    """
    empty = annotated(node_json("empty"), CARDS, '{"version": 1, "cards": []}')
    assert [] == fleet_nodes(view_of([node_json("n-9", mode="none"), empty]))


def test_an_object_that_cannot_be_identified_is_a_note_and_the_others_are_read():
    """
    One note for all of a list.
    """
    broken = [b"7", b"[]", b"{}", b'{"metadata": 3}', b'{"metadata":{"name":"\xff"}}', b'{"metadata":']
    store, notes = Store(), []

    async def objects():
        for raw in [*broken, json.dumps(node_json("n-0")).encode()]:
            yield msgspec.Raw(raw)

    asyncio.run(read_into(store.node_is, objects(), notes))
    assert ["n-0"] == list(store.nodes)
    assert 1 == len(notes)
    assert notes[0].startswith("6 objects")
