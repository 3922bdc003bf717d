# SPDX-License-Identifier: Apache-2.0
"""
Options that every process with a Lease takes in the same words: credentials, metrics, leader election, logs.

Decides what is typed, and nothing about what it means.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolation import logs
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.contract.quantity import UNITS
from isolation.kube.listen import Listen

if TYPE_CHECKING:
    from collections.abc import Callable


def options(*, metrics: str, lease: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for such a command; the usual address for metrics and the usual name of its Lease."""
    given: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Kubeconfig file. Default: $KUBECONFIG, else the pod's service account, else ~/.kube/config.",
        ),
        click.option("--context", "kube_context", metavar="NAME", help="Kubeconfig context. Default: current-context."),
        click.option(
            "--listen",
            "--metrics-listen",
            "metrics",
            type=Listen(),
            default=metrics,
            show_default=True,
            help="Address for /metrics and health probes. none: disabled.",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            hidden=True,
            help="Port for /metrics and health probes on all interfaces: the older spelling of --listen 0.0.0.0:PORT.",
        ),
        click.option(
            "--memory-unit",
            "unit",
            type=click.Choice(sorted(UNITS)),
            default="1GiB",
            show_default=True,
            help="Card memory of one unit of aliyun.com/gpu-mem. Must be the same in the whole cluster.",
        ),
        click.option(
            "--namespace",
            envvar="POD_NAMESPACE",
            default=SYSTEM_NAMESPACE,
            show_default=True,
            help="Namespace of this process: of its pod, its Lease and its ConfigMaps.",
        ),
        click.option(
            "--lease-name", "lease", default=lease, show_default=True, help="Name of the leader election Lease."
        ),
        click.option(
            "--identity",
            default="",
            help="Lease holder identity, unique to this process. Default: pod name and a random suffix.",
        ),
        logs.options,
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate
