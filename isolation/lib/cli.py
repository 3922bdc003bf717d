# SPDX-License-Identifier: Apache-2.0
"""
`gpushare lib`: where the isolation library is, its version, and whether it works here.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from isolation import options
from isolation.contract.abi import AbiError
from isolation.lib import native


@click.command("lib")
@click.option("--strict", is_flag=True, help="Use the strict variant, which has the SONAME of libcuda.")
@click.option("--path", "only_path", is_flag=True, help="Print only the path, for LD_PRELOAD.")
@options.output()
@click.option(
    "--reap",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Release the memory of dead processes in this region file and exit.",
)
def lib(*, strict: bool, only_path: bool, output: str, reap: Path | None) -> None:
    """Print path, version and self-check of libgpushare.so. Exit status 1 if a check fails."""
    try:
        path = native.library_path(strict=strict)
        if reap is not None:
            given, slots = native.reap(reap)
            click.echo(json.dumps({"bytes": given, "processes": slots}))
            return
        if only_path:
            click.echo(path)
            return
        checks = native.self_check(strict=strict)
        version = native.version(strict=strict)
    except (native.LibraryMissingError, AbiError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
    if output:
        found = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        click.echo(json.dumps({"path": str(path), "version": version, "checks": found}))
    else:
        click.echo(f"path     {path}\nversion  {version}")
        for check in checks:
            click.echo(f"{check.name:<8} {'ok' if check.ok else 'FAILED'}: {check.detail}")
    if not all(check.ok for check in checks):
        raise click.exceptions.Exit(1)
