# SPDX-License-Identifier: Apache-2.0
"""
The screen: one frame of a fleet in so many columns and lines.

Pure: (frame, size, notes) -> lines. Decides what is shown when not everything fits: every part
keeps its least, the room left over is dealt out in turn, cards give way to nodes and nodes to the
busiest of them; pools always add up everything. Never more lines or cells than there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from dashboards.terminal.memory_bar import BLOCKS, OVER_STYLE, add_memory, bar, legend
from dashboards.terminal.text_format import clock, column, count
from dashboards.terminal.up import tables
from dashboards.terminal.up.totals import Tally, standing, total_pools
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dashboards.terminal.memory_bar import BarCharacters, MemoryUse
    from dashboards.terminal.up.totals import CardTotals, PodTotals
    from isolation.contract.reading import Frame

TWO_COLUMNS: Final = 150
"""Cells from which cards and pods stand side by side."""
ORDINARY: Final = frozenset({"place", "finish"})
"""Happenings that the pods themselves show; they would push what was decided off the screen."""
MIN_WIDTH: Final = 72
MIN_HEIGHT: Final = 8
_MAX_CARDS: Final = 60
"""Lines of single cards; beyond it one line per node says more."""


@dataclass(frozen=True, slots=True)
class Block:
    """One part of the screen: how many lines it needs at least and at most, and how it is drawn in so many."""

    least: int
    most: int
    draw: Callable[[int, int], list[Text]]
    """(width, lines) -> at most so many lines."""


def screen(
    frame: Frame,
    width: int,
    height: int,
    notes: Sequence[tuple[str, str]] = (),
    *,
    signs: BarCharacters = BLOCKS,
    tally: Tally | None = None,
) -> list[Text]:
    """The whole screen, at most `height` lines of at most `width` cells; `tally` may be that of earlier frames."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return [Text(column(f"terminal too small: needs {MIN_WIDTH} x {MIN_HEIGHT} or more", width))][:height]
    cards, pods = (tally or Tally()).uses(frame.nodes)
    fleet = [_pools(frame, cards, signs), _cards(frame, cards, signs)]
    events = [_pods(pods), _waiting(frame), _happenings(frame)]
    room = height - 3
    if width < TWO_COLUMNS:
        body = _stack([*fleet, *events], width, room)
    else:
        left, right = (width - 2) // 2, width - 2 - (width - 2) // 2
        body = _beside(_stack(fleet, left, room), _stack(events, right, room), left)
    head = _head(frame, cards, pods, width)
    return [
        head,
        _total(add_memory(use.memory for use in cards), width, signs),
        *body[:room],
        _foot(notes, width, signs),
    ]


def deal(room: int, wishes: Sequence[tuple[int, int]]) -> list[int]:
    """Lines for each (least, most): the least in order while there is room, then one each in turn."""
    given = [0] * len(wishes)
    for position, (least, _) in enumerate(wishes):
        given[position] = min(least, room)
        room -= given[position]
    while room > 0:
        wanting = [i for i, (_, most) in enumerate(wishes) if given[i] < most]
        if not wanting:
            break
        for position in wanting[:room]:
            given[position] += 1
        room -= len(wanting[:room])
    return given


def _stack(blocks: Sequence[Block], width: int, room: int) -> list[Text]:
    lines = deal(room, [(block.least, block.most) for block in blocks])
    return [line for block, given in zip(blocks, lines, strict=True) for line in block.draw(width, given)[:given]]


def _beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    empty = Text(" " * width)
    height = max(len(left), len(right))
    return [
        Text.assemble(left[i] if i < len(left) else empty, "  ", right[i] if i < len(right) else "")
        for i in range(height)
    ]


def _listed(header: Text, lines: Sequence[Text], room: int, *, noun: str, whole: int) -> list[Text]:
    """A header and lines, the last one replaced by how many of the `whole` are missing where not all fit."""
    if room <= 1:
        return [header][:room]
    if whole <= room - 1:
        return [header, *lines]
    shown = lines[: room - 2]
    return [header, *shown, tables.rest(whole - len(shown), noun, header.cell_len)]


def _pools(frame: Frame, cards: Sequence[CardTotals], signs: BarCharacters) -> Block:
    pools = total_pools(frame, cards)

    def draw(width: int, lines: int) -> list[Text]:
        shown = pools if len(pools) < lines else sorted(pools, key=lambda pool: (-pool.memory.promised, pool.name))
        drawn = [tables.pool_row(pool, width, signs) for pool in shown[:lines]]
        return _listed(tables.pool_header(width), drawn, lines, noun="pool", whole=len(pools))

    return Block(min(len(pools), 3) + 1, len(pools) + 1, draw)


def _cards(frame: Frame, cards: Sequence[CardTotals], signs: BarCharacters) -> Block:
    groups: dict[str, list[CardTotals]] = {
        node.node: [] for node in frame.nodes if node.cards or node.state != tables.READY
    }
    for use in cards:
        groups[use.node.node].append(use)
    empty = [node for node in frame.nodes if not node.cards and node.node in groups]

    def draw(width: int, lines: int) -> list[Text]:
        coming = [tables.empty_row(node, width) for node in empty[:lines]]
        if len(cards) + len(empty) <= min(lines - 1, _MAX_CARDS):
            return [tables.card_header(width), *(tables.card_row(use, width, signs) for use in cards), *coming]
        standing = [group for group in groups.values() if group]
        if len(groups) > lines - 1:
            standing.sort(key=_busy)
        drawn = [*(tables.node_row(group, width, signs) for group in standing[:lines]), *coming]
        return _listed(tables.node_header(width), drawn, lines, noun="node", whole=len(groups))

    single = len(cards) + len(empty)
    return Block(4, max(single if single <= _MAX_CARDS else len(groups), 1) + 1, draw)


def _busy(group: Sequence[CardTotals]) -> tuple[int, float, str]:
    total = add_memory(use.memory for use in group)
    return (-total.over, -(total.used or 0) / max(1, total.total), group[0].node.node)


def _pods(pods: Sequence[PodTotals]) -> Block:
    def draw(width: int, lines: int) -> list[Text]:
        drawn = [tables.pod_row(pod, width) for pod in pods[:lines]]
        return _listed(tables.pod_header(width), drawn, lines, noun="pod", whole=len(pods))

    return Block(4, len(pods) + 1, draw)


def _waiting(frame: Frame) -> Block:
    longest = sorted(frame.waiting, key=lambda pod: (-pod.seconds, pod.pod))

    def draw(width: int, lines: int) -> list[Text]:
        drawn = [tables.waiting_row(pod, width) for pod in longest[:lines]]
        return _listed(tables.waiting_header(width), drawn, lines, noun="pod", whole=len(longest))

    return Block(min(len(longest), 2) + 1, len(longest) + 1, draw) if longest else Block(0, 0, lambda _, __: [])


def _happenings(frame: Frame) -> Block:
    events = [event for event in frame.events if event.kind not in ORDINARY] or frame.events

    def draw(width: int, lines: int) -> list[Text]:
        latest = events[-(lines - 1) :] if lines > 1 else ()
        return [tables.happening_header(width), *(tables.happening_row(event, width) for event in latest)]

    return Block(min(len(events), 3) + 1, len(events) + 1, draw)


def _head(frame: Frame, cards: Sequence[CardTotals], pods: Sequence[PodTotals], width: int) -> Text:
    over = sum(1 for pod in pods if pod.over)
    parts = [
        count(standing(frame), "node"),
        count(len(cards), "card"),
        count(len(pods), "pod"),
        f"{len(frame.waiting):,} pending",
        f"{over:,} over promise",
    ]
    loose = f"gpushare {clock(frame.at)}   {'  '.join(parts)}"
    line = Text(loose if len(loose) <= width else f"{clock(frame.at)} {', '.join(parts)}")
    line.highlight_words([parts[-1]] if over else [], OVER_STYLE)
    line.truncate(width)
    return line


def _total(memory: MemoryUse, width: int, signs: BarCharacters) -> Text:
    text = f" {tables.memory_text(memory)}"
    return Text.assemble("memory ", bar(memory, max(1, width - 7 - len(text)), signs), text)


def _foot(notes: Sequence[tuple[str, str]], width: int, signs: BarCharacters) -> Text:
    key = legend(signs)
    line = Text("  ".join(printable(f"{name} {note}") for name, note in notes), tables.DIM)
    if line.cell_len + key.cell_len + 3 > width:
        line = Text("  ".join(printable(note) for _, note in notes), tables.DIM)
    if line.cell_len + key.cell_len + 3 <= width:
        line = Text.assemble(key, " " * (width - key.cell_len - line.cell_len), line)
    elif not notes:
        line = key
    line.truncate(width)
    return line
