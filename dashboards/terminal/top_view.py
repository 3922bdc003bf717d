# SPDX-License-Identifier: Apache-2.0
"""
`gpushare top`: cards, nodes, pods or namespaces as a table, and as data for programs.

Pure. Decides columns, order and what gives way on a small terminal: the busiest stay, and the last line says
how many are missing. In a pipe everything is shown. A figure that is not known is `?`, one that is known in
part has a plus.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dashboards.terminal.memory_bar import add_memory, legend, pieces
from dashboards.terminal.read.aggregation import (
    summarize_cards,
    summarize_namespaces,
    summarize_nodes,
    summarize_pods,
    typical,
)
from dashboards.terminal.table import BAD, DIM, WARN, Column, sentence, table
from dashboards.terminal.text_format import at_least, count, gib, indexes, percent
from isolation.contract.model import FULL_CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dashboards.terminal.memory_bar import MemoryUse
    from dashboards.terminal.read.aggregation import CardSummary, NamespaceSummary, NodeSummary, PodSummary
    from dashboards.terminal.read.fleet import Fleet
    from dashboards.terminal.read.usage import Usage
    from dashboards.terminal.table import Cell, TextOutput

BY: Final = ("card", "node", "pod", "namespace")
SORTS: Final = ("name", "allocated", "used", "free", "stranded")


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What the person wants to see."""

    by: str = "card"
    sort: str = ""
    """Empty: by name while everything fits, else the fullest first."""
    wide: bool = False
    namespace: str = ""
    """Pods of this one only; empty: all."""
    node: str = ""
    lines: int | None = None
    """Rows that there is room for; None: all."""


def top_lines(fleet: Fleet, usage: Usage, choice: TopOptions, output: TextOutput) -> list[str]:
    """The whole view."""
    fleet = _chosen(fleet, choice)
    cards = summarize_cards(fleet, usage)
    body = _VIEWS[choice.by](fleet, usage, cards, choice, output)
    if not output.headers:
        return body
    foot = _key(fleet, cards, output) if choice.by in ("card", "node") and cards else []
    notes = [line for note in fleet.notes for line in sentence(output, f"note: {note}", WARN)]
    return [*_head(fleet, cards, usage, output), *body, *foot, *notes]


def _chosen(fleet: Fleet, choice: TopOptions) -> Fleet:
    if not choice.node:
        return fleet
    nodes = tuple(node for node in fleet.nodes if node.name == choice.node)
    pods = tuple(pod for pod in fleet.pods if pod.node == choice.node)
    return replace(fleet, nodes=nodes, pods=pods)


def _head(fleet: Fleet, cards: Sequence[CardSummary], usage: Usage, output: TextOutput) -> list[str]:
    waiting = sum(1 for pod in fleet.pods if not pod.node)
    over = sum(1 for one in summarize_pods(fleet, usage) if one.over) if usage.tenants else 0
    memory = add_memory(card.memory for card in cards)
    parts = [
        count(len({card.node.name for card in cards}), "node"),
        count(len(cards), "card"),
        count(sum(1 for pod in fleet.pods if pod.node), "pod"),
        f"{waiting:,} pending",
        *([f"{over:,} over promise"] if over else []),
    ]
    promised, partly = _promised(cards)
    figures = (
        f"allocated {at_least(promised, partly=partly)}, used {at_least(memory.used, partly=memory.partly)} "
        f"of {gib(memory.total)} GiB"
    )
    lines = sentence(output, f"{', '.join(parts)}; {figures}")
    return lines if not over else [line.replace(parts[-1], output.styled(parts[-1], BAD)) for line in lines]


def _promised(cards: Sequence[CardSummary]) -> tuple[int | None, bool]:
    known = [card.promised for card in cards if card.promised is not None]
    return (sum(known) if known or not cards else None), len(known) < len(cards) or any(card.partly for card in cards)


def _unknown_reasons(pods: Sequence[PodSummary], output: TextOutput) -> list[str]:
    """Why there is a `?`, once for each column that has one. A pod that is pending has no figures to know."""
    bound = [one for one in pods if one.pod.node]
    missing = (
        ("USED", "memory", sum(one.used is None for one in bound)),
        ("COMPUTE", "compute", sum(one.core_used is None for one in bound)),
    )
    lines = [
        f"{title} ?: no exporter reports the {what} used by {count(number, 'pod')}"
        for title, what, number in missing
        if number
    ]
    return [each for line in lines for each in sentence(output, line, DIM)]


def _key(fleet: Fleet, cards: Sequence[CardSummary], output: TextOutput) -> list[str]:
    key = "".join(output.styled(str(span_text), style) for span_text, style in _spans(output))
    lines = [key]
    if any(card.stranded for card in cards):
        usual = typical(fleet)
        less = f"less than the median promise ({gib(usual)} GiB), " if usual else ""
        why = f"STRANDED: free memory that no pod can use: {less}no compute left, or card or node accepts no pods"
        lines += sentence(output, why, DIM)
    return lines


def _spans(output: TextOutput) -> list[tuple[str, str]]:
    text = legend(output.signs)
    plain, spans, at = text.plain, [], 0
    for span in text.spans:
        if span.start > at:
            spans.append((plain[at : span.start], ""))
        spans.append((plain[span.start : span.end], str(span.style)))
        at = span.end
    return [*spans, (plain[at:], "")]


# Rows.


def _memory_cells(memory: MemoryUse, promised: int | None, free: int | None, *, partly: bool) -> list[Cell]:
    used = at_least(memory.used, partly=memory.partly)
    return [
        partial(_bar, memory),
        at_least(promised, partly=partly),
        (used, BAD) if memory.over else used,
        gib(free),
        gib(memory.total or None),
    ]


def _bar(memory: MemoryUse, width: int) -> list[tuple[str, str]]:
    return pieces(memory, width)


def _memory_columns() -> list[Column]:
    names = ("ALLOC", "USED", "FREE", "OF GiB")
    return [Column("MEMORY", drawn=True), *(Column(name, right=True) for name in names)]


def _cards(fleet: Fleet, usage: Usage, cards: list[CardSummary], choice: TopOptions, output: TextOutput) -> list[str]:
    del fleet, usage
    columns = [Column("NODE", cut=True), Column("CARD", right=True), *_memory_columns(), Column("PODS", right=True)]
    columns += [Column("STRANDED", right=True), Column("STATE")]
    if choice.wide:
        columns += [Column("MODE"), Column("UTIL", right=True), Column("COMPUTE", right=True)]
        columns += [Column("MODEL", cut=True), Column("UUID", cut=True)]
    if not any(card.state for card in cards):
        columns = [one for one in columns if one.title != "STATE"]
    stated = any(one.title == "STATE" for one in columns)

    def row(one: CardSummary) -> list[Cell]:
        cells: list[Cell] = [one.node.name, _index(one)]
        cells += _drawn(_memory_cells(one.memory, one.promised, one.free, partly=one.partly), output)
        cells += [str(len(one.pods)), gib(one.stranded) if one.free is not None else "?"]
        if stated:
            cells.append((one.state, WARN))
        if choice.wide:
            usage = one.usage
            cells += [one.node.mode.value, percent(usage.figures.get("utilisation") if usage else None)]
            cells += [f"{one.core} %", one.card.model or "?", one.card.uuid]
        return cells

    return _listed(_order(cards, _CARD_SORTS, choice), choice, output, _Table("card", columns, row))


def _index(one: CardSummary) -> str:
    """The card's index; of a MIG instance its parent's, with the profile."""
    return f"{one.card.index} {one.usage.profile}" if one.usage and one.usage.profile else str(one.card.index)


def _drawn(cells: list[Cell], output: TextOutput) -> list[Cell]:
    """The bar with the signs of this paper."""
    first = cells[0]
    if isinstance(first, partial):
        cells[0] = partial(_signed, first.args[0], output)
    return cells


def _signed(memory: MemoryUse, output: TextOutput, width: int) -> list[tuple[str, str]]:
    return pieces(memory, width, output.signs)


def _nodes(fleet: Fleet, usage: Usage, cards: list[CardSummary], choice: TopOptions, output: TextOutput) -> list[str]:
    del fleet, usage
    columns = [Column("NODE", cut=True), Column("CARDS", right=True), *_memory_columns(), Column("PODS", right=True)]
    columns += [Column("STRANDED", right=True)]
    groups = summarize_nodes(cards)
    stated = any(one.node.state for one in groups)
    columns += [Column("STATE")] if stated else []
    columns += [Column("MODE"), Column("POOL", cut=True), Column("MODEL", cut=True)] if choice.wide else []

    def row(one: NodeSummary) -> list[Cell]:
        cells: list[Cell] = [one.node.name, str(len(one.cards))]
        cells += _drawn(_memory_cells(one.memory, one.promised, one.free, partly=one.partly), output)
        cells += [str(one.pods), gib(one.stranded)]
        cells += [(one.node.state, WARN)] if stated else []
        if choice.wide:
            models = sorted({card.card.model or "?" for card in one.cards})
            cells += [one.node.mode.value, one.node.pool or "-", ", ".join(models)]
        return cells

    return _listed(_order(groups, _GROUP_SORTS, choice), choice, output, _Table("node", columns, row))


def _pods(fleet: Fleet, usage: Usage, cards: list[CardSummary], choice: TopOptions, output: TextOutput) -> list[str]:
    del cards
    columns = [Column("POD", cut=True), Column("NODE", cut=True), Column("CARDS"), Column("ALLOC", right=True)]
    columns += [Column("USED", right=True), Column("USED%", right=True), Column("COMPUTE", right=True)]
    sums = [one for one in summarize_pods(fleet, usage) if choice.namespace in ("", one.pod.namespace)]

    def row(one: PodSummary) -> list[Cell]:
        part = None if one.used is None or not one.promised else one.used / one.promised
        where: Cell = one.pod.node or (("invalid request" if one.pod.fault else "pending"), WARN)
        cards = indexes(tuple(sorted(part.index for part in one.pod.slices))) or "-"
        core = sum(part.core for part in one.pod.slices) / FULL_CORE
        used: Cell = (gib(one.used), BAD) if one.over else gib(one.used)
        compute = f"{percent(one.core_used)}/{percent(core)}" if core else percent(one.core_used)
        if one.core_limit is not None and one.core_limit > core:
            compute += f" <{percent(one.core_limit)}"
        allocated = at_least(one.promised, partly=one.partly)
        if not one.pod.node and one.used is None:
            return [one.pod.key, where, cards, allocated, "-", "-", "-"]
        return [one.pod.key, where, cards, allocated, used, percent(part), compute]

    reasons = _unknown_reasons(sums, output) if output.headers else []
    return [*_listed(_order(sums, _POD_SORTS, choice), choice, output, _Table("pod", columns, row)), *reasons]


def _namespaces(
    fleet: Fleet, usage: Usage, cards: list[CardSummary], choice: TopOptions, output: TextOutput
) -> list[str]:
    del cards
    names = ("PODS", "ALLOC GiB", "USED GiB", "OVER GiB", "PENDING", "REQUESTED GiB")
    columns = [Column("NAMESPACE", cut=True), *(Column(name, right=True) for name in names)]
    sums = [one for one in summarize_namespaces(summarize_pods(fleet, usage)) if choice.namespace in ("", one.name)]

    def row(one: NamespaceSummary) -> list[Cell]:
        over: Cell = (gib(one.over), BAD) if one.over else gib(one.over)
        used = at_least(one.used, partly=one.partly)
        name, waiting = one.name or "(this machine)", str(one.waiting)
        return [name, str(one.pods), gib(one.promised), used, over, waiting, gib(one.wanted)]

    return _listed(_order(sums, _NAMESPACE_SORTS, choice), choice, output, _Table("namespace", columns, row))


_VIEWS: Final = {"card": _cards, "node": _nodes, "pod": _pods, "namespace": _namespaces}


@dataclass(frozen=True, slots=True)
class _Table:
    """How one kind of thing is written."""

    noun: str
    columns: Sequence[Column]
    row: Callable[[Any], list[Cell]]


def _order(things: list[Any], sorts: Mapping[str, Callable[[Any], Any]], choice: TopOptions) -> list[Any]:
    """As asked; else as they come while all fit, and the fullest first where they do not."""
    order = choice.sort or ("allocated" if _cut(things, choice) else "")
    return sorted(things, key=sorts[order]) if order else things


def _cut(things: Sequence[Any], choice: TopOptions) -> bool:
    return choice.lines is not None and len(things) > choice.lines


def _listed(things: list[Any], choice: TopOptions, output: TextOutput, how: _Table) -> list[str]:
    """The table, no longer than there is room."""
    if not things:
        return sentence(output, f"no {how.noun}s to show", DIM)
    shown = things[: choice.lines] if _cut(things, choice) else things
    lines = table(output, how.columns, [how.row(one) for one in shown])
    if len(shown) < len(things):
        lines.append(output.styled(f"{count(len(things) - len(shown), how.noun)} not shown: use --all", "magenta"))
    return lines


_CARD_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda one: (one.node.name, one.card.index),
    "allocated": lambda one: (-(one.promised or 0), one.node.name, one.card.index),
    "used": lambda one: (-(one.memory.used or 0), one.node.name, one.card.index),
    "free": lambda one: (-(one.free or 0), one.node.name, one.card.index),
    "stranded": lambda one: (-one.stranded, one.node.name, one.card.index),
}
_GROUP_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda one: one.node.name,
    "allocated": lambda one: (-(one.promised or 0), one.node.name),
    "used": lambda one: (-(one.memory.used or 0), one.node.name),
    "free": lambda one: (-(one.free or 0), one.node.name),
    "stranded": lambda one: (-one.stranded, one.node.name),
}
_POD_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda one: one.pod.key,
    "allocated": lambda one: (-one.promised, one.pod.key),
    "used": lambda one: (-(one.used or 0), one.pod.key),
    "free": lambda one: (-(one.promised - (one.used or 0)), one.pod.key),
    "stranded": lambda one: (-(one.promised - (one.used or 0)), one.pod.key),
}
_NAMESPACE_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda one: one.name,
    "allocated": lambda one: (-one.promised, one.name),
    "used": lambda one: (-(one.used or 0), one.name),
    "free": lambda one: (-one.wanted, one.name),
    "stranded": lambda one: (-one.wanted, one.name),
}
