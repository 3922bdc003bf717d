# SPDX-License-Identifier: Apache-2.0
"""
All about one card or one pod above its rows, and the processes below them.

Pure. Decides what a low window goes without; a figure that nobody tells has no line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboards.terminal.interactive.history import sparkline
from dashboards.terminal.interactive.tables import celsius, compute, figure, watts
from dashboards.terminal.memory_bar import pieces
from dashboards.terminal.table import BAD, DIM, WARN, Column, table
from dashboards.terminal.text_format import at_least, gib, percent
from isolation.contract.text import printable

if TYPE_CHECKING:
    from dashboards.terminal.interactive.navigation import NavigationEntry
    from dashboards.terminal.interactive.rows import ReadingSummary
    from dashboards.terminal.interactive.tables import Canvas
    from dashboards.terminal.read.aggregation import CardSummary, PodSummary
    from dashboards.terminal.read.processes import ProcessOnCard
    from dashboards.terminal.table import Cell, TextOutput

_LABEL: Final = 13
_LOW: Final = 22
"""Lines below which there is room for memory and utilisation only."""
_FIGURES: Final = 34
"""Cells for what stands beside a course."""
_OWNERS: Final = {
    "between": "one of its pod's containers",
    "nobody": "nobody's: no promise on this card",
    "unknown": "unknown",
}


def card_facts(one: CardSummary | None, on: Canvas, height: int) -> list[str]:
    """Who it is, its memory, and the course of its figures."""
    output = on.output
    if one is None:
        return [output.styled("  this card has gone", WARN), ""]
    uuid = one.usage.uuid if one.usage else one.card.uuid
    state = output.styled(one.state, BAD) if one.state else "healthy"
    head = f"  {printable(one.card.model or 'card')}  {printable(one.card.uuid)}  {state}"
    bar = "".join(output.styled(*piece) for piece in pieces(one.memory, _room(output), output.signs))
    used = at_least(one.memory.used, partly=one.memory.partly)
    memory = (
        f"{used} used, {at_least(one.promised, partly=one.partly)} allocated of {gib(one.memory.total or None)} GiB"
    )
    lines = [head, f"  {'memory':<{_LABEL}}{bar}  {memory}"]
    limit = figure(one, "power_limit")
    hot = celsius(figure(one, "temperature"))
    drawn = [
        ("utilisation", "utilisation", 1.0, percent(figure(one, "utilisation"))),
        ("memory used", "used", float(one.memory.total) or None, f"{used} GiB"),
        ("power", "power", limit, watts(figure(one, "power")) + (f" of {limit:.0f} W" if limit else "")),
        (
            "temperature",
            "temperature",
            100.0,
            hot if isinstance(hot, str) else output.styled(*hot) if isinstance(hot, tuple) else "",
        ),
    ]
    for label, name, most, now in drawn[: 1 if height < _LOW else None]:
        lines += _course(on, label, (uuid, name), most, now)
    return [*lines, ""]


def pod_facts(one: PodSummary | None, on: Canvas, height: int) -> list[str]:
    """Where it is, what it was promised, and the course of what it uses."""
    output = on.output
    if one is None:
        return [output.styled("  this pod has gone", WARN), ""]
    where = (
        f"on node {printable(one.pod.node)}" if one.pod.node else output.styled("pending: see gpushare explain", WARN)
    )
    over = output.styled(f"{gib(one.over)} GiB over its promise", BAD) if one.over else ""
    lines = [f"  {printable(one.pod.key)}  {where}  {over}".rstrip()]
    most = float(max(one.promised, one.used or 0)) or None
    promised = at_least(one.promised, partly=one.partly)
    lines += _course(on, "memory used", (one.pod.key, "used"), most, f"{gib(one.used)} of {promised} GiB")
    if height >= _LOW:
        lines += _course(on, "compute", (one.pod.key, "core_used"), 1.0, compute(one.core_used, one))
    return [*lines, ""]


def _room(output: TextOutput) -> int:
    return max(8, (output.width or 80) - _LABEL - _FIGURES - 2)


def _course(on: Canvas, label: str, what: tuple[str, str], most: float | None, now: str) -> list[str]:
    values = on.history.of(*what)
    if all(value is None for value in values):
        return []
    drawn = sparkline(values, _room(on.output), most, unicode=on.output.unicode)
    return [f"  {label:<{_LABEL}}{on.output.styled(drawn, 'cyan')}  {now}"]


def process_lines(model: ReadingSummary, place: NavigationEntry, output: TextOutput) -> list[str]:
    """Processes on the card, or of the pod, each with its container; heading first."""
    found = model.processes
    if found is None:
        return [output.styled("  processes: reading ...", DIM)]
    if found.why:
        return [output.styled(f"  processes are unknown: {printable(found.why)}", WARN)]
    card = model.card(place.of) if place.kind == "one card" else None
    uuid = card.usage.uuid if card is not None and card.usage else place.of
    mine = [one for one in found.all if (one.uuid == uuid if place.kind == "one card" else one.pod_key == place.of)]
    if not mine:
        return [output.styled("  no processes", DIM)]
    columns = [Column("PID", right=True), Column("PROCESS", cut=True), Column("CONTAINER", cut=True)]
    columns += [Column("MEMORY GiB", right=True), Column("COMPUTE", right=True)]
    rows = [_process(one) for one in sorted(mine, key=lambda one: (-(one.bytes or 0), one.pid))]
    return ["  " + line for line in table(output, columns, rows)]


def _process(one: ProcessOnCard) -> list[Cell]:
    owner = _OWNERS.get(one.attributed, "") if one.attributed != "claim" else ""
    who: Cell = f"{one.pod_key} {one.container}".strip()
    if one.attributed in ("nobody", "unknown"):
        who = (f"{who} ({owner})" if who else owner, BAD if one.attributed == "nobody" else WARN)
    return [
        str(one.pid),
        one.name,
        who or owner,
        gib(one.bytes),
        percent(one.compute),
    ]
