"""
`gpushare autoscaler`: pools, moves and figures on a real Kubernetes; `plan` says what it would do now.

Reads options into `Options` and says every mistake at once; decides nothing about pods. Status 1: it cannot work
(no cluster, no rights); status 2: options or a configuration that cannot be used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.kube.options import METRICS, Grpc, MetricsApi, Options
from isolation.cluster import logs
from isolation.cluster.failure import ClusterError
from isolation.cluster.listen import Address, Listen
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.contract.quantity import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FILE = click.Path(path_type=Path, dir_okay=False)
_WORK = 3
"""Status of `plan --exit-code` where there is something to do."""


class BadInput(click.ClickException):
    """A configuration that cannot be used."""

    exit_code = 2


def _number(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if value != value:  # noqa: PLR0124 (click's range lets what is no number pass)
        raise click.BadParameter("nan is no number; write seconds, for instance 60")
    return value


def _grpc(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the gRPC ports and of the metrics APIs."""
    given = [
        click.option("--grpc-listen", type=Listen(), help="gRPC for cluster-autoscaler and KEDA; 0.0.0.0:8086."),
        click.option("--expander-listen", type=Listen(), help="cluster-autoscaler's expander; 0.0.0.0:8087."),
        click.option("--grpc-cert", type=_FILE, help="Certificate of both ports; read again when it changes."),
        click.option("--grpc-key", type=_FILE, help="Its key."),
        click.option("--grpc-client-ca", type=_FILE, help="Who signs certificates of those who ask on --grpc-listen."),
        click.option(
            "--metrics-api",
            "api_groups",
            type=click.Choice(["custom", "external"]),
            multiple=True,
            help="Serve custom.metrics.k8s.io, external.metrics.k8s.io; may be given twice.",
        ),
        click.option("--metrics-api-listen", type=Listen(), help="Where, over TLS; 0.0.0.0:8444."),
        click.option("--metrics-api-cert", type=_FILE, help="Certificate of our Service's name."),
        click.option("--metrics-api-key", type=_FILE, help="Its key."),
        click.option("--metrics-api-ca", type=_FILE, help="Who signed it, for the APIServices."),
        click.option("--metrics-api-service", help="namespace/name by which kube-apiserver finds us."),
        click.option("--metrics-api-only-look", is_flag=True, help="Do not make APIServices that are missing."),
    ]
    for option in reversed(given):
        command = option(command)
    return command


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=_FILE, envvar="GPUSHARE_CONFIG", help="Pools, limits, figures; read again on change.")
@click.option("--kubeconfig", type=_FILE, help="Credentials; default: the pod's account, else $KUBECONFIG.")
@click.option("--context", "kube_context", metavar="NAME", help="Context of the kubeconfig.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, touch nothing.")
@click.option("--metrics", type=Listen(), default=METRICS, show_default=True, help="/metrics and probes; or none.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="The same, on all addresses.")
@click.option(
    "--unit", type=click.Choice(sorted(UNITS)), default="1GiB", show_default=True, help="One unit of shared memory."
)
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    help="Of our Lease, our switch and what is remembered.",
)
@click.option("--lease", default=AUTOSCALER, show_default=True, help="Name of our Lease.")
@click.option("--identity", default="", help="This process and no other; default: pod name and something random.")
@logs.options
@_grpc
@click.pass_context
def autoscaler(ctx: click.Context, /, **given: Any) -> None:
    """
    Keep the fleet the right size, counted card by card.

    Without a sub-command: run until SIGTERM.
    """
    options = _options(given)
    problems = list(options.problems())
    if problems:
        raise click.UsageError("\n".join(problems))
    if ctx.invoked_subcommand is not None:
        ctx.obj = options
        return
    logs.set_up(given["log_format"], given["log_level"])
    serve(options)


@autoscaler.command(
    "plan",
    short_help="What would be done now, and why; touches nothing.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--config", type=_FILE, help="As before `plan`.")
@click.option("--kubeconfig", type=_FILE, help="As before `plan`.")
@click.option("--context", metavar="NAME", help="As before `plan`.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--exit-code", is_flag=True, help=f"End with {_WORK} where there is something to do.")
@click.option(
    "--timeout",
    type=click.FloatRange(1, 600),
    callback=_number,
    default=60.0,
    show_default=True,
    help="Seconds to read all.",
)
@click.pass_obj
def print_plan(options: Options, /, *, as_json: bool, exit_code: bool, timeout: float, **where: Any) -> None:
    """What would be done now, and why; touches nothing and needs rights to read only."""
    from autoscaler.kube import app_plan, plan_view  # noqa: PLC0415 (numpy, gRPC and tables are for this only)

    options = replace(options, **{name: value for name, value in where.items() if value is not None})
    logging.getLogger().addHandler(logging.NullHandler())  # what is worth saying stands in the plan
    prospect = _guarded(lambda: asyncio.run(app_plan.looked(options, timeout)))
    if as_json:
        click.echo(plan_view.as_json(prospect))
    else:
        plan_view.show(prospect, sys.stdout)
    if exit_code and prospect.steps:
        sys.exit(_WORK)


def serve(options: Options) -> None:
    """The process; what keeps it from starting is one line."""
    from autoscaler.kube import app  # noqa: PLC0415 (numpy and gRPC are for running only)

    _guarded(lambda: asyncio.run(app.run(options, _opened)))


def _guarded(work: Callable[[], Any]) -> Any:
    """What went wrong, as one line and a status."""
    from autoscaler.kube.app_plan import CannotTellError  # noqa: PLC0415 (numpy and gRPC come along: only to work)
    from autoscaler.kube.config import ConfigError  # noqa: PLC0415 (likewise)
    from autoscaler.metrics_api.door import TlsError  # noqa: PLC0415 (likewise)
    from autoscaler.metrics_api.front_proxy import TrustError  # noqa: PLC0415 (likewise)
    from autoscaler.metrics_api.registration import TakenError  # noqa: PLC0415 (likewise)
    from autoscaler.providers.base import MissingError  # noqa: PLC0415 (likewise)
    from autoscaler.providers.registry import ConfigError as PoolsError  # noqa: PLC0415 (likewise)
    from autoscaler.rpc.serving import ServingError  # noqa: PLC0415 (likewise)

    try:
        return work()
    except (ConfigError, PoolsError, MissingError) as exc:
        raise BadInput(str(exc)) from exc
    except (
        ClusterError, CannotTellError, ServingError, TlsError, TrustError, TakenError, OSError, ssl.SSLError
    ) as exc:  # fmt: skip
        raise click.ClickException(str(exc)) from exc


def _opened(ports: Mapping[str, int]) -> None:
    click.echo(json.dumps({"serving": dict(ports)}))


def _options(given: Mapping[str, Any]) -> Options:
    port = given["metrics_port"]
    api = MetricsApi(
        groups=given["api_groups"],
        listen=given["metrics_api_listen"],
        certificate=given["metrics_api_cert"],
        key=given["metrics_api_key"],
        authority=given["metrics_api_ca"],
        enter=not given["metrics_api_only_look"],
        **({"service": given["metrics_api_service"]} if given["metrics_api_service"] else {}),
    )
    grpc = Grpc(
        listen=given["grpc_listen"],
        expander=given["expander_listen"],
        certificate=given["grpc_cert"],
        key=given["grpc_key"],
        client_ca=given["grpc_client_ca"],
    )
    return Options(
        config=given["config"],
        kubeconfig=given["kubeconfig"],
        context=given["kube_context"],
        dry_run=given["dry_run"],
        metrics=given["metrics"] if port is None else Address("0.0.0.0", port),  # noqa: S104 (Prometheus asks from outside)
        unit_bytes=UNITS[given["unit"]],
        namespace=given["namespace"],
        lease=given["lease"],
        identity=given["identity"],
        pod=os.environ.get("POD_NAME", ""),
        grpc=grpc,
        metrics_api=api,
    )
