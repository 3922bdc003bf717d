# SPDX-License-Identifier: Apache-2.0
"""
Is the isolation library fair and cheap? The figures of each bar, on simulated and fake drivers.

    python -m benchmarks.isolation                       # both parts, three draws
    python -m benchmarks.isolation --part fair --draws 20 --json runs.json
    python -m benchmarks.isolation --part fair --scenario burst --scenario weights

`fair`: jobs under the library on simulated cards, fed as `gpushare run` feeds; the simulator's own records
judge. `cost`: what the library adds to a call. Never a test: it takes minutes, and real-time priority where
it may. Exit status 1: a bar was missed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.isolation import fairness, overhead
from benchmarks.isolation.scenarios import SCENARIOS, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.isolation.fairness import Outcome
    from benchmarks.isolation.overhead import Cost

PARTS = ("fair", "cost")
NAMES = tuple(scenario.name for scenario in SCENARIOS)
Row = tuple[str, str, str, str, str]


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Both by default.")
@click.option("--draws", default=3, show_default=True, type=click.IntRange(1), help="Random cards per scenario.")
@click.option("--seed", default=0, show_default=True, help="First draw.")
@click.option("--seconds", type=click.FloatRange(6), help="Length of every run; each scenario's own by default.")
@click.option("--scenario", "names", multiple=True, type=click.Choice(NAMES), help="All by default.")
@click.option("--realtime/--no-realtime", default=True, help="Before other work of this machine, where we may.")
@click.option("--json", "json_out", type=click.Path(path_type=Path), metavar="FILE", help="Whole runs.")
def main(**given: Any) -> None:
    """Figures for the bars of the isolation library: median and worst over random draws."""
    console = Console()
    missed, document = False, {}
    for part in given["parts"] or PARTS:
        if part == "fair":
            done = _fair(given, console)
            missed |= not all(outcome.met for outcome in done)
            document["fair"] = [asdict(outcome) | {"parameters": draw(outcome.seed)} for outcome in done]
        else:
            costs = list(overhead.costs(realtime=given["realtime"]))
            _show(console, "Cost of the library, over the same calls without it", _cost_rows(costs))
            missed |= not all(cost.met for cost in costs)
            document["cost"] = [asdict(cost) for cost in costs]
        if given["json_out"]:
            given["json_out"].write_text(json.dumps(document), "utf-8")
    sys.exit(int(missed))


def _fair(given: dict[str, Any], console: Console) -> list[Outcome]:
    """Run the scenarios, with a bar on a terminal and a line for each run elsewhere."""
    chosen = [scenario for scenario in SCENARIOS if not given["names"] or scenario.name in given["names"]]
    if given["seconds"]:
        chosen = [replace(scenario, seconds=given["seconds"]) for scenario in chosen]
    tasks = [fairness.Task(scenario, given["seed"] + at) for scenario in chosen for at in range(given["draws"])]
    began = time.monotonic()

    def plainly(outcome: Outcome) -> None:
        messages = outcome.error.strip().splitlines()[-1:] or [finding.text for finding in outcome.findings]
        short = f" (no CPU: jobs {outcome.starved:.1%} of the time, feed {outcome.late:.2f} s late)"
        starved = short if outcome.disturbed else ""
        head = f"{time.monotonic() - began:5.0f} s  {outcome.scenario} draw {outcome.seed}"
        print(f"{head}: {'; '.join(messages)}{starved}", flush=True)

    def run(tell: Callable[[Outcome], None]) -> list[Outcome]:
        return fairness.outcomes(tasks, realtime=given["realtime"], tell=tell)

    if not console.is_terminal:
        done = run(plainly)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("runs", total=len(tasks))
            done = run(lambda outcome: progress.update(bar, advance=1, description=outcome.scenario))
    for outcome in done:
        if outcome.error:
            console.print(f"{outcome.scenario} draw {outcome.seed}: {outcome.error}", markup=False)
    _show(console, f"Fairness on {given['draws']} draws", _fair_rows(done))
    return done


def _fair_rows(done: Sequence[Outcome]) -> list[Row]:
    return [
        (
            f"{name}: {one.name}",
            f"{'>=' if one.least else '<='} {one.bar:g} {one.unit}",
            f"{middle:.2f}",
            f"{worst:.2f}",
            f"{met} of {count}",
        )
        for name, one, middle, worst, met, count in fairness.summary(done)
    ]


def _cost_rows(costs: Sequence[Cost]) -> list[Row]:
    return [
        (
            cost.name,
            f"<= {cost.bar:g} {cost.unit}",
            f"{cost.value:.1f}",
            f"{max(cost.runs):.1f}",
            "yes" if cost.met else "no",
        )
        for cost in costs
    ]


def _show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """A table on a terminal, aligned lines in a pipe."""
    heads = ("figure", "bar", "median", "worst", "met")
    if not console.is_terminal:
        widths = [max(len(row[at]) for row in (*rows, heads)) for at in range(len(heads))]
        for row in (heads, *rows):
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip(), flush=True)
        return
    table = Table(title=title, title_justify="left")
    for at, head in enumerate(heads):
        table.add_column(head, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
