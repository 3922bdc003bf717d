# SPDX-License-Identifier: Apache-2.0
"""
`gpushare sim`: replay a cluster's workload under placement policies, from the command line.

Decides what flags mean and where results go: the table to the screen, JSON and picture to files.
Replaying is `replay`, figures are `report`. Bad input ends with status 2, a
broken run with 1, Ctrl-C with 130.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from isolation import options
from isolation.files import write_whole
from isolation.kube.options import NumberType
from isolation.placement.policy import POLICIES
from isolation.simulator.sim import plot, report
from isolation.simulator.sim.parallel import count_cores, replay_all
from isolation.simulator.sim.replay import ReplayError, ReplayJob, Run, RunError, Trace
from isolation.simulator.traces import openb, synthetic
from isolation.simulator.traces.csvfile import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_DEMAND: Final = 100.0
STDOUT: Final = "-"
MAX_RUNS: Final = 10_000
LARGEST_SEED: Final = 2**32 - 1
_SPAN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_PACKING_POLICIES: Final = ("best-fit", "binpack", "fgd", "potential")
"""Policies that pack, compared where the workload is generated."""
PIPE_WIDTH: Final = 100
"""Columns where no terminal says how many: enough that no figure is cut."""
INTERRUPTED: Final = 130
"""Exit status of a program ended by Ctrl-C, as shells count it."""


class Policies(click.ParamType[tuple[str, ...]]):
    """Comma-separated names of policies."""

    name = "POLICY[,POLICY...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, each once, in the order given."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",")]
        unknown = [name for name in names if name not in POLICIES]
        if unknown:
            self.fail(f"unknown policy {unknown[0]!a}; choose from {', '.join(sorted(POLICIES))}", param, ctx)
        return tuple(dict.fromkeys(names))


class Seeds(click.ParamType[tuple[int, ...]]):
    """Seeds as spans and single numbers."""

    name = "SEEDS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The seeds, each once, in the order given."""
        if isinstance(value, tuple):
            return value
        seeds: dict[int, None] = {}
        for part in str(value).split(","):
            span = _SPAN.fullmatch(part.strip())
            if span is None:
                self.fail(f"{part[:40]!a} is not a seed; write 42, 42-51 or 42,45,50-59", param, ctx)
            first, last = int(span[1]), int(span[2] or span[1])
            if last < first:
                self.fail(f"range {part.strip()} is descending; write {last}-{first}", param, ctx)
            if last > LARGEST_SEED:
                self.fail(f"seed {last} is larger than {LARGEST_SEED}", param, ctx)
            if last - first + len(seeds) >= MAX_RUNS:
                self.fail(f"more than {MAX_RUNS} seeds; write a shorter range", param, ctx)
            seeds.update(dict.fromkeys(range(first, last + 1)))
        return tuple(seeds)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", metavar="NODES.csv", help="Node list (CSV): sn,cpu_milli,memory_mib,gpu,model[,mig].")
@click.option(
    "--pods", metavar="PODS.csv", help="Pod list (CSV): name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec...]."
)
@click.option(
    "--synthetic",
    "invented",
    is_flag=True,
    help="Instead of files, generate nodes and pods from the published distributions of the openb trace.",
)
@click.option(
    "--fleet-scale",
    "scale",
    type=NumberType(0, synthetic.LARGEST_SCALE, min_open=True),
    show_default="1",
    help="Size of the --synthetic cluster; 1 is 6,212 cards.",
)
@click.option(
    "--policy",
    "policies",
    type=Policies(),
    show_default="potential; with --synthetic best-fit, binpack, fgd and potential",
    help="Placement policies, separated by commas.",
)
@click.option(
    "--demand",
    type=NumberType(0, LARGEST_DEMAND, min_open=True),
    default=1.3,
    show_default=True,
    help="GPU requests of all pods that arrive, as a multiple of all cards.",
)
@click.option("--seeds", type=Seeds(), show_default="42-51", help="Random seeds, one run each: 42-51 or 42,43.")
@options.output(text="Output format. json: runs and summary; same as --json.", alias=False)
@click.option(
    "--json",
    "json_out",
    is_flag=False,
    flag_value="-",
    metavar="[OUT]",
    help="Write runs and summary as JSON to the file OUT; without OUT, or with -, to stdout.",
)
@click.option(
    "--details", is_flag=True, help="With --json, add failure reasons, fragmentation and allocation curve of each run."
)
@click.option("--plot", "plot_out", metavar="OUT.svg", help="Plot allocation against arrived demand.")
@click.option(
    "--workers", type=click.IntRange(1, 1024), show_default="one per core", help="Number of worker processes."
)
def sim(
    *,
    nodes: str | None,
    pods: str | None,
    scale: float | None,
    policies: tuple[str, ...] | None,
    demand: float,
    seeds: tuple[int, ...] | None,
    json_out: str | None,
    plot_out: str | None,
    workers: int | None,
    invented: bool,
    details: bool,
    output: str,
) -> None:
    """
    Replay a workload under placement policies.

    Pods arrive one by one, in a random order that depends on the seed, until they request --demand times
    all cards. Pods never end, and a pod that fits somewhere is always placed. There is one run for each
    policy and seed; the table shows means over the seeds, ± one standard deviation.
    """
    policies = policies or (_PACKING_POLICIES if invented else ("potential",))
    seeds = seeds or tuple(range(42, 52))
    jobs = [ReplayJob(policy, seed, demand) for policy in policies for seed in seeds]
    if len(jobs) > MAX_RUNS:
        raise click.UsageError(f"too many runs: {len(jobs)}, at most {MAX_RUNS}; give fewer policies or seeds")
    json_out = STDOUT if output and json_out is None else json_out
    if details and json_out is None:
        raise click.UsageError("--details needs JSON; give -o json or add --json OUT, or drop --details")
    if json_out is not None and json_out == plot_out:
        where = "stdout" if json_out == STDOUT else json_out
        raise click.UsageError(f"--json and --plot cannot both write to {where}; give one of them another file")
    for out in (json_out, plot_out):
        check_writable(out)
    try:
        trace, _ = read_trace(nodes, pods, scale, invented=invented)
        runs = _replay(trace, jobs, workers or count_cores())
    except KeyboardInterrupt:
        click.echo("interrupted; nothing was written", err=True)
        sys.exit(INTERRUPTED)
    # A pipe that reads a result gets nothing else.
    console = Console(stderr=STDOUT in (json_out, plot_out))
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(*_tables(runs, trace, "±" if console.encoding.startswith("utf") else "+-"), sep="\n")
    if json_out is not None:
        write_result(json_out, json.dumps(report.as_json(runs, details=details), indent=1) + "\n")
    if plot_out is not None:
        write_result(plot_out, plot.draw(plot.lines(runs), _title(trace, len(seeds))))


def read_trace(
    nodes: str | None, pods: str | None, scale: float | None, *, invented: bool
) -> tuple[Trace, tuple[openb.TracePod, ...]]:
    """The fleet and the requests, from files or invented; the pods with their times as well."""
    if invented:
        if nodes or pods:
            raise click.UsageError("--synthetic replaces the files; drop --nodes and --pods, or drop --synthetic")
        size = 1.0 if scale is None else scale
        listed = synthetic.pods(size)
        return Trace(synthetic.nodes(size), tuple(pod.request for pod in listed)), listed
    if scale is not None:
        raise click.UsageError("--fleet-scale needs --synthetic; add --synthetic, or drop --fleet-scale")
    if not nodes or not pods:
        raise click.UsageError("give --nodes NODES.csv and --pods PODS.csv, or --synthetic")
    try:
        fleet, listed = openb.read_nodes(nodes), openb.read_pods(pods)
        return Trace(fleet, tuple(pod.request for pod in listed)), listed
    except TraceError as exc:
        raise options.InputError(str(exc)) from exc


def _replay(trace: Trace, jobs: Sequence[ReplayJob], workers: int) -> list[Run]:
    """All runs, with a progress bar on a terminal."""
    err = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    runs: list[Run] = []
    try:
        with bar:
            task = bar.add_task("replaying", total=len(jobs))
            for run in replay_all(trace, jobs, workers):
                runs.append(run)
                bar.advance(task)
    except ReplayError as exc:
        raise options.InputError(str(exc)) from exc
    except RunError as exc:
        raise click.ClickException(str(exc)) from exc
    return runs


def _tables(runs: Sequence[Run], trace: Trace, spread: str) -> tuple[Table, ...]:
    """The summary for people, narrow enough for 80 columns; `spread` stands before the deviation."""
    found = report.summarise(runs)
    fleet = f"{len(trace.nodes):,} nodes, {trace.total_milli // 1000:,} cards"
    packing = f"{fleet}; demand {runs[0].job.demand:g}; mean of {_count_noun(found[0].runs, 'run')} per policy"
    made = (
        (packing, report.PACKING, report.packing_row),
        ("accepted pods, % of the pods that arrived", report.ACCEPTED, report.accepted_row),
    )
    tables = []
    for title, headings, row in made:
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for heading in headings:
            words = heading == "policy" or heading.endswith("reason")
            table.add_column(heading, justify="left" if words else "right", no_wrap=True)
        for summary in found:
            table.add_row(*(cell.replace("±", spread) for cell in row(summary)))
        tables.append(table)
    return tuple(tables)


def _title(trace: Trace, seeds: int) -> str:
    """Heading of the picture."""
    return f"GPU allocation as demand arrives: {trace.total_milli // 1000:,} cards, {_count_noun(seeds, 'seed')}"


def _count_noun(count: int, thing: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def check_writable(out: str | None) -> None:
    """Say so before the runs when their result could not be written."""
    if out is None or out == STDOUT:
        return
    path = Path(out)
    if path.is_dir() or not path.parent.is_dir():
        raise click.UsageError(f"cannot write {out}: {'it is a directory' if path.is_dir() else 'no such directory'}")


def write_result(out: str, content: str) -> None:
    """A result to a file, or to stdout."""
    if out == STDOUT:
        click.echo(content, nl=False)
        return
    try:
        write_whole({Path(out): content})
    except OSError as exc:
        raise options.InputError(f"cannot write {out}: {exc.strerror or exc}; choose another path") from exc
