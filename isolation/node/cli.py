# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node`: the agent of one Kubernetes node whose cards are shared.

Reads flags and environment, says all that is wrong with them, and starts. A kubelet or an API server that is
not there yet is no reason not to start; a node that cannot be told is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from isolation import logs
from isolation.contract.backends import AUTO, BACKENDS
from isolation.contract.names import ACK, BACKEND
from isolation.contract.quantity import MIB, UNITS
from isolation.kube.options import Address, AddressType
from isolation.node.containers import ALLOW, REFUSE
from isolation.node.inventory import Terms
from isolation.node.overlimit import KILL, REPORT, OverLimit
from isolation.node.paths import PREFIX, options, paths_of
from isolation.node.settings import CGROUP, PORT, Settings
from isolation.shutdown import stop_event

_PATH: Final = click.Path(path_type=Path)
_USUAL: Final = Settings(node="")


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": PREFIX,
        "max_content_width": 110,
    }
)
@click.option(
    "--node",
    "--node-name",
    "node_name",
    envvar=["NODE_NAME"],
    default="",
    metavar="NAME",
    help="Name of this Kubernetes node. Default: environment variable NODE_NAME.",
)
@options
@click.option(
    "--unsupported-images",
    type=click.Choice([REFUSE, ALLOW]),
    default=_USUAL.unsupported_images,
    show_default=True,
    help="Action on a container with limits if its image cannot load the isolation library (musl, no loader, glibc "
    "before 2.17): refuse it, or allow it without limits.",
)
@click.option(
    "--cgroup",
    type=_PATH,
    default=CGROUP,
    show_default=True,
    metavar="DIR",
    help="Directory where the host's cgroup file system is mounted.",
)
@click.option(
    "--simgpu",
    type=_PATH,
    metavar="FILE",
    help="Use the simulated cards in FILE (see gpushare simgpu) instead of real ones.",
)
@click.option(
    "--memory-unit",
    type=click.Choice(list(UNITS)),
    default="1GiB",
    show_default=True,
    help=f"Memory of one unit of {ACK.memory}. Must be the same on all nodes of the cluster.",
)
@click.option(
    "--reserved-memory",
    type=click.IntRange(0, 1 << 20),
    default=0,
    metavar="MIB",
    help="Minimum memory in MiB to reserve on each card. A larger reservation by the driver takes precedence.",
)
@click.option(
    "--backend",
    default=AUTO,
    show_default=True,
    metavar="NAME",
    help=f"Enforcement of limits: {AUTO} (best available), {', '.join(BACKENDS)}. "
    f"The node label {BACKEND} takes precedence.",
)
@click.option(
    "--ignore-xids",
    default="",
    metavar="N,N",
    help="XIDs that do not mark a card unhealthy, in addition to application errors; all: ignore all card errors.",
)
@click.option(
    "--healthy-after",
    type=click.IntRange(0, 10080),
    default=_USUAL.healthy_after_minutes,
    show_default=True,
    metavar="MINUTES",
    help="Mark a card healthy after this many minutes without errors, if its driver cannot report recovery; 0: never.",
)
@click.option(
    "--over-limit",
    type=click.Choice([REPORT, KILL]),
    default=REPORT,
    show_default=True,
    help="Action on a container that uses more memory of a card than it was promised: report it, or kill all its "
    "processes.",
)
@click.option(
    "--over-limit-samples",
    type=click.IntRange(1, 10000),
    default=_USUAL.over_limit.samples,
    show_default=True,
    metavar="N",
    help="Number of consecutive samples, about ten per second, before --over-limit applies.",
)
@click.option(
    "--over-limit-tolerance",
    type=click.IntRange(0, 1 << 20),
    default=_USUAL.over_limit.tolerance_bytes // MIB,
    show_default=True,
    metavar="MIB",
    help="Memory in MiB above the promise on a card that --over-limit tolerates.",
)
@click.option(
    "--listen",
    "--metrics-listen",
    type=AddressType(),
    default=f"{_USUAL.host}:{PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for /metrics, /healthz and /readyz; port 0 picks a free port.",
)
@click.option("--metrics-host", hidden=True, metavar="ADDRESS", help="Older spelling: the host of --listen.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), hidden=True, help="Older spelling: the port of --listen."
)
@click.option(
    "--kubeconfig",
    type=_PATH,
    metavar="FILE",
    help="Kubeconfig file. Default: $KUBECONFIG, else the pod's service account, else ~/.kube/config.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: its current context.")
@logs.options
def node(**given: Any) -> None:
    """
    Offer shares of this node's cards to the kubelet and enforce the limits of each container.

    Runs as root, once per node. Every option can also be set by an environment variable: GPUSHARE_NODE_ and
    the option's name, for example GPUSHARE_NODE_SIMGPU=/tmp/cards.
    """
    logs.set_up(given.pop("log_format"), given.pop("log_level"))
    chosen = _settings(given)
    problems = list(chosen.problems())
    if problems:
        raise click.UsageError("\n  ".join(problems))
    from isolation.node.app import NodeError, serve  # noqa: PLC0415 (help is asked for without gRPC and clients)
    from isolation.node.web import PortError  # noqa: PLC0415

    async def until_stopped() -> None:
        await serve(chosen, stop_event())

    try:
        asyncio.run(until_stopped())
    except (NodeError, PortError) as exc:
        raise click.ClickException(str(exc)) from None


def _settings(given: dict[str, Any]) -> Settings:
    simulated, listen = given["simgpu"], given["listen"]
    if not isinstance(listen, Address):
        raise click.BadParameter("the kubelet probes the agent there: use HOST:PORT", param_hint="--listen")
    return Settings(
        node=given["node_name"],
        unsupported_images=given["unsupported_images"],
        cgroup=given["cgroup"],
        simgpu=simulated.absolute() if simulated else None,
        terms=Terms(UNITS[given["memory_unit"]], given["reserved_memory"] * MIB),
        backend=given["backend"],
        host=listen.host if given["metrics_host"] is None else given["metrics_host"],
        port=listen.port if given["metrics_port"] is None else given["metrics_port"],
        kubeconfig=given["kubeconfig"],
        context=given["context"],
        ignore_xids=given["ignore_xids"].replace(" ", ""),
        healthy_after_minutes=given["healthy_after"],
        **paths_of(given),
        over_limit=OverLimit(given["over_limit"], given["over_limit_samples"], given["over_limit_tolerance"] * MIB),
    )
