"""
`gpushare dashboards`: write the Grafana dashboards, check that written ones are current, list them.

The edge: paths and exit codes. What a dashboard shows is decided in `board`.
"""

from __future__ import annotations

from pathlib import Path

import click

from dashboards.board import files


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboards() -> None:
    """Grafana dashboards as JSON, for provisioning or a ConfigMap."""


@dashboards.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=files.FOLDER,
    show_default="the package's own folder",
    help="Folder to write into; made if it is not there.",
)
def build(out: Path) -> None:
    """Write every dashboard, one file each."""
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
    show_default="the package's own folder",
    help="Folder with the files to check.",
)
def check(folder: Path) -> None:
    """Whether the files are what `build` writes; exit status 1 if not."""
    problems = list(files.stale(folder))
    for problem in problems:
        click.echo(problem)
    if problems:
        raise click.ClickException(f"run: gpushare dashboards build --out {folder}")
    click.echo(f"{len(files.BOARDS)} dashboards are current")


@dashboards.command("list")
def listed() -> None:
    """Names, addresses within Grafana, and what each shows."""
    for board in files.BOARDS:
        click.echo(f"{board.title:<44}{board.address:<26}{board.text}")
