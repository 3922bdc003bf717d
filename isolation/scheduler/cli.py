"""
`gpushare scheduler`: the extender beside kube-scheduler, and admission.

Reads options into `Settings` and says every mistake at once; decides nothing about pods.
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

from isolation.cluster import logs
from isolation.cluster.failure import CredentialsError
from isolation.cluster.listen import Address, Listen, address
from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.quantity import UNITS
from isolation.placement.policy import DEFAULT, POLICIES
from isolation.scheduler import config as kube
from isolation.scheduler.settings import LISTEN, METRICS, SIDECAR, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kubeconfig", type=_FILE, help="Credentials; default: the pod's account, else $KUBECONFIG.")
@click.option("--context", "kube_context", metavar="NAME", help="Context of the kubeconfig.")
@click.option(
    "--listen", type=Listen(), default=LISTEN, show_default=True, help="TLS: extender, classic paths, admission."
)
@click.option("--tls-cert", "certificate", type=_FILE, help="Certificate of --listen; read again when it changes.")
@click.option("--tls-key", "key", type=_FILE, help="Its key.")
@click.option("--client-ca", type=_FILE, help="Who asks the extender over TLS shows a certificate of this authority.")
@click.option(
    "--sidecar",
    type=Listen(),
    default=SIDECAR,
    show_default=True,
    help="Plain HTTP on loopback for the kube-scheduler beside us; none: not served.",
)
@click.option("--metrics", "metrics", type=Listen(), default=METRICS, show_default=True, help="/metrics and probes.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="The same, on all addresses.")
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default=DEFAULT, show_default=True)
@click.option(
    "--unit", type=click.Choice(sorted(UNITS)), default="1GiB", show_default=True, help="One unit of shared memory."
)
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    help="Of our Lease and our pod.",
)
@click.option("--lease", default=SCHEDULER, show_default=True, help="Name of our Lease.")
@click.option(
    "--beside", default="", metavar="LEASE", help="Lead only while the kube-scheduler beside us has this Lease."
)
@click.option("--identity", default="", help="This process and no other; default: pod name and something random.")
@click.option("--scheduler-name", default=SCHEDULER, show_default=True, help="schedulerName that admission sets.")
@click.option("--growing", is_flag=True, help="Nodes larger than any here may come: admission warns, not denies.")
@logs.options
@click.pass_context
def scheduler(ctx: click.Context, /, **given: Any) -> None:
    """
    Place pods on shares of cards: kube-scheduler's extender, and admission.

    Without a sub-command: serve until SIGTERM.
    """
    if ctx.invoked_subcommand is not None:
        return
    settings = _settings(given)
    problems = list(settings.problems())
    if problems:
        raise click.UsageError("\n".join(problems))
    logs.set_up(given["log_format"], given["log_level"])
    serve(settings)


@scheduler.command("config")
@click.option("--existing", is_flag=True, help="The part for an existing kube-scheduler, over mutual TLS.")
@click.option("--sidecar", default=SIDECAR, show_default=True, help="Where we listen beside it.")
def print_config(*, existing: bool, sidecar: str) -> None:
    """Print the configuration of the kube-scheduler that asks us."""
    try:
        if address(sidecar) is None:
            raise click.UsageError("--sidecar none: then there is nothing to ask; print --existing")
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    shape = kube.existing() if existing else kube.beside_us(sidecar)
    click.echo(yaml.safe_dump(shape, sort_keys=False), nl=False)


def serve(settings: Settings) -> None:
    """The process; what keeps it from starting is one line."""
    import uvloop  # noqa: PLC0415 (like numpy and the kernel below, for serving only)

    from isolation.scheduler import app  # noqa: PLC0415
    from isolation.scheduler.tls import TlsError  # noqa: PLC0415

    try:
        uvloop.run(app.run(settings, _opened))
    except (CredentialsError, TlsError, OSError, ssl.SSLError) as exc:
        raise click.ClickException(str(exc)) from exc


def _opened(ports: Mapping[str, int]) -> None:
    click.echo(json.dumps({"serving": dict(ports)}))


def _settings(given: Mapping[str, Any]) -> Settings:
    port = given["metrics_port"]
    return Settings(
        kubeconfig=given["kubeconfig"],
        context=given["kube_context"],
        listen=given["listen"],
        certificate=given["certificate"],
        key=given["key"],
        client_ca=given["client_ca"],
        sidecar=given["sidecar"],
        metrics=given["metrics"] if port is None else Address("0.0.0.0", port),  # noqa: S104 (Prometheus asks from outside)
        policy=given["policy"],
        unit_bytes=UNITS[given["unit"]],
        namespace=given["namespace"],
        lease=given["lease"],
        beside=given["beside"],
        identity=given["identity"],
        pod=os.environ.get("POD_NAME", ""),
        host=os.environ.get("HOSTNAME") or socket.gethostname(),
        scheduler_name=given["scheduler_name"],
        growing=given["growing"],
    )
