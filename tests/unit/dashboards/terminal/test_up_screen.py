# SPDX-License-Identifier: Apache-2.0
"""
The screen: fits whatever size it gets, says the most important first, and looks as the golden files say.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support import golden_files
from support.budget import examples
from support.frames import card, frame, node, small_fleet, use

from dashboards.terminal.memory_bar import ASCII
from dashboards.terminal.up.live import LiveScreen, screen_for
from dashboards.terminal.up.plain_output import GAP, PlainLines
from dashboards.terminal.up.screen import MIN_HEIGHT, MIN_WIDTH, deal, screen
from isolation.contract.reading import FleetEvent, PendingReading, PoolReading

NOTES = (("clock", "x60"), ("metrics", "http://127.0.0.1:9445/metrics"))


def text(shown, width, height, notes=NOTES, **more):
    """The screen as plain text, without the padding at the end of lines."""
    return "".join(f"{line.plain.rstrip()}\n" for line in screen(shown, width, height, notes, **more))


def large_fleet(nodes=300, cards=8):
    """Hundreds of nodes; number 77 has the one pod over its promise."""
    readings = []
    for i in range(nodes):
        name = f"n-{i:03}"
        uses = [use(f"p-{i}", node=name, index=i % cards, used=1 + i % 3, gib=4)]
        if i == 77:
            uses.append(use("greedy", node=name, index=0, gib=2, used=3))
        readings.append(node(name, cards=cards, uses=uses))
    waiting = [PendingReading(f"team/w-{i}", float(i), "cards", "no card has 4 GiB free") for i in range(40)]
    return frame(readings, waiting=waiting, events=[FleetEvent(float(i), "placed", f"p-{i}", "") for i in range(50)])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40), (160, 24)])
def test_golden(width, height):
    """A small fleet with a bit of everything, at three sizes."""
    golden_files.check(f"terminal-{width}x{height}.txt", text(small_fleet(), width, height))


def test_golden_large():
    """Hundreds of nodes on the smallest usual terminal."""
    golden_files.check("terminal-large-80x24.txt", text(large_fleet(), 80, 24))


def test_golden_ascii():
    """Without Unicode every sign has another."""
    shown = text(small_fleet(), 100, 40, signs=ASCII)

    golden_files.check("terminal-ascii-100x40.txt", shown)
    assert shown.isascii()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 220),
    st.integers(1, 70),
    st.lists(st.tuples(st.integers(0, 17), st.integers(0, 4)), max_size=12),
    st.integers(0, 30),
    st.text(max_size=40),
)
def test_always_fits(width, height, nodes, others, name):
    """Never more lines or cells than the terminal has, whatever the fleet looks like and is called."""
    readings = [
        node(f"{name}{i}", cards=cards, uses=[use(name, node=f"{name}{i}", index=j) for j in range(min(pods, cards))])
        for i, (cards, pods) in enumerate(nodes)
    ]
    shown = frame(
        readings,
        pools=[PoolReading(f"{name}{i}", 1, 1, 0, 10**6) for i in range(others % 7)],
        waiting=[PendingReading(name, 1e9, name, name)] * others,
        events=[FleetEvent(1e9, name, name, name)] * others,
        at=1e9,
    )

    lines = screen(shown, width, height, ((name, name),) * 2)

    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    assert all(line.plain.isprintable() for line in lines)


@pytest.mark.parametrize("size", [(MIN_WIDTH - 1, 24), (80, MIN_HEIGHT - 1)])
def test_too_small_a_terminal_says_so(size):
    """Instead of a picture that nobody can read."""
    assert "terminal too small: needs 72 x 8 or more" in text(small_fleet(), *size)


def test_every_part_has_its_place_at_80x24():
    """Pools, cards, pods, waiting pods and what was done are all there, and the clock."""
    shown = text(large_fleet(), 80, 24)

    assert shown.startswith("gpushare 0:12:30")
    for title in ("POOL ", "NODE ", "POD ", "PENDING POD ", "AUTOSCALER "):
        assert f"\n{title}" in shown


def test_busiest_node_is_shown_of_hundreds():
    """A node over promise is on the screen even if it is one of hundreds, and the rest is counted."""
    shown = text(large_fleet(), 80, 24)

    assert "\nn-077 " in shown
    assert "\nteam/greedy " in shown
    assert re.search(r"\nand 2\d\d more nodes\n", shown)


def test_larger_terminal_shows_more():
    """Lines of a higher terminal go to what did not fit."""
    low, high = text(large_fleet(), 80, 24), text(large_fleet(), 80, 60)

    assert 60 == high.count("\n")
    assert low.count("\nteam/p-") < high.count("\nteam/p-")


def test_longest_wait_first():
    """The pod that waits longest is the first of those that wait."""
    shown = text(large_fleet(), 80, 24)

    assert shown.index("team/w-39") < shown.index("team/w-38")


def test_unhealthy_card_has_no_bar():
    """A card that cannot be used says so where its bar would be."""
    assert "unhealthy" in text(frame([node(cards=[card(healthy=False)])]), 80, 24)


def test_state_of_a_node_is_named():
    """A node that is not simply ready says what it is."""
    assert "shared-2 draining" in text(small_fleet(), 80, 24)


def test_empty_fleet():
    """Before the first node there is nothing to fall over."""
    assert "0 nodes  0 cards  0 pods" in text(frame(), 80, 24)


@given(st.integers(0, 90), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6))
def test_deal_gives_all_room_and_no_more(room, spans):
    """Lines are dealt until they are used up or everybody has enough; nobody gets more than wished."""
    wishes = [(least, least + more) for least, more in spans]

    given_lines = deal(room, wishes)

    assert min(room, sum(most for _, most in wishes)) == sum(given_lines)
    assert all(0 <= lines <= most for lines, (_, most) in zip(given_lines, wishes, strict=True))
    if room >= sum(least for least, _ in wishes):
        assert all(lines >= least for lines, (least, _) in zip(given_lines, wishes, strict=True))


def test_live_screen_draws_and_gives_the_terminal_back():
    """On a terminal the alternate screen is taken, drawn on in colour, and left again."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, color_system="standard")

    with LiveScreen(console) as live:
        live.show(small_fleet(), NOTES)
    shown = stream.getvalue()

    assert shown.startswith("\x1b[?1049h")
    assert "\x1b[1;37;41m" in shown
    assert shown.rstrip().endswith("\x1b[?25h\x1b[?1049l") or "\x1b[?1049l" in shown[-40:]


def test_stream_decides_between_screen_and_lines():
    """A pipe gets plain lines."""
    assert isinstance(screen_for(io.StringIO(), lambda: 0.0), PlainLines)


def plain_lines(frames, *, times=None, notes=()):
    """What `Lines` writes of these frames, line by line; time passes a second from frame to frame."""
    stream = io.StringIO()
    clock = iter(times or range(len(frames)))
    with PlainLines(stream, lambda: next(clock)) as lines:
        for shown in frames:
            lines.show(shown, notes)
    return stream.getvalue().splitlines()


def test_lines_write_every_happening_once():
    """A log whose oldest entries drop off is written without gap and without repetition."""
    log = [FleetEvent(float(i // 2), "placed", f"p-{i % 3}", "") for i in range(12)]
    frames = [frame(at=float(i), events=log[max(0, i - 4) : i]) for i in (2, 4, 6, 8, 8, 10, 12)]

    lines = [line for line in plain_lines(frames) if "placed" in line]

    assert [f"0:00:0{int(event.at)} placed {event.subject}" for event in log] == lines


def test_lines_admit_a_gap():
    """If more happened between two frames than the log keeps, the lines say that something is missing."""
    log = [FleetEvent(float(i), "place", f"p-{i}", "") for i in range(9)]

    lines = plain_lines([frame(events=log[0:4]), frame(events=log[2:6]), frame(events=log[7:9])])

    assert ["0:00:07 earlier events were dropped and are not shown"] == [s for s in lines if GAP in s]
    assert 8 == sum("place " in line for line in lines)


def test_lines_say_now_and_then_how_things_stand():
    """A status line at once and every five seconds of the reader's time."""
    shown = small_fleet()

    lines = plain_lines([shown] * 4, times=[0, 4, 5, 9])

    status = (
        "0:12:30 3 nodes and 1 booting, 8 cards, 5 pods on cards, 2 pending, 1 over promise; "
        "memory 62.0+ used, 79.0 promised of 128.0 GiB"
    )
    assert 2 == lines.count(status)


def test_lines_mention_a_note_once():
    """The speed and the address are said at the start and when they change, each with what it is."""
    said = [line for line in plain_lines([small_fleet()] * 3, notes=NOTES) if line.startswith("embedded cluster: ")]

    assert ["embedded cluster: clock x60", f"embedded cluster: metrics {NOTES[1][1]}"] == said


def test_lines_are_harmless():
    """No escape sequence reaches a log, and what the encoding lacks is replaced."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    event = FleetEvent(0.0, "placed", "p\x1b[31m", "für alle")

    with PlainLines(stream, lambda: 0.0) as lines:
        lines.show(replace(small_fleet(), events=(event,)))
    stream.seek(0)

    assert "0:00:00 placed p?[31m: f?r alle\n" == stream.readline()
