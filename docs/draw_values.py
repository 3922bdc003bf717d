# SPDX-License-Identifier: Apache-2.0
"""
What a picture of a panel says: values with their units, words and colours of thresholds, names of series.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

INK, FAINT, PAPER, LINE, LINK = "#ccccdc", "#8e8e9e", "#181b1f", "#2c3036", "#6e9fff"
PALETTE: Final = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#fade2a")
NAMED: Final = {
    "green": "#73bf69",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "text": INK,
}
_LEGEND: Final = re.compile(r"\{\{(\w+)\}\}")
ROUND: Final = 1000
"""From here on without a fraction."""
HUNDRED: Final = 99.95
"""From here on three digits are whole ones."""
CHARACTER: Final = 5.6
"""Pixels of one, about, in the small type."""


@dataclass(frozen=True, slots=True)
class Series:
    """One answer: its name as the legend has it, its labels, its points."""

    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]
    letter: str

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


def named(legend: str, labels: dict[str, str]) -> str:
    """The legend filled in; `__auto` is the labels themselves."""
    if legend == "__auto":
        return " ".join(labels.values())
    return _LEGEND.sub(lambda match: labels.get(match[1], ""), legend).strip() or "(none)"


def shown(value: float, unit: str) -> str:
    """With its unit, short."""
    if math.isnan(value):
        return "NaN"
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit == "Bps":
        return _scaled(value, 1000, ("B/s", "kB/s", "MB/s", "GB/s"))
    if unit == "percentunit":
        return f"{value * 100:.3g} %" if value < 1 else f"{value * 100:.0f} %"
    if unit == "s":
        return _duration(value)
    if unit == "hertz":
        return _scaled(value, 1000, ("Hz", "kHz", "MHz", "GHz"))
    ends = {"watt": " W", "watth": " Wh", "celsius": " °C", "reqps": " /s", "short": ""}
    end = unit.removeprefix("suffix:") if unit.startswith("suffix:") else ends[unit]
    return f"{value:,.0f}{end}" if value == int(value) or abs(value) >= ROUND else f"{value:.3g}{end}"


def _scaled(value: float, step: int, ends: Sequence[str]) -> str:
    place = 0
    while abs(value) >= step and place < len(ends) - 1:
        value, place = value / step, place + 1
    return f"{_plain(value)} {ends[place]}"


def _plain(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{value:.0f}" if abs(value) >= HUNDRED else f"{value:.3g}"


def _duration(value: float) -> str:
    for size, end in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if value >= size:
            return f"{_plain(value / size)} {end}"
    return "0 s" if value == 0 else f"{_plain(value * 1000)} ms"


def colour(steps: Sequence[dict[str, Any]], value: float) -> str:
    """Of the last step that the value reaches."""
    found = steps[0]["color"]
    for step in steps[1:]:
        if value >= step["value"]:
            found = step["color"]
    return NAMED[found]


def worded(mappings: Sequence[dict[str, Any]], value: float) -> tuple[str, str] | None:
    """Text and colour of a value that is shown as a word."""
    for mapping in mappings:
        if (found := mapping["options"].get(f"{value:g}")) is not None:
            return found["text"], NAMED[found["color"]]
    return None


def clipped(text: str, room: float) -> str:
    """What fits into so many pixels."""
    most = max(3, int(room / CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"
