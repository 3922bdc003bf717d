# SPDX-License-Identifier: Apache-2.0
"""
How each look is drawn: a panel's field defaults, overrides and options, in the form of schema 42.

Pure. Which figures are shown is `panel`'s; the panel as a whole is put together by `encode`.
"""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

from dashboards.boards.panel import PanelType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.boards.panel import LabelColumn, Panel, PanelColumn, Threshold, ValueMapping

_LATEST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_SCROLLED: Final = {
    "displayMode": "table",
    "placement": "right",
    "width": 220,
    "calcs": ["lastNotNull"],
    "sortBy": "Last *",
    "sortDesc": True,
}
"""Legend of a series for each object: beside the graph, the largest first, and never larger than the graph."""
_LOW: Final = 4
"""Rows up to which a stat has no room for the course behind its number."""


def defaults(panel: Panel) -> dict[str, Any]:
    """What holds for all fields."""
    made: dict[str, Any] = {
        "unit": panel.unit,
        "mappings": _mappings(panel.words),
        "min": 0 if panel.look in (PanelType.DIAL, PanelType.BARS) else None,
        "max": panel.top,
        "decimals": panel.decimals,
        "noValue": panel.none or None,
        "color": {"mode": "palette-classic" if panel.look is PanelType.LINES else "thresholds"},
    }
    if panel.look is PanelType.LINES:
        made["custom"] = _drawn(panel)
    elif panel.look is PanelType.TABLE:
        made["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True}
    elif panel.look is PanelType.STATES:
        made["custom"] = {"lineWidth": 0, "fillOpacity": 80}
    return made


def overrides(panel: Panel) -> list[dict[str, Any]]:
    """What holds for one field: a fixed colour of a line, the unit and the cell of a column."""
    made = [_override(name, {"color": {"mode": "fixed", "fixedColor": colour}}) for name, colour in panel.colours]
    made += [_override(key.title, _key_cell(key)) for key in panel.keys]
    made += [_override(column.title, _cell(column)) for column in panel.columns]
    return made


def options(panel: Panel, height: int) -> dict[str, Any]:
    """The plugin's own options."""
    match panel.look:
        case PanelType.STAT:
            return {
                "colorMode": "value",
                "graphMode": "area" if panel.spark and height >= _LOW else "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "reduceOptions": _LATEST,
                "textMode": "auto",
                "wideLayout": True,
            }
        case PanelType.DIAL:
            return {
                "orientation": "auto",
                "reduceOptions": _LATEST,
                "showThresholdLabels": False,
                "showThresholdMarkers": True,
            }
        case PanelType.BARS:
            return {
                "displayMode": "basic",
                "orientation": "horizontal",
                "reduceOptions": _LATEST,
                "showUnfilled": True,
                "valueMode": "color",
            }
        case PanelType.TABLE:
            return {"cellHeight": "sm", "showHeader": True, "sortBy": _sorted_by(panel)}
        case PanelType.STATES:
            return {
                "showValue": "auto",
                "rowHeight": 0.8,
                "mergeValues": True,
                "legend": _legend(),
                "tooltip": {"mode": "single", "sort": "none"},
            }
        case PanelType.LINES:
            calcs = ("mean", "max", "lastNotNull") if panel.over_range else ()
            many = not calcs and any("{{" in query.legend for query in panel.queries)
            legend = _legend(*calcs) | (_SCROLLED if many else {})
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def transformations(panel: Panel) -> list[dict[str, Any]]:
    """One table out of a query per column: joined by the key labels, named, in our order."""
    if panel.look is not PanelType.TABLE:
        return []
    values = [f"Value #{letter}" for letter, _ in zip(ascii_uppercase, panel.columns, strict=False)]
    if len(values) == 1:
        values = ["Value"]
    names = {key.label: key.title for key in panel.keys} | dict(
        zip(values, (column.title for column in panel.columns), strict=True)
    )
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": names,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]


def _drawn(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 8,
        "gradientMode": "none",
        "showPoints": "never",
        "spanNulls": False,
        "axisPlacement": "auto",
        "axisSoftMin": 0,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if panel.lines_at_steps else "off"},
    }


def _legend(*calcs: str) -> dict[str, Any]:
    return {
        "displayMode": "table" if calcs else "list",
        "placement": "bottom",
        "showLegend": True,
        "calcs": list(calcs),
    }


def _sorted_by(panel: Panel) -> list[dict[str, Any]]:
    return [{"displayName": panel.sort, "desc": True}] if panel.sort else []


def _mappings(words: Sequence[ValueMapping]) -> list[dict[str, Any]]:
    if not words:
        return []
    shown = {
        f"{word.value:g}": {"text": word.text, "color": word.colour, "index": place} for place, word in enumerate(words)
    }
    return [{"type": "value", "options": shown}]


def _override(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": ident, "value": value} for ident, value in properties.items()],
    }


def _cell(column: PanelColumn) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": column.unit}
    if column.steps:
        made["thresholds"] = {"mode": "absolute", "steps": _steps(column.steps)}
    if column.words:
        made["mappings"] = _mappings(column.words)
    if column.bar is not None:
        made |= {"custom.cellOptions": {"type": "gauge", "mode": "basic"}, "min": 0, "max": column.bar}
    elif column.steps or column.words:
        made["custom.cellOptions"] = {"type": "color-text"}
    if column.width is not None:
        made["custom.width"] = column.width
    return made


def _key_cell(key: LabelColumn) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if key.to:
        made["links"] = [{"title": key.link, "url": key.to, "targetBlank": False}]
    if key.width is not None:
        made["custom.width"] = key.width
    return made


def _steps(steps: Sequence[Threshold]) -> list[dict[str, Any]]:
    return [{"color": step.colour, "value": step.value} for step in steps]
