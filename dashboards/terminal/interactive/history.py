# SPDX-License-Identifier: Apache-2.0
"""
The last figures of each card and pod while somebody looks, and how they are drawn in a line.

Pure but for what it remembers: bounded in figures and in things. What was not known at a time is a gap, not 0.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.terminal.read.usage import Usage

KEPT: Final = 240
"""Figures of each series: 20 minutes at a reading every 5 s."""
_MAX_SERIES: Final = 20_000
_OF_CARDS: Final = frozenset({"used", "utilisation", "power", "temperature"})
_OF_PODS: Final = frozenset({"used", "core_used"})
LEVELS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.-=oO#@"

Key = tuple[str, str]
"""What it is of (a card's UUID, a pod's `namespace/name`), and the figure."""


class History:
    """One figure for each reading."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[float | None]] = {}
        self.readings = 0

    def add(self, usage: Usage) -> None:
        """One more reading."""
        now = _figures(usage)
        self.readings += 1
        for key in now.keys() - self._series.keys():
            if len(self._series) < _MAX_SERIES:
                self._series[key] = deque([None] * min(KEPT, self.readings - 1), KEPT)
        for key, series in list(self._series.items()):
            series.append(now.get(key))
            if not any(value is not None for value in series):
                del self._series[key]

    def of(self, what: str, figure: str) -> tuple[float | None, ...]:
        """The latest last; empty: nothing is known."""
        return tuple(self._series.get((what, figure), ()))


def _figures(usage: Usage) -> dict[Key, float]:
    """Of each card, and of each pod the sum of its containers."""
    now: dict[Key, float] = {}
    for card in usage.cards:
        now |= {(card.uuid, name): card.figures[name] for name in _OF_CARDS & card.figures.keys()}
    for one in usage.tenants:
        for name in _OF_PODS & one.figures.keys():
            now[one.key, name] = now.get((one.key, name), 0.0) + one.figures[name]
    return now


def sparkline(values: Sequence[float | None], cells: int, most: float | None = None, *, unicode: bool = True) -> str:
    """
    The latest values in so many cells, one each, right-aligned; a value that is not known is a space.

    `most` is what the highest sign stands for; without it, the largest value that is shown.
    """
    levels = LEVELS if unicode else ASCII_LEVELS
    shown = list(values[-cells:]) if cells > 0 else []
    top = most or max((value for value in shown if value is not None), default=0.0) or 1.0
    signs = "".join(" " if value is None else _sign(value / top, levels) for value in shown)
    return signs.rjust(max(0, cells))


def _sign(part: float, levels: str) -> str:
    return levels[min(len(levels) - 1, max(0, round(part * (len(levels) - 1))))]
