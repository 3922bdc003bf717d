# SPDX-License-Identifier: Apache-2.0
"""
A dashboard as Grafana's JSON, schema 42 and nothing else: through grafanalib, then cleaned.

grafanalib 0.7.1 writes schema 12 with keys of panels that Grafana has dropped since, and nulls for
everything that is not set; what the typed schema of Grafana does not know is left out here. Its own
classes for tables, dials and bars write forms that a current Grafana no longer reads, so the options
of each look stand here in their present form. What is shown is not decided here.

Schema: grafana-foundation-sdk 0.0.21, `dashboard` (v1) and the options of each panel plugin.
"""

from __future__ import annotations

import json
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

from grafanalib import core  # type: ignore[import-untyped]  # it ships no types
from grafanalib._gen import DashboardEncoder  # type: ignore[import-untyped]  # the only encoder that it has

from dashboards.boards.dashboard import SOURCE, TAG, VARIABLES, Annotation, Dashboard, Variable
from dashboards.boards.layout import GridPosition, Section, laid_out
from dashboards.boards.panel import PanelType
from dashboards.boards.panel_options import defaults, options, overrides, transformations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.boards.panel import Panel

SCHEMA: Final = 42
_SOURCE_REF: Final = {"type": "prometheus", "uid": "${datasource}"}
_OF_A_PANEL: Final = frozenset(("cacheTimeout", "editable", "error", "height", "minSpan", "span", "color", "columns"))
_OF_A_TARGET: Final = frozenset(("step", "metric", "target", "query", "intervalFactor", "alias", "interval", "hide"))
_OF_A_DASHBOARD: Final = frozenset(("__inputs", "hideControls", "rows", "sharedCrosshair", "style", "gnetId", "id"))
_OF_A_VARIABLE: Final = frozenset(("useTags", "tagsQuery", "tagValuesQuery", "auto", "auto_min", "auto_count"))
_OF_AN_OPTION: Final = frozenset(("tags",))


class _Shown(core.Panel):  # type: ignore[misc]  # grafanalib is untyped
    """A panel of any look: grafanalib's common part, and what `extraJson` says of its type."""

    def to_json_data(self) -> Any:
        return self.panel_json({})


def encode_dashboard(board: Dashboard) -> dict[str, Any]:
    """The dashboard, ready to be written."""
    dashboard = core.Dashboard(
        title=board.title,
        uid=board.uid,
        description=board.text,
        tags=[TAG],
        timezone="browser",
        editable=False,
        graphTooltip=1,
        refresh="30s",
        schemaVersion=SCHEMA,
        version=1,
        time=core.Time(board.start, "now"),
        timePicker=core.TimePicker(["10s", "30s", "1m", "5m", "15m"], []),
        annotations=core.Annotations(list=[_mark(mark) for mark in board.marks]),
        templating=core.Templating([_variable(VARIABLES[name]) for name in (SOURCE, *board.variables)]),
        links=[core.DashboardLink(title="gpushare", tags=[TAG], includeVars=True, keepTime=True, asDropdown=True)],
        panels=list(_panels(board)),
    )
    raw = json.loads(json.dumps(dashboard.to_json_data(), cls=DashboardEncoder))
    return _dashboard(raw)


def _mark(mark: Annotation) -> dict[str, Any]:
    return {
        "name": mark.name,
        "datasource": _SOURCE_REF,
        "enable": True,
        "hide": False,
        "iconColor": mark.colour,
        "expr": mark.expr,
        "step": "60s",
        "titleFormat": mark.name,
        "textFormat": mark.text,
    }


def _panels(board: Dashboard) -> Iterator[Any]:
    for number, (place, shown) in enumerate(laid_out(board.sections), start=1):
        position = core.GridPos(place.h, place.w, place.x, place.y)
        if isinstance(shown, Section):
            yield core.RowPanel(title=shown.title, gridPos=position, id=number)
        else:
            yield _panel(shown, place, number)


def _panel(panel: Panel, place: GridPosition, number: int) -> Any:
    return _Shown(
        dataSource=_SOURCE_REF,
        title=panel.title,
        description=panel.text,
        gridPos=core.GridPos(place.h, place.w, place.x, place.y),
        id=number,
        maxDataPoints=None,
        targets=list(_targets(panel)),
        thresholds=[{"color": step.colour, "value": step.value} for step in panel.steps],
        transformations=transformations(panel),
        extraJson={
            "type": panel.look.value,
            "fieldConfig": {"defaults": defaults(panel), "overrides": overrides(panel)},
            "options": options(panel, place.h),
        },
    )


def _targets(panel: Panel) -> Iterator[Any]:
    shown = [(query.expr, query.legend) for query in panel.queries] + [(one.expr, "") for one in panel.columns]
    if len(shown) > len(ascii_uppercase):
        raise ValueError(f"panel {panel.title} has {len(shown)} queries; at most {len(ascii_uppercase)} are possible")
    now = panel.look in (PanelType.TABLE, PanelType.DIAL, PanelType.BARS) or (
        panel.look is PanelType.STAT and not panel.spark
    )
    form = "table" if panel.look is PanelType.TABLE else "time_series"
    for letter, (expr, legend) in zip(ascii_uppercase, shown, strict=False):
        yield core.Target(
            expr=expr, legendFormat=legend or "__auto", refId=letter, instant=now, format=form, datasource=_SOURCE_REF
        )


def _variable(variable: Variable) -> Any:
    common = {"name": variable.name, "label": variable.label}
    if variable.name == SOURCE:
        return core.Template(**common, type="datasource", query="prometheus", default="default")
    if variable.values:
        first = variable.values[2]
        return core.Template(**common, type="custom", query=",".join(variable.values), default=first)
    return core.Template(
        **common,
        type="query",
        query=variable.query,
        dataSource=_SOURCE_REF,
        includeAll=True,
        multi=True,
        allValue=variable.every,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_ALPHA_ASC,
        default="All",
    )


def _dashboard(raw: dict[str, Any]) -> dict[str, Any]:
    """Without what a current Grafana does not know, and with what its form has changed since."""
    raw["panels"] = [_cleaned(panel) for panel in raw["panels"]]
    raw["timepicker"] = {"refresh_intervals": raw["timepicker"]["refresh_intervals"]}
    raw["templating"] = {"list": [_cleaned_variable(one) for one in raw["templating"]["list"]]}
    made: dict[str, Any] = _without_nulls({key: value for key, value in raw.items() if key not in _OF_A_DASHBOARD})
    return made


def _cleaned(panel: dict[str, Any]) -> dict[str, Any]:
    if panel["type"] == "row":
        return {name: panel[name] for name in ("collapsed", "gridPos", "id", "panels", "title", "type")}
    kept = {key: value for key, value in panel.items() if key not in _OF_A_PANEL}
    kept["targets"] = [
        {key: value for key, value in target.items() if key not in _OF_A_TARGET} | {"range": not target["instant"]}
        for target in panel["targets"]
    ]
    for empty in ("links", "transformations"):
        if not kept[empty]:
            del kept[empty]
    for off in ("hideTimeOverride", "transparent"):
        if not kept[off]:
            del kept[off]
    return kept


def _cleaned_variable(variable: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in variable.items() if key not in _OF_A_VARIABLE}
    kept["current"] = {key: value for key, value in kept["current"].items() if key not in _OF_AN_OPTION}
    if variable["type"] == "query":
        kept["definition"] = variable["query"]
        kept["query"] = {"qryType": 1, "query": variable["query"], "refId": "Variable"}
        kept["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
        kept["options"] = []
    else:
        for key in ("includeAll", "multi", "allValue", "sort", "refresh", "datasource"):
            kept.pop(key, None)
    if not kept["regex"]:
        del kept["regex"]
    kept["description"] = VARIABLES[variable["name"]].text
    return kept


def _without_nulls(value: Any) -> Any:
    """No key for what is not set; a threshold's first value alone is null, because that is how Grafana says it."""
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    if isinstance(value, dict):
        return {
            key: _without_nulls(one)
            for key, one in value.items()
            if one is not None or (key == "value" and "color" in value)
        }
    return value
