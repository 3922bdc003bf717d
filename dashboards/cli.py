# SPDX-License-Identifier: Apache-2.0
"""
`gpushare dashboards`: write the Grafana dashboards, check that written ones are current, list them.

The edge: paths and exit codes. What a dashboard shows is decided in `board`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dashboards.boards import files
from isolation import options
from isolation.files import installed


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboards() -> None:
    """Write and check the Grafana dashboards: JSON for provisioning or a ConfigMap."""


@dashboards.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=files.FOLDER,
    show_default="the package's own directory",
    help="Directory to write the JSON files to; created if missing.",
)
def build(out: Path) -> None:
    """Write all dashboards, one JSON file each."""
    if installed(out):
        raise click.UsageError(f"{out} belongs to an installed package: choose a directory of your own with --out")
    try:
        paths = files.written(out)
    except OSError as exc:
        raise click.ClickException(f"cannot write {exc.filename}: {exc.strerror}; choose another --out") from exc
    for path in paths:
        click.echo(path)


@dashboards.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=files.FOLDER,
    show_default="the package's own directory",
    help="Directory with the files to check.",
)
def check(folder: Path) -> None:
    """Check that the files are what `build` would write; exit status 1 if not."""
    problems = list(files.stale(folder))
    for problem in problems:
        click.echo(problem)
    if problems:
        raise click.ClickException(f"run: gpushare dashboards build --out {folder}")
    click.echo(f"{len(files.BOARDS)} dashboards are up to date")


@dashboards.command("list")
@options.output()
def listed(output: str) -> None:
    """List the title, the Grafana path and the content of each dashboard."""
    if output:
        found = [{"uid": one.uid, "title": one.title, "path": one.address, "text": one.text} for one in files.BOARDS]
        click.echo(json.dumps(found, indent=2))
        return
    for board in files.BOARDS:
        click.echo(f"{board.title:<44}{board.address:<26}{board.text}")
