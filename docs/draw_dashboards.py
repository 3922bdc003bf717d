# SPDX-License-Identifier: Apache-2.0
"""
Pictures of every dashboard from a Prometheus that has scraped the stack: one PNG each, in `pictures/dashboards`.

    gpushare up                                            # says where its Prometheus is
    python docs/draw_dashboards.py http://127.0.0.1:9449 [--span 300] [--at UNIX-TIME] [--out DIR]
        [--choose gpushare-card.node=vm]

What is drawn is the committed JSON: its queries, its grid, its titles, with its variables at their defaults or as
chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

from draw_panels import draw
from draw_values import FAINT, INK, Series, named
from matplotlib import pyplot as plt
from PIL import Image

from dashboards.boards import queries

ROOT: Final = Path(__file__).resolve().parents[1]
JSON: Final = ROOT / "dashboards" / "json"
COLUMN, ROW, GAP, HEAD = 56, 32, 6, 62
DPI: Final = 100
COLOURS: Final = 96
"""Of the picture: enough for a dark page, and a small file."""
POINTS: Final = 120


class Source:
    """A Prometheus at one moment."""

    def __init__(self, url: str, at: float, span: float) -> None:
        self._url, self._at, self._span = url.rstrip("/"), at, span

    def _get(self, path: str, **fields: object) -> list[dict[str, Any]]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        if not url.startswith(("http://", "https://")):
            raise SystemExit(f"{self._url} is no address of a Prometheus; give http://host:port")
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (scheme checked above)
            data: dict[str, Any] = json.load(answer)["data"]
        return [] if data["resultType"] == "scalar" else data["result"]

    def answers(self, panel: dict[str, Any], values: dict[str, str]) -> list[Series]:
        """Of all queries of the panel."""
        made = []
        for target in panel["targets"]:
            expr, letter = queries.filled(target["expr"], values), target["refId"]
            if target["instant"]:
                found = self._get("query", query=expr, time=self._at)
                parts = [(one["metric"], [one["value"]]) for one in found]
            else:
                step = max(1.0, self._span / POINTS)
                found = self._get("query_range", query=expr, start=self._at - self._span, end=self._at, step=step)
                parts = [(one["metric"], one["values"]) for one in found]
            for labels, points in parts:
                told = [(float(at), float(value)) for at, value in points]
                made.append(Series(named(target["legendFormat"], labels), labels, told, letter))
        return made


def picture(dashboard: dict[str, Any], source: Source, values: dict[str, str], path: Path) -> None:
    """One dashboard, as its grid says."""
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"])
    width, height = 24 * COLUMN + GAP, HEAD + rows * ROW + GAP
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="#111217")
    figure.text(12 / width, 1 - 24 / height, dashboard["title"], color=INK, fontsize=13, weight="bold", va="center")
    figure.text(12 / width, 1 - 46 / height, dashboard["description"], color=FAINT, fontsize=8.5, va="center")
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        x, y = at["x"] * COLUMN + GAP, HEAD + at["y"] * ROW
        wide, tall = at["w"] * COLUMN - GAP, at["h"] * ROW - GAP
        axes = figure.add_axes((x / width, 1 - (y + tall) / height, wide / width, tall / height))
        axes.set_xlim(0, wide)
        axes.set_ylim(tall, 0)
        axes.axis("off")
        title = queries.filled(panel["title"], values)
        if panel["type"] == "row":
            axes.text(4, tall / 2, title, color=INK, fontsize=10, weight="bold", va="center")
        else:
            draw(axes, panel, source.answers(panel, values), title)
    figure.savefig(path, facecolor=figure.get_facecolor())
    plt.close(figure)
    with Image.open(path) as full:
        full.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def chosen(words: list[str], board: str) -> dict[str, str]:
    """What was chosen at the top of this dashboard."""
    parts = [word.partition("=") for word in words]
    return {name.removeprefix(f"{board}."): value for name, _, value in parts if name.startswith(f"{board}.")}


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description="Draw the dashboards from a Prometheus.")
    parser.add_argument("url", help="Its address, such as http://127.0.0.1:9449")
    parser.add_argument("--span", type=float, default=300.0, help="Seconds that graphs show.")
    parser.add_argument("--at", type=float, default=None, help="Unix time of the right edge; default: now.")
    parser.add_argument(
        "--choose",
        action="append",
        default=[],
        metavar="BOARD.VARIABLE=PATTERN",
        help="A choice at the top of one dashboard; may be repeated.",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "dashboards")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    source = Source(given.url, time.time() if given.at is None else given.at, given.span)
    for path in sorted(JSON.glob("*.json")):
        target = given.out / f"{path.stem}.png"
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        values = queries.defaults(dashboard) | queries.windows("15s", f"{given.span:.0f}s")
        picture(dashboard, source, values | chosen(given.choose, path.stem), target)
        sys.stdout.write(f"{target} {target.stat().st_size / 1024:.0f} KB\n")


if __name__ == "__main__":
    main()
