# SPDX-License-Identifier: Apache-2.0
"""
Tables and sentences as lines of a terminal or a pipe: widths, cuts, colours.

Decides how wide a column is and where a name is cut: nowhere in a pipe, where somebody may search for it.
Whatever comes from outside passes `printable` here, so nothing that a tenant writes can move the cursor.
Pure; plain strings, since a fleet may have tens of thousands of lines. Knows nothing of cards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from rich.cells import cell_len

from dashboards.terminal.memory_bar import ASCII, BLOCKS, BarCharacters
from dashboards.terminal.text_format import column
from isolation.contract.text import printable

Piece: TypeAlias = tuple[str, str]
"""Text and its style."""
Cell: TypeAlias = str | Piece | Callable[[int], list[Piece]]
"""Text; text with a style; or what draws itself in so many cells."""

BAD: Final = "bold white on red"
DIM: Final = "bright_black"
HEAD: Final = "bold cyan"
WARN: Final = "yellow"
STRONG: Final = "bold"
_CODES: Final = MappingProxyType(
    {
        "": "",
        BAD: "1;37;41",
        DIM: "90",
        HEAD: "1;36",
        WARN: "33",
        STRONG: "1",
        "green": "32",
        "cyan": "36",
        "magenta": "35",
        "bold red": "1;31",
    }
)
_GAP: Final = 1
_DRAWN_LEAST: Final = 8
_DRAWN_MOST: Final = 40
_DRAWN_IN_PIPES: Final = 20
_CUT_LEAST: Final = 8
NARROWEST: Final = 60


@dataclass(frozen=True, slots=True)
class TextOutput:
    """Where lines are written: a terminal with its width and colours, or a pipe."""

    width: int | None = None
    """Cells; None: a pipe, where nothing is cut."""
    colour: bool = False
    unicode: bool = True
    headers: bool = True
    """Whether tables have a heading, and there is anything but rows."""

    @property
    def signs(self) -> BarCharacters:
        """What bars are drawn with."""
        return BLOCKS if self.unicode else ASCII

    @property
    def wrap(self) -> int:
        """Cells for sentences."""
        return max(NARROWEST, self.width or 100)

    def styled(self, text: str, style: str) -> str:
        """The text with the escape codes of a style, where there are colours."""
        code = _CODES[style] if self.colour else ""
        return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    right: bool = False
    cut: bool = False
    """May be cut to fit."""
    drawn: bool = False
    """Holds bars: takes what room is left."""


def table(output: TextOutput, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """A heading and a line for each row."""
    heading: tuple[Cell, ...] = tuple((one.title, HEAD) for one in columns)
    cells = list(zip(heading, *rows, strict=True))
    texts = [[_text(cell) for cell in column] for column in cells]
    widths = _widths(output, columns, texts)
    fitted = [
        _fitted(output, one, width, (column, text))
        for one, width, column, text in zip(columns, widths, cells, texts, strict=True)
    ]
    lines = [" ".join(line).rstrip() for line in zip(*fitted, strict=True)]
    return lines if output.headers else lines[1:]


def sentence(output: TextOutput, text: str, style: str = "", indent: int = 0) -> list[str]:
    """A text wrapped to the width."""
    space = " " * indent
    lines = textwrap.wrap(printable(text), output.wrap - indent, break_on_hyphens=False) or [""]
    return [space + output.styled(line, style) for line in lines]


def _text(cell: Cell) -> str:
    """What stands in the cell, without anything that could move a cursor."""
    if isinstance(cell, str):
        return printable(cell)
    return printable(cell[0]) if isinstance(cell, tuple) else ""


def _widths(output: TextOutput, columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    """Natural widths in a pipe; on a terminal what can be cut gives way, the widest first, and bars take the rest."""
    widths = [max(map(_cells, column)) for column in texts]
    drawn = [at for at, one in enumerate(columns) if one.drawn]
    for at in drawn:
        widths[at] = max(len(columns[at].title), _DRAWN_LEAST if output.width else _DRAWN_IN_PIPES)
    if output.width is None:
        return widths
    over = sum(widths) + _GAP * (len(widths) - 1) - output.width
    cuttable = [at for at, one in enumerate(columns) if one.cut]
    while over > 0:
        widest = max(cuttable, key=lambda at: widths[at], default=-1)
        if widest < 0 or widths[widest] <= max(_CUT_LEAST, len(columns[widest].title)):
            break
        widths[widest] -= 1
        over -= 1
    for at in drawn:
        widths[at] = min(_DRAWN_MOST, widths[at] + max(0, -over) // len(drawn))
    return widths


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _fitted(output: TextOutput, one: Column, width: int, made: tuple[Sequence[Cell], Sequence[str]]) -> list[str]:
    """One column, every cell as wide as the column."""
    fitted = []
    for cell, text in zip(*made, strict=True):
        if callable(cell):
            fitted.append("".join(output.styled(part, style) for part, style in cell(width)))
            continue
        if len(text) <= width and text.isascii():
            shown = text.rjust(width) if one.right else text.ljust(width)
        else:
            shown = column(text, width, right=one.right)
        if isinstance(cell, tuple) and output.colour and (inside := shown.strip()):
            shown = shown.replace(inside, output.styled(inside, cell[1]), 1)
        fitted.append(shown)
    return fitted
