# SPDX-License-Identifier: Apache-2.0
"""
What the exporter costs a node: samples, the time of a scrape, of a turn as pods grow, memory over a day.

    python -m benchmarks.exporter                        # every part, about five minutes
    python -m benchmarks.exporter --quick                # a first look
    python -m benchmarks.exporter --part scrape --json runs.json

The sources answer from memory (`recorded`); everything behind them is what a node runs. Never a test: speed
depends on the machine. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from benchmarks.exporter import cost

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS: Final = ("samples", "cycle", "scrape", "memory")
QUICK: Final = 10
"""How much shorter a first look is."""


class Row(NamedTuple):
    """One figure; `bar` is the most that it may be, None where it is told beside another."""

    name: str
    value: float
    bar: float | None
    unit: str = ""
    more: str = ""

    @property
    def met(self) -> bool:
        """Whether it is within its bar."""
        return self.bar is None or self.value <= self.bar

    def texts(self) -> tuple[str, str, str, str, str]:
        """As it is shown."""
        digits = 0 if self.value == int(self.value) and not self.unit else 2
        bar, met = (
            ("", "") if self.bar is None else (f"<= {self.bar:g} {self.unit}".rstrip(), "yes" if self.met else "no")
        )
        return (self.name, bar, f"{self.value:.{digits}f} {self.unit}".rstrip(), self.more, met)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="All by default.")
@click.option("--quick", is_flag=True, help="A tenth of the time, for a first look.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Keep every figure.")
@click.option("--serve", "served", type=int, hidden=True)
@click.option("--still", is_flag=True, hidden=True)
@click.option("--day", "day_pods", type=int, hidden=True)
@click.option("--hours", type=float, hidden=True)
def main(**given: Any) -> None:
    """Measure what the exporter costs, beside the most that it may."""
    if given["served"] is not None:
        cost.serve(given["served"], still=given["still"])
        return
    if given["day_pods"] is not None:
        cost.day(given["day_pods"], given["hours"])
        return
    found: dict[str, Any] = {}
    rows: list[Row] = []
    for part in given["parts"] or PARTS:
        click.echo(f"measuring: {part} ...", err=True)
        found[part] = _measure(part, quick=given["quick"])
        rows += _rows(part, found[part])
    _show(rows)
    if given["path"] is not None:
        given["path"].write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    sys.exit(int(not all(row.met for row in rows)))


def _measure(part: str, *, quick: bool) -> Any:
    if part == "samples":
        return [cost.page(8, 8), cost.page(8, 64), cost.page(8, 512)]
    if part == "cycle":
        return cost.growth(8 if quick else 40)
    if part == "scrape":
        seconds = 6.0 if quick else 60.0
        # without turns: what this machine's own noise is
        return [cost.scrape(pods, seconds, still=still) for pods in (cost.DAY_AT_ONCE, 512) for still in (False, True)]
    return cost.memory(cost.DAY_AT_ONCE, 2.4 if quick else 24.0)


def _rows(part: str, found: Any) -> Iterator[Row]:
    if part == "samples":
        for one in found:
            name = f"samples, {one['cards']} cards, {one['pods']} pods"
            yield Row(name, one["samples"], one["most"], more=f"{one['kib']:.0f} KiB, {one['gzip_kib']:.0f} KiB gzip")
    elif part == "cycle":
        least, most = found["rows"][0], found["rows"][-1]
        more = f"{least['ms']:.1f} ms at {least['pods']} pods, {most['ms']:.1f} ms at {most['pods']}"
        yield Row("a turn grows with pods to the power of", found["exponent"], 1.0, more=more)
    elif part == "scrape":
        for one in found:
            still = one["still"]
            name = f"scrape p99, {one['pods']} pods{', no turns beside it' if still else ''}"
            more = f"p50 {one['p50_ms']:.2f}, worst {one['max_ms']:.2f} of {one['scrapes']}"
            yield Row(name, one["p99_ms"], None if still else cost.MAX_SCRAPE_MS[one["pods"]], "ms", more)
            if not still:
                most = cost.MAX_MIB if one["pods"] == cost.DAY_AT_ONCE else None
                yield Row(f"resident while scraped, {one['pods']} pods", one["resident_mib"], most, "MiB")
    else:
        more = f"{found['gone']} pods came and went in {found['hours']:g} hours, {found['pods']} at a time"
        yield Row("resident after a day", found["resident_mib"], cost.MAX_MIB, "MiB", more)
        yield Row("growth since the first hour", found["growth_mib"], cost.MAX_GROWTH_MIB, "MiB")


def _show(rows: list[Row]) -> None:
    """A table on a terminal, aligned lines in a pipe."""
    heads = ("figure", "bar", "measured", "", "met")
    texts = [row.texts() for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
        for row in (heads, *texts):
            click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console  # noqa: PLC0415 (not in the processes whose memory is measured)
    from rich.table import Table  # noqa: PLC0415 (as above)

    table = Table(title="What the exporter costs", title_justify="left")
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at in {1, 2} else "left")
    for row, figure in zip(texts, rows, strict=True):
        table.add_row(*row, style=None if figure.met else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
