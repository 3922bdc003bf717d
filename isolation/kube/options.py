# SPDX-License-Identifier: Apache-2.0
"""
Command-line options of the processes in a cluster: types of values, and those that all of them share.

Decides what text is a number or an address, and how credentials, metrics, leader election and logs are spelled.
Whether an address may be listened on is each process's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from isolation import logs
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.options import memory_unit

if TYPE_CHECKING:
    from collections.abc import Callable

_HIGHEST_PORT: Final = 65_535


class NumberType(click.FloatRange):
    """A number within its range; "nan", which is within each, is none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value} is not a number; write for example 60", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address | None:
    """`host:port`, `[v6]:port` or `none`; ValueError for anything else."""
    if text == "none":
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port[:6]) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not an address: use 0.0.0.0:9448, [::1]:9448 or none")
    return Address(host, int(port))


class AddressType(click.ParamType[Address | None]):
    """Type of an option: host:port, or none."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address | None:
        """As text or as made already."""
        if value is None or isinstance(value, Address):
            return value
        try:
            return parse_address(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def process_options(*, metrics: str, lease: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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
            type=AddressType(),
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
        memory_unit("Card memory of one unit of aliyun.com/gpu-mem. Must be the same in the whole cluster."),
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
