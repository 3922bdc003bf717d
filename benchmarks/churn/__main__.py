# SPDX-License-Identifier: Apache-2.0
"""
`python -m benchmarks.churn`: the command line, with the inputs of `gpushare sim`.
"""

from __future__ import annotations

import json

import click
from rich.console import Console

from benchmarks.churn import command
from isolation.simulator.sim.cli import PIPE_WIDTH, check_writable, read_trace, write
from isolation.simulator.sim.option_types import Policies, Seeds
from isolation.simulator.traces import synthetic


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
        found = command.run(trace, listed, policies[0], seeds or tuple(range(1, 6)), status.update)
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(*found.tables(), sep="\n")
    if json_out is not None:
        write(json_out, json.dumps(found.document(), indent=1) + "\n")
    if plot_out is not None:
        write(plot_out, found.picture())


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.churn")
