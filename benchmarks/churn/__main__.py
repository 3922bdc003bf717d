# SPDX-License-Identifier: Apache-2.0
"""
`python -m benchmarks.churn`: the command line, with the inputs of `gpushare sim`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.churn import plot, report
from benchmarks.churn.comparison import DaySetup, compare_autoscalers
from benchmarks.churn.freed_cards import ChurnSetup, churn
from isolation.simulator.sim.cli import PIPE_WIDTH, Policies, Seeds, check_writable, read_trace, write_result
from isolation.simulator.traces import synthetic

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
    scene: ChurnSetup

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
            tables.append(_table(day, titles, report.comparison_rows(self.scores)))
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
    scene = ChurnSetup(policy=policy)
    freed: list[Freed] = []
    scores: list[Score] = []
    for seed in seeds:
        said(f"seed {seed}: churn")
        freed += churn(trace, scene, seed)
    for seed in seeds:
        said(f"seed {seed}: one day of each autoscaler")
        scores += compare_autoscalers(trace.nodes, pods, DaySetup(), seed)
    return Result(tuple(freed), tuple(scores), tuple(seeds), scene)


def _table(title: str, headings: Sequence[str], rows: Any) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", metavar="NODES.csv", help="Node list (CSV), as `gpushare sim` takes it.")
@click.option("--pods", metavar="PODS.csv", help="Pod list (CSV), as `gpushare sim` takes it.")
@click.option("--synthetic", "invented", is_flag=True, help="Generate nodes and pods instead.")
@click.option(
    "--fleet-scale",
    "scale",
    type=click.FloatRange(0, synthetic.LARGEST_SCALE, min_open=True),
    help="Size of the --synthetic cluster; 1 is 6,212 cards.",
)
@click.option("--policy", "policies", type=Policies(), help="Placement policy that fills the cluster.  [best-fit]")
@click.option("--seeds", type=Seeds(), help="Random seeds, one run each: 1-5 or 1,2.  [1-5]")
@click.option("--json", "json_out", metavar="OUT", help="Write all runs as JSON.")
@click.option("--plot", "plot_out", metavar="OUT.svg", help="Plot both comparisons.")
def main(
    *,
    nodes: str | None,
    pods: str | None,
    invented: bool,
    scale: float | None,
    policies: tuple[str, ...] | None,
    seeds: tuple[int, ...] | None,
    json_out: str | None,
    plot_out: str | None,
) -> None:
    """Measure how many cards rebalancing frees after most pods have ended, and compare autoscalers over one day."""
    policies = policies or ("best-fit",)
    if len(policies) > 1:
        raise click.UsageError("--policy takes only one policy")
    for out in (json_out, plot_out):
        check_writable(out)
    trace, listed = read_trace(nodes, pods, scale, invented=invented)
    with Console(stderr=True).status("churn") as status:
        found = run(trace, listed, policies[0], seeds or tuple(range(1, 6)), status.update)
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(*found.tables(), sep="\n")
    if json_out is not None:
        write_result(json_out, json.dumps(found.document(), indent=1) + "\n")
    if plot_out is not None:
        write_result(plot_out, found.picture())


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.churn")
