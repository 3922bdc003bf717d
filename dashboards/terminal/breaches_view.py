# SPDX-License-Identifier: Apache-2.0
"""
`gpushare breaches`: who goes against a promise now, since when, by whose word.

Pure. Open ones first; what has ended is shown on request. A tenant's own word (source library) is marked:
it may be anything, about that tenant only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from dashboards.terminal.table import BAD, DIM, WARN, Column, sentence, table
from dashboards.terminal.text_format import clock, count, gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.read.breaches import BreachRow
    from dashboards.terminal.table import Cell, TextOutput

_SEVERE: Final = frozenset({"over_limit", "unallocated", "uninstrumented", "missing_library"})
_OLDEST: Final = 0.0
_LATEST: Final = 253_402_300_799.0  # the last second of the year 9999


def chosen(breaches: Sequence[BreachRow], namespace: str, node: str, *, ended: bool) -> tuple[BreachRow, ...]:
    """Those that the person asked for, open and latest first."""
    found = (
        one for one in breaches if (one.open or ended) and namespace in ("", one.namespace) and node in ("", one.node)
    )
    return tuple(sorted(found, key=lambda one: (not one.open, -(one.begun or 0.0), one.node, one.card, one.who)))


def breach_lines(
    breaches: Sequence[BreachRow], now: float, output: TextOutput, notes: Sequence[str], *, wide: bool, looked: bool
) -> list[str]:
    """The table, with what each means below it; `looked`: somebody could tell."""
    remarks = [line for note in notes for line in sentence(output, f"note: {note}", WARN)]
    if not breaches:
        if not output.headers and looked:
            return []
        quiet = "no open breaches" if looked else "breaches are unknown: no exporter could be read"
        return [*sentence(output, quiet, "" if looked else BAD), *remarks]
    columns = [Column("AGE"), Column("KIND"), Column("WHO", cut=True), Column("NODE", cut=True)]
    columns += [Column("CARD", right=True), Column("USED", right=True), Column("OF GiB", right=True)]
    columns += [Column("SOURCE")]
    columns += [Column("CONTAINER", cut=True), Column("PROMISE"), Column("STARTED")] if wide else []
    lines = table(output, columns, [_row(one, now, wide=wide) for one in breaches])
    if not output.headers:
        return lines
    lines.append("")
    for one in breaches:
        lines += sentence(output, f"{one.who} on {one.node}, card {one.card}: {one.text}")
    if any(one.source == "library" for one in breaches):
        lines += sentence(output, "source library: reported by the container, its tenant may have written it", DIM)
    still = sum(1 for one in breaches if one.open)
    lines += sentence(output, f"{count(still, 'open breach').replace('breachs', 'breaches')}")
    return [*lines, *remarks]


def _row(one: BreachRow, now: float, *, wide: bool) -> list[Cell]:
    since = "?" if one.begun is None else clock(now - one.begun)
    kind: Cell = (one.kind, BAD if one.kind in _SEVERE else WARN) if one.open else (f"{one.kind} (ended)", DIM)
    cells: list[Cell] = [since, kind, one.who, one.node, str(one.card), gib(one.used), gib(one.promised), one.source]
    if wide:
        cells += [one.container or "-", one.promise or "-", _date(one.begun)]
    return cells


def _date(seconds: float | None) -> str:
    if seconds is None or not _OLDEST <= seconds <= _LATEST:
        return "?"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
