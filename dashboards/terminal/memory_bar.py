# SPDX-License-Identifier: Apache-2.0
"""
Memory of cards: what of it is used, promised, over promise, others' and free, and the same as a bar.

Pure. A bar is whole cells that add up, legible without colour (every part has its own sign) and without Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one card, or of several added up."""

    total: int = 0
    promised: int = 0
    used: int | None = 0
    """Everything in use, whoever uses it; None where nothing is known of it."""
    partly: bool = False
    """Some of the use is unknown: `used` is the least that it can be."""
    over: int = 0
    """Used by containers beyond their promises."""
    other: int = 0
    """Reserved by the driver, or used outside any promise."""

    @property
    def within(self) -> int | None:
        """Used by containers within their promises; what nobody accounts for counts as theirs."""
        return None if self.used is None else max(0, self.used - self.over - self.other)

    @property
    def idle(self) -> int:
        """Promised and not used."""
        return max(0, self.promised - (self.within or 0))

    @property
    def free(self) -> int:
        """Neither promised nor in use."""
        return max(0, self.total - (self.within or 0) - self.idle - self.over - self.other)


def add_memory(parts: Iterable[MemoryUse]) -> MemoryUse:
    """Several cards as one; use that is unknown of some of them makes the sum a least amount."""
    parts = tuple(parts)
    known = [part.used for part in parts if part.used is not None]
    return MemoryUse(
        total=sum(part.total for part in parts),
        promised=sum(part.promised for part in parts),
        used=sum(known) if known or not parts else None,
        partly=len(known) < len(parts) or any(part.partly for part in parts),
        over=sum(part.over for part in parts),
        other=sum(part.other for part in parts),
    )


@dataclass(frozen=True, slots=True)
class BarCharacters:
    """One character for each part of a bar."""

    used: str
    idle: str
    free: str
    over: str = "!"
    other: str = "x"


BLOCKS: Final = BarCharacters(used="█", idle="▒", free="·")
ASCII: Final = BarCharacters(used="#", idle="-", free=".")

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


def pieces(memory: MemoryUse, width: int, signs: BarCharacters = BLOCKS) -> list[tuple[str, str]]:
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


def bar(memory: MemoryUse, width: int, signs: BarCharacters = BLOCKS) -> Text:
    """The same as a rich text."""
    return Text.assemble(*pieces(memory, width, signs))


def legend(signs: BarCharacters = BLOCKS) -> Text:
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
