# SPDX-License-Identifier: Apache-2.0
"""
Allocation against arrived demand as an SVG picture, without any plotting library.

Pure: runs in, text out. Decides scales, ticks and colours; one line per policy is the mean over
its seeds, the band around it goes from the lowest to the highest seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.simulator.sim.replay import Run

WIDTH: Final = 960
HEIGHT: Final = 560
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 64, 64
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinguishable also without red-green vision."""
DASHES: Final = ("", "9 4", "3 3", "12 4 3 4", "6 2", "2 5", "14 3")
"""A second sign beside the colour, for print."""
GRID: Final = 120
INSET_FROM: Final = 0.7
"""Part of the demand axis where the inset begins: lines part late."""
INSET_LEFT: Final = 0.6
INSET_TOP: Final = 0.5
"""Where the inset stands in the frame, as parts of its width and height."""
FONT: Final = "font-family='Helvetica,Arial,sans-serif'"
INK: Final = "#222222"


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One policy: mean, lowest and highest allocation at the same demands, all ratios."""

    name: str
    demand: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        """Round values inside the scale, about seven of them."""
        rough = (self.high - self.low) / 7
        power = 10.0 ** floor(log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        first = ceil(self.low / step - 1e-9)
        return tuple(round(i * step, 10) for i in range(first, floor(self.high / step + 1e-9) + 1))


def lines(runs: Iterable[Run]) -> tuple[PlotLine, ...]:
    """One line per policy, on a common grid as far as every seed of it reaches."""
    by: dict[str, list[Run]] = {}
    for run in runs:
        by.setdefault(run.job.policy, []).append(run)
    return tuple(_line(policy, [run.curve for run in found]) for policy, found in by.items())


def _line(name: str, curves: Sequence[Sequence[tuple[float, float]]]) -> PlotLine:
    """Mean and band of one policy."""
    demand = np.linspace(0, min(curve[-1][0] for curve in curves), GRID + 1)
    heights = np.array([np.interp(demand, [x for x, _y in curve], [y for _x, y in curve]) for curve in curves])
    mean, low, high = heights.mean(axis=0), heights.min(axis=0), heights.max(axis=0)
    return PlotLine(name, *(tuple(values.tolist()) for values in (demand, mean, low, high)))


def draw(found: Sequence[PlotLine], title: str) -> str:
    """The whole picture, with a second frame that shows where the lines part."""
    reach = max(line.demand[-1] for line in found)
    across = Axis(0.0, reach, LEFT, WIDTH - RIGHT)
    # A demand below the fleet would leave much of the frame empty, and lead the lines through the inset.
    top = max(max(line.high) for line in found)
    up = Axis(0.0, min(1.0, top * 1.1), HEIGHT - BOTTOM, TOP)
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'"
            f" role='img' aria-label='{escape(title, quote=True)}'>"
        ),
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
        text(LEFT, 28, title, size=17, weight="bold"),
        text(LEFT, 48, "line: mean of the seeds; band: lowest to highest seed", size=12, colour="#555555"),
        *_axes(across, up),
        *_ideal(across, up),
        *(_curve(line, i, across, up) for i, line in enumerate(found)),
        *_legend(found),
        *_inset(found, across, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(across: Axis, up: Axis) -> Iterable[str]:
    """Grid, ticks and captions."""
    for value in across.ticks():
        x = across.at(value)
        yield f"<line x1='{x:.1f}' y1='{up.start}' x2='{x:.1f}' y2='{up.end}' stroke='#e6e6e6'/>"
        yield text(x, up.start + 20, _percent(value), anchor="middle")
    for value in up.ticks():
        y = up.at(value)
        yield f"<line x1='{across.start}' y1='{y:.1f}' x2='{across.end}' y2='{y:.1f}' stroke='#e6e6e6'/>"
        yield text(across.start - 10, y + 4, _percent(value), anchor="end")
    yield (
        f"<path d='M{across.start} {up.end}V{up.start}H{across.end}' fill='none' stroke='{INK}' stroke-width='1.2'/>"
    )
    yield text((across.start + across.end) / 2, HEIGHT - 18, "arrived GPU demand, % of all cards", anchor="middle")
    middle = (up.start + up.end) / 2
    yield (
        f"<g transform='rotate(-90 22 {middle})'>"
        + text(22, middle, "allocated GPU, % of all cards", anchor="middle")
        + "</g>"
    )


def _ideal(across: Axis, up: Axis) -> Iterable[str]:
    """Where every pod that arrives would be placed."""
    end = min(1.0, across.high, up.high)
    points = [(0.0, 0.0), (end, end), (across.high, end)]
    yield f"<path d='{path(points, across, up)}' fill='none' stroke='#999999' stroke-dasharray='2 4'/>"


def _curve(line: PlotLine, index: int, across: Axis, up: Axis) -> str:
    """One policy's band and line."""
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    band = [*zip(line.demand, line.high, strict=True), *reversed(list(zip(line.demand, line.low, strict=True)))]
    return (
        f"<path d='{path(band, across, up)}Z' fill='{colour}' fill-opacity='0.16'/>"
        f"<path d='{path(list(zip(line.demand, line.mean, strict=True)), across, up)}' fill='none'"
        f" stroke='{colour}' stroke-width='2' stroke-linejoin='round' stroke-dasharray='{dash}'/>"
    )


def _legend(found: Sequence[PlotLine]) -> Iterable[str]:
    """Policies and where they end, best first, in the colour of their line."""
    x = WIDTH - RIGHT + 18
    order = sorted(range(len(found)), key=lambda i: -found[i].mean[-1])
    for place, i in enumerate(order):
        y = TOP + 16 + 22 * place
        yield (
            f"<line x1='{x}' y1='{y}' x2='{x + 30}' y2='{y}' stroke='{COLOURS[i % len(COLOURS)]}' stroke-width='2.4'"
            f" stroke-dasharray='{DASHES[i % len(DASHES)]}'/>"
        )
        yield text(x + 38, y + 4, f"{found[i].name} {100 * found[i].mean[-1]:.2f} %")
    y = TOP + 16 + 22 * len(found)
    yield f"<line x1='{x}' y1='{y}' x2='{x + 30}' y2='{y}' stroke='#999999' stroke-dasharray='2 4'/>"
    yield text(x + 38, y + 4, "all placed", colour="#555555")


def _inset(found: Sequence[PlotLine], across: Axis, up: Axis) -> Iterable[str]:
    """The upper right corner again, larger, in the empty triangle under the lines; left out where there is none."""
    left = across.high * INSET_LEFT
    under = [low for line in found for x, low in zip(line.demand, line.low, strict=True) if x >= left]
    if min(under) < up.high * INSET_TOP:
        return
    start = across.high * INSET_FROM
    tops = [height for line in found for x, height in zip(line.demand, line.high, strict=True) if x >= start]
    bottoms = [height for line in found for x, height in zip(line.demand, line.low, strict=True) if x >= start]
    low, high = min(bottoms), max(tops)
    room = max(0.01, (high - low) * 0.06)
    left, right = across.at(left), across.end - 14
    zoom_x = Axis(start, across.high, left, right)
    zoom_y = Axis(low - room, high + room, up.at(0.08 * up.high), up.at(INSET_TOP * up.high))
    yield (
        f"<rect x='{left:.1f}' y='{zoom_y.end:.1f}' width='{right - left:.1f}' height='{zoom_y.start - zoom_y.end:.1f}'"
        f" fill='#ffffff' stroke='#888888'/>"
    )
    for value in zoom_y.ticks():
        y = zoom_y.at(value)
        yield f"<line x1='{left:.1f}' y1='{y:.1f}' x2='{right:.1f}' y2='{y:.1f}' stroke='#eeeeee'/>"
        yield text(left - 6, y + 4, _percent(value), anchor="end", size=11)
    for value in zoom_x.ticks():
        yield text(zoom_x.at(value), zoom_y.start + 14, _percent(value), anchor="middle", size=11)
    for i, line in enumerate(found):
        inside = [k for k, x in enumerate(line.demand) if x >= start]
        part = PlotLine(
            line.name, *(tuple(v[k] for k in inside) for v in (line.demand, line.mean, line.low, line.high))
        )
        yield _curve(part, i, zoom_x, zoom_y)


def path(points: Sequence[tuple[float, float]], across: Axis, up: Axis) -> str:
    """SVG path data through points."""
    return "M" + "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in points)


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, weight: str = "normal", colour: str = INK
) -> str:
    """One line of text; what comes from outside is escaped."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' font-weight='{weight}'"
        f" text-anchor='{anchor}' fill='{colour}'>{escape(words)}</text>"
    )


def _percent(ratio: float) -> str:
    """A tick's label."""
    return f"{100 * ratio:.4g}"
