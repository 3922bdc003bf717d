# SPDX-License-Identifier: Apache-2.0
"""
Panels of a dashboard as pictures: the looks that ours have, drawn from answers of a Prometheus.

A drawing of the written JSON, so that docs show what its queries return; not Grafana, and without its fine points.
Decides how a panel looks within its rectangle; what was asked of whom is `draw_dashboards`.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final

from draw_tables import draw_table
from draw_values import CHARACTER, FAINT, INK, LINE, NAMED, PALETTE, PAPER, Series, clipped, colour, shown, worded
from matplotlib.patches import Rectangle, Wedge
from matplotlib.ticker import MultipleLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES_SHOWN: Final = 7
"""Of a legend."""
_MINUTE: Final = 60.0
_TICKS: Final = (
    15,
    30,
    60,
    120,
    300,
    600,
    1200,
    3600,
    3 * 3600,
    6 * 3600,
    12 * 3600,
    *(2**n * 86400 for n in range(20)),
)
"""Between two lines of an axis of times, in seconds."""
_MAX_TICKS: Final = 5
_WORTH_A_WORD: Final = 0.2
"""Part of the time from which a state's name fits onto it."""


def draw(axes: Axes, panel: dict[str, Any], answers: list[Series], title: str) -> None:
    """The panel in its rectangle; axes in pixels, the origin at the upper left."""
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    axes.add_patch(Rectangle((0, 0), width - 1, height - 1, facecolor=PAPER, edgecolor=LINE, linewidth=0.8))
    axes.text(10, 16, clipped(title, width - 20), color=INK, fontsize=8, va="center", weight="bold")
    defaults = panel["fieldConfig"]["defaults"]
    if not answers:
        axes.text(width / 2, height / 2, defaults.get("noValue", "No data"), color=FAINT, fontsize=9, ha="center")
        return
    {
        "stat": _stat,
        "gauge": _dial,
        "bargauge": _bars,
        "timeseries": _lines,
        "table": draw_table,
        "state-timeline": _states,
    }[panel["type"]](axes, panel, answers)


def _stat(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    defaults, one = panel["fieldConfig"]["defaults"], answers[0]
    word = worded(defaults["mappings"], one.last)
    text, ink = word or (
        shown(_rounded(one.last, defaults), defaults["unit"]),
        colour(defaults["thresholds"]["steps"], one.last),
    )
    if panel["options"]["graphMode"] == "area" and len(one.points) > 1:
        inner = _inner(axes, 1, height * 0.62, width - 2, height * 0.36)
        times, values = zip(*one.points, strict=True)
        inner.plot(times, values, color=ink, linewidth=0.8)
        inner.fill_between(times, values, min(0, *values), color=ink, alpha=0.18)
        inner.axis("off")
        inner.margins(x=0)
    axes.text(width / 2, height * 0.52, text, color=ink, fontsize=18, ha="center", va="center", weight="bold")


def _rounded(value: float, defaults: dict[str, Any]) -> float:
    """As the panel asks for."""
    return round(value) if defaults.get("decimals") == 0 else value


def _dial(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    defaults, value = panel["fieldConfig"]["defaults"], answers[0].last
    steps, top = defaults["thresholds"]["steps"], defaults["max"]
    centre, radius = (width / 2, height * 0.74), min(width * 0.38, height * 0.46)
    part = max(0.0, min(1.0, value / top))
    ink = colour(steps, value)
    for start, end, fill in ((0.0, 1.0, LINE), (0.0, part, ink)):
        axes.add_patch(Wedge(centre, radius, 180 + 180 * start, 180 + 180 * end, width=radius * 0.3, facecolor=fill))
    marks = [0.0, *(step["value"] / top for step in steps[1:]), 1.0]
    for (start, end), step in zip(itertools.pairwise(marks), steps, strict=True):
        if start < 1:
            bounds = (180 + 180 * start, 180 + 180 * min(1.0, end))
            axes.add_patch(Wedge(centre, radius * 1.08, *bounds, width=radius * 0.05, facecolor=NAMED[step["color"]]))
    axes.text(*centre, shown(value, defaults["unit"]), color=ink, fontsize=15, ha="center", va="center", weight="bold")


def _bars(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    defaults = panel["fieldConfig"]["defaults"]
    top = defaults.get("max") or max(one.last for one in answers) or 1.0
    each = min(40.0, (height - 40) / len(answers))
    left, right = width * 0.34, width * 0.82
    for place, one in enumerate(answers):
        y = 36 + place * each
        ink = colour(defaults["thresholds"]["steps"], one.last)
        axes.text(
            left - 8, y + each * 0.4, clipped(one.name, left - 14), color=INK, fontsize=7.5, ha="right", va="center"
        )
        axes.add_patch(Rectangle((left, y), right - left, each * 0.75, facecolor=LINE))
        axes.add_patch(Rectangle((left, y), (right - left) * min(1, one.last / top), each * 0.75, facecolor=ink))
        told = shown(_rounded(one.last, defaults), defaults["unit"])
        axes.text(right + 8, y + each * 0.4, told, color=ink, fontsize=8, va="center")


def _lines(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    defaults = panel["fieldConfig"]["defaults"]
    fixed = {
        override["matcher"]["options"]: NAMED[part["value"]["fixedColor"]]
        for override in panel["fieldConfig"]["overrides"]
        for part in override["properties"]
        if part["id"] == "color"
    }
    inks = [fixed.get(one.name, PALETTE[place % len(PALETTE)]) for place, one in enumerate(answers)]
    inner = _inner(axes, 62, 34, width - 74, height - 76)
    if defaults["custom"]["stacking"]["mode"] == "normal":
        times = sorted({at for one in answers for at, _ in one.points})
        stacks = [[dict(one.points).get(at, 0.0) for at in times] for one in answers]
        inner.stackplot(times, stacks, colors=inks, alpha=0.55)
    else:
        for one, ink in zip(answers, inks, strict=True):
            inner.plot(*zip(*_with_gaps(one.points), strict=True), color=ink, linewidth=1.1)
    values = [value for one in answers for _, value in one.points if not math.isnan(value)]
    top = defaults.get("max") or (inner.get_ylim()[1] if max(values, default=0.0) > 0 else 1.0)
    inner.set_ylim(min(0.0, *values, 0.0), top)
    if defaults["custom"]["thresholdsStyle"]["mode"] == "dashed":
        for step in defaults["thresholds"]["steps"][1:]:
            if step["value"] <= inner.get_ylim()[1]:
                inner.axhline(step["value"], color=NAMED[step["color"]], linewidth=0.8, linestyle="--")
    _time_axis(inner, defaults["unit"])
    _legend(axes, [(one.name, ink) for one, ink in zip(answers, inks, strict=True)])


def _with_gaps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line ends where nothing was told for two steps."""
    step = min((later - at for (at, _), (later, _) in itertools.pairwise(points)), default=0.0)
    made = points[:1]
    for before, point in itertools.pairwise(points):
        if point[0] - before[0] > 2 * step:
            made.append((before[0] + step, math.nan))
        made.append(point)
    return made


def _states(axes: Axes, panel: dict[str, Any], answers: list[Series]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    mappings = panel["fieldConfig"]["defaults"]["mappings"]
    answers = answers[: max(1, int((height - 60) / 16))]
    room = min(width * 0.5, 12 + CHARACTER * max(len(one.name) for one in answers))
    inner = _inner(axes, room, 34, width - room - 12, height - 62)
    for place, one in enumerate(answers):
        step = one.points[1][0] - one.points[0][0] if len(one.points) > 1 else 1.0
        for value, run in itertools.groupby(one.points, key=lambda point: point[1]):
            times = [at for at, _ in run]
            word, fill = worded(mappings, value) or ("", FAINT)
            long = times[-1] - times[0] + step
            inner.add_patch(Rectangle((times[0], place - 0.4), long, 0.8, facecolor=fill, linewidth=0))
            if long > _WORTH_A_WORD * (one.points[-1][0] - one.points[0][0]):
                inner.text(times[0] + long / 2, place, word, color=PAPER, fontsize=7, ha="center", va="center")
    inner.set_xlim(min(one.points[0][0] for one in answers), max(one.points[-1][0] for one in answers) + 1)
    inner.set_ylim(len(answers) - 0.5, -0.5)
    _time_axis(inner, "short")
    inner.set_yticks(range(len(answers)), [clipped(one.name, room) for one in answers])
    inner.grid(visible=False)


def _inner(axes: Axes, x: float, y: float, w: float, h: float) -> Axes:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    inner: Axes = axes.inset_axes((x / width, 1 - (y + h) / height, w / width, h / height))
    inner.set_facecolor("none")
    return inner


def _time_axis(inner: Axes, unit: str) -> None:
    inner.margins(x=0)
    for side in inner.spines.values():
        side.set_visible(False)
    inner.tick_params(colors=FAINT, labelsize=7, length=0)
    inner.grid(visible=True, color=LINE, linewidth=0.6)
    inner.set_axisbelow(True)
    inner.locator_params(nbins=5)
    top = inner.get_ylim()[1]
    if unit == "bytes":
        inner.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(max(1.0, top / 5)))))
    elif unit == "s" and top > _MINUTE:
        inner.yaxis.set_major_locator(MultipleLocator(next(one for one in _TICKS if top / one <= _MAX_TICKS)))
    inner.xaxis.set_major_formatter(lambda at, _: time.strftime("%H:%M:%S", time.gmtime(at)))
    inner.locator_params(axis="x", nbins=4)
    inner.yaxis.set_major_formatter(lambda value, _: shown(value, unit))


def _legend(axes: Axes, names: list[tuple[str, str]]) -> None:
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    x = 12.0
    for place, (name, ink) in enumerate(names):
        text = clipped(name, 190)
        room = 18 + CHARACTER * len(text)
        if x + room > width - 36 or place >= _NAMES_SHOWN:
            axes.text(x, height - 14, f"+{len(names) - place}", color=FAINT, fontsize=7, va="center")
            return
        axes.plot((x, x + 10), (height - 14, height - 14), color=ink, linewidth=2)
        axes.text(x + 14, height - 14, text, color=INK, fontsize=7, va="center")
        x += room + 8
