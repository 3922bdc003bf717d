# SPDX-License-Identifier: Apache-2.0
"""
A Kubernetes pod as who it is and where it is, and the records that say so.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import (
    CodecError,
    decode_allocation,
    decode_vendor,
    encode_allocation,
    encode_vendor,
    pod_of,
    request_of,
)
from isolation.contract.codec.cursor import At
from isolation.contract.codec.pod import seconds_of
from isolation.contract.model import Ask, Card, Node, Part, Phase, Placement, Pod, Refusal, Request, Slice
from isolation.contract.quantity import GIB, MIB

SAMPLES = Path(__file__).resolve().parents[4].parent / "shared" / "samples"
OURS, ACKS = "gpushare.dev/allocation", "scheduler.framework.gpushare.allocation"
ON_TWO = Placement("n1", (Slice("GPU-a", 0, 4 * GIB), Slice("GPU-b", 2, 4 * GIB)))


def container(name="c", amount=8):
    """A container that asks for memory of cards."""
    return {"name": name, "resources": {"limits": {"aliyun.com/gpu-mem": amount}}}


def pod(annotations=None, node="n1", count="2", containers=None, phase="Running", **metadata):
    """A pod of 8 GiB over two cards."""
    return {
        "metadata": {
            "uid": "u1",
            "name": "p",
            "labels": {"aliyun.com/gpu-count": count},
            "annotations": annotations or {},
            **metadata,
        },
        "spec": {"nodeName": node, "containers": containers or [container()], "priority": 7},
        "status": {"phase": phase},
    }


def request(**changes):
    """The request of that pod."""
    raw = pod(**changes)
    return request_of(raw["metadata"], raw["spec"])


def recorded(name):
    """The object of a recorded admission review."""
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    body = json.loads(path.read_text())["body"]["request"]
    return body["object"] or body["oldObject"]


def test_a_recorded_pod_of_a_replica_set_is_read_as_it_was():
    """Owner, phase, node and amount; the node alone says nothing of cards."""
    read = pod_of(recorded("admission-validate-delete-pods-owned.json"))
    assert ("gpu-2", Phase.RUNNING, GIB, True) == (
        read.placement.node,
        read.phase,
        read.request.card_bytes,
        read.evictable,
    )
    assert read.request.owner.startswith("ReplicaSet/default/web2-")
    assert () == read.placement.slices


def test_a_recorded_pod_that_was_not_admitted_yet_is_pending():
    """No UID, no node, no record."""
    raw = recorded("admission-validate-create-pods.json")
    read = pod_of(raw)
    assert (None, Phase.PENDING, 8 * GIB) == (read.placement, read.phase, read.request.card_bytes)


def test_our_record_reads_back_as_it_was_written():
    """Cards by UUID, the promise's id, and what each container may use of each card."""
    text = encode_allocation("u1", request(), ON_TWO)
    allocation = decode_allocation(text)
    assert ("u1", ON_TWO.slices) == (allocation.promise, allocation.slices)
    assert (Part("c", ON_TWO.slices),) == allocation.parts
    assert ON_TWO == pod_of(pod({OURS: text})).placement


def test_a_record_of_whole_cards_gives_every_container_its_own():
    """In order; an init container uses those of whoever comes after it."""
    asks = (Ask("i", whole=1, init=True), Ask("a", whole=1), Ask("b", whole=2))
    cards = tuple(Slice(f"GPU-{i}", i, 16 * GIB, 100) for i in range(3))
    text = encode_allocation("u1", Request(cards=3, whole=True, asks=asks), Placement("n1", cards))
    assert (Part("i", cards[:1]), Part("a", cards[:1]), Part("b", cards[1:])) == decode_allocation(text).parts


def test_a_whole_card_of_a_sidecar_is_nobody_elses():
    """It keeps running while the init container after it and the app use the cards that follow."""
    asks = (Ask("i", whole=2, init=True), Ask("s", whole=1), Ask("j", whole=2, init=True), Ask("a", whole=1))
    cards = tuple(Slice(f"GPU-{i}", i, 16 * GIB, 100) for i in range(3))
    text = encode_allocation("u1", Request(cards=3, whole=True, asks=asks), Placement("n1", cards))
    parts = (Part("i", cards[:2]), Part("s", cards[:1]), Part("j", cards[1:]), Part("a", cards[1:2]))
    assert parts == decode_allocation(text).parts


@pytest.mark.parametrize("card", [{"uuid": "GPU-z"}, {"uuid": "GPU-a", "bytes": 5 * GIB}, {"uuid": "GPU-a", "core": 5}])
def test_a_container_cannot_have_more_than_its_pod(card):
    """Such a record was not written by us."""
    record = json.loads(encode_allocation("u1", request(), ON_TWO))
    record["containers"][0]["cards"] = [card]
    with pytest.raises(CodecError, match="containers"):
        decode_allocation(json.dumps(record))


def test_the_vendors_record_reads_back_as_it_was_written():
    """Containers by their index in the spec, cards by theirs, amounts in units."""
    two = [container("a", 4), {"name": "b"}, container("c", 2)]
    text = encode_vendor(request(containers=two), ON_TWO, ["a", "b", "c"])
    assert {"0": {"0": 2, "2": 2}, "2": {"0": 1, "2": 1}} == json.loads(text)
    uuids = {0: "GPU-a", 2: "GPU-b"}
    assert (Slice("GPU-a", 0, 3 * GIB), Slice("GPU-b", 2, 3 * GIB)) == decode_vendor(text, uuids, "n1")


def test_the_vendors_record_counts_containers_without_init_containers():
    """A container's index is that in `spec.containers`, also behind init containers with shares of their own."""
    spec = {"initContainers": [container("fetch", 2)], "containers": [{"name": "mesh"}, container("main", 6)]}
    asked = request_of(pod(count="1")["metadata"], spec)

    assert {"fetch": -1, "main": 1} == {ask.container: ask.position for ask in asked.asks}


def test_the_vendors_record_gets_its_uuids_from_the_node():
    """And made-up ones, stable, where the node is unknown."""
    raw = pod({ACKS: '{"0":{"0":4,"2":4}}'})
    n1 = Node("n1", tuple(Card(f"GPU-{i}", i, 16 * GIB) for i in range(4)))
    assert ["GPU-0", "GPU-2"] == [part.uuid for part in pod_of(raw, {"n1": n1}).placement.slices]
    assert ["n1/0", "n1/2"] == [part.uuid for part in pod_of(raw).placement.slices]


def test_the_vendors_units_follow_the_cluster():
    """4 units of 256 MiB are 1 GiB."""
    assert GIB == decode_vendor('{"0":{"1":4}}', {}, "n1", unit_bytes=256 * MIB)[0].bytes


def test_amounts_are_believed_from_the_spec_not_from_the_record():
    """The API server keeps the spec; an annotation can be edited to hold less than it takes."""
    forged = encode_allocation("u1", request(), ON_TWO).replace(str(4 * GIB), "1")
    assert [4 * GIB, 4 * GIB] == [part.bytes for part in pod_of(pod({OURS: forged})).placement.slices]


@pytest.mark.parametrize(
    "annotations",
    [
        {OURS: "x"},
        {OURS: '{"version":1,"promise":"u","cards":[],"containers":[]}'},
        {OURS: '{"version":9}'},
        {ACKS: '{"0":{"0":8}}'},
        {ACKS: '{"0":{"-1":4,"2":4}}'},
        {ACKS: '{"0":{"0":4.5,"2":4}}'},
        {ACKS: "{}"},
        {},
    ],
)
def test_a_record_that_cannot_be_believed_leaves_the_cards_unknown(annotations):
    """Bound, but on no card that we could name; never an invented one."""
    assert Placement("n1") == pod_of(pod(annotations)).placement


def test_a_record_on_a_pod_that_is_bound_nowhere_holds_nothing():
    """Anybody can write an annotation; only the binding makes it true."""
    assert pod_of(pod({OURS: encode_allocation("u1", request(), ON_TWO)}, node="")).placement is None


def test_a_senseless_request_is_refused_unless_the_pod_holds_cards_already():
    """What it holds by record, it holds; admitted before our rules, perhaps."""
    odd = {"containers": [container("c", 7)]}
    assert isinstance(pod_of(pod(**odd)), Refusal)
    held = pod_of(pod({ACKS: '{"0":{"0":4,"1":3}}'}, **odd))
    assert [4 * GIB, 3 * GIB] == [part.bytes for part in held.placement.slices]
    assert (2, 4 * GIB) == (held.request.cards, held.request.card_bytes)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, False),
        ({"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}]}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet", "name": "r"}]}, False),
        ({"ownerReferences": [{"kind": "DaemonSet", "name": "r", "controller": True}]}, False),
        ({"ownerReferences": [{"kind": "Node", "name": "n1", "controller": True}]}, False),
    ],
)
def test_only_pods_that_something_makes_again_elsewhere_are_evictable(metadata, expected):
    """A bare pod would be gone; a DaemonSet's would come back on the same node."""
    assert expected == pod_of(pod(**metadata)).evictable


def test_a_pod_can_opt_out_of_being_moved():
    """By annotation, with the text false."""
    owned = {"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}]}
    assert not pod_of(pod({"gpushare.dev/evict": "false"}, **owned)).evictable
    assert pod_of(pod({"gpushare.dev/evict": "true"}, **owned)).evictable


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Succeeded", Phase.DONE), ("Failed", Phase.DONE), ("Pending", Phase.PENDING), ("Unknown", Phase.RUNNING)],
)
def test_only_ended_pods_hold_nothing(phase, expected):
    """A pod on a lost node holds what it held."""
    assert expected == pod_of(pod(phase=phase)).phase


def test_deletion_priority_and_age_are_kept():
    """Times are seconds since 1970."""
    read = pod_of(pod(deletionTimestamp="2026-11-20T22:27:57Z", creationTimestamp="2026-11-20T22:27:57Z"))
    assert (True, 7, 1795213677.0) == (read.deleting, read.priority, read.created)


@given(st.integers(0, 7_000_000_000))
def test_times_are_read_exactly(seconds):
    """The calendar agrees with the standard library's, leap years included."""
    utc = datetime.fromtimestamp(seconds, UTC)
    assert seconds == seconds_of(At(utc.strftime("%Y-%m-%dT%H:%M:%SZ")))


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "0000-01-31T12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00+01:00",
        "2026-01-31 12:00:00Z",
        "20260131T120000Z",
        "2026-W05-6",
        "\u0662026-01-31T12:00:00Z",
    ],
)
def test_a_time_that_is_none_is_an_error(text):
    """Kubernetes writes one spelling of ISO 8601, in UTC; nothing else is guessed."""
    with pytest.raises(CodecError, match="expected a time"):
        pod_of(pod(creationTimestamp=text))


def test_fractions_of_a_second_are_read():
    """MicroTime has six digits; Go writes up to nine."""
    assert 1795213677.25 == pod_of(pod(creationTimestamp="2026-11-20T22:27:57.250000Z")).created
    assert 1795213677.25 == pod_of(pod(creationTimestamp="2026-11-20T22:27:57.250000000Z")).created


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_what_a_pod_holds_is_the_same_by_either_record(amounts, count):
    """Both records lead to the same slices for pods of app containers only."""
    containers = [container(f"c{i}", amount * count) for i, amount in enumerate(amounts)]
    asked = request(containers=containers, count=str(count))
    placement = Placement("n1", tuple(Slice(f"n1/{i}", i, asked.card_bytes) for i in range(count)))
    ours = {OURS: encode_allocation("u1", asked, placement)}
    theirs = {ACKS: encode_vendor(asked, placement, [c["name"] for c in containers])}
    for record in (ours, theirs):
        read = pod_of(pod(record, containers=containers, count=str(count)))
        assert isinstance(read, Pod)
        assert placement == read.placement
