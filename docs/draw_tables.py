# SPDX-License-Identifier: Apache-2.0
"""
Tables of a dashboard as pictures: the join of a query per column, as Grafana's `merge` makes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from draw_values import INK, LINE, LINK, clipped, colour, shown, worded
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from draw_values import Series
    from matplotlib.axes import Axes


def draw_table(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    """Columns joined by their labels, sorted and coloured as the panel says."""
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    names = panel["transformations"][-1]["options"]["renameByName"]
    order = panel["transformations"][-1]["options"]["indexByName"]
    names = {name: names[name] for name in sorted(names, key=order.__getitem__)}
    keys = [label for label in names if not label.startswith("Value")]
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    for one in answers:
        row = rows.setdefault(tuple(one.labels.get(key, "") for key in keys), {})
        row[names.get(f"Value #{one.letter}") or names["Value"]] = one.last
    columns = list(names.values())
    over = {
        one["matcher"]["options"]: {p["id"]: p["value"] for p in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    by = [field["displayName"] for field in panel["options"]["sortBy"]]
    ordered = sorted(rows.items(), key=lambda row: [-row[1].get(name, -math.inf) for name in by])
    widths = _widths(columns, keys, ordered, width - 16, over)
    for column, (x, _) in zip(columns, widths, strict=True):
        axes.text(x, 38, column, color=LINK, fontsize=7.5, va="center", weight="bold")
    for place, (key, values) in enumerate(ordered[: int((height - 52) / 19)]):
        y = 58 + place * 19
        axes.plot((8, width - 8), (y - 10, y - 10), color=LINE, linewidth=0.6)
        for column, text, (x, room) in zip(columns, key, widths, strict=False):
            ink = LINK if "links" in over.get(column, {}) else INK
            axes.text(x, y, clipped(text or "(none)", room - 4), color=ink, fontsize=7.5, va="center")
        for column, (x, room) in list(zip(columns, widths, strict=True))[len(keys) :]:
            if column in values:
                _cell(axes, over[column], values[column], (x, y, room))


def _cell(axes: Axes, look: dict[str, Any], value: float, at: tuple[float, float, float]) -> None:
    x, y, room = at
    text, ink = shown(value, look["unit"]), INK
    if "thresholds" in look:
        ink = colour(look["thresholds"]["steps"], value)
    if (word := worded(look.get("mappings", ()), value)) is not None:
        text, ink = word
    if "max" in look:
        bar = max(10.0, room - 62)
        axes.add_patch(Rectangle((x, y - 6), bar, 12, facecolor=LINE))
        axes.add_patch(Rectangle((x, y - 6), bar * max(0.0, min(1.0, value / look["max"])), 12, facecolor=ink))
        x += bar + 5
    axes.text(x, y, text, color=ink, fontsize=7.5, va="center")


def _widths(
    columns: list[str], keys: list[str], rows: list[Any], width: float, over: dict[str, Any]
) -> list[tuple[float, float]]:
    """[(left, room)] of each column, wider where its texts are longer."""
    wanted = []
    for place, column in enumerate(columns):
        texts = [len(key[place]) for key, _ in rows] if place < len(keys) else [9]
        bar = 22 if "max" in over.get(column, {}) else 0
        wanted.append(min(38, max(len(column), bar, *texts)) + 2)
    scale, left, made = width / sum(wanted), 10.0, []
    for one in wanted:
        made.append((left, one * scale))
        left += one * scale
    return made
