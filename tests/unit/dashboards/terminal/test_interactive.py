# SPDX-License-Identifier: Apache-2.0
"""
What keys do in the interactive view, and what each place shows; without a terminal.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support.views_harness import fleet_of_cards, node, pod, tenant, usage

from dashboards.terminal import top_view
from dashboards.terminal.interactive import keys
from dashboards.terminal.interactive.history import ASCII_LEVELS, KEPT, LEVELS, History, sparkline
from dashboards.terminal.interactive.keys import parse_keys
from dashboards.terminal.interactive.navigation import LISTS, SORTS, Navigation, NavigationEntry, press_key, shown_from
from dashboards.terminal.interactive.rows import ReadingSummary, keys_in
from dashboards.terminal.interactive.screen import MIN_SIZE, FrameInput, Status, draw
from dashboards.terminal.read.fleet import Fleet
from dashboards.terminal.read.processes import parse_processes
from dashboards.terminal.read.source import Reading
from dashboards.terminal.read.usage import CardUsage, TenantUsage, Usage, add_rates
from dashboards.terminal.table import TextOutput
from isolation.contract.model import Mode
from isolation.contract.quantity import GIB

STATUS = Status("http://127.0.0.1:9445", "14:02:11")
PROCESSES = {
    "version": 1,
    "processes": [
        {"uuid": "GPU-n-0-0", "pid": 4242, "name": "python", "memory_bytes": GIB, "compute_ratio": 0.25}
        | {"namespace": "team", "pod": "bert", "container": "main", "attributed": "claim"},
        {"uuid": "GPU-n-0-0", "pid": 666, "name": "mi\x1b[2Jner", "memory_bytes": GIB, "attributed": "nobody"},
        {"uuid": 5},
    ],
}


def small():
    """One node, two cards, a pod over its promise and one that waits."""
    busy, over = pod("bert", gib=5, cards=(0,), core=30), pod("stray", gib=4, cards=(1,))
    fleet = Fleet((node("n-0"),), (busy, over, pod("waits", "", 8)))
    measured = usage(fleet, [tenant(busy, 3, core_used=0.25, core=0.3), tenant(over, 6, denied=7.0)])
    cards = tuple(
        replace(card, figures={**card.figures, "power": 100.0, "power_limit": 250.0, "temperature": 91.0})
        for card in measured.cards
    )
    return ReadingSummary(
        Reading(fleet, replace(measured, cards=cards)), parse_processes(json.dumps(PROCESSES).encode(), "n-0")
    )


def replace_processes(model, processes):
    """The same reading with other processes."""
    return ReadingSummary(model.reading, processes)


def scene(model, state=Navigation(), output=TextOutput(), history=None):  # noqa: B008 (frozen)
    """What a frame is made of."""
    seen = history or History()
    if model is not None:
        seen.add(model.reading.usage)
    return FrameInput(model, state, seen, STATUS, output)


def after(model, *pressed_keys, state=Navigation(), page=10):  # noqa: B008 (frozen)
    """The state after these keys."""
    for key in pressed_keys:
        state = press_key(state, key, keys_in(model.rows(state)), page)
    return state


def text_of(model, *pressed_keys, size=(80, 24), state=Navigation()):  # noqa: B008 (frozen)
    """The screen after these keys, in plain characters."""
    return "\n".join(draw(scene(model, after(model, *pressed_keys, state=state)), size).lines)


# Keys.


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"q", ("q",)),
        (b"\x1b[A\x1bOB", (keys.UP, keys.DOWN)),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[Z", (keys.PAGE_UP, keys.PAGE_DOWN, keys.HOME, keys.END, keys.BACK_TAB)),
        (b"\x1b", (keys.ESCAPE,)),
        (b"\r\n\t\x7f\x08\x03", (keys.ENTER, keys.ENTER, keys.TAB, keys.BACKSPACE, keys.BACKSPACE, keys.INTERRUPT)),
        ("ü".encode(), ("ü",)),
        (b"\x1b[200~\x00\x1b[1;5C\xff", ()),
    ],
)
def test_keys(sent, expected):
    """What terminals send, unknown sequences left out."""
    assert expected == parse_keys(sent)


def test_lists_and_where_enter_leads():
    """Node, its cards, one card, one pod, and back again the same way, with the cursor where it was."""
    model = small()
    assert [after(model, key).place.kind for key in "ncpm"] == list(LISTS)
    deep = after(model, "n", keys.ENTER, keys.DOWN, keys.ENTER, keys.ENTER)
    assert [("node", ""), ("card", "n-0"), ("one card", "GPU-n-0-1"), ("one pod", "team/stray")] == [
        (one.kind, one.of) for one in deep.places
    ]
    back = after(model, keys.ESCAPE, keys.ESCAPE, state=deep)
    assert ("card", "GPU-n-0-1") == (back.place.kind, back.place.chosen)
    assert "one pod" == after(model, "p", keys.ENTER).place.kind
    assert NavigationEntry("pod", "team") == after(model, "m", keys.ENTER).place


def test_a_filter_is_typed_kept_and_dropped():
    """Letters that are commands elsewhere are its text; Esc drops it."""
    model = small()
    typed = after(model, "p", "/", "s", "t", "r", "q", keys.BACKSPACE)
    assert ("str", True, False) == (typed.place.filter, typed.typing, typed.done)
    assert ["team/stray"] == keys_in(model.rows(typed))
    kept = after(model, keys.ENTER, state=typed)
    assert ["team/stray"] == keys_in(model.rows(kept))
    assert 3 == len(model.rows(after(model, keys.ESCAPE, state=kept)))
    assert 3 == len(model.rows(after(model, keys.ESCAPE, state=typed)))
    assert [] == model.rows(after(model, "x", "y", state=typed))
    assert "no pod matches the filter" in text_of(model, "p", "/", "x")


def test_sorting():
    """By each key and backwards; ties by name, so that rows do not jump."""
    model = small()
    by = {
        Navigation(sort=sort).sort: keys_in(model.rows(Navigation((NavigationEntry("pod"),), sort=sort)))
        for sort in SORTS
    }
    assert ["team/bert", "team/stray", "team/waits"] == by["name"]
    assert "team/waits" == by["allocated"][0]
    assert "team/stray" == by["used"][0]
    assert "team/bert" == by["utilisation"][0]
    assert by["name"][::-1] == keys_in(model.rows(after(model, "p", "r")))
    assert "allocated" == after(model, "s").sort


def test_the_interactive_view_sorts_by_all_that_the_table_does():
    """`--sort` is one option for both: cards and nodes by stranded memory too, the most first."""
    assert set(top_view.SORTS) <= set(SORTS)
    full = pod("full", "n-1", 5, cards=(0,), core=100)
    fleet = Fleet((node("n-0"), node("n-1", mode=Mode.CORE_MEM)), (pod("half", gib=5, cards=(0,), core=30), full))
    model = ReadingSummary(Reading(fleet, usage(fleet, [])), None)
    assert "n-0" == keys_in(model.rows(Navigation((NavigationEntry("node"),))))[0]
    assert "n-1" == keys_in(model.rows(Navigation((NavigationEntry("node"),), sort="stranded")))[0]
    assert "GPU-n-1-0" == keys_in(model.rows(Navigation((NavigationEntry("card"),), sort="stranded")))[0]


@pytest.mark.parametrize("size", [(60, 10), (80, 24), (120, 40), (200, 50), (59, 9), (10, 2), (1, 1)])
@pytest.mark.parametrize("colour", [True, False])
def test_a_frame_has_the_terminals_size_wherever_somebody_is(size, colour):
    """As many lines as there are, none wider, in every place and with every figure missing."""
    models = (None, small(), ReadingSummary(Reading(*fleet_of_cards(96))), ReadingSummary(Reading(Fleet(), Usage())))
    for model in models:
        history = History()
        for steps in ((), ("n",), ("p",), ("m",), (keys.ENTER, keys.ENTER), ("p", keys.ENTER), ("?",), ("/", "a")):
            state = after(model, *steps) if model else Navigation()
            drawn = draw(scene(model, state, TextOutput(size[0], colour), history), size)
            assert size[1] == len(drawn.lines)
            plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn.lines]
            assert [] == [line for line in plain if cell_len(line) > size[0]]
            assert colour or not any("\x1b[3" in line or "\x1b[4" in line for line in drawn.lines)
    assert MIN_SIZE == (60, 10)


def test_the_cursor_stays_on_the_screen_and_on_its_row():
    """While it moves beyond either end, and while rows come and go."""
    rows = [f"row-{at:02}" for at in range(50)]
    state = Navigation()
    for key, expected in (
        *((keys.PAGE_DOWN, "row-10"), (keys.DOWN, "row-11"), (keys.END, "row-49"), (keys.DOWN, "row-49")),
        *((keys.PAGE_UP, "row-39"), ("k", "row-38"), ("j", "row-39"), ("g", "row-00"), (keys.UP, "row-00")),
    ):
        state = press_key(state, key, rows, 10)
        first = shown_from(state.place, rows, 10)
        assert expected == state.place.chosen
        assert expected in rows[first : first + 10]
    chosen = replace(state.place, chosen="row-20", top=15)
    assert 4 == shown_from(chosen, rows[15:], 10) or "row-20" in rows[15:][shown_from(chosen, rows[15:], 10) :][:10]
    gone = press_key(Navigation((chosen,)), keys.DOWN, rows[:5], 10)
    assert "row-01" == gone.place.chosen


# What is shown.


def test_one_card():
    """Its model, figures with their course, who is on it, and the processes with their containers."""
    shown = text_of(small(), keys.ENTER, size=(120, 40))
    for expected in ("> n-0 card 0", "T4", "GPU-n-0-0", "healthy", "memory", "power", "100 W of 250 W", "91 °C"):
        assert expected in shown
    line = next(line for line in shown.splitlines() if "team/bert" in line)
    assert ["5.0", "3.0", "60%", "25%/30%"] == [word for word in line.split() if word[0].isdigit()][:4]
    assert "4242" in shown
    owned = next(line for line in shown.splitlines() if "4242" in line)
    assert "python" in owned
    assert "team/bert main" in owned
    strange = next(line for line in shown.splitlines() if "666" in line)
    assert "mi?[2Jner" in strange
    assert "nobody's" in strange


def test_processes_that_do_not_fit_are_counted():
    """Above the last line of the window, and none of them behind it."""
    model = small()
    one = model.processes.all[0]
    many = replace(model.processes, all=tuple(replace(one, pid=5000 + at) for at in range(30)))
    shown = text_of(replace_processes(model, many), keys.ENTER, size=(80, 24))
    pids = [line for line in shown.splitlines() if re.match(r" +50\d\d ", line)]
    assert 6 == len(pids)
    assert "and 24 more" in shown


def test_one_pod():
    """What it was promised and uses, and each of its cards."""
    shown = text_of(small(), "p", keys.DOWN, keys.ENTER, size=(100, 30))
    for expected in ("team/stray", "on node n-0", "2.0 GiB over its promise", "6.0 of 4.0 GiB", "T4"):
        assert expected in shown
    assert "pending" in text_of(small(), "p", keys.END, keys.ENTER)


def test_what_cannot_be_read_is_a_question_mark_and_processes_say_why():
    """Never 0."""
    fleet = Fleet((node("n-0"),), (pod("bert"),), notes=("memory in use on n-0 is unknown: no exporter is running",))
    model = ReadingSummary(Reading(fleet, Usage()), parse_processes(b"<html>", "n-0"))
    shown = text_of(model, keys.ENTER)
    assert "? used" in shown
    assert "processes are unknown: its exporter is older than this program" in shown
    assert "note: memory in use on n-0 is unknown" in text_of(model)
    assert "0%" not in text_of(model)
    gone = ReadingSummary(Reading(Fleet(), Usage()))
    assert "this card has gone" in text_of(
        gone, state=Navigation((NavigationEntry(), NavigationEntry("one card", "GPU-n-0-0")))
    )
    assert "this pod has gone" in text_of(
        gone, state=Navigation((NavigationEntry(), NavigationEntry("one pod", "team/bert")))
    )


def test_a_failed_refresh_is_said_and_the_last_figures_stay():
    """With the reason."""
    model = small()
    drawn = draw(replace(scene(model), status=replace(STATUS, trouble="no answer")), (80, 24))
    assert any("refresh failed: no answer" in line for line in drawn.lines)
    assert any("n-0" in line for line in drawn.lines)


# History.


def test_a_course():
    """One sign for each reading, the latest on the right; what was not known is a gap."""
    assert f" {LEVELS[0]} {LEVELS[-1]}" == sparkline([0.0, None, 10.0], 4)
    assert ASCII_LEVELS[0] + ASCII_LEVELS[-1] == sparkline([5.0, 0.0, 1.0], 2, 1.0, unicode=False)
    assert "   " == sparkline([], 3)
    assert "" == sparkline([1.0], 0)
    assert LEVELS[-1] == sparkline([7.0], 1, 1.0)


def test_history_is_bounded_and_forgets_what_has_gone():
    """One figure for each reading, in line with the others."""
    history = History()
    there = Usage((CardUsage("n", "GPU-1", 0, figures={"utilisation": 0.5}),))
    history.add(Usage())
    history.add(there)
    assert (None, 0.5) == history.of("GPU-1", "utilisation")
    for _ in range(KEPT + 5):
        history.add(there)
    assert KEPT == len(history.of("GPU-1", "utilisation"))
    for _ in range(KEPT):
        history.add(Usage())
    assert () == history.of("GPU-1", "utilisation")


def test_compute_is_the_mean_between_two_readings_where_exporters_count_seconds():
    """A tenant busy 3 s of 15 uses 20 %, whatever the last cycle's gauge says; a restarted counter keeps the gauge."""

    def at(seconds, busy, computed, **more):
        card = CardUsage("n", "GPU-1", 0, figures={"utilisation": 0.0, "busy_seconds": busy} | more)
        figures = {"core_used": 0.0, "compute_seconds": computed}
        one = TenantUsage("team", "a", "main", "n", "GPU-1", 0, exclusive=False, figures=figures)
        return Usage((card,), (one,), seconds)

    rated = add_rates(at(1000.0, 50.0, 30.0), at(1015.0, 56.0, 33.0))
    assert 0.4 == pytest.approx(rated.cards[0].figures["utilisation"])
    assert 0.2 == pytest.approx(rated.tenants[0].figures["core_used"])
    assert 0.0 == add_rates(at(1000.0, 50.0, 30.0), at(1015.0, 1.0, 1.0)).tenants[0].figures["core_used"]
    assert 0.0 == add_rates(Usage((), (), 1000.0), at(1015.0, 56.0, 33.0)).cards[0].figures["utilisation"]
    assert 0.0 == add_rates(at(1000.0, 50.0, 30.0), at(1000.0, 56.0, 33.0)).cards[0].figures["utilisation"]
