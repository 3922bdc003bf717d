# SPDX-License-Identifier: Apache-2.0
"""
`gpushare scheduler`: the extender for kube-scheduler, and the admission webhook.

Reads options into `SchedulerSettings` and reports all mistakes together.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from isolation import logs
from isolation.contract.dialects import SYSTEMS
from isolation.contract.names import ACK, SCHEDULER
from isolation.contract.quantity import UNITS
from isolation.kube.core.errors import CredentialsError
from isolation.kube.options import Address, AddressType, parse_address, process_options
from isolation.placement.policy import DEFAULT, POLICIES
from isolation.scheduler.admission.core.serving import parse_serving, parse_trust_groups
from isolation.scheduler.core import kube_scheduler_config as kube
from isolation.scheduler.settings import ADMISSION, METRICS, SIDECAR, SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--admission-listen",
    "admission",
    type=AddressType(),
    default=ADMISSION,
    show_default=True,
    help="Address for HTTPS: admission webhooks, served by a child process. none: disabled.",
)
@click.option(
    "--admission-client-ca",
    type=_FILE,
    help="CA file. Clients of --admission-listen (the API server) must present a certificate signed by this CA.",
)
@click.option(
    "--tls-cert",
    "certificate",
    type=_FILE,
    help="Serving certificate of --admission-listen and --extender-tls-listen; reloaded when it changes.",
)
@click.option("--tls-key", "key", type=_FILE, help="Private key of --tls-cert.")
@click.option(
    "--extender-listen",
    "sidecar",
    type=AddressType(),
    default=SIDECAR,
    show_default=True,
    help="Loopback address for plain HTTP, used by the kube-scheduler in the same pod. none: disabled.",
)
@click.option(
    "--extender-tls-listen",
    "extender",
    type=AddressType(),
    default="none",
    show_default=True,
    help="Address for HTTPS: scheduler extender and classic gpushare paths, for a kube-scheduler elsewhere.",
)
@click.option(
    "--extender-client-ca",
    type=_FILE,
    help="CA file. Clients of --extender-tls-listen must present a certificate signed by this CA.",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default=DEFAULT,
    show_default=True,
    help="Policy that chooses the node and the cards.",
)
@click.option(
    "--kube-scheduler-lease",
    "beside",
    default="",
    metavar="LEASE",
    help="Lead only while the kube-scheduler in the same pod holds this Lease.",
)
@click.option(
    "--pod-scheduler-name",
    "scheduler_name",
    default=SCHEDULER,
    show_default=True,
    help="Value of schedulerName that admission sets on pods that request GPU shares.",
)
@click.option(
    "--allow-oversized-requests",
    "growing",
    is_flag=True,
    help="Until the autoscaler has published its pools: allow requests larger than any current node "
    "(larger nodes may be added later), with a warning.",
)
@click.option(
    "--dialects",
    default=ACK.name,
    show_default=True,
    metavar="NAME,...",
    help=f"Systems for which pods may be written: {', '.join((ACK.name, *SYSTEMS))}. Admission translates "
    "them into ACK's. The webhook configuration must be made for the same ones.",
)
@click.option(
    "--leave-to",
    "left",
    multiple=True,
    metavar="DIALECT=NAMESPACE,...",
    help="Namespaces with pods in this dialect that are left to the system itself, where it still runs in the cluster; "
    "none after = for no namespace. Repeat for several.",
)
@click.option(
    "--trust-group",
    "trust_groups",
    multiple=True,
    metavar="GROUP=NAMESPACE,...",
    help="Group of namespaces that may share a card on nodes in mode mps. Default: each namespace is a group of "
    "its own. Repeat for several.",
)
@process_options(metrics=METRICS, lease=SCHEDULER)
@click.pass_context
def scheduler(ctx: click.Context, /, **given: Any) -> None:
    """
    Schedule pods onto GPU shares: kube-scheduler extender and admission webhooks.

    Without a subcommand, serve until SIGTERM.
    """
    if ctx.invoked_subcommand is not None:
        return
    try:
        settings = _read_settings(given)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    problems = list(settings.problems())
    if problems:
        raise click.UsageError("\n".join(problems))
    logs.set_up(given["log_format"], given["log_level"])
    serve(settings)


@scheduler.command("config")
@click.option(
    "--existing-scheduler",
    "existing",
    is_flag=True,
    help="Print the extender section for an existing kube-scheduler that connects over mutual TLS.",
)
@click.option(
    "--extender-listen",
    "sidecar",
    default=SIDECAR,
    show_default=True,
    help="Loopback address of the extender, as in `gpushare scheduler --extender-listen`.",
)
def print_config(*, existing: bool, sidecar: str) -> None:
    """Print the kube-scheduler configuration that calls this extender."""
    try:
        if parse_address(sidecar) is None:
            raise click.UsageError(
                "--extender-listen none leaves no extender to call: set an address, or use --existing-scheduler"
            )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    shape = kube.existing_scheduler_config() if existing else kube.sidecar_config(sidecar)
    click.echo(yaml.safe_dump(shape, sort_keys=False), nl=False)


def serve(settings: SchedulerSettings) -> None:
    """Run the process; an error at the start is one line."""
    import uvloop  # noqa: PLC0415 (like numpy and the native code below, for serving only)

    from isolation.host.reloading_tls import TlsError  # noqa: PLC0415
    from isolation.scheduler import app  # noqa: PLC0415

    try:
        uvloop.run(app.run(settings, _print_ports))
    except (CredentialsError, TlsError, OSError, ssl.SSLError) as exc:
        raise click.ClickException(str(exc)) from exc


def _print_ports(ports: Mapping[str, int]) -> None:
    click.echo(json.dumps({"serving": dict(ports)}))


def _read_settings(given: Mapping[str, Any]) -> SchedulerSettings:
    port = given["metrics_port"]
    return SchedulerSettings(
        kubeconfig=given["kubeconfig"],
        context=given["kube_context"],
        admission=given["admission"],
        admission_client_ca=given["admission_client_ca"],
        certificate=given["certificate"],
        key=given["key"],
        extender=given["extender"],
        extender_client_ca=given["extender_client_ca"],
        sidecar=given["sidecar"],
        metrics=given["metrics"] if port is None else Address("0.0.0.0", port),  # noqa: S104 (Prometheus asks from outside)
        policy=given["policy"],
        unit_bytes=UNITS[given["unit"]],
        namespace=given["namespace"],
        lease=given["lease"],
        kube_scheduler_lease=given["beside"],
        identity=given["identity"],
        pod=os.environ.get("POD_NAME", ""),
        host=os.environ.get("HOSTNAME") or socket.gethostname(),
        scheduler_name=given["scheduler_name"],
        allow_oversized_requests=given["growing"],
        systems=parse_serving(given["dialects"], given["left"]),
        trust_groups=parse_trust_groups(given["trust_groups"]),
        log_format=given["log_format"],
        log_level=given["log_level"],
    )
