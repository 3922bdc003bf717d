# SPDX-License-Identifier: Apache-2.0
"""
Figures, words and bars of the terminal view: sums that hold, cells that add up, names that cannot bite.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support.frames import card, frame, node, small_fleet, use

from dashboards.terminal.memory_bar import ASCII, MemoryUse, add_memory, bar, cells, legend
from dashboards.terminal.text_format import at_least, clock, column, count, gib, indexes, percent
from dashboards.terminal.up.totals import Tally, total_pools
from isolation.contract.quantity import GIB
from isolation.contract.reading import PoolReading
from isolation.contract.text import printable

AMOUNTS = st.integers(0, 80 * GIB)
MEMORIES = st.builds(MemoryUse, total=AMOUNTS, promised=AMOUNTS, used=st.none() | AMOUNTS, over=AMOUNTS, other=AMOUNTS)


def card_uses(nodes):
    """Cards of these nodes."""
    return Tally().uses(nodes)[0]


def pod_uses(nodes):
    """Pods of these nodes."""
    return Tally().uses(nodes)[1]


def test_tally_of_earlier_frames_changes_nothing():
    """A kept tally says the same as a new one, whichever nodes changed, came or went in between."""
    kept = Tally()
    before = small_fleet().nodes
    after = [before[0], node("shared-2", uses=[use("new", node="shared-2")]), node("extra")]

    for nodes in (before, after, before, []):
        assert Tally().uses(nodes) == kept.uses(nodes)


def test_over_promise_is_not_excused_by_idle_memory():
    """A pod that keeps one promise with room to spare and breaks another is over by the whole excess."""
    uses = [use("a", gib=8, used=1), use("a", index=1, gib=2, used=3)]

    (pod,) = pod_uses([node(uses=uses)])

    assert (GIB, 10 * GIB, 4 * GIB) == (pod.over, pod.promised, pod.used)


def test_pods_over_promise_come_first_then_the_largest():
    """The list begins with what needs a person."""
    uses = [use("small", used=1), use("large", used=3.9), use("over", gib=1, used=1.5)]

    assert ["team/over", "team/large", "team/small"] == [pod.name for pod in pod_uses([node(uses=uses)])]


def test_pod_adds_up_its_containers_and_cards():
    """Two containers over two cards are one pod; compute adds up to cards."""
    uses = [use("a", index=i, container=c, core=0.5) for i in (0, 1) for c in ("x", "y")]

    (pod,) = pod_uses([node(uses=uses)])

    assert ((0, 1), 16 * GIB, 2.0, 1.0) == (pod.cards, pod.promised, pod.core_promised, pod.core_used)


def test_use_of_a_pod_is_unknown_if_a_part_is():
    """A pod with a container that cannot be read shows no sum at all."""
    (pod,) = pod_uses([node(uses=[use("a"), use("a", index=1, used=None)])])

    assert pod.used is None


def test_same_name_in_two_namespaces_is_two_tenants():
    """Tenants of a card are pods, not names and not containers."""
    uses = [use("a"), use("a", namespace="other"), use("a", container="side")]

    assert [2, 0] == [found.tenants for found in card_uses([node(uses=uses)])]


def test_pools_add_up_their_cards_and_empty_pools_stay():
    """A pool without nodes is shown, and so is one that only nodes know."""
    shown = frame(
        [node("a"), node("b", pool="odd")],
        pools=[PoolReading("shared", 3, 2, 0, 9), PoolReading("z", 0, 0, 0, 1, "cgpu")],
    )

    pools = {pool.name: pool for pool in total_pools(shown, card_uses(shown.nodes))}

    assert (3, 2, 2, 32 * GIB) == (
        pools["shared"].nodes,
        pools["shared"].booting,
        pools["shared"].cards,
        pools["shared"].memory.total,
    )
    assert (0, 1, "cgpu") == (pools["z"].cards, pools["z"].max_nodes, pools["z"].mode)
    assert (1, None) == (pools["odd"].nodes, pools["odd"].max_nodes)


def test_sum_with_an_unknown_part_is_a_least_amount():
    """What is known is added up and marked; nothing known stays unknown."""
    known, unknown = MemoryUse(total=4, used=3), MemoryUse(total=4, used=None, partly=True)

    assert (3, True) == (add_memory([known, unknown]).used, add_memory([known, unknown]).partly)
    assert add_memory([unknown, unknown]).used is None
    assert (0, False) == (add_memory([]).used, add_memory([]).partly)


@given(st.lists(st.integers(0, 10**15), max_size=6), st.integers(0, 200))
def test_cells_add_up(amounts, width):
    """The cells of all parts fill the bar exactly, and nothing that is there in bulk vanishes."""
    found = cells(amounts, width)

    assert (width if sum(amounts) else 0) == sum(found)
    assert all(
        abs(cell - amount * width / sum(amounts)) < 1 for cell, amount in zip(found, amounts, strict=True) if amount
    )


@given(MEMORIES, st.integers(0, 120))
def test_bar_is_as_wide_as_asked(memory, width):
    """Whatever contradicts itself in a reading, the bar keeps its width and shows what is over promise."""
    drawn = bar(memory, width, ASCII)

    assert width == drawn.cell_len
    assert not (memory.over and width) or ASCII.over in drawn.plain


def test_bar_reads_from_used_to_free():
    """Used, promised and idle, over promise, others, free: in this order, without colour."""
    memory = MemoryUse(total=16, promised=8, used=8, over=2, other=2)

    assert "####----!!xx...." == bar(memory, 16, ASCII).plain


def test_legend_names_every_sign():
    """Nobody has to guess what a sign means."""
    assert "# used - promised ! over x others . free" == legend(ASCII).plain


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0:00:00"),
        (59.9, "0:00:59"),
        (3725, "1:02:05"),
        (86_400 * 3 + 3600 * 4 + 61, "3d 04:01:01"),
        (-5, "0:00:00"),
    ],
)
def test_clock(seconds, expected):
    """Hours without padding, days apart."""
    assert expected == clock(seconds)


@pytest.mark.parametrize(("cards", "expected"), [((), ""), ((0,), "0"), ((0, 1), "0,1"), ((0, 2, 3, 4, 7), "0,2-4,7")])
def test_indexes(cards, expected):
    """Runs of three and more are ranges."""
    assert expected == indexes(cards)


def test_amounts():
    """Unknown is a question mark; large sums do without decimals; a least amount says so."""
    assert ["?", "0.0", "1.5", "2,048"] == [gib(None), gib(0), gib(3 * GIB // 2), gib(2048 * GIB)]
    assert ["?", "1.0+", "1.0"] == [
        at_least(None, partly=True),
        at_least(GIB, partly=True),
        at_least(GIB, partly=False),
    ]
    assert ["?", "50%", "125%"] == [percent(None), percent(0.5), percent(1.25)]
    assert ["1 node", "0 nodes", "1,213 nodes"] == [count(1, "node"), count(0, "node"), count(1213, "node")]


@given(st.text(max_size=30), st.integers(0, 30), st.booleans())
def test_column_is_exact_and_harmless(text, width, right):
    """Any name takes exactly its cells and carries no control character."""
    shown = column(text, width, right=right)

    assert width == cell_len(shown)
    assert shown.isprintable()


def test_escape_sequences_are_defused():
    """A pod name cannot set the title of the terminal."""
    assert "?]0;owned?" == printable("\x1b]0;owned\x07")


def test_small_fleet_has_what_the_golden_files_should_show():
    """The fleet of the golden files really has a pod over promise and one that cannot be read."""
    pods = pod_uses(small_fleet().nodes)

    assert any(pod.over for pod in pods)
    assert any(pod.used is None for pod in pods)
    assert card(0).healthy
