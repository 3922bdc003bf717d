# SPDX-License-Identifier: Apache-2.0
"""
`gpushare place`: where would these manifests land, card by card, or exactly why not.

Joins files, placement and views; decides only what is bad input (exit status 2) and what is an
answer (0, or 1 if a pod was refused).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from isolation import options
from isolation.contract.dialects import Offered
from isolation.contract.model import Refusal, Why
from isolation.contract.names import ACK, CORE_STEPS
from isolation.contract.quantity import UNITS
from isolation.placement.card_sizes import measure_cards
from isolation.placement.policy import DEFAULT, POLICIES
from isolation.simulator.place.fleet import fleet_options, read_fleet
from isolation.simulator.place.manifests import STDIN, ManifestError, read, read_pods
from isolation.simulator.place.nodes import NodeSpecError
from isolation.simulator.place.plan import build_plan
from isolation.simulator.place.view import as_json, print_plan

if TYPE_CHECKING:
    from isolation.contract.codec.workloads import Planned

_WIDTH: Final = 80
_GPU: Final = re.compile(r"^resource .*(?:nvidia\.com/|gpu|cuda|npu|gaudi|ascend|dcu|mlu)", re.IGNORECASE)
"""Extended resources of vendors' device plugins for accelerators, by the words that their names are made of."""


@click.command()
@click.option(
    "files",
    "-f",
    "--file",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifest file; - reads stdin. Repeat for several.",
)
@fleet_options
@click.option(
    "--policy", type=click.Choice(sorted(POLICIES)), default=DEFAULT, show_default=True, help="Placement policy."
)
@options.output()
@click.pass_context
def place(  # noqa: PLR0917 (click calls by name)
    ctx: click.Context,
    files: tuple[str, ...],
    specs: tuple[str, ...],
    nodes_files: tuple[str, ...],
    policy: str,
    unit: str,
    output: str,
) -> None:
    """
    Show on which nodes and cards the pods of these manifests would be placed.

    Pods are placed one after another, in file order. Exit status: 0 if all pods were placed, 1 if
    any pod was refused, 2 on bad input.
    """
    if [*files, *nodes_files].count(STDIN) > 1:
        raise options.InputError("stdin can be read only once; use - only once")
    stdin = sys.stdin.buffer if sys.stdin else BytesIO()
    try:
        fleet = read_fleet(specs, nodes_files, stdin, UNITS[unit])
        sizes = measure_cards(fleet.nodes)
        offered = Offered(frozenset(CORE_STEPS), sizes.of, UNITS[unit])
        asked = read_pods([read(name, stdin) for name in files], offered)
    except (ManifestError, NodeSpecError) as exc:
        raise options.InputError(str(exc)) from None
    if not asked.pods:
        raise options.InputError("; ".join(("no pods to place", *asked.notes)))
    for note in (*fleet.notes, *asked.notes, *_describe_ignored(asked.pods)):
        click.echo(f"note: {note}", err=True)
    result = build_plan(fleet.nodes, fleet.pods, tuple(map(_refuse_unknown_gpus, asked.pods)), policy)
    if output:
        click.echo(json.dumps(as_json(result), indent=2))
    else:
        console = Console(highlight=False)
        print_plan(result, console if console.is_terminal else Console(highlight=False, width=_WIDTH))
    ctx.exit(1 if result.refused else 0)


def _refuse_unknown_gpus(pod: Planned) -> Planned:
    """The pod, refused where it asks for GPUs by a name that placement does not know: it would never be counted."""
    strange = [name for name in getattr(pod.request, "unmodelled", ()) if _GPU.search(name)]
    if not strange:
        return pod
    known = f"{ACK.memory} (a share of a card) or {ACK.whole} (whole cards)"
    reason = f"requests GPUs as {strange[0]}, which placement does not know: use {known}"
    return replace(pod, request=Refusal(Why.INVALID, reason))


def _describe_ignored(pods: tuple[Planned, ...]) -> list[str]:
    """What the pods say that placement does not weigh, once for pods alike."""
    caveats: dict[str, list[str]] = {}
    for pod in pods:
        for phrase in getattr(pod.request, "unmodelled", ()):
            caveats.setdefault(f"placement ignores {phrase}", []).append(pod.key)
        if pod.node:
            caveats.setdefault(f"nodeName is set, so only node {pod.node} is tried", []).append(pod.key)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {caveat}"
        for caveat, names in caveats.items()
    ]
