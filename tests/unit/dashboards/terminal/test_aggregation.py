# SPDX-License-Identifier: Apache-2.0
"""Cards, nodes, pods and namespaces add up; what is not known stays unknown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import GOLDEN, check
from support.views_harness import fleet_of_cards, node, pod, tenant, usage

from dashboards.terminal.json_output import top_document
from dashboards.terminal.read.aggregation import (
    summarize_cards,
    summarize_namespaces,
    summarize_nodes,
    summarize_pods,
    typical,
)
from dashboards.terminal.read.fleet import CardRequest, Fleet, FleetPod
from dashboards.terminal.read.usage import FAMILIES, Usage, build_fleet, build_usage
from dashboards.terminal.table import TextOutput
from dashboards.terminal.top_view import TopOptions, top_lines
from isolation.contract.exposition import parse_page
from isolation.contract.model import Mode, Placement, Slice
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation

NOTHING = Usage()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 20), st.booleans()), max_size=30))
def test_cards_nodes_and_namespaces_hold_what_the_pods_hold(parts):
    """
    The same sum by every grouping, free is what is offered less that, and never below nothing.
    """
    pods = [pod(f"p{at}", "n-0", gib, (index,)) for at, (index, gib, _) in enumerate(parts)]
    fleet = Fleet((node("n-0", 8),), tuple(pods))
    used_now = usage(fleet, [tenant(one, 1) for one, (_, _, known) in zip(pods, parts, strict=True) if known])
    cards, sums = summarize_cards(fleet, used_now), summarize_pods(fleet, used_now)
    whole = sum(gib for _, gib, _ in parts) * GIB
    assert whole == sum(card.promised for card in cards)
    assert [whole] == [one.promised for one in summarize_nodes(cards)]
    assert whole == sum(one.promised for one in sums) == sum(one.promised for one in summarize_namespaces(sums))
    assert [max(0, card.offered - card.promised) for card in cards] == [card.free for card in cards]
    assert [] == [card for card in cards if card.stranded not in (0, card.free)]


@pytest.mark.parametrize(
    ("machine", "held", "expected"),
    [
        (node(cards=1), [4], 0),
        (node(cards=1), [4, 4, 6], 2),
        (node(cards=1), [8, 8], 0),
        (node(cards=1, cordoned=True), [4], 12),
        (node(cards=1, ready=False), [4], 12),
        (node(cards=1, serving=False), [4], 12),
        (replace(node(cards=1), cards=(replace(node(cards=1).cards[0], healthy=False),)), [4], 12),
        (node(cards=1, mode=Mode.CORE_MEM), [4], 12),
        (node(cards=1, mode=Mode.EXCLUSIVE), [15], 0),
    ],
    ids=["room", "crumbs", "full", "cordoned", "not-ready", "no-agent", "unhealthy", "no-compute", "whole-cards"],
)
def test_what_is_stranded(machine, held, expected):
    """
    Free memory that nobody can have: for its size, for the compute beside it, for its card or its node.
    """
    core = 100 // len(held) if machine.mode is Mode.CORE_MEM else 0
    fleet = Fleet((machine,), tuple(pod(f"p{at}", "n-0", gib, core=core) for at, gib in enumerate(held)))
    (card,) = summarize_cards(fleet, NOTHING)
    assert expected * GIB == card.stranded


def test_the_usual_promise_is_the_median_of_pods_with_shares():
    """
    Whole cards and pods without cards do not count; nothing promised: nothing usual.
    """
    pods = [pod(f"p{at}", "n-0", gib) for at, gib in enumerate([2, 2, 3, 9, 9])]
    whole = FleetPod("team", "w", "w", "n-0", CardRequest(4, 0, 0, whole=True))
    assert 3 * GIB == typical(Fleet((), (*pods, whole)))
    assert 0 == typical(Fleet((), (whole,)))


def test_unknown_use_is_a_question_mark_and_null_never_nothing():
    """
    A node whose exporter is silent, beside one that is heard.
    """
    pods = (pod("a", "n-0", 4), pod("b", "n-1", 4))
    fleet = Fleet((node("n-0", 1), node("n-1", 1)), pods)
    used_now = usage(fleet, [tenant(pods[0], 3)], without=("n-1",))
    known, unknown = top_document(fleet, used_now, TopOptions())["items"]
    assert (int(3.25 * GIB), None) == (known["used_bytes"], unknown["used_bytes"])
    assert None is unknown["over_promise_bytes"]
    lines = top_lines(fleet, used_now, TopOptions(), TextOutput())
    assert "used 3.2+ of 32.0 GiB" in lines[0]
    assert "?" in lines[3]
    assert "?" in top_lines(fleet, NOTHING, TopOptions(), TextOutput())[0]


def test_whole_cards_are_known_when_all_or_none_are_taken_or_somebody_tells():
    """
    No record says which whole card a pod has: one pod of two on a node of four is not put on any card.
    """

    def promised(count, used_now=NOTHING):
        whole = FleetPod("team", "w", "w", "n-0", CardRequest(count, 0, 0, whole=True))
        fleet = Fleet((node("n-0", 4, mode=Mode.EXCLUSIVE),), (whole,) if count else ())
        return [card.promised for card in summarize_cards(fleet, used_now)]

    assert [0] * 4 == promised(0)
    assert [16 * GIB] * 4 == promised(4)
    assert [None] * 4 == promised(2)


def test_what_is_reserved_counts_as_allocated():
    """
    It is nobody's any more, and `-o json` says how much of it is so.
    """
    kept = Reservation("r", "holder", Placement("n-0", (Slice("GPU-n-0-0", 0, 5 * GIB),)), 9e9)
    fleet = Fleet((node("n-0", 1),), (pod("a", "n-0", 4),), (kept,))
    (item,) = top_document(fleet, NOTHING, TopOptions())["items"]
    assert (9 * GIB, 5 * GIB, 7 * GIB) == (item["allocated_bytes"], item["reservation_bytes"], item["free_bytes"])


def test_over_promise_is_counted_by_container_and_card():
    """
    Idle memory on one card does not excuse too much on another.
    """
    one = pod("a", "n-0", 4, (0, 1))
    fleet = Fleet((node("n-0", 2),), (one,))
    used_now = usage(fleet, [tenant(one, 6, 0), tenant(one, 1, 1)])
    (total,) = summarize_pods(fleet, used_now)
    assert (8 * GIB, 7 * GIB, 2 * GIB) == (total.promised, total.used, total.over)
    assert "1 over promise" in top_lines(fleet, used_now, TopOptions(), TextOutput())[0]


def test_one_machine_by_its_exporter_alone_shows_what_the_cluster_would():
    """
    The same cards with the same promises and the same use, without an API server.
    """
    fleet, used_now = fleet_of_cards(8)
    alone = build_fleet(used_now)
    by_cluster = [(c.card.uuid, c.promised, c.memory.used, c.memory.over) for c in summarize_cards(fleet, used_now)]
    assert by_cluster == [
        (c.card.uuid, c.promised, c.memory.used, c.memory.over) for c in summarize_cards(alone, used_now)
    ]


@pytest.mark.parametrize("sort", ["name", "allocated", "used", "free", "stranded"])
def test_a_list_that_is_sorted_has_its_largest_first(sort):
    """
    Whatever is sorted by, ties go by name.
    """
    fleet, used_now = fleet_of_cards(64)
    column = {"name": None, "allocated": 3, "used": 4, "free": 5, "stranded": 8}[sort]
    lines = top_lines(fleet, used_now, TopOptions(sort=sort), TextOutput())[2:66]
    found = [line.split()[column] if column is not None else line.split()[:2] for line in lines]
    if column is None:
        assert sorted(found) == found
    else:
        amounts = [0.0 if value == "?" else float(value) for value in found]
        assert sorted(amounts, reverse=True) == amounts


@pytest.mark.parametrize("name", ["t4x2", "a100x8", "h100x8", "mig"])
def test_the_exporters_own_pages_are_read(name):
    """
    What the exporter's golden pages say of cards and promises is what `gpushare top --local` shows.
    """
    page = (GOLDEN / "exporter" / f"{name}.txt").read_bytes()
    used_now = build_usage(parse_page(page, FAMILIES))
    cards, text = summarize_cards(build_fleet(used_now), used_now), page.decode()
    assert text.count("\ngpushare_card_memory_total_bytes{") == len(cards)
    allocated = re.findall(r"^gpushare_card_memory_allocated_bytes\{.*\} (\S+)$", text, re.MULTILINE)
    assert sum(map(float, allocated)) == sum(card.promised for card in cards)
    used = re.findall(r"^gpushare_card_memory_used_bytes\{.*\} (\S+)$", text, re.MULTILINE)
    assert sum(map(float, used)) == sum(card.memory.used or 0 for card in cards)
    lines = top_lines(build_fleet(used_now), used_now, TopOptions(), TextOutput())
    check(f"views/exporter-{name}.txt", "\n".join(lines) + "\n")


def test_breaches_of_a_card_are_the_sum_over_their_kinds():
    """
    A sample for each kind that goes on, in whichever order; none, 0, where nothing does.
    """
    line = 'gpushare_isolation_breaches_open{{node="n",uuid="{}",card="{}",kind="{}"}} {}\n'
    samples = [("GPU-a", 0, "denied", 2), ("GPU-a", 0, "over_limit", 1), ("GPU-b", 1, "none", 0)]
    page = "".join(line.format(*one) for one in samples).encode()

    assert [3.0, 0.0] == [card.figures["breaches"] for card in build_usage(parse_page(page, FAMILIES)).cards]


def test_a_question_mark_of_a_pod_has_its_reason_once():
    """Below the table, by column; a pending pod uses nothing, and has no question mark. Without headers: rows alone."""
    fleet, usage = fleet_of_cards(8)
    lines = top_lines(fleet, usage, TopOptions(by="pod"), TextOutput(None))
    rows = [line for line in lines if " pending " in line and "?" in line]
    reasons = [line for line in lines if " ?: " in line]

    assert [] == rows
    assert any("?" in line for line in lines if line not in reasons)
    assert ["COMPUTE"] == [line.partition(" ")[0] for line in reasons if "COMPUTE" in line]
    assert all("no exporter reports" in line for line in reasons)
    bare = top_lines(fleet, usage, TopOptions(by="pod"), TextOutput(None, headers=False))
    assert [] == [line for line in bare if "no exporter" in line]
