# SPDX-License-Identifier: Apache-2.0
"""What `gpushare top` looks like: 1, 8 and 64 cards at 80 and 160 cells, in a pipe and on a pseudo-terminal."""

from __future__ import annotations

import hashlib
import re

import pytest
from support.golden_files import check
from support.views_harness import (
    api,
    exporter,
    fleet_of_cards,
    kubeconfig,
    node_json,
    on_terminal,
    page_of,
    piped,
    pod_json,
    serving,
)

from dashboards.terminal.table import TextOutput
from dashboards.terminal.top_view import BY, TopOptions, top_lines

CODES = re.compile(r"\x1b\[[0-9;]*m")


def drawn(count, output, **choice):
    """One view of so many cards."""
    fleet, usage = fleet_of_cards(count)
    return top_lines(fleet, usage, TopOptions(**choice), output)


@pytest.mark.parametrize("count", [1, 8, 64], ids=lambda count: f"{count}-cards")
@pytest.mark.parametrize("width", [80, 160, None], ids=lambda width: f"{width or 'pipe'}")
def test_cards_look_as_they_should(count, width):
    """
    Every figure in its column, nothing wider than the terminal, no colour in a pipe.
    """
    lines = drawn(count, TextOutput(width, colour=width is not None))
    check(f"views/top-{count}-{width or 'pipe'}.txt", "\n".join(lines) + "\n")
    if width:
        assert [] == [line for line in lines if len(CODES.sub("", line)) > width]
    else:
        assert [] == [line for line in lines if "\x1b" in line]


@pytest.mark.parametrize("by", BY)
def test_every_grouping_at_eighty_cells(by):
    """
    Sixty-four cards by node, pod and namespace, with more rows than there is room for.
    """
    lines = drawn(64, TextOutput(80), by=by, lines=12)
    check(f"views/top-64-by-{by}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("width", [60, 72, 80, 100, 160, 300])
@pytest.mark.parametrize("wide", [False, True])
def test_no_line_is_wider_than_the_terminal(by, width, wide):
    """
    Except where every column has its least already: a terminal under 80 cells, or -o wide under 160.
    """
    lines = drawn(64, TextOutput(width, colour=True), by=by, wide=wide)
    most = max(len(CODES.sub("", line)) for line in lines)
    assert most <= max(width, 160 if wide else 80)


def test_without_unicode_bars_are_ascii():
    """
    An encoding that knows no blocks gets signs that it knows.
    """
    lines = drawn(8, TextOutput(80, unicode=False))
    assert [] == [line for line in lines if not line.isascii()]
    assert any("##" in line for line in lines)


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 8, 64], ids=lambda count: f"{count}-cards")
def test_cards_on_pseudo_terminals_and_in_a_pipe(count):
    """
    One machine by its own exporter, at 80 and 160 cells: the very command, its colours, and none in a pipe or where
    nobody wants them; a pipe is as wide as its rows, whatever the terminal around it.
    """
    _, usage = fleet_of_cards(count)
    with serving(exporter(page_of(usage))) as (url, _):
        for columns in (80, 160):
            status, shown = on_terminal("top", "--once", "--local", url, columns=columns)
            assert 0 == status
            check(f"views/local-{count}-terminal-{columns}.txt", shown)
            assert max(len(CODES.sub("", line)) for line in shown.splitlines()) <= columns
        _, plain = on_terminal("top", "--once", "--local", url, columns=160, NO_COLOR="1")
        assert CODES.sub("", shown) == plain
        done = [piped("top", "--local", url, COLUMNS=columns) for columns in ("80", "160")]
    assert [(0, "")] * 2 == [(one.returncode, one.stderr) for one in done]
    assert done[0].stdout == done[1].stdout
    check(f"views/local-{count}-pipe.txt", done[0].stdout)


@pytest.fixture(scope="module")
def large_cluster():
    """An API server of 5,000 nodes of 8 cards; its URL and what it was asked."""
    nodes = [node_json(f"node-{i:04}") for i in range(5000)]
    pods = [pod_json(f"app-{i:05}", f"node-{i * 7 % 5000:04}", 8, (i % 8,)) for i in range(10_000)]
    pods += [pod_json(f"wait-{i}", "", 64) for i in range(3)]
    with serving(api({"/api/v1/nodes": nodes, "/api/v1/pods": pods})) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_five_thousand_nodes_on_a_pseudo_terminal(large_cluster, tmp_path, columns):
    """
    The first screen of a large cluster: as many nodes as fit, how many more there are, and that no exporter was asked.
    """
    url, asked = large_cluster
    status, shown = on_terminal("top", "--once", "--kubeconfig", kubeconfig(url, tmp_path), lines=24, columns=columns)
    assert 0 == status
    check(f"views/cluster-5000-terminal-{columns}.txt", shown)
    assert 24 >= shown.count("\n") + 1
    assert max(len(CODES.sub("", line)) for line in shown.splitlines()) <= columns
    assert [] == [path for path, _ in asked if "proxy" in path]


@pytest.mark.slow
def test_five_thousand_nodes_in_a_pipe(large_cluster, tmp_path):
    """
    Every one of 40,000 cards, of which the file keeps the first, the last and a sum of all; 80 or 160 cells around it
    are the same.
    """
    given = ("top", "--kubeconfig", kubeconfig(large_cluster[0], tmp_path))
    done = [piped(*given, COLUMNS=columns) for columns in ("80", "160")]
    assert [(0, "")] * 2 == [(one.returncode, one.stderr) for one in done]
    assert done[0].stdout == done[1].stdout
    lines = done[0].stdout.splitlines()
    assert 40_000 < len(lines)
    digest = hashlib.sha256(done[0].stdout.encode()).hexdigest()
    kept = [*lines[:32], f"... {len(lines):,} lines, sha256 {digest} ...", *lines[-16:]]
    check("views/cluster-5000-pipe.txt", "\n".join(kept) + "\n")
