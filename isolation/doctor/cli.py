# SPDX-License-Identifier: Apache-2.0
"""
`gpushare doctor`: what is wrong with this machine or cluster, and what to do about it.

Joins looks and findings; decides only where output goes and which status the command ends with.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation.contract.names import RUN_DIR
from isolation.distribution import release
from isolation.doctor import view
from isolation.doctor.canary_pod import canary_manifest
from isolation.doctor.checks.finding import exit_status
from isolation.options import InputError, output

if TYPE_CHECKING:
    from isolation.doctor.checks.finding import Finding

_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
PLACES: Final = ("machine", "cluster", "inside")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("where", type=click.Choice(PLACES), required=False)
@click.option("--kubeconfig", type=_FILE, metavar="PATH", help="Cluster checks: kubeconfig file.")
@click.option("--context", metavar="NAME", help="Cluster checks: context of the kubeconfig.")
@click.option(
    "--simgpu",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="Machine checks: simulated cards, made by gpushare simgpu create.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    help="Machine checks: mount point of the machine's root file system (in a container).",
)
@click.option(
    "--agent-state-dir", default=RUN_DIR, show_default=True, help="Machine checks: state directory of the node agent."
)
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, help="Machine checks: directory of the kubelet."
)
@click.option(
    "--canary",
    is_flag=True,
    help="Machine checks: run a small CUDA program (the canary) on a card and check that it is limited.",
)
@click.option(
    "--canary-pod", is_flag=True, help="Print the manifest of a pod that runs the same program on a node, and exit."
)
@click.option(
    "--image",
    default=lambda: f"gpushare-node:{release()}",
    show_default="gpushare-node of this version",
    help="With --canary-pod: image that contains gpushare.",
)
@click.option("--node", default="", metavar="NAME", help="With --canary-pod: node to run the pod on.")
@output()
def doctor(**given: Any) -> None:
    """
    Show what is wrong with this machine or this cluster, and how to fix it.

    machine checks this machine; cluster checks the cluster; inside runs in a pod with a share of a card and checks
    that the share is limited. Default: machine, and also cluster if there are credentials.

    Exit status: 0 no problem; 1 a problem; 2 usage error; 3 no problem found, but a check could not be
    completed.
    """
    if given["canary_pod"]:
        click.echo(json.dumps(canary_manifest(given["image"], node=given["node"]), indent=2))
        return
    findings: list[Finding] = []
    where = given["where"]
    if where == "inside":
        findings += _inside()
    if where in {None, "machine"}:
        findings += _machine(given)
    if where == "cluster" or (where is None and _credentials(given["kubeconfig"])):
        findings += asyncio.run(_cluster(given))
    _tell(findings, as_data=given["output"] == "json")
    sys.exit(exit_status(findings))


def _tell(findings: list[Finding], *, as_data: bool) -> None:
    if as_data:
        click.echo(view.as_json(findings, exit_status(findings)))
    elif sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 (only where there is a terminal)

        view.show(findings, Console(highlight=False))
    else:
        click.echo(view.plain(findings))


def _machine(given: dict[str, Any]) -> list[Finding]:
    from isolation.doctor import canary, machine_reader  # noqa: PLC0415 (not for a cluster from afar)
    from isolation.doctor.checks.machine import findings  # noqa: PLC0415
    from isolation.host.machine import NvmlMachine  # noqa: PLC0415

    simgpu = given["simgpu"].resolve() if given["simgpu"] else None
    if simgpu and not simgpu.is_file():
        raise InputError(f"--simgpu {simgpu} is not a file: create it with gpushare simgpu create {simgpu} --model t4")
    seen = machine_reader.read_machine(
        machine_reader.MachinePaths(given["root"], simgpu, given["agent_state_dir"], given["kubelet_dir"])
    )
    found = findings.check_machine(seen)
    return found + (canary.run_canary(NvmlMachine(simgpu)) if given["canary"] else [])


def _inside() -> list[Finding]:
    from isolation.doctor import canary  # noqa: PLC0415 (see above)

    return canary.run_canary_inside(os.environ)


def _credentials(kubeconfig: Path | None) -> bool:
    """Whether a cluster is configured."""
    usual = Path("~/.kube/config").expanduser()
    return bool(kubeconfig) or "KUBERNETES_SERVICE_HOST" in os.environ or "KUBECONFIG" in os.environ or usual.is_file()


async def _cluster(given: dict[str, Any]) -> list[Finding]:
    from isolation.doctor import cluster_reader  # noqa: PLC0415 (not for a machine without one)
    from isolation.doctor.checks.cluster import findings  # noqa: PLC0415

    seen = await cluster_reader.read_cluster(given["kubeconfig"], given["context"])
    return findings.check_cluster(seen, time.time())
