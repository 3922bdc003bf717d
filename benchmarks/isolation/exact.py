# SPDX-License-Identifier: Apache-2.0
"""
Is the isolation library exact? Every bar of "Exact" on the simulated driver, whose records judge.

    python -m benchmarks.isolation.exact                                 all of it: a quarter of an hour
    python -m benchmarks.isolation.exact --seconds 2 --samples 40 --kills 300    a minute

Parts: `crowd` (many processes of many threads at random through all families: no overshoot, nothing
left), `step` (killed after every single instruction of each family's path), `storm` (thousands of
kills under contention), `corrected` (kills of all processes and threads under `gpushare run`, which
corrects the ledger by the driver's figure all the time; contexts cost a ninth of what is charged for
them). Each figure stands beside its bar; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from benchmarks.isolation.exact_runs import Size, boxed, corrected, crowd, killed, killed_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GIB: Final = 1 << 30
MIB: Final = 1 << 20
DIRECT: Final = (
    *("small", "direct", "pitch", "managed", "array", "mipmap", "mapped", "exported", "imported"),
    *("module", "library", "heap", "context"),
)
ROUNDED: Final = ("pool", "ownpool", "graph")
"""Families whose driver takes more than was asked for: at most one granule over, for one call."""
FAMILIES: Final = DIRECT + ROUNDED
CARD: Final = "h200"
"""Large enough for 64 contexts and something beside."""
ROOM: Final = 8 * MIB
"""Promise for each thread: less than it would like to hold."""
STORM_ROOM: Final = 12 * MIB
"""The same for a thread of the storm, which would like to hold more."""
CHEAP_CONTEXT: Final = 60 * MIB
"""What a context takes of the card where more is charged for it."""
GRANULE: Final = 32 * MIB
"""What the simulated driver's pools and graph memory grow by."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure beside its bar, which it may not pass (or must reach, where `least`)."""

    part: str
    name: str
    value: int
    bar: int
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        return self.value >= self.bar if self.least else self.value <= self.bar


def crowd_findings(size: Size, library: Path | None = None) -> Iterator[Finding]:
    """Direct families alone, then all: what passed the promise, and what stayed."""
    for name, families, bar in (("direct", DIRECT, 0), ("all", FAMILIES, GRANULE)):
        with boxed(CARD, library) as box:
            contexts = size.processes * int(box.card.cards()[0].model.context_bytes)
            seen = crowd(box, size, families, contexts + size.processes * size.threads * ROOM)
        yield Finding("crowd", f"{name}: bytes over the promise", max(0, seen.peak_truth - seen.promised), bar)
        yield Finding(
            "crowd", f"{name}: bytes used and not charged, at rest", max(0, seen.rest_truth - seen.rest_ledger), 0
        )
        yield Finding("crowd", f"{name}: bytes left in the ledger", seen.left_ledger, 0)
        yield Finding("crowd", f"{name}: answers that are neither success nor refusal", seen.other + seen.failed, 0)
        yield Finding(
            "crowd",
            f"{name}: most of the promise in use, permille",
            1000 * seen.peak_truth // seen.promised,
            980,
            least=True,
        )
        yield Finding("crowd", f"{name}: refusals", seen.refused, 1, least=True)
        yield Finding("crowd", f"{name}: calls", seen.calls, 1, least=True)


def step_findings(size: Size, library: Path | None = None) -> Iterator[Finding]:
    """Killed at the boundaries of a ledger step, of taking a slot, and of each family's path."""
    for name, arguments in {"ledger step": ["step"], "slot": ["take", "211" if size.samples else "3"]}.items():
        with boxed(CARD, library) as box:
            seen = killed_inside(box, *arguments)
        yield Finding("step", f"{name}: kills", seen["boundaries"], 20, least=True)
        yield Finding("step", f"{name}: kills after which the book was wrong", seen["wrong"] + seen["left"], 0)
    for family in ("primary", *FAMILIES):
        with boxed(CARD, library) as box:
            box.promise(4 * GIB)
            seen = killed(box, "step", family, str(size.samples), str(size.seed))
        wrong = seen["wrong"] + seen["left"] + seen["wedged"]
        yield Finding("step", f"{family}: kills", seen["killed"], min(size.samples or 100, 100), least=True)
        yield Finding("step", f"{family}: kills after which a book was wrong", wrong, 0)


def storm_findings(size: Size, library: Path | None = None) -> Iterator[Finding]:
    """Kills under contention."""
    with boxed(CARD, library) as box:
        box.promise(8 * GIB)
        seen = killed(box, "storm", str(size.kills), "8", "3", "1500", str(size.seed))
    yield Finding("storm", "kills", seen["kills"], size.kills, least=True)
    yield Finding("storm", "times the ledger was not the sum of the living", seen["wrong"], 0)
    yield Finding("storm", "bytes left, or not true", seen["left"], 0)
    yield Finding("storm", "processes wedged", seen["wedged"], 0)


def corrected_findings(size: Size) -> Iterator[Finding]:
    """Kills under contention while the driver's figure corrects it; at the end ledger and driver are compared."""
    promised = size.processes * (CHEAP_CONTEXT + size.threads * STORM_ROOM)
    seen = corrected(CARD, size, DIRECT, -(-promised // GIB), CHEAP_CONTEXT)
    figures = seen.figures
    yield Finding("corrected", "kills", figures["kills"], size.kills, least=True)
    yield Finding("corrected", "bytes over the promise", max(0, seen.peak_truth - seen.promised), 0)
    yield Finding("corrected", "times the ledger was not the sum of the living", figures["wrong"], 0)
    yield Finding("corrected", "bytes left, or not true", figures["left"] + seen.left_truth, 0)
    yield Finding("corrected", "processes wedged", figures["wedged"], 0)
    most = 1000 * figures["peak"] // seen.promised
    yield Finding("corrected", "most of the promise charged, permille", most, 980, least=True)
    yield Finding("corrected", "bytes on the card at most", seen.peak_truth, 1, least=True)
    yield Finding("corrected", "calls", figures["calls"], 1, least=True)


PARTS: Final[dict[str, Callable[[Size], Iterator[Finding]]]] = {
    "crowd": crowd_findings,
    "step": step_findings,
    "storm": storm_findings,
    "corrected": corrected_findings,
}


def measure(
    size: Size, parts: Sequence[str] = tuple(PARTS), tell: Callable[[Finding], None] = lambda _: None
) -> list[Finding]:
    """All findings of the chosen parts; each is told as soon as it is there."""
    found = []
    for part in parts:
        if part == "step" and platform.machine() != "x86_64":
            continue  # reads the registers of one machine
        for finding in PARTS[part](size):
            tell(finding)
            found.append(finding)
    return found


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="By default all.")
@click.option("--seconds", default=Size.seconds, show_default=True, help="Of each crowd.")
@click.option("--processes", default=Size.processes, show_default=True, type=click.IntRange(1, 64))
@click.option("--threads", default=Size.threads, show_default=True, type=click.IntRange(1, 64))
@click.option("--kills", default=Size.kills, show_default=True, help="Under contention.")
@click.option("--samples", default=Size.samples, help="Boundaries of each path, at random; 0: every one.")
@click.option("--seed", default=Size.seed, show_default=True)
@click.option("--json", "json_out", type=Path, help="All figures as JSON.")
def main(parts: tuple[str, ...], json_out: Path | None, **size: float) -> None:
    """Measure how exact the library is; 1 where a bar is missed."""
    out = Console()
    with Progress(SpinnerColumn(), "{task.description}", TimeElapsedColumn(), console=out, transient=True) as progress:
        task = progress.add_task("begins")

        def tell(finding: Finding) -> None:
            progress.update(task, description=f"{finding.part}, after {finding.name}")
            bar = f"{'>=' if finding.least else '<='} {finding.bar}"
            word = "ok" if finding.met else "[bold]MISSED[/]"
            progress.console.print(
                f"{finding.part:9} {finding.name:55} {finding.value:>12} {bar:>12}  {word}", soft_wrap=True
            )

        found = measure(Size(**size), parts or tuple(PARTS), tell)  # type: ignore[arg-type]
    if json_out:
        json_out.write_text(json.dumps([asdict(finding) | {"met": finding.met} for finding in found], indent=1))
    sys.exit(any(not finding.met for finding in found))


if __name__ == "__main__":
    main()
