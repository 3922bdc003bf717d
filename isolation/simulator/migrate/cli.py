# SPDX-License-Identifier: Apache-2.0
"""
`gpushare migrate`: what manifests of other systems become, line by line, and their ResourceQuotas on our names.

Joins files, translation and printing; decides only what is bad input (exit status 2) and what is an answer (0, or 1 if
something cannot be translated) and what cannot be read (3).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from isolation import options
from isolation.contract.codec.cursor import CodecError, Unacceptable
from isolation.contract.dialects import SYSTEMS, Offered
from isolation.contract.dialects.quotas import QuotaTranslation, translate_quota
from isolation.contract.model import Rules
from isolation.contract.names import CORE_STEPS
from isolation.contract.quantity import UNITS
from isolation.placement.card_sizes import measure_cards
from isolation.simulator.migrate.changes import UNKNOWN, ChangeState, TemplateChange, change
from isolation.simulator.place.fleet import fleet_options, read_fleet
from isolation.simulator.place.manifests import STDIN, ManifestError, guarded, iterate_objects, read, skip_if_controlled
from isolation.simulator.place.nodes import NodeSpecError, read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.dialects import Line
    from isolation.placement.card_sizes import CardSizes
    from isolation.simulator.place.manifests import Located

_FAILED = frozenset({ChangeState.REFUSED, ChangeState.UNRESOLVED})
_QUOTA = "ResourceQuota"
_MORE_FILES = click.option(
    "more",
    "-f",
    "--file",
    multiple=True,
    metavar="FILE",
    help="Manifest file, same as the argument FILE; repeat for several.",
)


class _Files(click.Group):
    """A group whose first command needs no name: `migrate FILE` is `migrate manifests FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The command's name, put in where a file or an option of it comes first."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["manifests", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """What a first word means: a file is one for `manifests`."""
        return super().get_command(ctx, cmd_name) or self.commands["manifests"]


@click.group(cls=_Files, context_settings={"help_option_names": ["-h", "--help"]})
def migrate() -> None:
    """Show what pods and quotas of HAMi, Volcano, KAI and other systems become."""


@migrate.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@_MORE_FILES
@fleet_options
@options.output("yaml", text="Output format. json: for programs. yaml: the manifests, translated.")
@click.pass_context
def manifests(ctx: click.Context, /, **given: Any) -> None:
    """
    Show what the pods of these manifests become, line by line with the reason.

    The default: `gpushare migrate FILE` is enough. FILE - reads stdin. Exit status: 0 if everything can be translated,
    1 if something cannot, 2 on bad input.
    """
    unit, output, files = given["unit"], given["output"], given["files"] + given["more"]
    if not files:
        raise click.UsageError("FILE is missing; - reads stdin")
    found, sizes = _read(files, given["specs"], given["nodes_files"], unit)
    offered = Offered(frozenset(CORE_STEPS), sizes.of if sizes else UNKNOWN(), UNITS[unit])
    rows: list[tuple[Located, TemplateChange]] = []
    values: list[object] = []
    notes: list[str] = []
    try:
        keys = {guarded(one, lambda o: o.key) for one in found}
        for one in found:
            if skipped := guarded(one, lambda o: skip_if_controlled(o, keys)):
                notes.append(f"{one.source}:{one.line}: {skipped.what} {skipped.reason}")
                continue
            if one.at["kind"].text() == _QUOTA:
                notes.append(f"{one.source}:{one.line}: a ResourceQuota is translated by gpushare migrate quota")
            made = guarded(one, lambda o: change(o.at, offered))
            values.append(made.value)
            rows += [(one, entry) for entry in made.changes]
    except ManifestError as exc:
        raise options.InputError(str(exc)) from None
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if output == "json":
        click.echo(json.dumps({"objects": [_as_json(one, entry) for one, entry in rows]}, indent=2))
    elif output == "yaml":
        click.echo(yaml.safe_dump_all(values, sort_keys=False, allow_unicode=True), nl=False)
        _echo(((one, entry) for one, entry in rows if entry.state in _FAILED), err=True)
    else:
        _echo(rows)
        counts = Counter(entry.state for _, entry in rows)
        click.echo("; ".join(f"{counts[state]} {state}" for state in ChangeState if counts[state]) or "no pods")
    ctx.exit(1 if any(entry.state in _FAILED for _, entry in rows) else 0)


@migrate.command()
@click.argument("files", nargs=-1, metavar="[FILE...]")
@_MORE_FILES
@fleet_options
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Kubeconfig of the cluster. Default: $KUBECONFIG, the pod's service account or ~/.kube/config.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig to use.")
@options.output("yaml", text="Output format. json: for programs. yaml: the new quotas.")
@click.pass_context
def quota(ctx: click.Context, /, **given: Any) -> None:
    """
    Print ResourceQuotas on other systems' names as quotas on gpushare's.

    Without a file: all of the cluster, with its nodes. Exit status: 0 if everything can be expressed, 1 if something
    cannot, 2 on bad input, 3 if the cluster cannot be read.
    """
    files = given["files"] + given["more"]
    unit, output, named = given["unit"], given["output"], (files, given["specs"], given["nodes_files"])
    if files:
        found, sizes = _read(*named, unit)
    else:
        found, sizes = _read_cluster(given["kubeconfig"], given["context"], *named[1:], unit)
    offered = {one for compute in (False, True) for one in sizes.of(Rules(), compute=compute)} if sizes else set()
    card_bytes = next(iter(offered)) if len(offered) == 1 else 0
    rows = _translate_quotas(found, UNITS[unit], card_bytes)
    if not rows:
        click.echo("note: no ResourceQuota names a resource of another system", err=True)
    new = [_quota(one, made) for one, made in rows if made.hard]
    if output == "json":
        shown = [
            {
                "file": one.source,
                "line": one.line,
                "object": one.key,
                "hard": made.hard,
                "lines": [_line(line) for line in made.lines],
                "left": [_line(line) for line in made.left],
            }
            for one, made in rows
        ]
        click.echo(json.dumps({"quotas": shown}, indent=2))
    elif output == "yaml":
        click.echo(yaml.safe_dump_all(new, sort_keys=False), nl=False)
    else:
        for one, made in rows:
            click.echo(f"{one.source}:{one.line}: {one.key}")
            _echo_lines(made.lines)
            for line in made.left:
                click.echo(f"  cannot be expressed: {line.before}\n      {line.why}")
        if new:
            click.echo("---")
            click.echo(yaml.safe_dump_all(new, sort_keys=False), nl=False)
    ctx.exit(1 if any(made.left for _, made in rows) else 0)


_Found = tuple[list["Located"], "CardSizes | None"]
"""All objects; the sizes of cards, or None where no nodes are named."""


def _read(files: tuple[str, ...], specs: tuple[str, ...], nodes_files: tuple[str, ...], unit: str) -> _Found:
    """Of files."""
    if [*files, *nodes_files].count(STDIN) > 1:
        raise options.InputError("stdin can be read only once; use - only once")
    stdin = sys.stdin.buffer if sys.stdin else BytesIO()
    try:
        named = specs or nodes_files
        sizes = measure_cards(read_fleet(specs, nodes_files, stdin, UNITS[unit]).nodes) if named else None
        found = [one for name in files for one in iterate_objects(read(name, stdin))]
    except (ManifestError, NodeSpecError) as exc:
        raise options.InputError(str(exc)) from None
    if not found:
        raise options.InputError("the files contain no objects")
    return found, sizes


def _read_cluster(
    kubeconfig: Path | None, context: str | None, specs: tuple[str, ...], nodes_files: tuple[str, ...], unit: str
) -> _Found:
    """Of a cluster; nodes that are named go before its own."""
    from isolation.simulator.migrate import cluster  # noqa: PLC0415 (the client takes half a second to load)

    stdin = sys.stdin.buffer if sys.stdin else BytesIO()
    try:
        if specs or nodes_files:
            nodes = read_fleet(specs, nodes_files, stdin, UNITS[unit]).nodes
            (quotas,) = cluster.read_cluster(kubeconfig, context, cluster.QUOTAS)
        else:
            quotas, listed = cluster.read_cluster(kubeconfig, context, cluster.QUOTAS, cluster.NODES)
            nodes = read_nodes(listed, UNITS[unit]).nodes
        return list(iterate_objects(quotas)), measure_cards(nodes)
    except (ManifestError, NodeSpecError) as exc:
        raise options.InputError(str(exc)) from None


def _translate_quotas(
    found: Iterable[Located], unit_bytes: int, card_bytes: int
) -> list[tuple[Located, QuotaTranslation]]:
    """Every ResourceQuota that names a resource of another system."""
    rows: list[tuple[Located, QuotaTranslation]] = []
    for one in found:
        if one.at["kind"].text() != _QUOTA:
            continue
        try:
            made = translate_quota(one.at["spec"]["hard"], unit_bytes, card_bytes)
        except Unacceptable as exc:
            raise options.InputError(f"{one.source}:{one.line}: {exc}") from None
        except CodecError as exc:
            raise options.InputError(str(one.wrong(exc))) from None
        if made.lines or made.left:
            rows.append((one, made))
    return rows


def _quota(one: Located, made: QuotaTranslation) -> dict[str, Any]:
    """A quota on our names beside the old one, which still counts the pods that run."""
    metadata, spec = one.at["metadata"], one.at["spec"].mapping()
    name = {"name": f"{metadata['name'].name()}-gpushare"}
    if metadata["namespace"]:
        name["namespace"] = metadata["namespace"].label_name("default")
    scopes = {key: spec[key] for key in ("scopes", "scopeSelector") if key in spec}
    return {"apiVersion": "v1", "kind": _QUOTA, "metadata": name, "spec": {"hard": made.hard, **scopes}}


def _echo(rows: Iterable[tuple[Located, TemplateChange]], *, err: bool = False) -> None:
    for one, entry in rows:
        whose = SYSTEMS[entry.dialect].title if entry.dialect in SYSTEMS else ""
        verdict = {
            ChangeState.TRANSLATED: f"translated from {whose}",
            ChangeState.REFUSED: f"cannot be translated: {entry.reason}",
            ChangeState.UNRESOLVED: f"cannot be resolved here: {entry.reason}",
            ChangeState.UNCHANGED: f"unchanged: {entry.reason}",
            ChangeState.OTHER: entry.reason,
        }[entry.state]
        click.echo(f"{one.source}:{one.line}: {entry.title}: {verdict}", err=err)
        _echo_lines(entry.lines, err=err)
        for text in entry.warnings:
            click.echo(f"  warning: {text}", err=err)


def _echo_lines(lines: Iterable[Line], *, err: bool = False) -> None:
    for line in lines:
        for sign, text in (("-", line.before), ("+", line.after)):
            if text:
                click.echo(f"  {sign} {text}", err=err)
        click.echo(f"      {line.why}", err=err)


def _as_json(one: Located, entry: TemplateChange) -> dict[str, Any]:
    return {
        "file": one.source,
        "line": one.line,
        "object": entry.title,
        "state": entry.state.value,
        "dialect": entry.dialect,
        "lines": [_line(line) for line in entry.lines],
        "warnings": list(entry.warnings),
        "reason": entry.reason,
    }


def _line(line: Line) -> dict[str, str]:
    return {"before": line.before, "after": line.after, "why": line.why}
