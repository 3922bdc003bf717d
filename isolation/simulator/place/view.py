# SPDX-License-Identifier: Apache-2.0
"""
A plan for people and for programs.

Decides how it looks and nothing else: one line per container with names uncut (a pipe may grep
them), reasons and bars within 80 columns, no colour in a pipe, and whole numbers
wherever an amount is one.
"""

from __future__ import annotations

import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from isolation.contract.model import FULL_CORE, Mode, Refusal
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from isolation.contract.model import Node, Part, Slice
    from isolation.simulator.place.plan import PlacementPlan, PlannedCard

BAR: Final = 30
"""Columns of a card's bar."""
_INDENT: Final = " " * 9
MAX_PICTURES: Final = 24
"""Nodes drawn; a larger fleet is summed up."""


def as_json(plan: PlacementPlan) -> dict[str, list[dict[str, Any]]]:
    """The plan in the shape that programs read."""
    placements, refusals = [], []
    for outcome in plan.outcomes:
        if isinstance(outcome.result, Refusal):
            refusals.append({"pod": outcome.pod.key, "reason": outcome.result.reason})
            continue
        placements += [
            {
                "pod": outcome.pod.key,
                "container": part.container,
                "node": outcome.result.node,
                "cards": [
                    {"index": s.index, "memory_gib": format_gib(s.bytes), "core_percent": s.core} for s in part.slices
                ],
            }
            for part in outcome.landed
        ]
    return {"placements": placements, "refusals": refusals}


def format_gib(amount: int) -> int | float:
    """Bytes as GiB: whole where it is whole."""
    gib = Fraction(amount, GIB)
    return int(gib) if gib.denominator == 1 else round(float(gib), 3)


def print_plan(plan: PlacementPlan, console: Console) -> None:
    """The plan as a table, refusals with their reasons, and the cards of every node in use."""
    if any(not isinstance(outcome.result, Refusal) for outcome in plan.outcomes):
        heading, lines = _table(plan)
        console.print(Text(heading, style="bold"), soft_wrap=True)
        console.print(Text(lines), soft_wrap=True)
    refused: dict[str, list[str]] = {}
    for outcome in plan.outcomes:
        if isinstance(outcome.result, Refusal):
            refused.setdefault(outcome.result.reason, []).append(outcome.pod.key)
    for reason, names in refused.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(Text(f"refused  {names[0]}{more}", style="bold red"))
        lines = textwrap.fill(reason, console.width - 1, initial_indent=_INDENT, subsequent_indent=_INDENT)
        console.print(Text(lines))
    in_use = [(node, uses) for node, uses in plan.nodes if any(use.used_bytes or use.used_core for use in uses)]
    for node, uses in in_use[:MAX_PICTURES]:
        console.print()
        for line in _picture(node, uses, unicode=console.encoding.lower().startswith("utf")):
            console.print(line, no_wrap=True)
    if len(in_use) > MAX_PICTURES:
        console.print(f"\n... and {len(in_use) - MAX_PICTURES} more nodes in use")
    console.print()
    count = sum(len(names) for names in refused.values())
    console.print(f"{len(plan.outcomes) - count} placed, {count} refused; {_left(plan)}")


def _table(plan: PlacementPlan) -> tuple[str, str]:
    """A heading, and a line per container, in columns as wide as they need be."""
    rows = [("POD", "CONTAINER", "NODE", "CARDS")]
    for outcome in plan.outcomes:
        if not isinstance(outcome.result, Refusal):
            node = outcome.result.node
            rows += [(outcome.pod.key, part.container, node, _cards(part)) for part in outcome.landed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading, *lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return heading, "\n".join(lines)


def _cards(part: Part) -> str:
    """`0 1 2 3: 2 GiB each, 30 %`; every card of a container gives the same."""
    if not part.slices:
        return "-"
    first = part.slices[0]
    indices = " ".join(str(card.index) for card in part.slices)
    if first.core == FULL_CORE:
        return f"{indices}: whole"
    each = " each" if len(part.slices) > 1 else ""
    return f"{indices}: {format_gib(first.bytes)} GiB{each}{_core(first)}"


def _core(part: Slice) -> str:
    return f", {part.core} %" if part.core else ""


def _picture(node: Node, uses: Sequence[PlannedCard], *, unicode: bool) -> Iterator[Text]:
    """A bar per card: what is taken of what it offers."""
    choice = "" if node.mode in (Mode.EXCLUSIVE, Mode.NONE) else f", placement {node.choice.value}"
    yield Text.assemble((node.name, "bold"), f"  mode {node.mode.value}{choice}")
    full, empty = ("█", "░") if unicode else ("#", ".")
    for use in uses:
        part = min(1.0, use.used_bytes / use.allocatable_bytes) if use.allocatable_bytes else 0.0
        # A bar that is neither empty nor full never looks so.
        filled = min(BAR - (part < 1), max(int(part > 0), round(part * BAR)))
        line = Text(f"  card {use.index:<2} ")
        line.append(full * filled, style="green" if part <= 1 else "red").append(empty * (BAR - filled), style="dim")
        line.append(
            f"  {format_gib(use.used_bytes)} of {format_gib(use.allocatable_bytes)} GiB"
            if use.healthy
            else "  unhealthy"
        )
        if node.mode in {Mode.CORE_MEM, Mode.MPS}:
            line.append(f", {use.used_core} %")
        yield line


def _left(plan: PlacementPlan) -> str:
    free = sum(max(0, use.allocatable_bytes - use.used_bytes) for _, uses in plan.nodes for use in uses)
    cards, nodes = sum(len(uses) for _, uses in plan.nodes), len(plan.nodes)
    return f"{format_gib(free)} GiB free on {_counted(cards, 'card')} of {_counted(nodes, 'node')}"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
