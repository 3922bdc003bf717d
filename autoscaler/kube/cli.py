# SPDX-License-Identifier: Apache-2.0
"""
`gpushare autoscaler`: pools, moves and figures on a real Kubernetes; `plan` says what it would do now.

Reads options into `Options` and says every mistake at once; decides nothing about pods. Exit status:
docs/commands.md.
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
from isolation import logs, options
from isolation.contract.names import AUTOSCALER
from isolation.contract.quantity import UNITS
from isolation.kube.core.errors import ClusterError
from isolation.kube.options import Address, AddressType, NumberType, process_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FILE = click.Path(path_type=Path, dir_okay=False)
_WORK = 1
"""Status of `plan --exit-code` where there is something to do."""


def _grpc(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the gRPC ports and of the metrics APIs."""
    given = [
        click.option(
            "--grpc-listen",
            type=AddressType(),
            help="Address of gRPC for cluster-autoscaler (cloud provider) and KEDA (scaler), e.g. 0.0.0.0:8086.",
        ),
        click.option(
            "--expander-listen",
            type=AddressType(),
            help="Address of the gRPC expander for cluster-autoscaler, e.g. 0.0.0.0:8087.",
        ),
        click.option(
            "--grpc-cert",
            type=_FILE,
            help="TLS certificate of --grpc-listen and --expander-listen; reloaded when it changes.",
        ),
        click.option("--grpc-key", type=_FILE, help="Private key of --grpc-cert."),
        click.option(
            "--grpc-client-ca",
            type=_FILE,
            help="CA that signs the client certificates for --grpc-listen and --expander-listen.",
        ),
        click.option(
            "--expander-allow-anonymous",
            is_flag=True,
            help="Allow clients without a certificate on --expander-listen; cluster-autoscaler sends none there.",
        ),
        click.option(
            "--metrics-api",
            "api_groups",
            type=click.Choice(["custom", "external"]),
            multiple=True,
            help="Serve custom.metrics.k8s.io or external.metrics.k8s.io; repeat for both.",
        ),
        click.option(
            "--metrics-api-listen", type=AddressType(), help="TLS address of the metrics APIs, e.g. 0.0.0.0:8444."
        ),
        click.option(
            "--metrics-api-cert",
            type=_FILE,
            help="TLS certificate of --metrics-api-listen, issued for the name of --metrics-api-service.",
        ),
        click.option("--metrics-api-key", type=_FILE, help="Private key of --metrics-api-cert."),
        click.option("--metrics-api-ca", type=_FILE, help="CA of --metrics-api-cert, written to the APIServices."),
        click.option(
            "--metrics-api-service",
            help="Service through which kube-apiserver reaches the metrics APIs, as namespace/name.",
        ),
        click.option(
            "--metrics-api-no-register", is_flag=True, help="Check the APIServices but do not create missing ones."
        ),
    ]
    for option in reversed(given):
        command = option(command)
    return command


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=_FILE,
    envvar="GPUSHARE_CONFIG",
    help="Configuration file (pools, limits, metrics); reloaded when it changes.",
)
@click.option("--dry-run", is_flag=True, help="Log the actions instead of taking them; change nothing.")
@process_options(metrics=METRICS, lease=AUTOSCALER)
@_grpc
@click.pass_context
def autoscaler(ctx: click.Context, /, **given: Any) -> None:
    """
    Scale node pools up and down and move pods, counting room card by card.

    Without a subcommand: run until SIGTERM.
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
    short_help="Show what the autoscaler would do now, and why; changes nothing.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--config", type=_FILE, help="Configuration file; same as --config of `autoscaler`.")
@click.option("--kubeconfig", type=_FILE, help="Kubeconfig file; same as --kubeconfig of `autoscaler`.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; same as --context of `autoscaler`.")
@options.output()
@click.option("--exit-code", is_flag=True, help=f"Exit with status {_WORK} if the plan has actions.")
@click.option(
    "--timeout",
    type=NumberType(1, 600),
    default=60.0,
    show_default=True,
    help="Timeout for reading the cluster, in seconds.",
)
@click.pass_obj
def print_plan(options: Options, /, *, output: str, exit_code: bool, timeout: float, **where: Any) -> None:
    """Show what the autoscaler would do now, and why; changes nothing and needs read access only."""
    from autoscaler.kube import plan_once, plan_view  # noqa: PLC0415 (numpy, gRPC and tables are for this only)

    options = replace(options, **{name: value for name, value in where.items() if value is not None})
    logging.getLogger().addHandler(logging.NullHandler())  # the plan says it all
    prospect = _guarded(lambda: asyncio.run(plan_once.make_prospect_now(options, timeout)))
    if output:
        click.echo(plan_view.as_json(prospect))
    else:
        plan_view.show(prospect, sys.stdout)
    if exit_code and prospect.actions:
        sys.exit(_WORK)


@autoscaler.command(
    "bounds",
    short_help="Print a patch of the admission policy that limits what the autoscaler may scale.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--config", type=_FILE, help="Configuration file; same as --config of `autoscaler`.")
@click.pass_obj
def print_bounds(options: Options, /, *, config: Path | None) -> None:
    """Print a patch that limits the admission policy gpushare-autoscaler-scale to these pools. Needs no cluster."""
    from autoscaler.kube.config.file import ConfigFile  # noqa: PLC0415 (likewise)
    from autoscaler.kube.scale_bounds import text  # noqa: PLC0415 (providers and YAML are for this only)

    path = config or options.config
    if path is None:
        raise click.UsageError("missing --config")
    click.echo(_guarded(lambda: text(ConfigFile(path).first().pools)), nl=False)


@autoscaler.command(
    "hand-back",
    short_help="Hand all pools and pods back to cluster-autoscaler, if the autoscaler is gone for long.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--kubeconfig", type=_FILE, help="Kubeconfig file; same as --kubeconfig of `autoscaler`.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; same as --context of `autoscaler`.")
@click.option("--dry-run", is_flag=True, help="Only count the pools and pods; change nothing.")
@click.pass_obj
def print_hand_back(options: Options, /, *, dry_run: bool, **where: Any) -> None:
    """
    Remove the annotations for cluster-autoscaler from all pods and restore the values that their owners had set.

    Fails while the autoscaler runs: switch the autoscaler off instead, then it does the same itself. Safe to repeat.
    """
    from autoscaler.kube.hand_back import hand_back  # noqa: PLC0415 (the client is for this only)

    options = replace(options, **{name: value for name, value in where.items() if value is not None})
    back = _guarded(lambda: asyncio.run(hand_back(options, dry_run=dry_run)))
    verb = "would be handed" if dry_run else "handed"
    click.echo(f"{back.pools} pools and {back.pods} pods {verb} to cluster-autoscaler")


def serve(options: Options) -> None:
    """The process; what keeps it from starting is one line."""
    from autoscaler.kube import app  # noqa: PLC0415 (numpy and gRPC are for running only)

    _guarded(lambda: asyncio.run(app.run(options, _opened)))


def _guarded(work: Callable[[], Any]) -> Any:
    """What went wrong, as one line and a status."""
    from autoscaler.apis.metrics.front_proxy import TrustError  # noqa: PLC0415 (likewise)
    from autoscaler.apis.metrics.registration import ServedElsewhereError  # noqa: PLC0415 (likewise)
    from autoscaler.apis.rpc.server import ServingError  # noqa: PLC0415 (likewise)
    from autoscaler.kube.core.config import ConfigError  # noqa: PLC0415 (likewise)
    from autoscaler.kube.hand_back import AliveError  # noqa: PLC0415 (likewise)
    from autoscaler.kube.plan_once import CannotTellError  # noqa: PLC0415 (numpy and gRPC come along: only to work)
    from autoscaler.providers.base import MissingError  # noqa: PLC0415 (likewise)
    from autoscaler.providers.registry import ProviderConfigError  # noqa: PLC0415 (likewise)
    from isolation.host.reloading_tls import TlsError  # noqa: PLC0415 (likewise)

    try:
        return work()
    except (ConfigError, ProviderConfigError, MissingError) as exc:
        raise options.InputError(str(exc)) from exc
    except (ClusterError, CannotTellError) as exc:
        raise options.CannotReadError(str(exc)) from exc
    except (AliveError, ServingError, TlsError, TrustError, ServedElsewhereError, OSError, ssl.SSLError) as exc:
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
        enter=not given["metrics_api_no_register"],
        **({"service": given["metrics_api_service"]} if given["metrics_api_service"] else {}),
    )
    grpc = Grpc(
        listen=given["grpc_listen"],
        expander=given["expander_listen"],
        anyone_asks=given["expander_allow_anonymous"],
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
