# SPDX-License-Identifier: Apache-2.0
"""
What moves free after churn, and a day of two autoscalers side by side: `python -m benchmarks.churn --synthetic`.

Decides what is run and shown; setting scenes is `churn` and `contest`, figures are `report`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.churn import plot, report
from benchmarks.churn.comparison import Course, contest
from benchmarks.churn.freed_cards import Scene, churn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from benchmarks.churn.comparison import Score
    from benchmarks.churn.freed_cards import Freed
    from isolation.simulator.sim.replay import Trace
    from isolation.simulator.traces.openb import TracePod


@dataclass(frozen=True, slots=True)
class Result:
    """Both parts."""

    freed: tuple[Freed, ...]
    scores: tuple[Score, ...]
    seeds: tuple[int, ...]
    scene: Scene

    def tables(self) -> tuple[Table, ...]:
        """For people."""
        scene, count = self.scene, len(self.seeds)
        after = self.freed[0]
        head = (
            f"policy {scene.policy} fills {scene.filled:.0%} of the cards, then {scene.left:.0%} of the pods end; "
            f"mean of {count} seed{'s' * (count > 1)}\n"
            f"cards freed by moves; {after.empty_cards} cards of nodes that were already empty do not count"
        )
        tables = [_table(head, report.FREED, map(report.freed_row, report.means(self.freed)))]
        if self.scores:
            day = "one day of the same pods under each autoscaler, same scheduler"
            titles = ("result", *report.names(self.scores))
            tables.append(_table(day, titles, report.contest_rows(self.scores)))
        return tuple(tables)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return report.as_json(self.freed, self.scores)

    def picture(self) -> str:
        """For eyes."""
        return plot.draw(self.freed, self.scores, "Cards freed by rebalancing, and nodes for one day of pods")


def run(
    trace: Trace, pods: Sequence[TracePod], policy: str, seeds: Sequence[int], said: Callable[[str], None]
) -> Result:
    """The churn of every seed, and the contest on every seed."""
    scene = Scene(policy=policy)
    freed: list[Freed] = []
    scores: list[Score] = []
    for seed in seeds:
        said(f"seed {seed}: churn")
        freed += churn(trace, scene, seed)
    for seed in seeds:
        said(f"seed {seed}: one day of each autoscaler")
        scores += contest(trace.nodes, pods, Course(), seed)
    return Result(tuple(freed), tuple(scores), tuple(seeds), scene)


def _table(title: str, headings: Sequence[str], rows: Any) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
