# SPDX-License-Identifier: Apache-2.0
"""Lists are read quickly, and say the same as the codec."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.views_stage import node_json, pod_json

from dashboards.terminal.read.lists import Lists
from dashboards.terminal.read.records import cards_in, slices_in
from isolation.contract.codec import CodecError, decode_allocation, decode_cards
from isolation.contract.model import Mode
from isolation.contract.names import ACK, AGENT, ALLOCATION, CARDS, POOL
from isolation.contract.quantity import GIB
from isolation.kube.store import Store

odd = st.sampled_from([None, 0, 1, -1, 2**62, 2**62 - 1, 63, 64, "GPU-1", "", True, [], {}, 1.5, "x" * 80])
FIELDS = ("uuid", "index", "bytes", "core", "total", "reserved", "unit", "healthy", "model")
record_cards = st.lists(
    st.dictionaries(st.sampled_from(FIELDS), odd),
    max_size=3,
)
documents = st.fixed_dictionaries(
    {"version": st.sampled_from([1, 2, None, "1"]), "cards": record_cards},
    optional={
        "promise": odd,
        "containers": st.lists(st.fixed_dictionaries({"name": odd, "cards": record_cards}), max_size=2),
    },
)


def outcome(read, text):
    """The value, or that there is none."""
    try:
        return read(text)
    except CodecError:
        return CodecError


@given(documents)
def test_any_record_is_read_as_the_codec_reads_it(document):
    """
    Whatever somebody wrote there: the same slices and the same cards, or no record by both.
    """
    text = json.dumps(document)
    assert outcome(lambda t: decode_allocation(t).slices, text) == outcome(slices_in, text)
    assert outcome(decode_cards, text) == outcome(cards_in, text)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 40) | st.sampled_from([2**62, 2**63]),
    st.sampled_from(["main", "Main", "", "a" * 64]),
)
def test_records_that_are_nearly_right_are_read_as_the_codec_reads_them(cards, parts, size, name):
    """
    Cards that stand twice, parts larger than the whole, names that are none.
    """
    listed = [{"uuid": f"GPU-{i % 3}", "index": i % 3, "bytes": 20 * GIB, "core": 10} for i in range(cards)]
    of = [{"uuid": f"GPU-{i}", "bytes": size * GIB, "core": 5} for i in range(parts)]
    text = json.dumps({"version": 1, "promise": "p", "cards": listed, "containers": [{"name": name, "cards": of}]})
    assert outcome(lambda t: decode_allocation(t).slices, text) == outcome(slices_in, text)


def pods_of_every_kind():
    """Bound and waiting, ours and the vendor's record, broken ones, whole cards, init containers, nothing of cards."""
    vendor = pod_json("vendor", "n-0", 6)
    vendor["metadata"]["annotations"] = {ACK.allocation_annotation: json.dumps({"0": {"1": 6}})}
    broken = pod_json("broken", "n-0", 6)
    broken["metadata"]["annotations"] = {ALLOCATION: "{", ACK.allocation_annotation: json.dumps({"0": {"1": 6}})}
    early = pod_json("early", "n-0", 5)
    early["metadata"]["annotations"][ALLOCATION] = early["metadata"]["annotations"][ALLOCATION].replace(
        "GPU-n-0-0", "n-0/0"
    )
    liar = pod_json("liar", "n-0", 3)
    liar["metadata"]["annotations"][ALLOCATION] = liar["metadata"]["annotations"][ALLOCATION].replace(
        str(3 * GIB), str(30 * GIB)
    )
    nothing = pod_json("nothing", "n-0", 3, containers=[{"name": "main"}])
    whole = pod_json("whole", "n-0", 3, containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 2}}}])
    limits = {"resources": {"limits": {ACK.memory: 9}, "requests": {ACK.memory: 9}}}
    init = pod_json("init", "n-0", 3, initContainers=[{"name": "before", **limits}])
    ended = pod_json("ended", "n-0", 3) | {"status": {"phase": "Succeeded"}}
    odd = pod_json("odd", "", 3, (0, 1))
    text = pod_json("text", "", 3, containers=[{"name": "main", "resources": {"limits": {ACK.memory: "lots"}}}])
    lost = pod_json("lost", "gone", 3)
    return [
        pod_json("plain", "n-0", 8, (0, 1)), pod_json("waits", "", 8), vendor, broken, early, liar, nothing, whole,
        init, ended, odd, text, lost,
    ]  # fmt: skip


@pytest.mark.parametrize("one", pods_of_every_kind(), ids=lambda one: one["metadata"]["name"])
def test_a_pod_is_read_as_the_store_reads_it(one):
    """
    What it asks for, where it is, which cards it holds with how much of each.
    """
    store, lists = Store(), Lists()
    for take in (store.node_is, lists.node):
        take(msgspec.Raw(json.dumps(node_json("n-0", 4, 15)).encode()))
    raw = msgspec.Raw(json.dumps(one).encode())
    store.pod_is(raw)
    found, known = lists.pod(raw), store.pods.get(one["metadata"]["uid"])
    refused = store.view().refused.get(one["metadata"]["uid"])
    if known is None or known.phase.value == "Done" or not known.request.cards:
        assert (found.fault if found else None) == (refused.refusal.reason if refused else None)
        return
    placed = known.placement
    uuids = {f"n-0/{i}": f"GPU-n-0-{i}" for i in range(4)}  # as the scheduler's books name a card that had no name
    expected = [(uuids.get(s.uuid, s.uuid), s.index, s.bytes, s.core) for s in (placed.slices if placed else ())]
    assert expected == [(s.uuid, s.index, s.bytes, s.core) for s in found.slices if not known.request.whole]
    assert (placed.node if placed else "") == found.node
    asked = known.request
    assert (asked.cards, asked.card_bytes, asked.card_core, asked.whole) == (
        found.wanted.cards,
        found.wanted.bytes,
        found.wanted.core,
        found.wanted.whole,
    )


def nodes_of_every_kind():
    """With and without an agent, of every mode, cordoned, not ready, left by its agent, with an unreadable record."""
    plain = node_json("n-1", 4, 15)
    bare = node_json("n-2", 4, 15)
    del bare["metadata"]["annotations"]
    labelled = node_json("n-3", 2, 15, **{POOL: "p", "aliyun.accelerator/nvidia_name": "Tesla-T4"})
    cordoned = node_json("n-4") | {"spec": {"unschedulable": True}}
    tired = node_json("n-5")
    tired["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    leaving = node_json("n-6")
    leaving["metadata"]["annotations"][AGENT] = "stopping"
    broken = node_json("n-7", 2, 15)
    broken["metadata"]["annotations"][CARDS] = '{"version": 9}'
    whole = node_json("n-8", mode="default")
    del whole["metadata"]["annotations"]
    amounts = {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi"}
    whole["status"] |= {"capacity": amounts, "allocatable": amounts}
    cpu = node_json("n-9", mode="none")
    return [plain, bare, labelled, cordoned, tired, leaving, broken, whole, cpu, node_json("n-10", mode="core_mem")]


@pytest.mark.parametrize("one", nodes_of_every_kind(), ids=lambda one: one["metadata"]["name"])
def test_a_node_is_read_as_the_store_reads_it(one):
    """
    The same cards, mode and state; a node that serves no cards is none of ours. Its likes come first.
    """
    store, lists = Store(), Lists()
    twin = json.loads(json.dumps(one))
    twin["metadata"]["name"] = "twin"
    for other in (twin, one):
        raw = msgspec.Raw(json.dumps(other).encode())
        store.node_is(raw)
        found = lists.node(raw)
    known = store.nodes[one["metadata"]["name"]]
    if known.mode is Mode.NONE:
        assert found is None
        return
    assert (known.name, known.mode, known.cards, known.ready, known.cordoned, known.serving, known.pool) == (
        found.name,
        found.mode,
        found.cards,
        found.ready,
        found.cordoned,
        found.serving,
        found.pool,
    )
    assert "192.0.2.7" == found.address


@pytest.mark.parametrize(
    "raw", [b"7", b"[]", b"{}", b'{"metadata": 3}', b'{"metadata":{"name":"\xff"}}', b'{"metadata":']
)
def test_what_is_no_object_is_left_out_and_said(raw):
    """
    One broken object is a note; the others are read.
    """
    lists = Lists()
    assert (None, None) == (lists.node(msgspec.Raw(raw)), lists.pod(msgspec.Raw(raw)))
    assert 2 == len(lists.unreadable)
