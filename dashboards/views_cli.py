"""
`gpushare top`, `inspect`, `explain`, `breaches`; the same as `kubectl gpushare ...`.

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

from dashboards.terminal.breach_values import measured
from dashboards.terminal.breach_view import breach_lines, chosen
from dashboards.terminal.documents import breach_document, dumped, top_document
from dashboards.terminal.inspect_view import as_document, details, node_shares, summary
from dashboards.terminal.options import EXIT_CODES, lines_left, taken, where_options, written
from dashboards.terminal.paint import BAD, sentence
from dashboards.terminal.top_view import BY, SORTS, Choice, top_lines
from dashboards.terminal.where import CannotReadError, NoSuchError, Reading, Where, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.terminal.paint import Paper

_WATCH_SECONDS: Final = 5.0
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
    "--by", type=click.Choice(BY), help="Card by default; node where cards do not fit on the screen, pod with -n."
)
@click.option("--sort", type=click.Choice(SORTS), help="By name while everything fits, else by what is allocated.")
@click.option("--node", default="", metavar="NAME", help="This node only.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Pods of this namespace.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces, as without -n.")
@click.option("--all", "whole", is_flag=True, help="Every row, also on a small terminal.")
@click.option(
    "--watch", is_flag=False, flag_value=_WATCH_SECONDS, type=click.FloatRange(0.5, 3600), metavar="[SECONDS]",
    help="Read and draw again so often, 5 s if no time is named.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(("wide", "json", "yaml")), help="More columns, or data for programs.")
@where_options
@_view
def top(**given: Any) -> None:
    """
    Cards with what is allocated, used and free of them.

    From a cluster's API server and exporters, or from this machine's exporter. What cannot be read is shown
    as ?, and a note says why.
    """
    where, paper = taken(given)
    again = given["watch"]
    with suppress(KeyboardInterrupt) if again else nullcontext():
        _drawn(where, paper, given, again)


def _drawn(where: Where, paper: Paper, given: dict[str, Any], again: float | None) -> None:
    """Once, or until somebody interrupts."""
    lines: list[str] = []
    while True:
        began = time.monotonic()
        try:
            lines = _top(where, paper, given)
            shown = lines
        except CannotReadError as exc:
            if not lines:
                raise
            shown = [*lines, *sentence(paper, f"not read again: {exc.message}", BAD)]
        if again and paper.width:
            click.echo(_CLEAR, nl=False, color=True)
        written(shown)
        if not again:
            return
        gc.collect()
        took = time.monotonic() - began
        time.sleep(max(again - took, took * _REST))


def _top(where: Where, paper: Paper, given: dict[str, Any]) -> list[str]:
    namespace = "" if given["everywhere"] else given["namespace"]
    reading = read(where, namespace, given["node"])
    if given["node"] and all(node.name != given["node"] for node in reading.fleet.nodes):
        raise NoSuchError(f"no node {given['node']} with cards")
    room = None if given["whole"] else lines_left(_HEAD_LINES + len(reading.fleet.notes))
    cards = sum(len(node.cards) for node in reading.fleet.nodes if given["node"] in ("", node.name))
    many = room is not None and cards > room and not given["node"]
    by = given["by"] or ("pod" if namespace else "node" if many else "card")
    choice = Choice(by, given["sort"] or "", given["output"] == "wide", namespace, given["node"], room)
    if given["output"] in ("json", "yaml"):
        return [dumped(top_document(reading.fleet, reading.usage, choice), given["output"])]
    return top_lines(reading.fleet, reading.usage, choice, paper)


@click.command(epilog=EXIT_CODES)
@click.argument("node", required=False)
@click.option("-d", "--details", "detailed", is_flag=True, help="Pods on each card.")
@click.option("-o", "--output", type=click.Choice(("json", "yaml")), help="As the classic extender answers.")
@where_options
@_view
def inspect(**given: Any) -> None:
    """
    Shared memory by node and card, in units: the classic tables of `kubectl inspect gpushare`.

    NODE shows one node only. Allocation alone; `top` shows what is used.
    """
    where, paper = taken(given)
    only: str | None = given["node"]
    fleet = read(where, used=False).fleet
    nodes = node_shares(fleet, where.unit_bytes, only)
    if given["output"]:
        written([dumped(as_document(nodes, only), given["output"])])
    if only is not None and not nodes:
        raise NoSuchError(f"node {only} has no shared cards, or is not known")
    if not given["output"]:
        unit = "GiB" if where.unit_bytes == 1 << 30 else f"units of {where.unit_bytes >> 20} MiB"
        lines = details(nodes, paper, fleet.notes) if given["detailed"] else summary(nodes, unit, paper, fleet.notes)
        written(lines)


@click.command(epilog=f"{EXIT_CODES} With --exit-code: 1 a breach is open.")
@click.option("--node", default="", metavar="NAME", help="This node only.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Pods of this namespace only.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces, as without -n.")
@click.option("--ended", is_flag=True, help="Also those that have ended.")
@click.option("--exit-code", "strict", is_flag=True, help="Exit with 1 where a breach is open.")
@click.option("-o", "--output", type=click.Choice(("wide", "json", "yaml")), help="More columns, or data for programs.")
@where_options
@click.pass_context
@_view
def breaches(ctx: click.Context, **given: Any) -> None:
    """Who goes against a promise now: over it, refused more, past the library, on no promise at all."""
    where, paper = taken(given)
    namespace = "" if given["everywhere"] else given["namespace"]
    reading: Reading = read(where, namespace, given["node"], breaches=True)
    known = (*reading.breaches, *measured(reading.usage, reading.breaches))
    found = chosen(known, namespace, given["node"], ended=given["ended"])
    looked = bool(reading.usage.heard) or not reading.fleet.nodes
    if given["output"] in ("json", "yaml"):
        written([dumped(breach_document(found, reading.fleet.notes), given["output"])])
    else:
        wide = given["output"] == "wide"
        written(breach_lines(found, time.time(), paper, reading.fleet.notes, wide=wide, looked=looked))
    if not looked:
        ctx.exit(3)
    if given["strict"] and any(one.open for one in found):
        ctx.exit(FINDING)


@click.command(epilog=EXIT_CODES)
@click.argument("pod")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Of the pod; the context's own by default.")
@click.option("-o", "--output", type=click.Choice(("wide", "json", "yaml")), help="Every node, or data for programs.")
@where_options
@_view
def explain(**given: Any) -> None:
    """
    Why POD waits, node by node and card by card, and what would help; or where it is, and by which record.

    POD is a name, or NAMESPACE/NAME.
    """
    where, paper = taken(given)
    written(import_module("dashboards.terminal.explain_cli").explained(where, paper, given))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpushare")
def views() -> None:
    """Shared GPU cards of a cluster: who has what, who waits and why, who goes against a promise."""


for _command in (top, inspect, explain, breaches):
    views.add_command(_command)


def kubectl() -> None:
    """The same as a plug-in of kubectl."""
    views(prog_name="kubectl gpushare")
