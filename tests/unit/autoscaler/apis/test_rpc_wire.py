# SPDX-License-Identifier: Apache-2.0
"""
Nodes and pods as Go's Kubernetes writes them, and rubbish.

The two messages were written by k8s.io/api v0.36.2 (`Pod.Marshal`, `Node.Marshal`), every kind of field that is
read here among others that are not.
"""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.apis.rpc.core.wire.core import UnreadableError, node_bytes, node_json, pod_json
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.node import node_of
from isolation.contract.codec.request import request_of
from isolation.contract.model import Mode, Requirement, Taint, Toleration
from isolation.contract.protobuf import Wire
from isolation.contract.quantity import GIB, MIB

POD = base64.b64decode(
    "CnEKBmNoYXQtNxIAGgRkZW1vIgAqA3UtMTIAOABCCAiA8J3HBhAAWhkKFGFsaXl1bi5jb20vZ3B1LWNvdW50EgEyWgsKA2FwcBIE"
    "Y2hhdGoiCgpSZXBsaWNhU2V0GgRjaGF0IgN1LTAqB2FwcHMvdjEwARLAAwoPCgRkYXRhEgdSBQoBYxAAEqoBCgRtYWluEgF4KgAy"
    "CgoAEFAYUCIAKgA6BgoBQRIBYkJ5ChoKEmFsaXl1bi5jb20vZ3B1LW1lbRIECgIzMAoOCgNjcHUSBwoFMTUwMG0KDwoGbWVtb3J5"
    "EgUKAzJHaRIaChJhbGl5dW4uY29tL2dwdS1tZW0SBAoCMzASDQoDY3B1EgYKBDUwMG0SDwoGbWVtb3J5EgUKAzFHaWoAcgCAAQCI"
    "AQCQAQCiAQAaBkFsd2F5czIAOgkKBHpvbmUSAWFCAEoAUgBYAWAAaACCAQCKAQCSATcKJwolCiMKIQoXZ3B1c2hhcmUuZGV2L2Nh"
    "cmQtdW5pdHMSAkd0GgIxNBoMEgoIARIGGgR6b25lmgESZ3B1c2hhcmUtc2NoZWR1bGVyogE1CgRzaWRlEgF5KgBCDxINCgNjcHUS"
    "BgoEMTAwbWoAcgCAAQCIAQCQAQCiAQDCAQZBbHdheXOyARsKA2dwdRIGRXhpc3RzGgAiCk5vU2NoZWR1bGXCAQCCAhAKBm1lbW9y"
    "eRIGCgQ2NE1pigIXCAESBHpvbmUaDURvTm90U2NoZWR1bGWyAgMKAWcaEwoAGgAiACoAMgBKAFoAcgCIAQA="
)
NODE = base64.b64decode(
    "CjwKBWdwdS0xEgAaACIAKgAyADgAQgBaHQoVYWNrLm5vZGUuZ3B1LnNjaGVkdWxlEgRjZ3B1YgYKAWESAWISKgoAEgAaCmF3czov"
    "Ly9pLTEgASoWCgNncHUSA3llcxoKTm9TY2hlZHVsZRqUAgobChRhbGl5dW4uY29tL2dwdS1jb3VudBIDCgEyChoKEmFsaXl1bi5j"
    "b20vZ3B1LW1lbRIECgIzMAoKCgNjcHUSAwoBNAoQCgZtZW1vcnkSBgoEMTZHaQoNCgRwb2RzEgUKAzExMBIbChRhbGl5dW4uY29t"
    "L2dwdS1jb3VudBIDCgEyEhoKEmFsaXl1bi5jb20vZ3B1LW1lbRIECgIzMBIOCgNjcHUSBwoFMzUwMG0SEAoGbWVtb3J5EgYKBDE1"
    "R2kSDQoEcG9kcxIFCgMxMTAaACIdCgVSZWFkeRIEVHJ1ZRoICIDwnccGEAAiACoAMgAyBAoCCAA6GwoAEgAaACIAKgAyADoHdjEu"
    "MzYuMkIASgBSAA=="
)


def test_a_pod_that_go_has_written_asks_what_its_json_would():
    """
    Amounts of containers, sidecars and overhead, the cards of the label, rules, and what placement cannot weigh.
    """
    pod = pod_json(POD)

    request = request_of(pod["metadata"], pod["spec"])

    assert ("chat-7", "demo", "u-1") == tuple(pod["metadata"][key] for key in ("name", "namespace", "uid"))
    assert (2, 15 * GIB, 600, GIB + 64 * MIB) == (
        request.cards,
        request.card_bytes,
        request.cpu_milli,
        request.memory_bytes,
    )
    wanted = (Requirement("gpushare.dev/card-units", "Gt", ("14",)), Requirement("zone", "In", ("a",)))
    assert [set(wanted)] == [set(term) for term in request.rules.terms]
    assert Toleration("gpu", "", "NoSchedule", exists=True) in request.rules.tolerations
    assert "ReplicaSet/demo/chat" == request.owner
    assert {
        "pod anti-affinity",
        "topology spread constraints",
        "scheduling gates",
        "host ports",
        'volume "data" (persistentVolumeClaim)',
    } == set(request.unmodelled)


def test_a_node_that_go_has_written_has_what_its_json_would():
    """
    Room, mode, cards as sums state them, taints, readiness.
    """
    node = node_of(node_json(NODE))

    assert ("gpu-1", Mode.CGPU, 3500, 15 * GIB, 110) == (
        node.name,
        node.mode,
        node.cpu_milli,
        node.memory_bytes,
        node.pods,
    )
    assert [15 * GIB, 15 * GIB] == [card.allocatable_bytes for card in node.cards]
    assert ((Taint("gpu", "yes"),), True, True) == (node.taints, node.ready, node.cordoned)


def test_a_node_survives_the_way_back():
    """
    What is written again is read as the same.
    """
    read = node_json(NODE)

    assert read == node_json(node_bytes(read))


@pytest.mark.parametrize("cut", [1, 7, 100, 200])
def test_a_message_that_is_cut_short_is_unreadable_or_nonsense_and_no_crash(cut):
    """
    Half a message has its own error, or fails as JSON of the wrong shape.
    """
    for read, whole in ((pod_json, POD), (node_json, NODE)):
        try:
            found = read(whole[:-cut])
        except UnreadableError:
            continue
        assert isinstance(found, dict)


@given(st.binary(max_size=400))
def test_rubbish_is_never_more_than_an_error(raw):
    """
    Whatever bytes come, they are read, unreadable, or of the wrong shape.
    """
    with suppress(UnreadableError, CodecError):
        node_of(node_json(raw))
    with suppress(UnreadableError, CodecError):
        pod = pod_json(raw)
        request_of(pod.get("metadata"), pod.get("spec"))


def test_a_deeply_nested_message_does_not_exhaust_the_stack():
    """
    Unknown fields inside unknown fields are skipped, however deep.
    """
    raw = b""
    for _ in range(2000):
        raw = b"\x12" + _length(len(raw)) + raw if len(raw) < 1 << 20 else raw

    with suppress(UnreadableError):
        assert isinstance(pod_json(raw), dict)


def _length(size):
    out = bytearray()
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*out, size))


def test_messages_are_written_as_documented():
    """
    Numbers and types of the builder, byte by byte: scalar, repeated, map, a message of another package.
    """
    wire = Wire()
    wire.package("a", {"Inner": {"name": "1 string"}})
    made = wire.package("b", {"Outer": {"n": "1 int64", "many": "2 *bytes", "by": "3 {a.Inner}", "one": "5 a.Inner"}})

    message = made["Outer"](n=300, many=[b"x", b"yz"], one={"name": "k"})
    message.by["key"].name = "v"

    expected = bytes.fromhex("08ac02 120178 1202797a 1a0a 0a036b6579 12030a0176 2a03 0a016b".replace(" ", ""))
    assert expected == message.SerializeToString(deterministic=True)
