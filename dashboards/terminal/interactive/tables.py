# SPDX-License-Identifier: Apache-2.0
"""
Columns of each list of the interactive view, and the cells of one row.

Pure. Decides which columns a narrow window goes without; widths and cuts are `table`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.interactive.history import sparkline
from dashboards.terminal.interactive.rows import busy_of
from dashboards.terminal.memory_bar import pieces
from dashboards.terminal.table import BAD, WARN, Column
from dashboards.terminal.text_format import at_least, gib, indexes, percent
from isolation.contract.model import FULL_CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dashboards.terminal.interactive.history import History
    from dashboards.terminal.interactive.navigation import NavigationEntry
    from dashboards.terminal.interactive.rows import ContainerRow
    from dashboards.terminal.memory_bar import MemoryUse
    from dashboards.terminal.read.aggregation import CardSummary, NamespaceSummary, NodeSummary, PodSummary
    from dashboards.terminal.table import Cell, TextOutput

WIDE: Final = 110
"""Columns from which power, temperature and more have room."""
_HOT_CELSIUS: Final = 85.0
_NODE: Final = Column("NODE", cut=True)


@dataclass(frozen=True, slots=True)
class Canvas:
    """What a row needs besides its thing."""

    history: History
    output: TextOutput
    place: NavigationEntry

    def course(self, what: str, figure: str, most: float) -> Callable[[int], list[tuple[str, str]]]:
        """A cell with a figure's course; `most` fills it."""
        values = self.history.of(what, figure)
        return lambda width: [(sparkline(values, width, most or None, unicode=self.output.unicode), "cyan")]


@dataclass(frozen=True, slots=True)
class Table:
    """How one kind of thing is written."""

    noun: str
    columns: Callable[[TextOutput], Sequence[Column]]
    row: Callable[[Any, Canvas], list[Cell]]


def wide(output: TextOutput) -> bool:
    """Whether there is room for more."""
    return (output.width or 0) >= WIDE


def _bar(memory: MemoryUse, output: TextOutput, width: int) -> list[tuple[str, str]]:
    return pieces(memory, width, output.signs)


def _right(*names: str) -> list[Column]:
    return [Column(name, right=True) for name in names]


def _where(name: str, state: str) -> Cell:
    return (f"{name} ({state})", WARN) if state else name


def _amounts(one: CardSummary | NodeSummary) -> list[Cell]:
    used = at_least(one.memory.used, partly=one.memory.partly)
    return [
        at_least(one.promised, partly=one.partly),
        (used, BAD) if one.memory.over else used,
        gib(one.memory.total or None),
    ]


# Cards.


def _card_columns(output: TextOutput) -> list[Column]:
    more = wide(output)
    columns = [_NODE, Column("CARD"), *([Column("MODEL", cut=True)] if more else []), Column("MEMORY", drawn=True)]
    columns += _right("ALLOC", "USED", "OF GiB", *(("FREE", "STRANDED") if more else ()), "UTIL")
    return [*columns, Column("HISTORY", drawn=True), *_right(*(("POWER", "TEMP") if more else ()), "PODS")]


def _card_row(one: CardSummary, on: Canvas) -> list[Cell]:
    more = wide(on.output)
    uuid = one.usage.uuid if one.usage else one.card.uuid
    cells: list[Cell] = [_where(one.node.name, one.state), str(one.card.index)]
    cells += [one.card.model or "-"] if more else []
    cells += [partial(_bar, one.memory, on.output), *_amounts(one)]
    cells += [gib(one.free), gib(one.stranded if one.free is not None else None)] if more else []
    cells += [percent(busy_of(one)), on.course(uuid, "utilisation", 1.0)]
    cells += [watts(figure(one, "power")), celsius(figure(one, "temperature"))] if more else []
    return [*cells, str(len(one.pods))]


def figure(one: CardSummary, name: str) -> float | None:
    """What its exporter tells; None: nothing."""
    return one.usage.figures.get(name) if one.usage else None


def watts(value: float | None) -> str:
    """Power for people."""
    return "?" if value is None else f"{value:.0f} W"


def celsius(value: float | None) -> Cell:
    """Temperature for people; hot stands out."""
    text = "?" if value is None else f"{value:.0f} °C"
    return (text, BAD) if value is not None and value >= _HOT_CELSIUS else text


# Nodes.


def _node_columns(output: TextOutput) -> list[Column]:
    more = wide(output)
    columns = [_NODE, *([Column("POOL", cut=True), Column("MODE")] if more else []), *_right("CARDS")]
    columns += [Column("MEMORY", drawn=True), *_right("ALLOC", "USED", "OF GiB")]
    return [*columns, *_right(*(("FREE", "STRANDED") if more else ()), "UTIL", "PODS")]


def _node_row(one: NodeSummary, on: Canvas) -> list[Cell]:
    more = wide(on.output)
    cells: list[Cell] = [_where(one.node.name, one.node.state)]
    cells += [one.node.pool or "-", one.node.mode.value] if more else []
    cells += [str(len(one.cards)), partial(_bar, one.memory, on.output), *_amounts(one)]
    cells += [gib(one.free), gib(one.stranded if one.free is not None else None)] if more else []
    return [*cells, percent(busy_of(one)), str(one.pods)]


# Pods and namespaces.


def _pod_columns(output: TextOutput) -> list[Column]:
    del output
    columns = [Column("POD", cut=True), _NODE, Column("CARDS"), *_right("ALLOC", "USED", "USED%")]
    return [*columns, *_right("COMPUTE"), Column("HISTORY", drawn=True)]


def _pod_row(one: PodSummary, on: Canvas) -> list[Cell]:
    part = None if one.used is None or not one.promised else one.used / one.promised
    where: Cell = one.pod.node or (("invalid request" if one.pod.fault else "pending"), WARN)
    cards = indexes(tuple(sorted(part.index for part in one.pod.slices))) or "-"
    used: Cell = (gib(one.used), BAD) if one.over else gib(one.used)
    promised = at_least(one.promised, partly=one.partly)
    course = on.course(one.pod.key, "used", max(one.promised, one.used or 0))
    return [one.pod.key, where, cards, promised, used, percent(part), compute(one.core_used, one), course]


def compute(used: float | None, one: PodSummary) -> str:
    """Used and promised compute."""
    promised = sum(part.core for part in one.pod.slices) / FULL_CORE
    return f"{percent(used)}/{percent(promised)}" if promised else percent(used)


def _namespace_columns(output: TextOutput) -> list[Column]:
    del output
    return [
        Column("NAMESPACE", cut=True),
        *_right("PODS", "ALLOC GiB", "USED GiB", "OVER GiB", "PENDING", "REQUESTED GiB"),
    ]


def _namespace_row(one: NamespaceSummary, on: Canvas) -> list[Cell]:
    del on
    over: Cell = (gib(one.over), BAD) if one.over else gib(one.over)
    used, waiting = at_least(one.used, partly=one.partly), str(one.waiting)
    return [one.name or "(this machine)", str(one.pods), gib(one.promised), used, over, waiting, gib(one.wanted)]


# What stands on one card, and the cards of one pod.


def _container_columns(output: TextOutput) -> list[Column]:
    del output
    columns = [
        Column("POD", cut=True),
        Column("CONTAINER", cut=True),
        *_right("ALLOC", "USED", "USED%", "COMPUTE", "DENIED"),
    ]
    return [*columns, Column("HISTORY", drawn=True)]


def _container_row(one: ContainerRow, on: Canvas) -> list[Cell]:
    usage = one.usage
    used = usage.bytes("used") if usage else None
    over = used is not None and one.promised is not None and used > one.promised
    part = used / one.promised if used is not None and one.promised else None
    figures = usage.figures if usage else {}
    core, promised = figures.get("core_used"), figures.get("core")
    denied = figures.get("denied")
    return [
        one.pod_key,
        (usage.container if usage else "") or "-",
        gib(one.promised),
        (gib(used), BAD) if over else gib(used),
        percent(part),
        f"{percent(core)}/{percent(promised)}" if promised is not None else percent(core),
        (f"{denied:,.0f}", WARN) if denied else "?" if denied is None else "0",
        on.course(one.pod_key, "used", max(one.promised or 0, used or 0)),
    ]


def _slice_columns(output: TextOutput) -> list[Column]:
    del output
    columns = [_NODE, Column("CARD"), Column("MODEL", cut=True), *_right("ITS SHARE", "CARD USED", "OF GiB", "UTIL")]
    return [*columns, Column("HISTORY", drawn=True)]


def _slice_row(one: CardSummary, on: Canvas) -> list[Cell]:
    uuid = one.usage.uuid if one.usage else one.card.uuid
    pod = next((pod for pod in one.pods if pod.key == on.place.of), None)
    share = sum(part.bytes for part in pod.slices if part.uuid == one.card.uuid) if pod else None
    return [
        _where(one.node.name, one.state),
        str(one.card.index),
        one.card.model or "-",
        gib(share),
        at_least(one.memory.used, partly=one.memory.partly),
        gib(one.memory.total or None),
        percent(busy_of(one)),
        on.course(uuid, "utilisation", 1.0),
    ]


TABLES: Final = {
    "card": Table("card", _card_columns, _card_row),
    "node": Table("node", _node_columns, _node_row),
    "pod": Table("pod", _pod_columns, _pod_row),
    "namespace": Table("namespace", _namespace_columns, _namespace_row),
    "one card": Table("container", _container_columns, _container_row),
    "one pod": Table("card", _slice_columns, _slice_row),
}
