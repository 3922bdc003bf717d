# SPDX-License-Identifier: Apache-2.0
"""What `explain` reads quickly is what the scheduler's store would hold: the same nodes, the same pods, in order."""

from __future__ import annotations

import copy
import json
import random

import msgspec
import pytest
from support.views_stage import node_json, pod_json

from dashboards.terminal.read.lists import Lists
from dashboards.terminal.read.whole_lists import WholeLists
from isolation.contract.model import Mode
from isolation.contract.names import ACK, AGENT, ALLOCATION, CARDS, EVICT, MIRROR, POOL, RESERVATION
from isolation.kube.core.errors import MalformedError
from isolation.kube.store import Store

VENDOR = ACK.allocation_annotation
TAINTS = [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "gone", "effect": "NoExecute"}]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "rs", "controller": True}


def nodes():
    """Of every mode and state, alike and not, with and without an agent's record."""
    made = [node_json(f"n-{i}", 4, 15) for i in range(4)]
    made += [node_json(f"s-{i}", 2, 15, mode="share", **{POOL: "p", ACK.model_labels[0]: "T4"}) for i in range(2)]
    made += [
        node_json("c-0", mode="core_mem"),
        node_json("none-0", mode="none"),
        node_json("empty-0"),
        node_json("empty-1"),
    ]
    made[-2]["metadata"]["annotations"][CARDS] = '{"version": 1, "cards": []}'
    for i in range(3):
        bare = node_json(f"b-{i}", 4, 15, **({} if i else {ACK.choice_label: "spread"}))
        del bare["metadata"]["annotations"]
        made.append(bare)
    leaving, sick, broken = node_json("l-0"), node_json("n-9", 4, 15), node_json("n-8", 4, 15)
    leaving["metadata"]["annotations"][AGENT] = "stopping"
    sick |= {"spec": {"unschedulable": True, "taints": TAINTS}}
    sick["status"] = sick["status"] | {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    broken["metadata"]["annotations"][CARDS] = '{"version": 9}'
    return [*made, leaving, sick, broken]


def pods():
    """Bound and waiting, of controllers and bare, with every kind of record, with rules and without."""
    made = [pod_json(f"p-{i}", f"n-{i % 4}", 2, (i % 4,)) for i in range(6)]
    made += [pod_json(f"w-{i}", units=4, cards=(0, 1)) for i in range(2)]
    for number, one in enumerate(made):
        if number % 3:
            one["metadata"]["ownerReferences"] = [OWNER | {"uid": f"rs-{number % 2}"}]
    marks = ({EVICT: "false"}, {MIRROR: "x"}, {RESERVATION: "r"}, {VENDOR: '{"0": {"1": 2}}'}, {ALLOCATION: "{"})
    for number, mark in enumerate(marks):
        one = pod_json(f"m-{number}", "n-1", 2)
        if VENDOR in mark:
            del one["metadata"]["annotations"][ALLOCATION]
        one["metadata"] |= {"annotations": one["metadata"]["annotations"] | mark, "ownerReferences": [OWNER]}
        made.append(one)
    odd = [pod_json(f"o-{number}", "n-2", 3) for number in range(7)]
    odd[0]["spec"]["nodeSelector"] = {"zone": "a"}
    odd[1]["spec"]["tolerations"] = [{"key": "k", "operator": "Exists"}]
    odd[2]["spec"] |= {"priority": 7, "preemptionPolicy": "Never", "hostNetwork": True}
    odd[3]["spec"]["volumes"] = [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "token"}]
    odd[4]["spec"]["initContainers"] = [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "2"}}}]
    odd[5]["metadata"]["labels"][ACK.card_count] = "2"  # three units over two cards: no sense, and yet it holds cards
    odd[6]["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    plain = {"metadata": {"name": "cpu", "uid": "cpu"}, "spec": {"containers": [{"name": "a"}], "nodeName": "n-3"}}
    return [*made, *odd, plain, {**pod_json("done", "n-0"), "status": {"phase": "Succeeded"}}]


def both(lists):
    """Readings of the same lists by the store and quickly; `MalformedError` for each object that is refused."""
    store, quick, refused = Store(), WholeLists(), []
    for takes, objects in zip(((store.node_is, quick.node), (store.pod_is, quick.pod)), lists, strict=True):
        for one in objects:
            raw = msgspec.Raw(one if isinstance(one, bytes) else json.dumps(one).encode())
            outcome = []
            for take in takes:
                try:
                    take(raw)
                    outcome.append("")
                except MalformedError as exc:
                    outcome.append(str(exc))
            refused.append(outcome)
    return store, quick, refused


def same(lists):
    """Whether both are equal, and in the same order."""
    store, quick, refused = both(lists)
    assert [first for first, _ in refused] == [second for _, second in refused]
    expected, actual = store.view(), quick.view()
    assert [one.name for one in expected.cluster.nodes] == [one.name for one in actual.cluster.nodes]
    for known, found in zip(expected.cluster.nodes, actual.cluster.nodes, strict=True):
        assert known == found
    for known, found in zip(expected.cluster.pods, actual.cluster.pods, strict=True):
        assert known == found
        assert known.request == found.request
    assert expected.unreadable == actual.unreadable
    assert expected.refused == actual.refused
    return actual


def test_a_cluster_is_read_as_the_store_reads_it():
    """
    Nodes of every kind, pods of every kind: equal in every field.
    """
    view = same((nodes(), pods()))
    assert len(nodes()) == len(view.cluster.nodes)
    assert 20 < len(view.cluster.pods)


def test_the_quick_way_is_taken(monkeypatch):
    """
    Ordinary objects never reach the store's reader, or nothing would be won.
    """
    for name in ("node_is", "pod_is"):
        monkeypatch.setattr(Store, name, lambda _self, raw: pytest.fail(f"read slowly: {bytes(raw)[:80]}"))
    quick = WholeLists()
    for one in [node_json(f"n-{i}", 4, 15) for i in range(3)]:
        quick.node(msgspec.Raw(json.dumps(one).encode()))
    for one in [pod_json(f"p-{i}", f"n-{i}", 2, (i,)) for i in range(3)]:
        quick.pod(msgspec.Raw(json.dumps(one).encode()))
    assert (3, 3) == (len(quick.view().cluster.nodes), len(quick.view().cluster.pods))


ODD = (None, 0, 1, -1, 1.0, 1.5, True, "", "x", "8", "X y", "a/b", [], {}, [None], [1], {"a": None}, {"a": 1}, 1 << 40)


def places(value, path=()):
    """Every place in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


def spoilt(dice, document):
    """The document with one place changed, or gone."""
    made = copy.deepcopy(document)
    *way, last = dice.choice([path for path in places(made) if path])
    parent = made
    for step in way:
        parent = parent[step]
    if dice.random() < 0.3:
        del parent[last]
    else:
        parent[last] = dice.choice(ODD)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_odd_objects_are_read_as_the_store_reads_them(seed):
    """
    Hundreds of nodes and pods with something wrong in each, among sound ones: no more and no less is believed of them.
    """
    dice = random.Random(seed)  # noqa: S311 (cases, no secrets)
    fleet, tenants = nodes(), pods()
    odd_nodes = [spoilt(dice, dice.choice(fleet)) for _ in range(120)]
    odd_pods = [spoilt(dice, dice.choice(tenants)) for _ in range(250)]
    for number, one in enumerate(odd_nodes + odd_pods):  # most under names of their own
        if isinstance(one.get("metadata"), dict) and dice.random() < 0.8 and one["metadata"].get("uid"):
            one["metadata"] |= {"uid": f"odd-{number}"} | ({"name": f"odd-{number}"} if number < 120 else {})
    same(([*fleet, *odd_nodes], [*tenants, *odd_pods]))


@pytest.mark.parametrize(
    "raw", [b"7", b"[]", b"{}", b'{"metadata":3}', b'{"metadata":{"name":"\xff"}}', b'{"metadata":'], ids=range(6)
)
def test_what_is_no_object_is_refused_by_both(raw):
    """
    With the same words.
    """
    same(([raw], [raw]))


def test_an_unreadable_record_beside_readable_ones_is_what_the_kubelet_states():
    """
    `top` too: never the cards of a node that only looks alike.
    """
    good, bad = node_json("n-0", 2, 15), node_json("n-1", 2, 15)
    good["metadata"]["annotations"][CARDS] = good["metadata"]["annotations"][CARDS].replace(
        '"reserved":0', '"reserved":9'
    )
    bad["metadata"]["annotations"][CARDS] = "{"
    lists, store = Lists(), Store()
    for one in (good, bad):
        raw = msgspec.Raw(json.dumps(one).encode())
        store.node_is(raw)
        found = lists.node(raw)
    assert Mode.CGPU == found.mode
    assert store.nodes["n-1"].cards == found.cards
