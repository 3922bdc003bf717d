# SPDX-License-Identifier: Apache-2.0
"""
Reading openb node and pod lists: what a row becomes, and how a bad one is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.model import Mode
from isolation.contract.quantity import MIB
from isolation.simulator.traces.csvfile import TraceError
from isolation.simulator.traces.openb import (
    CARD_BYTES,
    MILLI_BYTES,
    list_arrivals,
    parse_nodes,
    parse_pods,
    read_nodes,
    read_pods,
)

TRACES = Path(__file__).resolve().parents[3].parent / "shared" / "traces"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
FULL = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
with_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside the checkout")


def test_a_node_has_normalised_cards_and_serves_shares():
    """
    Every card is 1000 milli as 1000 MiB, whatever its model; the model is a label as well.
    """
    (node,) = parse_nodes(NODES + "n1,96000,393216,2,G2\n")

    assert [CARD_BYTES] * 2 == [card.allocatable_bytes for card in node.cards]
    assert Mode.SHARE is node.mode
    assert (96000, 393216 * MIB) == (node.cpu_milli, node.memory_bytes)
    assert ["G2", "G2"] == [card.model for card in node.cards]
    assert {"aliyun.accelerator/nvidia_name": "G2"} == node.labels


def test_a_node_without_cards_serves_no_shares():
    """
    CPU nodes of the full node list have gpu 0 and no model.
    """
    (node,) = parse_nodes(NODES + "n1,32000,262144,0,\n")

    assert ((), Mode.NONE) == (node.cards, node.mode)


def test_pods_become_shares_of_normalised_cards():
    """
    Milli is memory; a whole card is a share of all of it; several cards are a card set.
    """
    pods = parse_pods(PODS + "a,4000,1024,1,470\nb,8000,1024,1,1000\nc,64000,1024,8,1000\nd,1000,1024,0,0\n")

    shapes = [(pod.request.cards, pod.request.card_bytes // MIB, pod.request.whole) for pod in pods]
    assert [(1, 470, False), (1, 1000, False), (8, 1000, False), (0, 0, False)] == shapes


def test_rows_alike_share_one_request_and_models_alike_one_rules():
    """
    Replays remember answers by object, so equal rows must be one object.
    """
    a, b, c = parse_pods(FULL + "a,1,1,1,500,T4|A10,LS,,,,\nb,1,1,1,500,A10|T4,BE,,,,\nc,2,1,1,500,A10|T4|T4,,,,,\n")

    assert a.request is b.request
    assert a.request.rules is c.request.rules
    assert frozenset({"T4", "A10"}) == c.request.rules.models


def test_a_model_list_does_not_bind_a_pod_without_cards():
    """
    The list names cards, and a pod without cards may run beside any.
    """
    (pod,) = parse_pods(FULL + "a,1,1,0,0,T4,,,,,\n")

    assert frozenset() == pod.request.rules.models


def test_columns_are_found_by_name_in_any_order():
    """
    Order, case of the header, further columns, a byte-order mark, CRLF and blank lines do not matter.
    """
    plain = parse_pods(PODS + "a,4000,1024,1,470\nb,1,2,0,0\n")
    odd = parse_pods(
        "\ufeff\r\nGPU_MILLI,extra,name, num_gpu ,memory_mib,cpu_milli\r\n\r\n"
        "470,x,a,1,1024,4000\r\n\r\n0,,b,0,2,1\r\n\r\n"
    )

    assert plain == odd


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,1,1,1,1001", "gpu_milli is 1001, more than one card"),
        ("a,1,1,2,500", "set gpu_milli to 1000"),
        ("a,1,1,1,0", "write a share of 1..1000, or set num_gpu to 0"),
        ("a,1,1,0,500", "set num_gpu to 1"),
        ("a,1,1,-1,1000", "num_gpu is '-1'; write a whole number"),
        ("a,1,1,65,1000", "more than 64"),
        ("a,x,1,0,0", "cpu_milli is 'x'"),
        ("a,1.5,1,0,0", "cpu_milli is '1.5'"),
        ("a,1e3,1,0,0", "cpu_milli is '1e3'"),
        ("a,٣,1,0,0", "cpu_milli is"),
        ("a,1_0,1,0,0", "cpu_milli is '1_0'"),
        ("a,nan,1,0,0", "cpu_milli is 'nan'"),
        ("a," + "9" * 40 + ",1,0,0", "cpu_milli is"),
        ("a,,1,0,0", "cpu_milli is empty"),
        (",1,1,0,0", "column name is empty"),
        ("\x1b[31mred,1,1,0,0", r"name '\x1b[31mred' is not a valid name"),
        ("a" * 254 + ",1,1,0,0", "is not a valid name"),
        ("a,1,1,0", "4 fields, but the header has 5"),
        ("a,1,1,0,0,0", "6 fields, but the header has 5"),
        (",,,,", "column name is empty"),
        ('"a,1,1,0,0', "correct the quoting"),
        ('"a,1,1,0,0\nb,1,1,0,0\nc,1,1,0,0', "correct the quoting"),
        ('"a\nb",1,1,0,0', "is not a valid name"),
    ],
)
def test_a_bad_pod_row_names_file_line_and_fix(row, words):
    """
    The bad row is in line 4 of the file, after a good row and a blank line.
    """
    with pytest.raises(TraceError) as caught:
        parse_pods(PODS + "good,1,1,0,0\n\n" + row + "\n", "pods.csv")

    assert str(caught.value).startswith("pods.csv:4: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "pods.csv:1: the file is empty; its first line must be name,cpu_milli"),
        (PODS, "pods.csv:2: no rows after the header"),
        ("name;cpu_milli\na;1\n", "pods.csv:1: columns are separated by ';'; save the file with commas"),
        ("name\tcpu_milli\na\t1\n", "separated by '\\t'; save the file with commas"),
        ("name\na\n", "pods.csv:1: missing column cpu_milli"),
        (PODS.replace("gpu_milli", "gpu"), "missing column gpu_milli"),
        (PODS.replace("\n", ",name\n"), "duplicate column 'name'; remove one"),
        (FULL + "a,1,1,0,0,,,,9,8,\n", "deletion_time 8 is before creation_time 9"),
        (FULL + "a,1,1,0,0,,,,x,8,\n", "creation_time is 'x'"),
        (FULL + "a,1,1,1,9,T4||A10,,,,,\n", "gpu_spec is 'T4||A10'; write names separated by |"),
    ],
)
def test_a_bad_pod_list_says_what_to_change(text, words):
    """
    Header, emptiness, duplicates and times are checked as well.
    """
    with pytest.raises(TraceError) as caught:
        parse_pods(text, "pods.csv")

    assert words in str(caught.value)


def test_a_pod_drawn_again_is_a_pod_of_its_own():
    """
    Published lists that were filled up by drawing with replacement may hold a row twice.
    """
    pods = parse_pods(PODS + "a,1,1,0,0\nb,1,1,0,0\na,1,1,0,0\n")

    assert ["a", "b", "a.2"] == [pod.name for pod in pods]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("n,1,1,0,T4", "on a node with gpu 0"),
        ("n,1,1,999,T4", "more than 64"),
        ("n,1,1,2,T4|A10", "write one name"),
        ("n,-1,1,2,T4", "cpu_milli is '-1'"),
    ],
)
def test_a_bad_node_row_is_refused(row, words):
    """
    Node lists are held to the same standard.
    """
    with pytest.raises(TraceError, match=r"nodes\.csv:2: ") as caught:
        parse_nodes(NODES + row + "\n", "nodes.csv")

    assert words in str(caught.value)


def test_a_column_divides_the_cards_of_a_node_by_mig():
    """
    Each card into the same instances, with as much of its milli as they have of its compute; other nodes stay whole.
    """
    divided, whole = parse_nodes("sn,cpu_milli,memory_mib,gpu,model,mig\nn,1,1,2,A100,3g.40gb|1g.10gb\nm,1,1,1,T4,\n")

    assert [(428, "n-gpu0", 3), (142, "n-gpu0", 1), (428, "n-gpu1", 3), (142, "n-gpu1", 1)] == [
        (card.allocatable_bytes // MILLI_BYTES, card.instance.parent, card.instance.slices) for card in divided.cards
    ]
    assert list(range(4)) == [card.index for card in divided.cards]
    assert [None] == [card.instance for card in whole.cards]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("n,1,1,1,A100,9g.1gb", "mig has '9g.1gb'; write profiles such as 3g.40gb"),
        ("n,1,1,1,A100,1g.10gb||", "mig has empty"),
        ("n,1,1,0,,1g.10gb", "mig is set on a node with gpu 0"),
        ("n,1,1,1,A100,4g.40gb|4g.40gb", "more than the 7 slices"),
        ("n,1,1,16,A100,1g.10gb|1g.10gb|1g.10gb|1g.10gb|1g.10gb", "80 instances of 16 cards; at most 64"),
    ],
)
def test_a_division_that_cannot_be_is_refused(row, words):
    with pytest.raises(TraceError, match=re.escape(words)):
        parse_nodes(f"sn,cpu_milli,memory_mib,gpu,model,mig\n{row}\n")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    """
    Absent, a folder, or not text: the path, the line where there is one, and the fix.
    """
    binary = tmp_path / "b.csv"
    binary.write_bytes(PODS.encode() + b"a,1,1,0,0\n\xff\xfe,1,1,0,0\n")

    for path, words in (
        (tmp_path / "no.csv", "check the path"),
        (tmp_path, "check the path"),
        (binary, ":3: not UTF-8"),
    ):
        with pytest.raises(TraceError) as caught:
            read_pods(path)
        assert words in str(caught.value)


def test_arrivals_come_sorted_and_only_from_dated_rows():
    """
    A row without creation or deletion has no place in time.
    """
    pods = parse_pods(
        FULL + "late,1,1,0,0,,,,50,60,\nnever,1,1,0,0,,,,,,\nopen,1,1,0,0,,,,5,,\nearly,1,1,0,0,,,,10,40,\n"
    )

    assert [(10.0, 30.0, "early"), (50.0, 10.0, "late")] == [(a.at, a.seconds, a.name) for a in list_arrivals(pods)]


@given(st.text(max_size=200))
def test_hostile_text_is_refused_and_never_crashes(text):
    """
    Whatever follows the header is either rows or a TraceError.
    """
    outcome: object
    try:
        outcome = parse_pods(PODS + text)
    except TraceError as exc:
        outcome = str(exc)

    assert outcome
    assert isinstance(outcome, tuple) or outcome.startswith("pods:")


@with_traces
def test_the_published_lists_read_whole():
    """
    Counts and totals as published with the trace.
    """
    nodes = read_nodes(TRACES / "openb_node_list_all_node.csv")
    pods = read_pods(TRACES / "openb_pod_list_default.csv")
    short = read_pods(TRACES / "openb_pod_list_multigpu20.csv")

    assert (1523, 6212) == (len(nodes), sum(len(node.cards) for node in nodes))
    assert 8152 == len(pods) == len(list(list_arrivals(pods)))
    assert 6086.8 == sum(p.request.cards * p.request.card_bytes for p in pods) / CARD_BYTES
    assert (8324, []) == (len(short), list(list_arrivals(short)))
