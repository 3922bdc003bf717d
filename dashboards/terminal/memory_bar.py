# SPDX-License-Identifier: Apache-2.0
"""
Memory as a bar: used, promised, over promise, others, free, in whole cells that add up.

Pure. Legible without colour (every part has its own sign) and without Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.up.totals import Memory


@dataclass(frozen=True, slots=True)
class Signs:
    """One character for each part of a bar."""

    used: str
    idle: str
    free: str
    over: str = "!"
    other: str = "x"


BLOCKS: Final = Signs(used="█", idle="▒", free="·")
ASCII: Final = Signs(used="#", idle="-", free=".")

USED_STYLE: Final = "green"
IDLE_STYLE: Final = "cyan"
FREE_STYLE: Final = "bright_black"
OVER_STYLE: Final = "bold white on red"
OTHER_STYLE: Final = "magenta"


def cells(amounts: Sequence[int], width: int) -> list[int]:
    """Whole cells for each amount, `width` in all, by largest remainder; ties go to the first."""
    whole = sum(amounts)
    if whole <= 0 or width <= 0:
        return [0 for _ in amounts]
    shares = [divmod(amount * width, whole) for amount in amounts]
    result = [cell for cell, _ in shares]
    for position in sorted(range(len(shares)), key=lambda i: -shares[i][1])[: width - sum(result)]:
        result[position] += 1
    return result


def pieces(memory: Memory, width: int, signs: Signs = BLOCKS) -> list[tuple[str, str]]:
    """The memory in exactly `width` cells, each part with its style; memory over promise shows however little it is."""
    within, idle, over, other = _parts(
        (memory.within or 0, memory.idle, memory.over, memory.other, memory.free), max(0, width)
    )
    return [
        (signs.used * within, USED_STYLE),
        (signs.idle * idle, IDLE_STYLE),
        (signs.over * over, OVER_STYLE),
        (signs.other * other, OTHER_STYLE),
        (signs.free * (width - within - idle - over - other), FREE_STYLE),
    ]


@lru_cache(4096)
def _parts(amounts: tuple[int, int, int, int, int], width: int) -> tuple[int, int, int, int]:
    """Cells for all but what is free; cards alike are many."""
    parts = cells(amounts, width)
    if amounts[2] and not parts[2] and width > 0:
        parts[max(range(len(parts)), key=lambda i: parts[i])] -= 1
        parts[2] = 1
    return parts[0], parts[1], parts[2], parts[3]


def bar(memory: Memory, width: int, signs: Signs = BLOCKS) -> Text:
    """The same as a rich text."""
    return Text.assemble(*pieces(memory, width, signs))


def legend(signs: Signs = BLOCKS) -> Text:
    """What the signs mean."""
    return Text.assemble(
        *(
            (signs.used, USED_STYLE),
            " used ",
            (signs.idle, IDLE_STYLE),
            " promised ",
            (signs.over, OVER_STYLE),
            " over ",
        ),
        *((signs.other, OTHER_STYLE), " others ", (signs.free, FREE_STYLE), " free"),
    )
