# SPDX-License-Identifier: Apache-2.0
"""What enforces promises on a node, from its agent's annotation to admission and the doctor."""

from __future__ import annotations

import pytest

from isolation.contract.backends import BACKENDS, BackendChoice
from isolation.contract.codec import CodecError, decode_isolation, encode_isolation, node_of
from isolation.contract.model import Request
from isolation.contract.names import ACK, ISOLATION
from isolation.contract.quantity import GIB
from isolation.doctor.checks.cluster.nodes import check_nodes
from isolation.doctor.checks.cluster.parse import node_facts
from isolation.doctor.checks.finding import FindingState
from isolation.scheduler.admission.core.node_sizes import explain_misfit, measure_nodes

NOTHING = BackendChoice(None, "backend kernel cannot be used here: driver 595.45 is older than 615")


def node(choice, mode="cgpu"):
    """A node's object whose agent has chosen that."""
    annotations = {} if choice is None else {ISOLATION: encode_isolation(choice)}
    amounts = {ACK.memory: "30", ACK.card_count: "2"}
    return {
        "metadata": {"name": "n1", "labels": {ACK.mode_label: mode}, "annotations": annotations},
        "status": {"capacity": amounts, "allocatable": amounts, "nodeInfo": {"kubeletVersion": "v1.36.2"}},
    }


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_what_an_agent_chose_is_read_back_with_its_sentence(name):
    backend = BACKENDS[name]
    assert decode_isolation(encode_isolation(BackendChoice(backend))) == (name, backend.sentence)


def test_why_nothing_can_be_held_is_read_back():
    assert decode_isolation(encode_isolation(NOTHING)) == ("", NOTHING.reason)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2}', '{"version": 1, "backend": "x"}', '{"version": 1, "backend": 3}']
)
def test_what_is_no_such_annotation_is_refused(text):
    with pytest.raises(CodecError):
        decode_isolation(text)


def test_a_node_that_can_hold_nothing_serves_nothing():
    held = node_of(node(BackendChoice(BACKENDS["kernel"])))
    unheld = node_of(node(NOTHING))
    assert (held.serving, held.unheld) == (True, "")
    assert (unheld.serving, unheld.unheld) == (False, NOTHING.reason)
    assert node_of(node(NOTHING, mode="default")).unheld == "", "whole cards need nobody to enforce anything"
    assert node_of({**node(None)}).unheld == ""


def test_admission_refuses_what_no_node_can_hold_and_says_why():
    request = Request(cards=1, card_bytes=4 * GIB)
    two = [node_of(node(NOTHING)), node_of(node(BackendChoice(BACKENDS["library"])))]
    assert explain_misfit(request, measure_nodes(two), ACK, GIB) is None
    said = explain_misfit(request, measure_nodes(two[:1]), ACK, GIB)
    assert said is not None
    assert "older than 615" in said


@pytest.mark.parametrize(
    ("choice", "state", "said"),
    [
        (
            BackendChoice(BACKENDS["kernel"]),
            FindingState.OK,
            "kernel and library: memory hard, counting all device memory",
        ),
        (NOTHING, FindingState.PROBLEM, "older than 615"),
        (None, FindingState.OK, "no node agent says"),
    ],
)
def test_the_doctor_says_in_a_sentence_what_holds(choice, state, said):
    found = next(one for one in check_nodes((node_facts(node(choice)),), "v1.36.2") if one.check == "cluster.backends")
    assert found.state == state
    assert said in found.evidence
