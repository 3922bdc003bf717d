# SPDX-License-Identifier: Apache-2.0
"""
`gpushare top`, `inspect`, `explain`, `breaches`, `recommend`; the same as `kubectl gpushare ...`.

Joins reading and views. Decides exit statuses and how often a view is drawn again; nothing of what is shown.
"""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext, suppress
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from dashboards.terminal.breaches_view import breach_lines, chosen
from dashboards.terminal.inspect_view import as_document, details, node_shares, summary
from dashboards.terminal.json_output import breach_document, dump_document, top_document
from dashboards.terminal.options import (
    EXIT_CODES,
    NO_HEADERS,
    SELECTOR,
    cluster_options,
    interactive,
    lines_left,
    parse_options,
    source_options,
    with_selector,
    write_lines,
)
from dashboards.terminal.read.breaches import measured
from dashboards.terminal.read.source import (
    CANNOT_READ,
    NoSuchError,
    Reading,
    SourceSelection,
    UnreadableSourceError,
    ask_api_server,
    read,
)
from dashboards.terminal.table import BAD, sentence
from dashboards.terminal.top_view import BY, SORTS, TopOptions, top_lines
from isolation import options
from isolation.distribution import DISTRIBUTION
from isolation.kube.options import NumberType

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.terminal.table import TextOutput

_WATCH_SECONDS: Final = 5.0
_LOCAL_SECONDS: Final = 2.0
"""An exporter on the same machine reads its cards that often."""
_HEAD_LINES: Final = 8
"""What a screen needs besides rows: head, heading, how many are missing, key, the next prompt."""
FINDING: Final = 1
_REST: Final = 4
"""A watch reads for no more than a fifth of the time: a large cluster's API server has other work."""
_CLEAR: Final = "\x1b[H\x1b[2J"


def _view(command: Callable[..., Any]) -> Callable[..., Any]:
    """Without garbage collection: a process that lives for one reading of many thousands of objects."""

    @wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        gc.disable()
        return command(*args, **given)

    return run


@click.command(epilog=EXIT_CODES)
@click.option(
    "--by",
    type=click.Choice(BY),
    help="What each row shows. Default: card; node if the cards do not fit on the screen; pod with -n.",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="Sort key. Default: name; allocated if the rows do not fit on the screen.",
)
@click.option("--node", default="", metavar="NAME", help="Show only this node.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Show only pods of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Show all namespaces (default); overrides -n.")
@click.option("--once", is_flag=True, help="Print one reading and exit, also on a terminal.")
@click.option("--all", "whole", is_flag=True, help="Show all rows, even if they do not fit on the screen.")
@click.option(
    "-w", "--watch", is_flag=False, flag_value=_WATCH_SECONDS, type=NumberType(0.5, 3600), metavar="[SECONDS]",
    help="Refresh every SECONDS; 5 if no value is given. In a pipe: print again and again.",
)  # fmt: skip
@options.output("wide", "yaml", text="Output format. wide: more columns; json, yaml: for programs.")
@SELECTOR
@NO_HEADERS
@source_options
@_view
def top(**given: Any) -> None:
    """
    Show allocated, used and free memory of cards.

    On a terminal: an interactive view (? for its keys, q to quit). In a pipe, with --once, --all or -o: a table.

    Reads the API server and the exporters of a cluster, or the exporter of one machine. A value that cannot
    be read is shown as ?, and a note gives the reason.
    """
    source, output = parse_options(given)
    by_pods = given["by"] in ("pod", "namespace") or (given["by"] is None and bool(given["namespace"]))
    source = with_selector(source, given["selector"], pods=by_pods)
    again = given["watch"]
    if given["once"] and again:
        raise click.UsageError("--once cannot be used with --watch")
    if interactive() and not (given["once"] or given["whole"] or given["output"] or not output.headers):
        _browse(source, output, given)
        return
    _drawn(lambda: _top(source, output, given), output, again)


def _browse(source: SourceSelection, output: TextOutput, given: dict[str, Any]) -> None:
    namespace = "" if given["everywhere"] else given["namespace"]
    by = given["by"] or ("pod" if namespace else "card" if given["node"] else "")
    of = namespace if by == "pod" else given["node"] if by == "card" else ""
    seconds = given["watch"] or (_LOCAL_SECONDS if source.on_one_machine else _WATCH_SECONDS)
    loop: Any = import_module("dashboards.terminal.interactive.loop")  # not for a pipe
    loop.browse(source, output, loop.StartOptions(by, of, given["sort"] or "name", given["node"], seconds))


def _drawn(read_lines: Callable[[], list[str]], output: TextOutput, again: float | None) -> None:
    """Once, or until somebody interrupts."""
    with suppress(KeyboardInterrupt) if again else nullcontext():
        _draw(read_lines, output, again)


def _draw(read_lines: Callable[[], list[str]], output: TextOutput, again: float | None) -> None:
    lines: list[str] = []
    while True:
        began = time.monotonic()
        try:
            lines = read_lines()
            shown = lines
        except UnreadableSourceError as exc:
            if not lines:
                raise
            shown = [*lines, *sentence(output, f"refresh failed: {exc.message}", BAD)]
        if again and output.width:
            click.echo(_CLEAR, nl=False, color=True)
        write_lines(shown)
        if not again:
            return
        gc.collect()
        took = time.monotonic() - began
        time.sleep(max(again - took, took * _REST))


def _top(source: SourceSelection, output: TextOutput, given: dict[str, Any]) -> list[str]:
    namespace = "" if given["everywhere"] else given["namespace"]
    reading = read(source, namespace, given["node"])
    if given["node"] and all(node.name != given["node"] for node in reading.fleet.nodes):
        raise NoSuchError(f"node {given['node']} is unknown or has no cards")
    room = None if given["whole"] else lines_left(_HEAD_LINES + len(reading.fleet.notes))
    cards = sum(len(node.cards) for node in reading.fleet.nodes if given["node"] in ("", node.name))
    many = room is not None and cards > room and not given["node"]
    by = given["by"] or ("pod" if namespace else "node" if many else "card")
    choice = TopOptions(by, given["sort"] or "", given["output"] == "wide", namespace, given["node"], room)
    if given["output"] in ("json", "yaml"):
        return [dump_document(top_document(reading.fleet, reading.usage, choice), given["output"])]
    if not output.headers:
        _note(reading)
    return top_lines(reading.fleet, reading.usage, choice, output)


def _note(reading: Reading) -> None:
    """What could not be read, where the output is rows alone."""
    for note in reading.fleet.notes:
        click.echo(f"note: {note}", err=True)


@click.command(epilog=EXIT_CODES)
@click.argument("node", required=False)
@click.option("-d", "--details", "detailed", is_flag=True, help="Show the pods on each card.")
@options.output("yaml", text="Output format: the answer of the classic extender's inspect endpoint.")
@click.option("--node", "named", default="", metavar="NAME", help="Same as NODE.")
@SELECTOR
@source_options
@_view
def inspect(**given: Any) -> None:
    """
    Show allocated units of shared memory by node and card, in the tables of `kubectl inspect gpushare`.

    NODE limits the output to one node. For the memory in use see `top`.
    """
    source, output = parse_options(given)
    source = with_selector(source, given["selector"], pods=False)
    only: str | None = given["node"] or given["named"] or None
    if given["node"] and given["named"] not in ("", given["node"]):
        raise click.UsageError(f"--node {given['named']} and {given['node']} are different nodes")
    fleet = read(source, used=False).fleet
    nodes = node_shares(fleet, source.unit_bytes, only)
    if given["output"]:
        write_lines([dump_document(as_document(nodes, only), given["output"])])
    if only is not None and not nodes:
        raise NoSuchError(f"node {only} is unknown or has no shared cards")
    if not given["output"]:
        unit = "GiB" if source.unit_bytes == 1 << 30 else f"units of {source.unit_bytes >> 20} MiB"
        lines = details(nodes, output, fleet.notes) if given["detailed"] else summary(nodes, unit, output, fleet.notes)
        write_lines(lines)


@click.command(epilog=f"{EXIT_CODES} With --exit-code: 1 if a breach is open.")
@click.option("--node", default="", metavar="NAME", help="Show only this node.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Show only pods of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Show all namespaces (default); overrides -n.")
@click.option("--ended", is_flag=True, help="Also show breaches that have ended.")
@click.option("--exit-code", "strict", is_flag=True, help="Exit with status 1 if a breach is open.")
@click.option(
    "-w", "--watch", is_flag=False, flag_value=_WATCH_SECONDS, type=NumberType(0.5, 3600), metavar="[SECONDS]",
    help="Refresh every SECONDS; 5 if no value is given.",
)  # fmt: skip
@options.output("wide", "yaml", text="Output format. wide: more columns; json, yaml: for programs.")
@SELECTOR
@NO_HEADERS
@source_options
@click.pass_context
@_view
def breaches(ctx: click.Context, **given: Any) -> None:
    """
    Show open breaches of promises.

    A breach is a container that uses more than its promise or is denied memory, a process without the isolation
    library, or a process that uses a card without a promise.
    """
    source, output = parse_options(given)
    source = with_selector(source, given["selector"], pods=True)
    if given["watch"] and given["strict"]:
        raise click.UsageError("--watch cannot be used with --exit-code")
    status = [0]

    def read_lines() -> list[str]:
        lines, status[0] = _breaches(source, output, given)
        return lines

    _drawn(read_lines, output, given["watch"])
    if status[0]:
        ctx.exit(status[0])


def _breaches(source: SourceSelection, output: TextOutput, given: dict[str, Any]) -> tuple[list[str], int]:
    """The lines, and the exit status."""
    namespace = "" if given["everywhere"] else given["namespace"]
    reading: Reading = read(source, namespace, given["node"], breaches=True)
    known = (*reading.breaches, *measured(reading.usage, reading.breaches))
    found = chosen(known, namespace, given["node"], ended=given["ended"])
    if reading.fleet.selected is not None:
        mine = {(pod.namespace, pod.name) for pod in reading.fleet.pods if pod.uid in reading.fleet.selected}
        found = tuple(one for one in found if (one.namespace, one.pod) in mine)
    looked = bool(reading.usage.heard) or not (reading.fleet.nodes or source.on_one_machine)
    wide, notes = given["output"] == "wide", reading.fleet.notes
    if given["output"] in ("json", "yaml"):
        lines = [dump_document(breach_document(found, notes), given["output"])]
    else:
        lines = breach_lines(found, time.time(), output, notes, wide=wide, looked=looked)
        if not output.headers:
            _note(reading)
    open_now = given["strict"] and any(one.open for one in found)
    return lines, CANNOT_READ if not looked else FINDING if open_now else 0


@click.command(epilog=EXIT_CODES)
@click.argument("pod")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of POD. Default: that of the context.")
@options.output("wide", "yaml", text="Output format. wide: all nodes; json, yaml: for programs.")
@cluster_options
@_view
def explain(**given: Any) -> None:
    """
    Explain why POD is pending and what would help, or where it is placed.

    For a pending pod: the reason for each node and card. For a bound pod: its cards, the record that names them
    and its use. POD is NAME or NAMESPACE/NAME.
    """
    source, output = parse_options(given)
    write_lines(import_module("dashboards.terminal.explain.command").explain_pod(source, output, given))


@click.command(epilog=EXIT_CODES)
@click.argument("owner", required=False, default="")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Show only workloads of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Show all namespaces (default); overrides -n.")
@click.option(
    "--price",
    type=NumberType(0, 1e6),
    default=0.0,
    metavar="AMOUNT",
    help="Price of 1 GiB of card memory per month: adds what would be saved.",
)
@options.output(
    "wide",
    "yaml",
    "patch",
    text="Output format. wide: card models; json, yaml: for programs; patch: objects for `kubectl apply --server-side "
    "--force-conflicts -f -`.",
)
@NO_HEADERS
@cluster_options
@_view
def recommend(**given: Any) -> None:
    """
    Show what workloads should be promised, by what they have used.

    OWNER limits the output to one workload, as NAME or KIND/NAME. The autoscaler publishes the recommendations; a
    workload without one shows the reason.
    """
    source, output = parse_options(given)
    if source.on_one_machine:
        raise click.UsageError("recommend requires a cluster: set --kubeconfig")
    view: Any = import_module("dashboards.terminal.recommend_view")  # brings YAML with it
    found = ask_api_server(source, view.read_recommendations, has_local=False)
    if isinstance(found, str):
        raise UnreadableSourceError(found)
    programs = view.select(found.programs, "" if given["everywhere"] else given["namespace"], given["owner"])
    if given["owner"] and not programs:
        raise NoSuchError(f"no running workload {given['owner']} has been measured")
    if given["output"] in ("json", "yaml"):
        write_lines([dump_document(view.recommend_document(found, programs), given["output"])])
    elif given["output"] == "patch":
        text, notes = view.patch_documents(programs, source.unit_bytes)
        click.echo(text, nl=False)
        for note in notes:
            click.echo(f"note: {note}", err=True)
    else:
        wide = given["output"] == "wide"
        write_lines(view.recommend_lines(programs, time.time() - found.at, output, given["price"], wide=wide))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def views() -> None:
    """Show the shared GPU cards of a cluster: allocations, use, pending pods, breaches."""


for _command in (top, inspect, explain, breaches, recommend):
    views.add_command(_command)
