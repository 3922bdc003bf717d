# SPDX-License-Identifier: Apache-2.0
"""The picture of the cluster: what events do to it, whatever they are."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import node_of, pod_of, request_of
from isolation.contract.model import Cluster
from isolation.contract.names import ACK, ALLOCATION, CARDS, EVICT, MIRROR
from isolation.kube import store as store_module
from isolation.kube.core.errors import MalformedError
from isolation.kube.store import Store


def raw(thing):
    """As it comes off the wire, with what nobody reads around it."""
    return msgspec.Raw(
        json.dumps(thing | {"apiVersion": "v1", "status": thing.get("status", {}) | {"x": [1]}}).encode()
    )


def node(name, cards=2, **metadata):
    """A node of 15 GiB cards."""
    amounts = {ACK.memory: str(15 * cards), ACK.card_count: str(cards), "cpu": "8", "memory": "64Gi"}
    status = {"capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {ACK.mode_label: "cgpu"}, **metadata}, "status": status}


def pod(uid, units=2, at="", **annotations):
    """A pod of one container; `at` binds it."""
    spec = {"containers": [{"name": "main", "resources": {"limits": {ACK.memory: units}}}]}
    if at:
        spec["nodeName"] = at
    return {"metadata": {"name": f"p-{uid}", "uid": uid, "annotations": annotations}, "spec": spec}


names = st.sampled_from(["a", "b", "c"])
steps = st.one_of(
    st.tuples(st.just("node"), names, st.integers(1, 4)),
    st.tuples(st.just("node_gone"), names, st.none()),
    st.tuples(st.just("pod"), names, st.integers(0, 8)),
    st.tuples(st.just("pod_gone"), names, st.none()),
    st.tuples(st.just("keep"), st.frozensets(names), st.none()),
)


def expected_after(happened):
    """The same, the plain way: the last word about each object."""
    nodes, pods = {}, {}
    for kind, name, size in happened:
        if kind == "node":
            nodes[name] = node_of(node(name, size))
        elif kind == "pod":
            pods[name] = pod_of(pod(name, size + 1, at="n" if size % 2 else ""))
        elif kind == "node_gone":
            nodes.pop(name, None)
        elif kind == "pod_gone":
            pods.pop(name, None)
        else:
            nodes = {key: value for key, value in nodes.items() if key in name}
            pods = {key: value for key, value in pods.items() if key in name}
    return nodes, pods


def apply(store, happened):
    """The same, through the store."""
    for kind, name, size in happened:
        if kind == "node":
            store.node_is(raw(node(name, size)))
        elif kind == "pod":
            store.pod_is(raw(pod(name, size + 1, at="n" if size % 2 else "")))
        elif kind == "node_gone":
            store.node_gone(name)
        elif kind == "pod_gone":
            store.pod_gone(name)
        else:
            store.retain_nodes(name)
            store.retain_pods(name)


@given(st.lists(steps, max_size=30))
def test_the_view_is_what_was_said_last_and_changes_add_up_to_it(happened):
    """
    A listener who only adds up changes has the same picture; doubled events change nothing.
    """
    store, nodes, pods = Store(), {}, {}

    def add_up(change):
        if change.node or change.node_before:
            assert nodes.get((change.node or change.node_before).name) == change.node_before
            nodes[(change.node or change.node_before).name] = change.node
        else:
            assert pods.get((change.pod or change.pod_before).uid) == change.pod_before
            pods[(change.pod or change.pod_before).uid] = change.pod

    store.listen(add_up)
    apply(store, happened)

    expected = expected_after(happened)
    view = store.view()
    assert expected == ({n.name: n for n in view.cluster.nodes}, {p.uid: p for p in view.cluster.pods})
    assert expected == ({k: v for k, v in nodes.items() if v}, {k: v for k, v in pods.items() if v})
    apply(store, happened[-1:])
    assert view is store.view()


def test_a_view_never_changes():
    """
    Who took one keeps it, whatever happens next.
    """
    store = Store()
    store.pod_is(raw(pod("u")))
    before = store.view()
    store.pod_gone("u")

    assert (1, 0) == (len(before.cluster.pods), len(store.view().cluster.pods))


def test_a_pod_that_cannot_be_read_any_more_keeps_what_it_held_and_is_named():
    """
    Letting go of its cards would promise them twice.
    """
    store = Store()
    store.pod_is(raw(pod("u", at="n")))
    broken = pod("u", at="n")
    broken["metadata"]["creationTimestamp"] = "yesterday"
    store.pod_is(raw(broken))

    view = store.view()
    assert ("u",) == tuple(p.uid for p in view.cluster.pods)
    assert ["pod/u"] == list(view.unreadable)
    assert "metadata.creationTimestamp" in view.unreadable["pod/u"]
    store.pod_gone("u")
    assert (Cluster(), {}) == (store.view().cluster, store.view().unreadable)


def test_a_senseless_request_is_refused_by_name():
    """
    It is no pod of the model, and not forgotten either.
    """
    store = Store()
    senseless = pod("u", units="1.5")
    store.pod_is(raw(senseless))

    refused = store.view().refused["u"]
    assert "default/p-u" == refused.key
    assert "fraction" in str(refused.refusal)


def test_a_record_by_index_follows_its_node_whichever_comes_first():
    """
    The vendor's record counts cards; their UUIDs are known once the node is, and change with it.
    """
    store = Store()
    record = {ACK.allocation_annotation: '{"0":{"1":2}}'}
    store.pod_is(raw(pod("u", at="n", **record)))
    seen = [store.pods["u"].placement.slices[0].uuid]
    store.node_is(raw(node("n")))
    seen.append(store.pods["u"].placement.slices[0].uuid)
    cards = [{"uuid": f"GPU-{i}", "index": i, "total": 15 << 30} for i in range(2)]
    stated = json.dumps({"version": 1, "cards": cards})
    store.node_is(raw(node("n", annotations={CARDS: stated})))
    seen.append(store.pods["u"].placement.slices[0].uuid)

    assert ["n/1", "GPU-1"] == seen[1:]


def test_replicas_share_one_request_and_others_do_not():
    """
    Thousands of pods alike are read once; node, priority and the token's volume are their own.
    """
    store = Store()
    for uid, units, at in (("u", 2, "n"), ("v", 2, ""), ("w", 3, "")):
        made = pod(uid, units, at)
        made["spec"]["volumes"] = [{"name": f"token-{uid}", "projected": {"sources": []}}]
        made["spec"]["priority"] = len(at)
        store.pod_is(raw(made))

    assert store.pods["u"].request is store.pods["v"].request
    assert 1 == store.pods["u"].priority
    assert store.pods["u"].request != store.pods["w"].request


def test_pods_of_one_template_may_say_different_things_of_their_compute():
    """
    Annotations of the pod count, others and their order do not.
    """
    store = Store()
    for uid, said in (("u", {}), ("v", {"gpushare.dev/online": "false"}), ("w", {"x": "y"})):
        made = pod(uid, 2)
        made["metadata"]["annotations"] = said
        store.pod_is(raw(made))

    assert [True, False, True] == [store.pods[uid].request.compute.online for uid in "uvw"]
    assert store.pods["u"].request is store.pods["w"].request


def test_workloads_with_the_same_template_are_read_once(monkeypatch):
    """
    A thousand Deployments that ask for the same: each request has its own owner, the rest of it is read once.
    """
    calls = []
    monkeypatch.setattr(store_module, "request_of", lambda *a, **k: calls.append(1) or request_of(*a, **k))
    store = Store()
    for number in range(5):
        made = pod(f"p{number}", 2)
        made["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": f"app-{number}", "controller": True}]
        store.pod_is(raw(made))

    assert {f"ReplicaSet/default/app-{number}" for number in range(5)} == {
        pod.request.owner for pod in store.pods.values()
    }
    assert 1 == len(calls)


@given(
    st.lists(
        st.tuples(names, st.integers(1, 4), st.sampled_from(["", "2", "x"]), st.sampled_from(["", "o"])), max_size=8
    )
)
def test_what_a_replica_asks_is_what_it_would_ask_alone(given_pods):
    """
    The request of a pod does not depend on who was read before it.
    """
    together = Store()
    for serial, (name, units, count, owner) in enumerate(given_pods):
        made = pod(f"{name}{serial}", units)
        made["metadata"]["labels"] = {ACK.card_count: count} if count else {}
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}] if owner else []
        together.pod_is(raw(made))
        alone = Store()
        alone.pod_is(raw(made))
        uid = f"{name}{serial}"
        assert (alone.pods.get(uid), alone.view().refused.get(uid)) == (
            together.pods.get(uid),
            together.view().refused.get(uid),
        )


@given(st.sampled_from(["true", "false", ""]), st.booleans(), st.integers(0, 3))
def test_a_record_read_again_is_read_as_if_it_came_now(evict, mirror, index):
    """
    What is remembered of such a pod is all that the codec reads.
    """
    record = {ACK.allocation_annotation: json.dumps({"0": {str(index): 2}}), EVICT: evict, "other": "x" * 99}
    made = pod("u", at="n", **(record | ({MIRROR: "m"} if mirror else {})))
    made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
    stated = json.dumps({"version": 1, "cards": [{"uuid": f"GPU-{i}", "index": i, "total": 1 << 34} for i in range(4)]})
    after, before = Store(), Store()
    after.pod_is(raw(made))
    after.node_is(raw(node("n", annotations={CARDS: stated})))
    before.node_is(raw(node("n", annotations={CARDS: stated})))
    before.pod_is(raw(made))

    assert before.pods == after.pods
    assert f"GPU-{index}" == after.pods["u"].placement.slices[0].uuid


def test_our_own_record_outranks_the_vendors_and_is_not_read_twice():
    """
    Ours names cards by UUID: no node can change what it means.
    """
    store = Store()
    store.pod_is(raw(pod("u", at="n", **{ALLOCATION: "{}", ACK.allocation_annotation: '{"0":{"1":2}}'})))

    assert {} == store._by_index


@pytest.mark.parametrize(
    "text", [b"{}", b"[]", b'{"metadata":{"uid":7}}', b'{"metadata":{"uid":""}}', b"\xff", b"{" * 9999]
)
def test_an_object_without_identity_is_malformed(text):
    """
    Whatever the network sends, the answer is one kind of error.
    """
    with pytest.raises(MalformedError):
        Store().pod_is(msgspec.Raw(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=8), c, max_size=3),
        max_leaves=8,
    )
)
def test_any_spec_leaves_the_picture_whole(spec):
    """
    A pod is read, refused or unreadable; never an exception.
    """
    store = Store()
    store.pod_is(raw({"metadata": {"name": "p", "uid": "u"}, "spec": spec}))
    view = store.view()
    assert 1 == len(view.cluster.pods) + len(view.refused) + len(view.unreadable)


def test_a_listener_that_fails_stops_nobody(caplog):
    """
    The picture and the other listeners go on.
    """
    store, heard = Store(), []

    def fail(_):
        raise RuntimeError

    store.listen(fail)
    store.listen(heard.append)
    store.pod_is(raw(pod("u")))

    assert (1, 1) == (len(heard), len(store.pods))
    assert "cannot process cluster change" in caplog.text


@pytest.mark.parametrize(
    ("whole", "own", "uid"),
    [
        ({"runAsUser": 1000}, {}, 1000),
        (None, {"runAsUser": 0}, 0),
        ({"runAsUser": 5}, {"runAsUser": 7}, 7),
        ({}, {}, None),
    ],
)
def test_the_user_of_a_pod_is_read_off_the_wire(whole, own, uid):
    """An MPS server serves one user: a pod without one is placed on no node of mode mps."""
    thing = pod("u")
    thing["spec"]["securityContext"] = whole
    thing["spec"]["containers"][0]["securityContext"] = own | {"runAsNonRoot": False, "capabilities": {"drop": ["ALL"]}}
    made = Store()
    made.pod_is(raw(thing))
    assert made.pods["u"].request.uid == uid
