# SPDX-License-Identifier: Apache-2.0
"""
The queries of a written dashboard, with its variables filled in: what a server is really asked.

Pure, over the JSON and not over the code that wrote it, so that what is checked and drawn is what users get.
Only the forms that our dashboards use are known: `$name`, `${name}` and Grafana's own three windows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel."""

    panel: str
    letter: str
    expr: str
    legend: str
    instant: bool


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every panel that shows something, headings left out."""
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


def asked(dashboard: Mapping[str, Any]) -> Iterator[PanelQuery]:
    """Every query, as it is written."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield PanelQuery(
                panel["title"], target["refId"], target["expr"], target.get("legendFormat", ""), target["instant"]
            )


def defaults(dashboard: Mapping[str, Any]) -> dict[str, str]:
    """What each variable stands for when nobody chose anything."""
    chosen: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        everything = variable.get("includeAll", False)
        chosen[variable["name"]] = variable["allValue"] if everything else str(variable["current"].get("value", ""))
    return chosen


def windows(rate: str, span: str) -> dict[str, str]:
    """Grafana's own variables: the window of rates, and the time shown."""
    return {"__rate_interval": rate, "__range": span, "__interval": rate}


def filled(expr: str, values: Mapping[str, str]) -> str:
    """With every variable replaced; one that nobody knows is a mistake of the dashboard."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise ValueError(f"${name} is not a variable of this dashboard: {expr}")
        return values[name]

    return _VARIABLE.sub(value, expr)
