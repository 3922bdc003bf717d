"""
Memory as a bar: used, promised, over promise, others, free, in whole cells that add up.

Pure. Legible without colour (every part has its own sign) and without Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.figures import Memory


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


def bar(memory: Memory, width: int, signs: Signs = BLOCKS) -> Text:
    """The memory in exactly `width` cells; memory over promise shows however little it is."""
    parts = cells([memory.within or 0, memory.idle, memory.over, memory.other, memory.free], width)
    if memory.over and not parts[2] and width > 0:
        parts[max(range(len(parts)), key=lambda i: parts[i])] -= 1
        parts[2] = 1
    within, idle, over, other, _ = parts
    return Text.assemble(
        (signs.used * within, USED_STYLE),
        (signs.idle * idle, IDLE_STYLE),
        (signs.over * over, OVER_STYLE),
        (signs.other * other, OTHER_STYLE),
        (signs.free * (width - within - idle - over - other), FREE_STYLE),
    )


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
