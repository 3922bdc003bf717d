# SPDX-License-Identifier: Apache-2.0
"""
What a panel is, before anything of Grafana: its words, its queries, its unit, what its colours mean.

Frozen values made by one function per kind of picture. Where a panel stands is `grid`'s decision, how it
is written down `encode`'s; neither the catalogue nor a data source is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class PanelType(StrEnum):
    """Kinds of panels in use; the values are Grafana's plugin names."""

    STAT = "stat"
    DIAL = "gauge"
    BARS = "bargauge"
    LINES = "timeseries"
    TABLE = "table"
    STATES = "state-timeline"


GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"
GREY: Final = "text"


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on the colour holds; the first step has none."""

    colour: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and how its series are called; `{{label}}` stands for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class ValueMapping:
    """A value that is shown as a word."""

    value: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class PanelColumn:
    """A figure of a table, one for each combination of its key labels."""

    title: str
    expr: str
    unit: str
    steps: tuple[Threshold, ...] = ()
    words: tuple[ValueMapping, ...] = ()
    bar: float | None = None
    """Drawn as a bar up to this value, instead of a number alone."""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """A label column of a table; `to` is a link's address, which may name `${__value.text}`."""

    label: str
    title: str
    to: str = ""
    link: str = ""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel without its place."""

    look: PanelType
    title: str
    text: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    steps: tuple[Threshold, ...] = (Threshold(GREEN),)
    words: tuple[ValueMapping, ...] = ()
    top: float | None = None
    """Largest value of the axis, the dial or the bar."""
    decimals: int | None = None
    stacked: bool = False
    lines_at_steps: bool = False
    """Thresholds drawn into the graph."""
    colours: tuple[tuple[str, str], ...] = ()
    """Fixed colours by legend."""
    over_range: bool = False
    """Lines: legend with mean and largest value of the range."""
    spark: bool = False
    keys: tuple[LabelColumn, ...] = ()
    columns: tuple[PanelColumn, ...] = ()
    sort: str = ""
    none: str = ""
    """What stands there when there is nothing to show."""


def stat(
    title: str,
    text: str,
    expr: str,
    unit: str = "short",
    *,
    steps: tuple[Threshold, ...] = (Threshold(BLUE),),
    words: tuple[ValueMapping, ...] = (),
    spark: bool = True,
    decimals: int | None = None,
    none: str = "",
) -> Panel:
    """One number, with its recent course behind it."""
    queries = (Query(expr),)
    return Panel(
        PanelType.STAT, title, text, queries, unit, steps, words=words, spark=spark, decimals=decimals, none=none
    )


def dial(title: str, text: str, expr: str, unit: str, steps: tuple[Threshold, ...], *, top: float = 1.0) -> Panel:
    """One number within its bounds, from 0."""
    return Panel(PanelType.DIAL, title, text, (Query(expr),), unit, steps, top=top)


def bars(
    title: str,
    text: str,
    queries: tuple[Query, ...],
    unit: str,
    *,
    steps: tuple[Threshold, ...] = (Threshold(BLUE),),
    top: float | None = None,
    decimals: int | None = None,
    none: str = "",
) -> Panel:
    """Numbers of now beside each other."""
    return Panel(PanelType.BARS, title, text, queries, unit, steps, top=top, decimals=decimals, none=none)


def lines(
    title: str,
    text: str,
    queries: tuple[Query, ...],
    unit: str = "short",
    *,
    steps: tuple[Threshold, ...] = (),
    top: float | None = None,
    stacked: bool = False,
    colours: tuple[tuple[str, str], ...] = (),
    over_range: bool = False,
    none: str = "",
) -> Panel:
    """Figures over time; steps are drawn as lines."""
    shown = steps or (Threshold(GREEN),)
    return Panel(
        *(PanelType.LINES, title, text, queries, unit, shown),
        top=top,
        stacked=stacked,
        lines_at_steps=bool(steps),
        colours=colours,
        over_range=over_range,
        none=none,
    )


def states(
    title: str, text: str, queries: tuple[Query, ...], words: tuple[ValueMapping, ...], *, none: str = ""
) -> Panel:
    """Which state held when."""
    return Panel(PanelType.STATES, title, text, queries, "short", words=words, none=none)


def table(
    title: str,
    text: str,
    keys: tuple[LabelColumn, ...],
    columns: tuple[PanelColumn, ...],
    *,
    sort: str = "",
    none: str = "",
) -> Panel:
    """A list; every column's query has exactly the key labels."""
    return Panel(PanelType.TABLE, title, text, keys=keys, columns=columns, sort=sort, none=none)


YES_NO: Final = (ValueMapping(0, "no", RED), ValueMapping(1, "yes", GREEN))
NO_YES: Final = (ValueMapping(0, "no", GREEN), ValueMapping(1, "yes", RED))
"""Where yes is the bad news."""
TROUBLE: Final = (Threshold(GREEN), Threshold(RED, 1))
WARN: Final = (Threshold(GREEN), Threshold(YELLOW, 1))
"""Colours of a count of things that should be none."""
