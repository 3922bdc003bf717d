# SPDX-License-Identifier: Apache-2.0
"""
What the stack makes of the pages and lists that its endpoints answer: right ones, partial ones, hostile ones.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import card, frame, node, use

from autoscaler.demo.stack import optional_stack as report
from autoscaler.demo.stack.addresses import Addresses
from autoscaler.demo.stack.reports import MAX_ALERTS, read_alerts, read_page
from exporter.http.pages import Exposition
from exporter.pipeline.families import card_families, container_families
from isolation.contract.quantity import GIB
from isolation.contract.stack import FIRING, PENDING, UP, StackAlert, StackProcess, StackStatus, TenantStatus

WHERE = Addresses("http://127.0.0.1:1", "http://127.0.0.1:2", None, None, "http://127.0.0.1:3")


def page(reading):
    """A node's page as the exporter renders it."""
    collectors = {"cards": lambda f: card_families(f.nodes), "containers": lambda f: container_families(f.nodes)}
    exposition = Exposition(collectors, clock=lambda: 0.0, release="1")
    exposition.publish(frame([reading]), 0.0)
    return exposition.page().body


def machine(**more):
    """One machine: a tenant within its promise, one over it, one of whom nothing can be reported."""
    uses = [
        use("good", gib=4, used=3, core=0.3, denied=7, over_limit_episodes=0, allocation_source="run", policy="fixed"),
        use("stray", index=1, gib=4, used=6, over_limit_seconds=12.5, over_limit_episodes=1, allocation_source="run"),
        use("unseen", index=1, gib=3, used=None),
    ]
    known = [card(0, uses=uses), card(1, uses=uses, used_bytes=None, breaches=(("denied", 2), ("over_limit", 1)))]
    return node(cards=known, uses=uses, **more)


def test_what_the_exporter_tells_comes_back_as_it_was():
    """Cards and containers as they were, and what could not be told stays untold."""
    reading = machine()

    parsed = read_page(page(reading))

    assert reading.node == parsed.node
    for expected, actual in zip(reading.containers, parsed.containers, strict=True):
        for name in ("pod", "container", "promise", "index", "allocated_bytes", "used_bytes", "used_core_ratio"):
            assert getattr(expected, name) == getattr(actual, name), name
        for name in ("denied", "over_limit_seconds", "over_limit_episodes", "allocated_core_ratio", "policy"):
            assert getattr(expected, name) == getattr(actual, name), name
    for expected, actual in zip(reading.cards, parsed.cards, strict=True):
        for name in ("uuid", "index", "model", "total_bytes", "reserved_bytes", "used_bytes", "allocated_bytes"):
            assert getattr(expected, name) == getattr(actual, name), name
        for name in ("utilisation_ratio", "healthy", "breaches", "unattributed_bytes"):
            assert getattr(expected, name) == getattr(actual, name), name


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"no reading yet\n", id="a sentence"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'gpushare_card_info{card="x"} 1\n', id="a card without a number"),
        pytest.param(b'gpushare_card_info{card="0"} 1\n', id="a card without a name"),
        pytest.param(b"up 1\n", id="somebody else's"),
    ],
)
def test_what_is_no_page_of_ours_is_no_reading(raw):
    """Cannot tell, rather than a machine without tenants."""
    assert read_page(raw) is None


@given(cut=st.integers(0, 20_000), flip=st.binary(max_size=3))
def test_a_page_that_is_cut_or_spoilt_ends_nothing(cut, flip):
    """Whatever comes, it is a reading or none."""
    raw = page(machine())
    raw = raw[: cut % len(raw)] + flip + raw[(cut + len(flip)) % len(raw) :]

    parsed = read_page(raw)

    assert parsed is None or parsed.cards


def test_figures_that_are_no_numbers_are_not_reported():
    """NaN and infinities are neither shown nor written into JSON."""
    raw = page(machine()).replace(b" 0.5\n", b" NaN\n").replace(b" 70.0\n", b" +Inf\n")

    parsed = read_page(raw)

    assert (None, None) == (parsed.cards[0].utilisation_ratio, parsed.cards[0].power_watts)
    json.dumps(report.build_document(StackStatus((), (), parsed, None), WHERE), allow_nan=False)


ACTIVE = {
    "labels": {"alertname": "GpushareContainerMemoryOverLimit", "severity": "warning", "pod": "stray", "card": "1"},
    "annotations": {"summary": "stray uses more than promised"},
    "startsAt": "2026-01-01T00:00:00Z",
    "status": {"state": "active"},
}


def test_alerts_of_both_kinds():
    """Alertmanager's own list is of firing ones; Prometheus names the state, and only the asked one is taken."""
    firing = StackAlert(
        "GpushareContainerMemoryOverLimit",
        "warning",
        FIRING,
        "stray",
        "stray uses more than promised",
        "2026-01-01T00:00:00Z",
    )
    waiting = {
        "labels": {"alertname": "A", "pool": "p", "node": "n"},
        "state": "pending",
        "activeAt": "2026-01-01T00:00:00Z",
    }
    answer = json.dumps({"status": "success", "data": {"alerts": [waiting, {**waiting, "state": "firing"}]}})

    assert (firing,) == read_alerts(json.dumps([ACTIVE]).encode())
    pending = StackAlert("A", "", PENDING, "p", "", "2026-01-01T00:00:00Z", node="n")
    assert (pending,) == read_alerts(answer.encode(), PENDING)
    assert (replace(pending, state=FIRING),) == read_alerts(answer.encode())


@pytest.mark.parametrize(
    "raw",
    [b"", b"[", b"7", b"null", b'"text"', b'{"data": 1}', b'[{"labels": 3}]', b"[[]]", b'[{"annotations": {}}]'],
    ids=repr,
)
def test_what_is_no_list_of_alerts_is_unknown(raw):
    """Not an empty list: nobody could tell."""
    assert read_alerts(raw) is None


def test_alerts_and_their_words_are_bounded():
    """A rule gone wild fills neither memory nor the screen."""
    long = {**ACTIVE, "annotations": {"summary": "x" * 10_000}}

    parsed = read_alerts(json.dumps([long] * (MAX_ALERTS + 50)).encode())

    assert MAX_ALERTS == len(parsed)
    assert {300} == {len(one.summary) for one in parsed}


def tenant(name, gib):
    """A tenant that runs."""
    return TenantStatus(name, "does things", gib * GIB, None, True, StackProcess(name, UP))


def test_the_last_word_names_who_is_over_and_what_fires():
    """For people: refusals added up, those over their promise, alerts by whom they are about."""
    tenants = (tenant("good", 4), tenant("stray", 4), tenant("unseen", 3))
    alert = read_alerts(json.dumps([ACTIVE]).encode())
    parsed = StackStatus(tenants, (), machine(), alert)

    expected = "this machine: 7 allocations beyond a promise refused; over promise: stray"
    assert f"{expected}; firing alerts: GpushareContainerMemoryOverLimit stray" == report.render_summary(parsed)
    assert expected == report.render_summary(replace(parsed, alerts=None))
    assert report.render_summary(replace(parsed, node=None, alerts=())).endswith(
        "over promise: none; firing alerts: none"
    )


def test_the_document_says_null_where_nothing_is_known():
    """For programs: 0 is a measurement, null is none."""
    tenants = (tenant("stray", 4), tenant("unseen", 3), tenant("absent", 1))

    parsed = report.build_document(StackStatus(tenants, (), machine(), None), WHERE)

    used = [(one["used_bytes"], one["over_bytes"], one["denied"]) for one in parsed["tenants"]]
    assert [(6 * GIB, 2 * GIB, None), (None, None, None), (None, None, None)] == used
    assert parsed["alerts"] is None
    assert report.build_document(StackStatus(tenants, (), None, None), WHERE)["cards"] is None
