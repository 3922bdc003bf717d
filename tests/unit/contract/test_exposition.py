# SPDX-License-Identifier: Apache-2.0
"""Metrics pages and answers of Prometheus, whoever sends them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from isolation.contract import exposition
from isolation.contract.exposition import ExpositionError, MetricSample, parse_page, parse_query_answer

NAMES = frozenset({"a_bytes", "b_total"})


def samples(page):
    """Name, labels and value of each sample."""
    return [(sample.name, dict(sample.labels), sample.value) for sample in parse_page(page.encode(), NAMES)]


@given(st.dictionaries(st.sampled_from(["x", "y_z"]), st.text(max_size=20), min_size=1), st.floats(-1e9, 1e9))
def test_what_the_official_client_writes_is_read(labels, value):
    """
    Every label comes back as it was, quotes, backslashes and line ends in it too; other metrics are left out.
    """
    registry = CollectorRegistry()
    Gauge("a_bytes", "h", list(labels), registry=registry).labels(**labels).set(value)
    Counter("b", "h", registry=registry).inc(3)
    Gauge("other", "h", registry=registry).set(1)
    found = samples(generate_latest(registry).decode())
    assert sorted([("a_bytes", labels, value), ("b_total", {}, 3.0)], key=str) == sorted(found, key=str)


def test_tabs_a_time_and_a_carriage_return_are_allowed():
    """
    As the text format has it.
    """
    assert [("a_bytes", {"x": "1"}, 2.0)] == samples('a_bytes{x="1",} \t2 1700000000000\r\n')
    assert [("a_bytes", {}, 2.0)] == samples("a_bytes\t2")


@pytest.mark.parametrize(
    "line",
    ["a_bytes", "a_bytes x", "a_bytes NaN", "a_bytes +Inf", "a_bytes 1_0", "a_bytes 1 2 3", 'a_bytes{x="1" 1',
     "a_bytes{x=1} 1", 'a_bytes{x="' + "y" * 600 + '"} 1', "a_bytes{" + "y" * 9000 + "} 1", "# HELP a_bytes 1", " "],
    ids=lambda line: line[:30],
)  # fmt: skip
def test_a_line_that_is_no_finite_sample_is_left_out(line):
    """
    The lines around it are read.
    """
    assert [("b_total", {}, 1.0), ("b_total", {}, 2.0)] == samples(f"b_total 1\n{line}\nb_total 2\n")


def test_a_page_without_end_is_an_error(monkeypatch):
    """
    In bytes and in samples.
    """
    monkeypatch.setattr(exposition, "MAX_BYTES", 100)
    with pytest.raises(ExpositionError, match="larger"):
        samples("a_bytes 1\n" * 11)
    monkeypatch.setattr(exposition, "MAX_SAMPLES", 5)
    with pytest.raises(ExpositionError, match="more than 5"):
        samples("a_bytes 1\n" * 6)


def answer(result, kind="vector", status="success"):
    """What Prometheus sends."""
    return json.dumps({"status": status, "data": {"resultType": kind, "result": result}, "error": "why"}).encode()


def test_a_vector_is_read():
    """
    Values that are not finite are left out.
    """
    series = [{"metric": {"__name__": "a", "x": "1"}, "value": [1.5, value]} for value in ("2", "NaN", "x")]
    assert [MetricSample("a", {"__name__": "a", "x": "1"}, 2.0)] == list(parse_query_answer(answer(series)))


@pytest.mark.parametrize(
    "body",
    [answer([], "matrix"), answer([1, "2"], "scalar"), answer([], status="error"), b"[]", b"{}", b"\xff", b"[" * 9999],
    ids=["matrix", "scalar", "error", "list", "empty", "bytes", "deep"],
)  # fmt: skip
def test_any_other_answer_is_an_error(body):
    """
    With the reason that Prometheus gives.
    """
    with pytest.raises(ExpositionError):
        list(parse_query_answer(body))


@given(st.binary())
def test_no_bytes_break_either_reader(body):
    """
    Samples or ExpositionError.
    """
    list(parse_page(body, NAMES))
    with pytest.raises(ExpositionError):
        list(parse_query_answer(body))
