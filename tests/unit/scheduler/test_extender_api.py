# SPDX-License-Identifier: Apache-2.0
"""What a scheduler may send, and what it gets back: always an answer, never a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples

from isolation.scheduler.core import extender_api
from isolation.scheduler.core.preemption import Victims

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"
RECORDED = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded payloads are not beside this repository")
POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u1"}, "spec": {"containers": [{"name": "c"}]}}
READERS = (extender_api.read_extender_args, extender_api.read_binding_args, extender_api.read_preemption_args)


def recorded(name):
    """The body and the answer of a recorded exchange."""
    exchange = json.loads((SAMPLES / f"extender-{name}.json").read_text())
    return json.dumps(exchange["body"]).encode(), exchange["response"]


@RECORDED
def test_a_recorded_filter_is_read_and_answered_as_the_scheduler_accepted_it():
    """
    Names in, names out, reasons by node.
    """
    body, accepted = recorded("filter")
    ask = extender_api.read_extender_args(body)

    assert sorted(["gpu-2", "gpu-1", "gpu-0"]) == sorted(ask.names)
    assert ask.uid
    answer = extender_api.encode_filter_result(ask, ["gpu-2", "gpu-1"], {"gpu-0": "stub: no single card has room"}, {})
    assert accepted == json.loads(answer)


@RECORDED
def test_whole_nodes_go_back_as_they_came():
    """
    Without a node cache the scheduler scores with the objects that we return.
    """
    body, _ = recorded("filter-fullnodes")
    request = json.loads(body)
    first = request["Nodes"]["items"][0]
    sent = [first, first | {"metadata": first["metadata"] | {"name": "another"}}]
    ask = extender_api.read_extender_args(json.dumps(request | {"Nodes": {"items": sent}}).encode())
    kept = ["another"]

    answer = json.loads(extender_api.encode_filter_result(ask, kept, {}, {}))

    assert [node["metadata"]["name"] for node in sent] == list(ask.names)
    assert [sent[1]] == answer["Nodes"]["items"]
    assert "NodeNames" not in answer


@RECORDED
def test_recorded_prioritize_bind_and_preempt():
    """
    Scores in the order of the names, a bind by UID, victims by UID.
    """
    body, accepted = recorded("prioritize")
    ask = extender_api.read_extender_args(body)
    scores = {row["Host"]: row["Score"] for row in accepted}
    assert accepted == json.loads(extender_api.encode_host_priorities(ask.names, [scores[name] for name in ask.names]))
    body, accepted = recorded("bind")
    assert extender_api.BindingArgs(
        "default", "p1", "8bc54554-2851-4874-a399-69dc6a86f86c", "gpu-2"
    ) == extender_api.read_binding_args(body)
    assert accepted == json.loads(extender_api.encode_binding_result())
    body, accepted = recorded("preempt")
    asked = extender_api.read_preemption_args(body)
    assert {"gpu-1", "gpu-2"} == set(asked.victims)
    assert accepted == json.loads(extender_api.encode_preemption_result(asked.victims))


def test_victims_as_whole_pods_are_read_by_uid():
    """
    Without a node cache victims come as objects; the answer names them by UID all the same.
    """
    body = {"Pod": POD, "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "v"}}], "NumPDBViolations": 1}}}

    assert {"n": Victims(("v",), 1)} == extender_api.read_preemption_args(json.dumps(body).encode()).victims


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b"\xff\xfe",
        b'{"Pod":null,"NodeNames":["a"]}',
        b'{"Pod":{"metadata":{"uid":7}},"NodeNames":[]}',
        b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":[1]}',
        b'{"PodName":"a","PodNamespace":"b","PodUID":"","Node":"n"}',
        b'{"Pod":{"metadata":{"uid":"u"}},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":{}}]}}}',
        b"[" * 100_000,
        b'{"Pod":' * 100_000,
        b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":[' + b'"n",' * 60_000 + b'"n"]}',
    ],
    ids=lambda body: f"{len(body)}-{body[:24]!r}",
)
def test_garbage_is_said_to_be_garbage(reader, body):
    """
    Whatever is no request comes back as one line of text.
    """
    found = reader(body)

    assert isinstance(found, extender_api.InvalidArgs) or reader is extender_api.read_preemption_args
    if isinstance(found, extender_api.InvalidArgs):
        assert 0 < len(found.reason) <= 1000
        assert found.reason.isprintable()
        assert json.loads(extender_api.encode_filter_error(found.reason))["Error"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_KEYS = st.sampled_from(
    ["Pod", "Nodes", "NodeNames", "PodName", "PodNamespace", "PodUID", "Node", "NodeNameToVictims", "metadata", "items"]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(_KEYS, _JSON | st.just(POD) | st.just({"items": [POD]})), st.sampled_from(READERS))
def test_any_json_under_the_right_keys_is_read_or_refused(body, reader):
    """
    Types as they come: a value or a Broken, never an exception.
    """
    found = reader(json.dumps(body).encode())

    assert found is not None


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 500), st.sampled_from(READERS))
def test_a_good_request_with_some_bytes_changed_is_read_or_refused(noise, at, reader):
    """
    Cut, overwritten, doubled: never an exception.
    """
    good = json.dumps({"Pod": POD, "NodeNames": ["a", "b"], "PodName": "p"}).encode()

    assert reader(good[:at] + noise + good[at + len(noise) :]) is not None


@pytest.mark.parametrize(
    "text", ["a\nb", "\x00\x1b[31m", "x" * 5000, "é" * 3000], ids=["line", "escape", "long", "wide"]
)
def test_reasons_are_one_bounded_line(text):
    """
    What others wrote reaches Events and logs without line breaks or escapes.
    """
    assert extender_api.clean(text).isprintable()
    assert len(extender_api.clean(text)) <= 1000
