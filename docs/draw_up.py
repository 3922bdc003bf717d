# SPDX-License-Identifier: Apache-2.0
"""
Draws docs/pictures/up.svg: the screen of `gpushare up` at the end of a real run.

    python docs/draw_up.py [SECONDS] [COLUMNS] [LINES]

Nothing is made up: the entry point gets a screen that keeps what it is shown last. With more
seconds an alert has had the time to fire.
"""

from __future__ import annotations

import html
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group

import gpushare
from dashboards.terminal.up.overview import draw_overview

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

PICTURE = Path(__file__).parent / "pictures" / "up.svg"


class Kept:
    """A screen that shows nothing and keeps the last it was given."""

    def __init__(self) -> None:
        self.last: tuple[Any, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *what: object) -> None:
        """Nothing to give back."""

    def show(self, *shown: Any) -> None:
        """Keep it."""
        self.last = shown


class RecordingOutputs(gpushare.LoadedOutputs):
    """The entry point with that screen."""

    kept = Kept()

    def screen(self, stream: TextIO, clock: Callable[[], float]) -> Kept:  # noqa: ARG002
        """The one that keeps."""
        return self.kept


def placed(svg: str) -> str:
    """Every word at its own place: not every renderer knows `textLength`, or keeps spaces at the beginning."""

    def words(found: re.Match[str]) -> str:
        kind, x, y, length, more, body = found.groups()
        text = html.unescape(body).rstrip("\n").replace("\xa0", " ")
        cell = float(length) / max(1, len(text))
        return "".join(
            f'<text class="{kind}" x="{float(x) + at.start() * cell:.1f}" y="{y}" '
            f'textLength="{len(at[0]) * cell:.1f}"{more}>{html.escape(at[0])}</text>'
            for at in re.finditer(r"[^ ]+(?: [^ ]+)*", text)
        )

    run = r'<text class="([^"]*)" x="([^"]*)" y="([^"]*)" textLength="([^"]*)"([^>]*)>([^<]*)</text>'
    return re.sub(run, words, svg)


def main(seconds: str = "60", columns: str = "116", lines: str = "40") -> None:
    """Run, then draw."""
    outputs = RecordingOutputs()
    gpushare.main(["up", "--for", seconds, "--port", "0", "--json"], obj=outputs, standalone_mode=False)
    frame, notes, stack = outputs.kept.last
    console = Console(record=True, width=int(columns), height=int(lines), file=io.StringIO(), force_terminal=True)
    console.print(Group(*draw_overview(frame, (int(columns), int(lines)), notes, stack)))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(placed(console.export_svg(title="gpushare up", clear=False)), encoding="utf-8")
    sys.stderr.write(console.export_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
