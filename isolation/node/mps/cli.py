# SPDX-License-Identifier: Apache-2.0
"""
`gpushare mps`: the process that keeps MPS daemons, beside the node agent and longer than it.

Reads flags and environment, says all that is wrong with them, and starts. An agent that is not there yet is no reason
not to start.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from isolation import logs
from isolation.node.paths import PREFIX, Paths, options, paths_of
from isolation.shutdown import stop_event

_PATH = click.Path(path_type=Path)


@click.command(
    "mps",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX, "max_content_width": 110},
)
@options
@click.option(
    "--simgpu",
    type=_PATH,
    metavar="FILE",
    help="Use the simulated cards in FILE (see gpushare simgpu) instead of real ones.",
)
@logs.options
def mps(**given: Any) -> None:
    """
    Keep an NVIDIA MPS daemon for each card of a node in mode mps. Its end ends the containers that use them.

    Runs as root, once per node, beside gpushare node and with the same directories. Needs nvidia-cuda-mps-control,
    which comes with the driver. Every option can also be set by an environment variable: GPUSHARE_NODE_ and the
    option's name.
    """
    logs.set_up(given.pop("log_format"), given.pop("log_level"))
    hardware = given.pop("simgpu")
    paths = Paths(**paths_of(given))
    if problems := list(paths.wrong_paths()):
        raise click.UsageError("\n  ".join(problems))
    from isolation.node.lock import LockError  # noqa: PLC0415 (help without NVML)
    from isolation.node.mps.daemons import MpsError, serve  # noqa: PLC0415

    async def until_stopped() -> None:
        await serve(paths, hardware.absolute() if hardware else None, stop_event())

    try:
        asyncio.run(until_stopped())
    except (MpsError, LockError) as exc:
        raise click.ClickException(str(exc)) from None
