# SPDX-License-Identifier: Apache-2.0
"""
One line of text for each thing on the screen: pool, node, card, pod, waiting pod, happening.

Pure. Every function returns lines of exactly the width it is given, and the header that names
their columns; which of them are shown is `view`'s decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dashboards.terminal.memory_bar import OTHER_STYLE, OVER_STYLE, add_memory, bar
from dashboards.terminal.text_format import at_least, clock, column, gib, indexes, percent
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.memory_bar import BarCharacters, MemoryUse
    from dashboards.terminal.up.totals import CardTotals, PodTotals, PoolTotals
    from isolation.contract.reading import FleetEvent, NodeReading, PendingReading

TITLE_STYLE: Final = "bold cyan"
DIM: Final = "bright_black"
READY: Final = "ready"
NODE_CELLS: Final = 20
_SMALLEST_BAR: Final = 2
"""Cells; below this a bar per card says nothing and the node gets one for all."""


def _memory_header(width: int) -> str:
    return column("USED", width, right=True) + column("PROMISED", 9, right=True) + column("OF GiB", 8, right=True)


def _memory(memory: MemoryUse, width: int) -> Text:
    return Text.assemble(
        _figure(at_least(memory.used, partly=memory.partly), width, alarm=memory.over > 0),
        column(gib(memory.promised), 9, right=True) + column(gib(memory.total), 8, right=True),
    )


def _figure(text: str, width: int, *, alarm: bool) -> Text:
    """A number on the right of its column; only its digits stand out."""
    line = Text(column(text, width, right=True))
    if alarm:
        line.stylize(OVER_STYLE, width - min(width, len(text)))
    return line


def memory_text(memory: MemoryUse) -> str:
    """The same figures as a phrase."""
    used = at_least(memory.used, partly=memory.partly)
    return f"{used} used, {gib(memory.promised)} promised of {gib(memory.total)} GiB"


def _title(text: str, width: int) -> Text:
    return Text(column(text, width), TITLE_STYLE)


def pool_header(width: int) -> Text:
    """Columns of `pool_row`."""
    left = column("POOL", 15) + column("MODE", 9) + column("NODES", 12)
    return _title(left + column("MEMORY", width - 60) + _memory_header(7), width)


def pool_row(pool: PoolTotals, width: int, signs: BarCharacters) -> Text:
    """A pool: nodes with those that boot and the limits, then its memory."""
    limits = "" if pool.max_nodes is None else f" of {pool.max_nodes:,}"
    booting = f"+{pool.booting}" if pool.booting else ""
    size = f"{pool.nodes - pool.booting:,}{booting}{limits}"
    return Text.assemble(
        column(pool.name, 14) + " " + column(pool.mode, 9),
        (column(size, 11), "yellow" if pool.booting else ""),
        " ",
        bar(pool.memory, max(1, width - 61), signs),
        " ",
        _memory(pool.memory, 7),
    )


def card_header(width: int) -> Text:
    """Columns of `card_row`."""
    left = column("NODE", NODE_CELLS + 1) + column("CARD", 5) + column("MEMORY", width - NODE_CELLS - 42)
    return _title(left + _memory_header(8) + column("UTIL", 6, right=True) + column("PODS", 5, right=True), width)


def card_row(use: CardTotals, width: int, signs: BarCharacters) -> Text:
    """One card."""
    area = width - NODE_CELLS - 43
    return Text.assemble(
        _node_name(use.node),
        " " + column(str(use.card.index), 4) + " ",
        bar(use.memory, area, signs) if use.card.healthy else (column("unhealthy", area), OVER_STYLE),
        " ",
        _memory(use.memory, 8),
        column(percent(use.card.utilisation_ratio), 6, right=True),
        column(str(use.tenants), 5, right=True),
    )


def _node_name(node: NodeReading) -> Text:
    if node.state == READY:
        return Text(column(node.node, NODE_CELLS))
    state = printable(node.state)[: NODE_CELLS // 2]
    name = set_cell_size(printable(node.node), min(cell_len(printable(node.node)), NODE_CELLS - 1 - cell_len(state)))
    line = Text.assemble(name, " ", (state, "yellow"))
    line.append(" " * (NODE_CELLS - line.cell_len))
    return line


def node_header(width: int) -> Text:
    """Columns of `node_row`."""
    left = column("NODE", NODE_CELLS + 1) + column("MEMORY BY CARD", width - NODE_CELLS - 26)
    return _title(left + _memory_header(8), width)


def empty_row(node: NodeReading, width: int) -> Text:
    """A node whose cards are not there yet."""
    return Text.assemble(_node_name(node), " " * (width - NODE_CELLS))


def node_row(cards: Sequence[CardTotals], width: int, signs: BarCharacters) -> Text:
    """One node with a small bar for each of its cards."""
    area = width - NODE_CELLS - 27
    each = (area - (len(cards) - 1)) // len(cards)
    total = add_memory(use.memory for use in cards)
    if each < _SMALLEST_BAR:
        picture = bar(total, area, signs)
    else:
        picture = Text(" ").join(bar(use.memory, each, signs) for use in cards)
        picture.append(" " * (area - picture.cell_len))
    return Text.assemble(_node_name(cards[0].node), " ", picture, " ", _memory(total, 8))


def pod_header(width: int) -> Text:
    """Columns of `pod_row`."""
    left = column("POD", max(1, width - 54)) + column("NODE", 16) + column("CARDS", 7)
    numbers = column("USED", 7, right=True) + column("PROMISED", 9, right=True) + column("USED%", 6, right=True)
    return _title(left + numbers + column("COMPUTE", 9, right=True), width)


def pod_row(pod: PodTotals, width: int) -> Text:
    """One pod; what it uses over its promise stands out."""
    part = None if pod.used is None or not pod.promised else pod.used / pod.promised
    core = percent(pod.core_used)
    if pod.core_promised is not None:
        core = f"{core.removesuffix('%')}/{percent(pod.core_promised)}"
    return Text.assemble(
        column(pod.name, max(1, width - 55)) + " " + column(pod.node, 15) + " " + column(indexes(pod.cards), 6) + " ",
        _figure(gib(pod.used), 7, alarm=pod.over > 0),
        column(gib(pod.promised), 9, right=True),
        _figure(percent(part), 6, alarm=pod.over > 0),
        column(core, 9, right=True),
    )


def waiting_header(width: int) -> Text:
    """Columns of `waiting_row`."""
    return _title(column("PENDING POD", 23) + column("FOR", 10) + "REASON", width)


def waiting_row(pod: PendingReading, width: int) -> Text:
    """One pod without a place, with the sentence that says why."""
    return Text.assemble(
        (column(pod.pod, 22) + " ", "yellow"), column(clock(pod.seconds), 9), " ", column(pod.reason, width - 33)
    )


def happening_header(width: int) -> Text:
    """Columns of `happening_row`."""
    return _title(column("AUTOSCALER", 12) + "ACTION AND REASON", width)


def happening_row(event: FleetEvent, width: int) -> Text:
    """One thing that was done."""
    return Text.assemble((column(clock(event.at), 11) + " ", DIM), column(happening_text(event), width - 12))


def happening_text(event: FleetEvent) -> str:
    """One thing that was done, as a sentence without its time."""
    return f"{event.kind} {event.subject}: {event.reason}" if event.reason else f"{event.kind} {event.subject}"


def rest(number: int, noun: str, width: int) -> Text:
    """The last line of a list that is longer than its room."""
    return Text(column(f"and {number:,} more {noun}{'' if number == 1 else 's'}", width), OTHER_STYLE)
