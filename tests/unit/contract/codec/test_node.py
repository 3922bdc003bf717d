# SPDX-License-Identifier: Apache-2.0
"""
A Kubernetes node as its cards, its mode and its room.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import CodecError, decode_cards, encode_cards, node_of
from isolation.contract.codec.node import policy_of
from isolation.contract.model import Card, CardChoice, ComputePolicy, Mode, Taint
from isolation.contract.quantity import GIB, MIB

SAMPLES = Path(__file__).resolve().parents[4].parent / "shared" / "samples"
MODE, CHOICE = "ack.node.gpu.schedule", "ack.node.gpu.placement"
SHARES = {"aliyun.com/gpu-mem": "60", "aliyun.com/gpu-count": "4"}


def node(labels=None, annotations=None, allocatable=None, spec=None, ready="True", **capacity):
    """A node of 32 cores whose kubelet states `capacity` and leaves `allocatable` of it."""
    states = {"cpu": "32", "memory": "64Gi", "pods": "50", **{k: v for k, v in capacity.items() if "/" in k}}
    return {
        "metadata": {"name": "n1", "labels": labels or {}, "annotations": annotations or {}},
        "spec": spec or {},
        "status": {
            "capacity": states,
            "allocatable": {**states, **(allocatable or {})},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def sizes(read):
    """GiB that each card offers, unhealthy ones as None."""
    return [card.allocatable_bytes // GIB if card.healthy else None for card in read.cards]


def test_a_recorded_node_is_read_as_it_was():
    """4 x 16 GiB, 32 cores, ready, no label of a mode."""
    recorded = SAMPLES / "extender-filter-fullnodes.json"
    if not recorded.exists():
        pytest.skip(f"{recorded} is not here")
    read = node_of(json.loads(recorded.read_text())["body"]["Nodes"]["items"][0])
    assert [16, 16, 16, 16] == sizes(read)
    assert ("gpu-0", Mode.SHARE, 32_000, 256 * GIB, 110) == (
        read.name,
        read.mode,
        read.cpu_milli,
        read.memory_bytes,
        read.pods,
    )
    assert read.ready
    assert not read.cordoned


def test_cards_without_a_record_are_all_alike_and_have_stable_ids():
    """Node and index make the id, capacity over count the size."""
    read = node_of(node({MODE: "cgpu"}, **SHARES))
    assert [("n1/0", 0), ("n1/1", 1), ("n1/2", 2), ("n1/3", 3)] == [(c.uuid, c.index) for c in read.cards]
    assert [15, 15, 15, 15] == sizes(read)


def test_the_unit_makes_the_size():
    """60 units of 256 MiB on 4 cards are 3.75 GiB each."""
    assert {15 * 256 * MIB} == {c.allocatable_bytes for c in node_of(node(**SHARES), unit_bytes=256 * MIB).cards}


@pytest.mark.parametrize(
    ("left", "expected"),
    [("60", [15, 15, 15, 15]), ("45", [15, 15, 15, None]), ("40", [15, 15, None, None]), ("0", [None] * 4)],
)
def test_what_the_kubelet_withholds_is_taken_from_the_end(left, expected):
    """Never more in sum than the kubelet would admit."""
    assert expected == sizes(node_of(node(allocatable={"aliyun.com/gpu-mem": left}, **SHARES)))


def test_a_sane_record_of_cards_wins_over_capacity():
    """Other sizes, real ids, health: only the agent knows them."""
    cards = (Card("GPU-a", 0, 40 * GIB, GIB // 2, GIB, "A100"), Card("GPU-b", 1, 16 * GIB, healthy=False))
    read = node_of(node(annotations={"gpushare.dev/cards": encode_cards(cards)}, **SHARES))
    assert cards == read.cards
    assert [39, None] == sizes(read)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "{",
        '{"version":2,"cards":[]}',
        '{"version":1,"cards":[{"uuid":"a","index":0}]}',
        '{"version":1,"cards":[{"uuid":"a","index":0,"total":5},{"uuid":"a","index":1,"total":5}]}',
        '{"version":1,"cards":[{"uuid":"a","index":0,"total":-5}]}',
        '{"version":1,"cards":[{"uuid":"a","index":0,"total":5,"reserved":9}]}',
        '{"version":1,"cards":[{"uuid":"a","total":5}]}',
        "[" * 100_000,
    ],
)
def test_a_record_that_makes_no_sense_is_not_believed(record):
    """Capacity speaks instead."""
    with pytest.raises(CodecError):
        decode_cards(record)
    assert [15, 15, 15, 15] == sizes(node_of(node(annotations={"gpushare.dev/cards": record}, **SHARES)))


@given(
    st.lists(
        st.builds(
            Card,
            st.uuids().map(str),
            st.integers(0, 63),
            st.integers(1, 1 << 50),
            st.just(0),
            st.sampled_from([GIB, 256 * MIB]),
            st.text(max_size=20),
            st.booleans(),
        ),
        unique_by=(lambda c: c.index, lambda c: c.uuid),
        max_size=8,
    )
)
def test_a_record_of_cards_reads_back_as_it_was_written(cards):
    """Encoding and decoding are inverse, in order of index."""
    assert tuple(sorted(cards, key=lambda c: c.index)) == decode_cards(encode_cards(cards))


@pytest.mark.parametrize(
    ("labels", "states", "mode", "count"),
    [
        ({MODE: "share"}, SHARES, Mode.SHARE, 4),
        ({MODE: "cgpu"}, SHARES, Mode.CGPU, 4),
        ({MODE: "core_mem"}, SHARES, Mode.CORE_MEM, 4),
        ({MODE: "default"}, {"nvidia.com/gpu": "8"}, Mode.EXCLUSIVE, 8),
        ({MODE: "default"}, SHARES, Mode.EXCLUSIVE, 0),
        ({MODE: "mig"}, SHARES, Mode.NONE, 0),
        ({MODE: "topology"}, {"nvidia.com/gpu": "8"}, Mode.NONE, 0),
        ({MODE: "NONE"}, SHARES, Mode.NONE, 0),
        ({}, {"nvidia.com/gpu": "2"}, Mode.EXCLUSIVE, 2),
        ({}, {"nvidia.com/gpu": "2", **SHARES}, Mode.EXCLUSIVE, 2),
        ({}, SHARES, Mode.SHARE, 4),
        ({}, {}, Mode.NONE, 0),
        ({MODE: "cgpu"}, {}, Mode.CGPU, 0),
    ],
)
def test_the_label_decides_the_mode_and_without_one_what_is_offered(labels, states, mode, count):
    """One mode per node; a mode that gpushare does not serve leaves no cards."""
    read = node_of(node(labels, **states))
    assert (mode, count) == (read.mode, len(read.cards))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({MODE: "cgpu"}, CardChoice.BINPACK),
        ({MODE: "cgpu", CHOICE: "spread"}, CardChoice.SPREAD),
        ({MODE: "core_mem", CHOICE: "binpack"}, CardChoice.BINPACK),
        ({MODE: "share", CHOICE: "sideways"}, CardChoice.BINPACK),
        ({MODE: "default"}, CardChoice.POLICY),
        ({}, CardChoice.POLICY),
    ],
)
def test_a_shared_mode_without_a_choice_means_binpack(labels, expected):
    """The dialect's default, where the dialect's mode label stands."""
    assert expected == node_of(node(labels, **SHARES)).choice


@pytest.mark.parametrize(
    ("labels", "gib"), [({"nvidia.com/gpu.memory": "40960"}, 40), ({"aliyun.accelerator/nvidia_mem": "16384MiB"}, 16)]
)
def test_whole_cards_have_the_size_that_a_label_states(labels, gib):
    """Capacity counts them only."""
    assert [gib, gib] == sizes(node_of(node(labels, **{"nvidia.com/gpu": "2"})))


def test_the_label_names_the_model_even_against_the_record():
    """Selectors speak of the label, so the card must too."""
    cards = encode_cards([Card("GPU-a", 0, GIB, model="NVIDIA A100-SXM4")])
    labels = {"aliyun.accelerator/nvidia_name": "NVIDIA-A100-SXM4"}
    read = node_of(node(labels, {"gpushare.dev/cards": cards}, **SHARES))
    assert ("NVIDIA-A100-SXM4",) == tuple(card.model for card in read.cards)


def test_taints_pool_cordon_and_readiness_are_kept():
    """Everything that keeps pods away."""
    spec = {"unschedulable": True, "taints": [{"key": "gpu", "value": "x", "effect": "NoExecute"}]}
    read = node_of(node({"gpushare.dev/pool": "a100"}, spec=spec, ready="Unknown"))
    assert ((Taint("gpu", "x", "NoExecute"),), "a100", True, False) == (
        read.taints,
        read.pool,
        read.cordoned,
        read.ready,
    )


@pytest.mark.parametrize(
    ("annotations", "left", "serving"),
    [
        ({}, "60", True),
        ({"gpushare.dev/agent": "stopping"}, "60", False),
        ({}, "0", False),
    ],
    ids=["agent and plugin are there", "the agent leaves", "the plugin died: capacity stays, nothing can be allocated"],
)
def test_a_shared_node_serves_while_its_agent_and_its_plugin_are_there(annotations, left, serving):
    """By the agent's own word, and by what the kubelet leaves of the cards that the agent has named."""
    cards = encode_cards([Card("GPU-0", 0, 60 * GIB)])
    made = node({MODE: "cgpu"}, {"gpushare.dev/cards": cards, **annotations}, {"aliyun.com/gpu-mem": left}, **SHARES)
    assert serving is node_of(made).serving


def test_a_node_that_says_nothing_has_nothing():
    """As in Kubernetes: what is not stated is not there; only the pod count has a default."""
    read = node_of({"metadata": {"name": "n1"}})
    assert (0, 0, 110, False, ()) == (read.cpu_milli, read.memory_bytes, read.pods, read.ready, read.cards)


@pytest.mark.parametrize(
    "states",
    [
        {"aliyun.com/gpu-mem": "60"},
        {"aliyun.com/gpu-mem": "-1", "aliyun.com/gpu-count": "1"},
        {"aliyun.com/gpu-mem": "many", "aliyun.com/gpu-count": "1"},
        {"aliyun.com/gpu-mem": "1E", "aliyun.com/gpu-count": "1"},
        {"aliyun.com/gpu-mem": "1000", "aliyun.com/gpu-count": "1000"},
        {"nvidia.com/gpu": "1000000"},
        {"nvidia.com/gpu": ["8"]},
    ],
)
def test_amounts_that_no_machine_has_are_errors(states):
    """Never a node that lies."""
    with pytest.raises(CodecError):
        node_of(node(**states))


@pytest.mark.parametrize(
    ("labels", "policy"),
    [
        ({}, "fixed"),
        *(({"gpushare.dev/compute-policy": one.value}, one) for one in ComputePolicy),
        ({"gpushare.dev/compute-policy": "2"}, "weight"),
        ({"gpushare.dev/compute-policy": "4"}, "burst"),
        ({"gpushare.dev/compute-policy": "5"}, "none"),
        ({"tke.cloud.tencent.com/qgpu-schedule-policy": "best-effort"}, "none"),
        ({"tke.cloud.tencent.com/qgpu-schedule-policy": "bs"}, "burst"),
        ({"tke.cloud.tencent.com/qgpu-schedule-policy": "fs", "gpushare.dev/compute-policy": "priority"}, "priority"),
    ],
)
def test_a_label_says_how_compute_is_shared(labels, policy):
    """Ours, cGPU's numbers, or qGPU's label where ours is not there."""
    assert policy == node_of(node(labels)).policy == policy_of(labels)


@pytest.mark.parametrize("value", ["0", "6", "Burst", ""])
def test_a_label_that_is_no_policy_means_fixed(value):
    """Nobody gets more than was promised by a misspelt label, and the doctor can tell."""
    labels = {"gpushare.dev/compute-policy": value, "tke.cloud.tencent.com/qgpu-schedule-policy": "bs"}
    assert ComputePolicy.FIXED == node_of(node(labels)).policy
    assert policy_of(labels) is None
