# SPDX-License-Identifier: Apache-2.0
"""
How allocations are shown: the table of `--list`, JSON, the lines of a refusal and of a run that waits.

Formats only. A table on a terminal, tab-separated lines in a pipe.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.quantity import GIB
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from isolation.contract.host_allocation import HostAllocation
    from isolation.contract.model import Card

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
HEADINGS: Final = ("NAME", "ID", "CARDS", "GIB", "CORE", "POLICY", "PID", "AGE", "COMMAND")
_COMMAND_CHARS: Final = 60
_MIN_COMMAND: Final = 10
_GAP: Final = 2
"""Columns between columns of the table."""


def as_json(held: Sequence[HostAllocation]) -> dict[str, Any]:
    """The allocations for programs."""
    return {
        "allocations": [
            {
                "id": entry.id,
                "name": entry.name,
                "pid": entry.runner.pid,
                "uid": entry.uid,
                "created": entry.created,
                "policy": entry.policy,
                "command": list(entry.command),
                "cards": [
                    {"uuid": part.uuid, "index": part.index, "memory_gib": part.bytes // GIB, "core_percent": part.core}
                    for part in entry.slices
                ],
            }
            for entry in held
        ]
    }


def build_rows(held: Sequence[HostAllocation], now: float) -> list[tuple[str, ...]]:
    """One row per allocation, in the order of HEADINGS."""
    return [
        (
            printable(entry.name),
            entry.id,
            ",".join(str(part.index) for part in entry.slices),
            f"{entry.slices[0].bytes // GIB}" + (" each" if len(entry.slices) > 1 else ""),
            f"{entry.core} %" if entry.core else "-",
            entry.policy,
            str(entry.runner.pid),
            format_age(now - entry.created),
            render_command(entry),
        )
        for entry in held
    ]


def render_table(held: Sequence[HostAllocation], now: float, console: Console) -> str:
    """A table on a terminal, else tab-separated lines; empty where there are no allocations."""
    found = build_rows(held, now)
    if not found:
        return ""
    if not console.is_terminal:
        return "\n".join("\t".join(row) for row in (HEADINGS, *found))
    from rich.table import Table  # noqa: PLC0415 (a command that runs needs no terminal view)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    others = sum(max(map(len, column)) + _GAP for column in list(zip(HEADINGS, *found, strict=True))[:-1])
    left = max(_MIN_COMMAND, console.width - others)
    for *cells, command in found:
        table.add_row(*(Text(cell) for cell in (*cells, truncate(command, left))))
    with console.capture() as text:
        console.print(table)
    return text.get().rstrip("\n")


def describe_cards(cards: Sequence[Card], held: Sequence[HostAllocation]) -> list[str]:
    """A line per card: what is taken of it, and by whom."""
    lines = []
    for card in cards:
        takers = [(entry, part) for entry in held for part in entry.slices if part.uuid == card.uuid]
        used = sum(part.bytes for _, part in takers) // GIB
        names = ", ".join(f"{printable(entry.name)} {part.bytes // GIB}" for entry, part in takers) or "free"
        lines.append(f"card {card.index}: {used} of {card.allocatable_bytes // GIB} GiB allocated: {names}")
    return lines


def describe_wait(reason: str, cards: Sequence[Card], held: Sequence[HostAllocation], seconds: float) -> str:
    """One line of progress: how long, for what, and who is in the way."""
    uuids = {card.uuid for card in cards}
    holders = [entry for entry in held if uuids & {part.uuid for part in entry.slices}]
    by = ", ".join(f"{printable(entry.name)} {sum(p.bytes for p in entry.slices) // GIB} GiB" for entry in holders)
    return f"waiting {format_age(seconds)}: {reason}" + (f"; in use by {by}" if by else "")


def render_command(entry: HostAllocation) -> str:
    """The command as one short line."""
    return truncate(printable(" ".join(entry.command)), _COMMAND_CHARS)


def truncate(text: str, most: int) -> str:
    """At most so many characters, and one can see that there were more."""
    return text if len(text) <= most else text[: most - 3] + "..."


def format_age(seconds: float) -> str:
    """A span for people."""
    whole = max(0, math.floor(seconds))
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if whole >= unit:
            return f"{whole // unit}{letter}"
    return f"{whole}s"
