# SPDX-License-Identifier: Apache-2.0
"""
`gpushare rules`: recording and alert rules as files, for a Prometheus and for its operator.

Writes and compares files; what stands in them is decided in `dashboards.rules.catalogue`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from dashboards.rules.catalogue import ALERTS, RECORDS
from dashboards.rules.render import files
from dashboards.rules.rule import RUNBOOKS
from isolation.files import installed, write_whole

COMMITTED: Final = Path(__file__).parent / "rules" / "out"

_runbooks = click.option(
    "--runbooks",
    default=RUNBOOKS,
    show_default=True,
    metavar="URL",
    help="URL of the published runbooks, with {alert} for the name of the alert; else alerts link to URL/<alert>.md.",
)


@click.group()
def rules() -> None:
    """Recording and alert rules for Prometheus."""


def _web(address: str) -> str:
    if not address.startswith(("https://", "http://")) or any(one.isspace() for one in address):
        raise click.BadParameter(f"{address!r} is not a web address; use https://host/path", param_hint="--runbooks")
    return address


@rules.command(short_help="Write the plain rules file and the PrometheusRule.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=COMMITTED,
    help="Directory for both files; created if missing. Default: dashboards/rules/out of the installed package.",
)
@_runbooks
def build(out: Path, runbooks: str) -> None:
    """Write gpushare.rules.yaml, and prometheusrule.yaml for the Prometheus operator."""
    made = {out / name: text for name, text in files(_web(runbooks)).items()}
    if installed(out):
        raise click.UsageError(f"{out} belongs to an installed package: choose a directory of your own with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(made)
    except OSError as exc:
        hint = "choose another directory with --out"
        raise click.ClickException(f"cannot write {exc.filename or out}: {exc.strerror}; {hint}") from exc
    for path in made:
        click.echo(path)
    click.echo(f"{len(ALERTS)} alerts, {len(RECORDS)} recorded series")


@rules.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=COMMITTED,
    help="Directory with the files to check. Default: dashboards/rules/out of the installed package.",
)
@_runbooks
def check(out: Path, runbooks: str) -> None:
    """Check that the files are what `build` would write; exit status 1 if not."""
    stale = []
    for name, text in files(_web(runbooks)).items():
        try:
            if (out / name).read_text(encoding="utf-8") != text:
                stale.append(f"{out / name} is out of date")
        except (OSError, UnicodeDecodeError):
            stale.append(f"{out / name} is missing or cannot be read")
    if stale:
        raise click.ClickException("; ".join(stale) + "; run `gpushare rules build`")
    click.echo(f"{len(ALERTS)} alerts, {len(RECORDS)} recorded series, all up to date")
