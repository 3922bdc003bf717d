# SPDX-License-Identifier: Apache-2.0
"""
Churn and the contest of autoscalers as one SVG picture: what moves free, and who needs how many nodes.

Pure: figures in, text out.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from benchmarks.churn.report import means, names
from isolation.simulator.sim.plot import COLOURS, DASHES, INK, Axis, path, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.churn.comparison import Score
    from benchmarks.churn.freed_cards import Freed

WIDTH: Final = 1080
HEIGHT: Final = 440
TOP, BOTTOM = 84, 372
LEFT_FRAME: Final = (70, 470)
RIGHT_FRAME: Final = (600, 1050)


def draw(freed: Sequence[Freed], scores: Sequence[Score], title: str) -> str:
    """The whole picture; a frame without figures is left out."""
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'"
            f" role='img' aria-label='{escape(title, quote=True)}'>"
        ),
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
        text(LEFT_FRAME[0], 30, title, size=17, weight="bold"),
    ]
    if freed:
        parts += _moves(freed)
    if scores and all(score.line for score in scores):
        parts += _nodes(scores)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _moves(freed: Sequence[Freed]) -> Iterable[str]:
    """Cards freed for each move, at each budget: the mean, and a bar from the lowest to the highest seed."""
    found = [mean for mean in means(freed) if mean.per_move is not None]
    across = Axis(0.0, max((mean.budget for mean in found), default=1.0) * 1.1, *LEFT_FRAME)
    up = Axis(0.0, max((mean.highest or 0.0 for mean in found), default=1.0) * 1.1 or 1.0, BOTTOM, TOP)
    yield from _frame(across, up, "move budget, % of running pods", "cards freed per move", percent=True)
    for mean in found:
        x = across.at(mean.budget)
        low, high = up.at(mean.lowest or 0.0), up.at(mean.highest or 0.0)
        yield f"<line x1='{x:.1f}' y1='{low:.1f}' x2='{x:.1f}' y2='{high:.1f}' stroke='{COLOURS[0]}' stroke-width='6'"
        yield " stroke-opacity='0.3'/>"
        yield text(x + 8, up.at(mean.per_move or 0.0) - 8, f"{mean.per_move:.1f}", size=12)
    points = [(mean.budget, mean.per_move or 0.0) for mean in found]
    if points:
        yield f"<path d='{path(points, across, up)}' fill='none' stroke='{COLOURS[0]}' stroke-width='2'/>"


def _nodes(scores: Sequence[Score]) -> Iterable[str]:
    """Nodes that stand over time; the first seed of each autoscaler."""
    first = {name: next(score for score in scores if score.name == name) for name in names(scores)}
    across = Axis(0.0, max(score.line[-1][0] for score in first.values()) or 1.0, *RIGHT_FRAME)
    most = max(nodes for score in first.values() for _, nodes, _ in score.line)
    up = Axis(0.0, max(1.0, most * 1.15), BOTTOM, TOP)
    yield from _frame(across, up, "hours", "nodes", percent=False)
    for at, (name, score) in enumerate(first.items()):
        points = [(hour, float(nodes)) for hour, nodes, _ in score.line]
        colour, dash = COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)]
        yield (
            f"<path d='{path(points, across, up)}' fill='none' stroke='{colour}' stroke-width='1.8'"
            f" stroke-dasharray='{dash}'/>"
        )
        y = TOP + 4 + 17 * at
        x = RIGHT_FRAME[0] + 14
        yield (
            f"<line x1='{x}' y1='{y}' x2='{x + 28}' y2='{y}' stroke='{colour}' stroke-width='2'"
            f" stroke-dasharray='{dash}'/>"
        )
        yield text(x + 36, y + 4, f"{name}: {score.node_hours:,.0f} node-hours", size=12)


def _frame(across: Axis, up: Axis, below: str, beside: str, *, percent: bool) -> Iterable[str]:
    """Axes, ticks and captions."""
    for value in across.ticks():
        x = across.at(value)
        yield f"<line x1='{x:.1f}' y1='{up.start}' x2='{x:.1f}' y2='{up.end}' stroke='#e6e6e6'/>"
        yield text(x, up.start + 18, f"{100 * value:.4g}" if percent else f"{value:.4g}", anchor="middle", size=12)
    for value in up.ticks():
        y = up.at(value)
        yield f"<line x1='{across.start}' y1='{y:.1f}' x2='{across.end}' y2='{y:.1f}' stroke='#e6e6e6'/>"
        yield text(across.start - 8, y + 4, f"{value:.4g}", anchor="end", size=12)
    yield f"<path d='M{across.start} {up.end}V{up.start}H{across.end}' fill='none' stroke='{INK}'/>"
    yield text((across.start + across.end) / 2, up.start + 40, below, anchor="middle")
    yield text(across.start, up.end - 14, beside)
