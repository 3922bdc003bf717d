# SPDX-License-Identifier: Apache-2.0
"""
The machine's part of the screen: fits whatever size it gets, keeps the most important, and as the golden files say.
"""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden_files
from support.budget import examples
from support.frames import card, node, small_fleet, use

from dashboards.terminal.memory_bar import ASCII
from dashboards.terminal.up.overview import draw_overview
from dashboards.terminal.up.plain_output import PlainLines
from dashboards.terminal.up.stack import CLUSTER, MACHINE, stack_lines, stack_news
from isolation.contract.quantity import GIB
from isolation.contract.stack import (
    DOWN,
    FIRING,
    PENDING,
    STARTING,
    UP,
    StackAlert,
    StackProcess,
    StackStatus,
    TenantStatus,
)

NOTES = (("clock", "x60"), ("metrics", "http://127.0.0.1:9448/metrics"))


def tenant(name, gib, does="keeps its promise", **more):
    """A tenant as it was sent on."""
    return TenantStatus(name, does, gib * GIB, None, True, StackProcess(name, **{"state": UP, **more}))


def alert(name="GpushareContainerMemoryOverLimit", state=FIRING, severity="warning", subject="stray"):
    """One alert."""
    return StackAlert(name, severity, state, subject, f"{subject} uses more than promised", "2026-01-01T00:00:00Z")


def machine(**more):
    """Two cards with a bit of everything: within, refused, over, down, unknown."""
    uses = [
        use("serve", node="box", gib=4, used=3.2, core=0.3, denied=0),
        use("greedy", node="box", gib=4, used=3.25, core=0.2, denied=1234),
        use("stray", node="box", index=1, gib=4, used=6.2, over_limit_seconds=83.0),
        use("blind", node="box", index=1, gib=2, used=None),
    ]
    cards = [card(i, node="box", uses=uses, model="Tesla V100-SXM2-16GB") for i in range(2)]
    tenants = (
        tenant("serve", 4),
        tenant("greedy", 4, "asks for more, is refused"),
        tenant("stray", 4, "no library: takes more"),
        tenant("blind", 2),
        tenant("broken", 3, state=DOWN, remark="ended with status 1: Error: no room; again in 2 s", restarts=1),
        tenant("late", 3, state=STARTING),
    )
    parts = (
        StackProcess("exporter", UP, "http://127.0.0.1:9445/metrics"),
        StackProcess("prometheus", UP, "http://127.0.0.1:9449"),
        StackProcess("alertmanager", STARTING, "http://127.0.0.1:9450"),
    )
    alerts = (alert("GpusharePromisedMemoryUnused", PENDING, subject="serve"), alert(), alert("X", severity="critical"))
    fields = {"tenants": tenants, "processes": parts, "node": node("box", cards=cards, uses=uses), "alerts": alerts}
    return StackStatus(**(fields | more))


def text(stack, width, room, **more):
    """As plain text, without the padding at the end of lines."""
    return "".join(f"{line.plain.rstrip()}\n" for line in stack_lines(stack, width, room, **more))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (120, 50), (160, 40)])
def test_golden_of_the_whole_screen(width, height):
    """Machine above, cluster below, at four sizes."""
    lines = draw_overview(small_fleet(), (width, height), NOTES, machine())

    golden_files.check(f"stack-{width}x{height}.txt", "".join(f"{line.plain.rstrip()}\n" for line in lines))


@settings(max_examples=examples(150), deadline=None)
@given(width=st.integers(1, 220), height=st.integers(1, 80))
def test_never_more_than_the_terminal_has(width, height):
    """Whatever the size, no line too many and no cell too many."""
    lines = draw_overview(small_fleet(), (width, height), NOTES, machine())

    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)


def test_who_is_over_is_never_cut_off():
    """With room for three lines of tenants the breach is one of them, and stands first."""
    shown = text(machine(), 80, 8).splitlines()

    assert shown[1].startswith("stray")
    assert "6.2" in shown[1]
    assert "0:01:23" in shown[1]


def test_firing_before_pending_and_the_graver_first():
    """Alerts in the order of what a person should do."""
    shown = [line for line in text(machine(), 120, 30).splitlines() if line.startswith((FIRING, PENDING))]

    assert ["critical", "warning", "warning"] == [line[9:19].strip() for line in shown]
    assert [FIRING, FIRING, PENDING] == [line.split()[0] for line in shown]


def test_what_is_about_our_tenants_stands_before_the_clusters():
    """The embedded cluster's pods go past their promises too; this machine's are the real ones."""
    alerts = (alert("A", severity="critical", subject="chat-1"), alert("B", state=PENDING), alert("C"))

    shown = [line for line in text(machine(alerts=alerts), 120, 30).splitlines() if line.startswith((FIRING, PENDING))]

    assert ["C", "A", "B"] == [line[19] for line in shown]


def test_nobody_watching_is_not_no_alerts():
    """Unknown says why; none says none."""
    assert "ALERT    no alerts yet" in text(machine(alerts=()), 80, 30)
    assert "ALERT    no prometheus here" in text(machine(alerts=None, remarks=("no prometheus here",)), 80, 30)
    assert "ALERT    not known yet" in text(machine(alerts=None), 80, 30)


def test_without_the_exporter_nothing_is_claimed():
    """Tenants that run are said to run, and no figure is shown for them."""
    shown = text(machine(node=None), 100, 30)

    assert "serve     running; the exporter does not report it now" in shown
    assert "3.2" not in shown
    assert "OF GiB" not in shown


def test_without_unicode():
    """Every sign of a bar has another."""
    assert text(machine(), 120, 30, signs=ASCII).isascii()


def test_names_cannot_move_the_cursor():
    """Neither a label nor a summary from elsewhere brings control characters to the terminal."""
    bad = StackAlert("A\x1b[2J", "w\r", "firing\x07", "s\n", "\x9b1m", "")
    lines = draw_overview(small_fleet(), (160, 50), NOTES, machine(alerts=(bad,), remarks=("\x1b]0;x\x07",)))
    stripped = "".join(line.plain for line in lines)

    assert stripped.isprintable()


def test_headings_where_there_is_room():
    """What is real and what is simulated is said from 30 lines on; without a machine there is none of it."""
    tall = "\n".join(line.plain for line in draw_overview(small_fleet(), (100, 40), NOTES, machine()))
    short = "\n".join(line.plain for line in draw_overview(small_fleet(), (100, 24), NOTES, machine()))
    alone = "\n".join(line.plain for line in draw_overview(small_fleet(), (100, 40), NOTES))

    assert MACHINE in tall
    assert CLUSTER in tall
    assert MACHINE not in short
    assert MACHINE not in alone


def test_news_are_said_once():
    """A process that ended, an alert that came, one that fires now, one that is over: each a line, once."""
    before = machine(alerts=(alert(state=PENDING), alert("B")), events=("exporter ended",))
    after = replace(before, alerts=(alert(),), events=("exporter ended", "train ended"))

    assert "exporter ended" in stack_news(None, before)
    assert [
        "train ended",
        "alert firing: GpushareContainerMemoryOverLimit stray: stray uses more than promised",
        "alert resolved: B stray: stray uses more than promised",
    ] == stack_news(before, after)
    assert [] == stack_news(after, after)


def test_alerts_that_cannot_be_read_are_not_over():
    """Prometheus that does not answer for a moment ends no alert."""
    assert [] == stack_news(machine(), machine(alerts=None))


def test_plain_lines():
    """In a pipe: addresses once, then how the machine stands, by name."""
    out = io.StringIO()
    lines = PlainLines(out, lambda: 0.0)

    lines.show(small_fleet(), NOTES, machine())
    lines.show(small_fleet(), NOTES, machine())

    lines = out.getvalue().splitlines()
    assert 1 == lines.count("exporter http://127.0.0.1:9445/metrics")
    assert (
        "this machine: serve 3.2 of 4.0 GiB; greedy 3.2 of 4.0 GiB, 1,234 denied; "
        "stray 6.2 of 4.0 GiB, 2.2 GiB OVER its promise; blind ? of 2.0 GiB; broken down; late starting"
    ) == lines[-1]
