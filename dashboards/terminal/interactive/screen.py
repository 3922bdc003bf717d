# SPDX-License-Identifier: Apache-2.0
"""
The interactive view as lines of exactly the terminal's size: head, tabs, rows or details, foot.

Pure: (model, state, history, size) -> lines. Decides what gives way in a small window; never more lines than there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

from dashboards.terminal.interactive.detail import card_facts, pod_facts, process_lines
from dashboards.terminal.interactive.keys import ENTER
from dashboards.terminal.interactive.navigation import TABS, Navigation, at, press_key, shown_from
from dashboards.terminal.interactive.rows import ReadingSummary, keys_in
from dashboards.terminal.interactive.tables import TABLES, Canvas
from dashboards.terminal.memory_bar import add_memory, legend, pieces
from dashboards.terminal.table import BAD, DIM, HEAD, STRONG, WARN, table
from dashboards.terminal.text_format import at_least, count, gib
from isolation.contract.text import printable

if TYPE_CHECKING:
    from dashboards.terminal.interactive.history import History
    from dashboards.terminal.table import TextOutput

MIN_SIZE: Final = (60, 10)
"""Columns and lines below which nothing sensible fits."""
_GUTTER: Final = 2
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_CURSOR, _CURSOR_PLAIN = "\x1b[30;46m", "\x1b[7m"
_MAX_PROCESSES: Final = 12
_PREVIEW_FRAME: Final = 3
_MIN_PREVIEW: Final = _PREVIEW_FRAME + 1
"""Lines: an empty one, title, heading, and a row."""


@dataclass(frozen=True, slots=True)
class Status:
    """What is to be said of the reading itself."""

    source: str
    """Where it comes from."""
    clock: str
    trouble: str = ""
    """Why the last reading failed; empty: it did not."""
    reading: bool = False
    keys: tuple[tuple[str, str], ...] = ()
    """Further ones for the last line."""


@dataclass(frozen=True, slots=True)
class DrawnFrame:
    """A frame, and what keys need to know of it."""

    lines: list[str]
    rows: list[str]
    """Keys of all rows of the place."""
    page: int
    """How many are shown at once."""


@dataclass(frozen=True, slots=True)
class FrameInput:
    """Everything that a frame is made of."""

    model: ReadingSummary | None
    """None: nothing is read yet."""
    state: Navigation
    history: History
    status: Status
    output: TextOutput


def draw(scene: FrameInput, size: tuple[int, int]) -> DrawnFrame:
    """The whole screen of so many columns and lines."""
    width, height = size
    model, state, status, output = scene.model, scene.state, scene.status, scene.output
    if width < MIN_SIZE[0] or height < MIN_SIZE[1]:
        text = f"terminal too small: needs {MIN_SIZE[0]} x {MIN_SIZE[1]} or more; q quits"
        return DrawnFrame(_filled([text], size), [], 1)
    if model is None:
        said = [output.styled(line, BAD) for line in _wrapped(status.trouble, width)] or [
            f"reading {status.source} ..."
        ]
        return DrawnFrame(_filled(["", *said], size, _foot(state, status, output, width)), [], 1)
    if state.help:
        lines = [*_head(model, status, width, output), "", *_help(output)]
        return DrawnFrame(_filled(lines, size, _foot(state, status, output, width)), [], 1)
    return _body(model, scene, size)


def _body(model: ReadingSummary, scene: FrameInput, size: tuple[int, int]) -> DrawnFrame:
    width, height = size
    state, history, status, output = scene.state, scene.history, scene.status, scene.output
    place = state.place
    things = model.rows(state)
    keys = keys_in(things)
    above = [*_head(model, status, width, output), _tabs(model, state, width, output)]
    below = [*_notes(model, state, status, width, output), *_foot(state, status, output, width)]
    processes: list[str] = []
    inner = replace(output, width=width - _GUTTER)
    on = Canvas(history, inner, place)
    if place.kind == "one card":
        above += card_facts(model.card(place.of), on, height)
    elif place.kind == "one pod":
        above += pod_facts(model.pod(place.of), on, height)
    if place.kind in ("one card", "one pod"):
        processes = ["", *_first(process_lines(model, place, inner), max(3, min(_MAX_PROCESSES, height // 3)), output)]
    page = max(1, height - len(above) - len(below) - len(processes) - 1)
    first = shown_from(place, keys, page)
    shown = things[first : first + page]
    how = TABLES[place.kind]
    lines = table(inner, how.columns(inner), [how.row(one, on) for one in shown])
    cursor = at(place, keys) - first
    rows = [" " * _GUTTER + lines[0]]
    rows += [_row(line, place_at == cursor, width, output) for place_at, line in enumerate(lines[1:])]
    if not shown:
        rows.append(output.styled(f"  no {how.noun} {'matches the filter' if place.filter else 'here'}", DIM))
    if len(things) > page:
        rows[0] = _beside(rows[0], output.styled(f"{first + 1}-{first + len(shown)} of {len(things):,}", DIM), width)
    more = processes or _preview(model, scene, keys, inner, page - len(shown))
    return DrawnFrame(_filled([*above, *rows, *more], size, below), keys, page)


def _first(lines: list[str], most: int, output: TextOutput) -> list[str]:
    """No more lines than that; the last one says how many are missing."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], "  " + output.styled(f"and {len(lines) - most + 1} more", DIM)]


def _preview(model: ReadingSummary, scene: FrameInput, keys: list[str], output: TextOutput, room: int) -> list[str]:
    """Where there is room: what Enter would show of the row with the cursor."""
    if room < _MIN_PREVIEW or not keys:
        return []
    place = press_key(replace(scene.state, typing=False), ENTER, keys, 1).place
    things = model.rows(Navigation((place,)))
    if not things:
        return []
    how, on = TABLES[place.kind], Canvas(scene.history, output, place)
    shown = things[: room - _PREVIEW_FRAME]
    lines = table(output, how.columns(output), [how.row(one, on) for one in shown])
    title = f"on {_named(model, place.kind, place.of)}"
    if len(shown) < len(things):
        title += f": {len(shown)} of {len(things):,} {how.noun}s"
    return ["", "  " + output.styled(title, DIM), *("  " + line for line in lines)]


def _row(line: str, chosen: bool, width: int, output: TextOutput) -> str:  # noqa: FBT001 (one row)
    if not chosen:
        return " " * _GUTTER + line
    mark = "▸ " if output.unicode else "> "
    text = set_cell_size(mark + _COLOURS.sub("", line), width)
    return f"{_CURSOR if output.colour else _CURSOR_PLAIN}{text}\x1b[0m"


def _head(model: ReadingSummary, status: Status, width: int, output: TextOutput) -> list[str]:
    fleet = model.reading.fleet
    over = sum(1 for one in model.pods if one.over)
    waiting = sum(1 for one in model.pods if not one.pod.node)
    parts = [
        count(len(model.nodes), "node"),
        count(len(model.cards), "card"),
        count(len(model.pods) - waiting, "pod"),
        output.styled(f"{waiting:,} pending", WARN) if waiting else "0 pending",
        *([output.styled(f"{over:,} over promise", BAD)] if over else []),
    ]
    left = f"{output.styled('gpushare', HEAD)}  {'  '.join(parts)}"
    state = f"{'reading ' if status.reading else ''}{status.clock}"
    source = printable(status.source)
    room = width - cell_len(_COLOURS.sub("", left)) - len(state) - 4
    right = f"{source}  {state}" if cell_len(source) <= room else state
    memory = add_memory(card.memory for card in model.cards)
    known = [card.promised for card in model.cards if card.promised is not None]
    partly = len(known) < len(model.cards) or any(card.partly for card in model.cards) or fleet.partly
    promised = at_least(sum(known) if known else None, partly=partly)
    figures = f" {promised} allocated, {at_least(memory.used, partly=memory.partly)} used of {gib(memory.total)} GiB"
    bar = pieces(memory, max(8, width - 7 - len(figures)), output.signs)
    drawn = "".join(output.styled(text, style) for text, style in bar)
    return [_beside(left, output.styled(right, DIM), width), f"memory {drawn}{figures}"]


def _tabs(model: ReadingSummary, state: Navigation, width: int, output: TextOutput) -> str:
    known = (len(model.nodes), len(model.cards), len(model.pods), len(model.namespaces))
    counts = dict(zip(TABS.values(), known, strict=True))
    tabs = []
    for key, kind in TABS.items():
        name = f"{kind}s"
        shown = name.replace(key, f"[{key}]", 1)
        here = state.places[0].kind == kind
        number = f"{shown} {counts[kind]:,}"
        tabs.append(_here(number, output) if here else output.styled(number, DIM))
    where = [_named(model, place.kind, place.of) for place in state.places[1:]]
    left = "  ".join(tabs)
    if where:
        left = (
            _here(f"{state.places[0].kind}s", output)
            + output.styled(" > ", DIM)
            + output.styled(" > ", DIM).join(where)
        )
    sort = f"sort: {state.sort}{' reversed' if state.reverse else ''}"
    typed = f"filter: {printable(state.place.filter)}{'_' if state.typing else ''}"
    indicators = [output.styled(typed, WARN)] if state.place.filter or state.typing else []
    indicators += [] if state.place.kind.startswith("one ") else [output.styled(sort, DIM)]
    indicators += [output.styled("paused", WARN)] if state.paused else []
    return _beside(left, "  ".join(indicators), width)


def _here(text: str, output: TextOutput) -> str:
    return output.styled(text, STRONG) if output.colour else f"<{text}>"


def _named(model: ReadingSummary, kind: str, of: str) -> str:
    card = model.card(of) if kind == "one card" else None
    return printable(f"{card.node.name} card {card.card.index}" if card else of or "this machine")


def _notes(model: ReadingSummary, state: Navigation, status: Status, width: int, output: TextOutput) -> list[str]:
    notes = [f"note: {note}" for note in model.reading.fleet.notes]
    lines = [
        output.styled(set_cell_size(printable(note), min(width, cell_len(printable(note)))), WARN) for note in notes[:2]
    ]
    if len(notes) > len(lines):
        lines[-1] = output.styled(f"note: {len(notes) - 1} more notes: see gpushare top --once", WARN)
    if status.trouble:
        first = _wrapped(f"refresh failed: {status.trouble}", width)[0]
        lines.append(output.styled(first, BAD))
    key = legend(output.signs).plain
    if state.place.kind in ("node", "card"):
        signs = "".join(output.styled(text, style) for text, style in _signs(output))
        lines.append(signs if cell_len(key) <= width else "")
    return lines


def _signs(output: TextOutput) -> list[tuple[str, str]]:
    text, found, reached = legend(output.signs), [], 0
    for span in text.spans:
        found += [(text.plain[reached : span.start], ""), (text.plain[span.start : span.end], str(span.style))]
        reached = span.end
    return [*found, (text.plain[reached:], "")]


def _foot(state: Navigation, status: Status, output: TextOutput, width: int) -> list[str]:
    if state.typing:
        keys = [("type", "to filter"), ("Enter", "keep"), ("Esc", "clear")]
    else:
        keys = [*status.keys, ("Enter", "open"), *([("Esc", "back")] if len(state.places) > 1 else [])]
        keys += [("?", "help"), ("q", "quit"), ("/", "filter"), ("s", "sort"), ("n c p m", "lists")]
    line, used = "", 0
    for key, does in keys:
        cells = len(key) + 1 + len(does) + (2 if used else 0)
        if used + cells > width:
            continue
        line += ("  " if used else "") + output.styled(key, HEAD) + " " + does
        used += cells
    return [line]


_HELP: Final = (
    ("Up Down k j", "move the cursor; PgUp PgDn, Home End, g G: faster"),
    ("Enter, Right", "open: node, its cards, one card, one pod; or a namespace"),
    ("Esc, Left", "back; in a list: drop the filter"),
    ("n c p m, Tab", "list nodes, cards, pods, namespaces"),
    ("/", "show only rows with this text: names, pools, models, states"),
    ("s, r", "sort: name, allocated, used, free, stranded, utilisation; reverse"),
    ("Space", "pause, and go on reading"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("ALLOC", "promised to pods, and reserved for pods to come"),
    ("USED", "measured on the card, whoever uses it; red: over a promise"),
    ("UTIL", "part of the time in which a kernel ran on the card"),
    ("HISTORY", "the same (of pods: their memory) since you look"),
    ("?", "cannot be read; 9.0+ is the least that it can be"),
)


def _help(output: TextOutput) -> list[str]:
    widest = max(len(key) for key, _ in _HELP)
    return [f"  {output.styled(key.ljust(widest), STRONG)}  {text}" for key, text in _HELP]


def _wrapped(text: str, width: int) -> list[str]:
    plain = printable(text)
    return [plain[start : start + width] for start in range(0, len(plain), max(1, width))]


def _beside(left: str, right: str, width: int) -> str:
    """Both ends of a line; the right one gives way."""
    cells, more = cell_len(_COLOURS.sub("", left)), cell_len(_COLOURS.sub("", right))
    return left if cells + more + 1 > width else left + " " * (width - cells - more) + right


def _filled(lines: list[str], size: tuple[int, int], below: list[str] | None = None) -> list[str]:
    """As many lines as there are, the foot at the bottom, none wider than the terminal."""
    width, height = size
    foot = (below or [])[-height:]
    room = height - len(foot)
    shown = [*lines[:room], *[""] * (room - len(lines)), *foot]
    return [cropped(line, width) for line in shown]


def cropped(line: str, width: int) -> str:
    """A line in at most so many cells; its colours end with it."""
    if cell_len(_COLOURS.sub("", line)) <= width:
        return line
    made, left = "", width
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            made += part
        elif left > 0:
            cut = set_cell_size(part, min(left, cell_len(part)))
            made, left = made + cut, left - cell_len(cut)
    return made + "\x1b[0m"
