# SPDX-License-Identifier: Apache-2.0
"""
Where panels stand: rows of 24 columns, filled from the left, none overlapping, none wider than the page.

Pure. A row whose widths do not add up is a mistake of whoever wrote it and refused; the layout never
stretches or moves a panel on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dashboards.boards.panel import Panel

COLUMNS: Final = 24


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels beside each other, of one height; widths in columns."""

    height: int
    panels: tuple[tuple[int, Panel], ...]

    def __post_init__(self) -> None:
        wide = sum(width for width, _ in self.panels)
        if wide != COLUMNS or min((width for width, _ in self.panels), default=0) < 1:
            raise ValueError(f"a band needs {COLUMNS} columns, not {wide}: {[p.title for _, p in self.panels]}")


@dataclass(frozen=True, slots=True)
class Section:
    """Bands under one heading."""

    title: str
    bands: tuple[PanelRow, ...]


@dataclass(frozen=True, slots=True)
class GridPosition:
    """Grid position, in columns and rows of the page."""

    x: int
    y: int
    w: int
    h: int


def even(height: int, *panels: Panel) -> PanelRow:
    """Panels of the same width; their number divides 24."""
    width, rest = divmod(COLUMNS, len(panels))
    if rest:
        raise ValueError(f"{len(panels)} panels do not divide {COLUMNS} columns evenly; set widths")
    return PanelRow(height, tuple((width, panel) for panel in panels))


def wide(height: int, *panels: tuple[int, Panel]) -> PanelRow:
    """Panels with a width each, 24 together."""
    return PanelRow(height, panels)


def laid_out(sections: Sequence[Section]) -> Iterator[tuple[GridPosition, Section | Panel]]:
    """Every heading and panel with its place, from the top."""
    y = 0
    for section in sections:
        yield GridPosition(0, y, COLUMNS, 1), section
        y += 1
        for band in section.bands:
            x = 0
            for width, panel in band.panels:
                yield GridPosition(x, y, width, band.height), panel
                x += width
            y += band.height
