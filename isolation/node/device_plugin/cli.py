# SPDX-License-Identifier: Apache-2.0
"""
`gpushare device-plugin`: the small process beside the node agent, which outlives it.

Reads flags and environment, says all that is wrong with them, and starts. A kubelet or a container runtime that is not
there yet is no reason not to start.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from isolation import logs
from isolation.node.paths import PREFIX, Paths, options, paths_of
from isolation.shutdown import stop_event


@click.command(
    "device-plugin",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX, "max_content_width": 110},
)
@options
@logs.options
def device_plugin(**given: Any) -> None:
    """
    Serve the kubelet's device plugin API for the node agent, also while the agent restarts.

    Runs as root, once per node, beside gpushare node and with the same directories. It needs no API server and no card.
    Every option can also be set by an environment variable: GPUSHARE_NODE_ and the option's name.
    """
    logs.set_up(given.pop("log_format"), given.pop("log_level"))
    paths = Paths(**paths_of(given))
    if problems := list(paths.wrong_paths()):
        raise click.UsageError("\n  ".join(problems))
    from isolation.node.device_plugin.process import DevicePluginError, serve  # noqa: PLC0415 (help without gRPC)

    async def until_stopped() -> None:
        await serve(paths, stop_event())

    try:
        asyncio.run(until_stopped())
    except DevicePluginError as exc:
        raise click.ClickException(str(exc)) from None
