# SPDX-License-Identifier: Apache-2.0
"""
`gpushare version`: what is installed here. Says what it finds; that something is missing is an answer, no error.
"""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Final

import click

from isolation import options
from isolation.distribution import release
from isolation.lib import native

_DRIVER: Final = Path("/proc/driver/nvidia/version")
"""Written by NVIDIA's kernel module: read without NVML, which may hang where the driver does."""
_NUMBER: Final = re.compile(r"\b[0-9]{3,4}(?:\.[0-9]{1,4}){1,3}\b")


@click.command()
@options.output()
def version(output: str) -> None:
    """Print the versions of this program, of the isolation library and of the NVIDIA driver."""
    client, python, driver = release(), platform.python_version(), _driver()
    library, missing = _library()
    path = "" if missing else str(native.library_path())
    if output:
        document = {
            "client": {"version": client, "python": python},
            "library": {"version": library, "path": path} if library else None,
            "driver": {"version": driver} if driver else None,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"client   {client} (Python {python})")
    click.echo(f"library  {missing or f'{library} ({path})'}")
    click.echo(f"driver   {driver or 'no NVIDIA driver is loaded'}")


def _library() -> tuple[str | None, str]:
    """Its version, or why it has none."""
    try:
        return native.version(), ""
    except (native.LibraryMissingError, OSError) as exc:
        return None, str(exc)


def _driver() -> str | None:
    try:
        found = _NUMBER.search(_DRIVER.read_text("utf-8", "replace"))
    except OSError:
        return None
    return found[0] if found else None
