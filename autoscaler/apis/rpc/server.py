# SPDX-License-Identifier: Apache-2.0
"""
A gRPC port, with or without TLS; its certificate is reloaded when the files change.

Decides that a port without TLS listens on loopback only, and the limits: `most_bytes` of a message, `most_calls` at
once. With a CA for clients, a client without a certificate cannot connect. cluster-autoscaler's expander client and
KEDA's simplest set-up have none: the expander has a port of its own.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, read, server_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MAX_BYTES: Final = 4 << 20
"""Of one request; nodes to delete and metadata of a ScaledObject are a thousandth of it."""
_GRACE_SECONDS: Final = 5.0


class ServingError(Exception):
    """The port cannot be served; the message says what to change."""


class GrpcService(Protocol):
    """One service."""

    def handler(self) -> Any:
        """For the server."""

    async def finish(self, seconds: float) -> None:
        """Wait at most so long for the calls that have begun."""


@dataclass(frozen=True, slots=True)
class GrpcPort:
    """Where, and how, to serve."""

    host: str
    number: int
    """0: any that is free."""
    files: CertificateFiles | None = None
    most_bytes: int = MAX_BYTES
    most_calls: int = 64
    """At once, open streams included; further calls are RESOURCE_EXHAUSTED."""

    def __post_init__(self) -> None:
        if self.files is None and not _is_this_machine(self.host):
            raise ServingError(
                f"{self.host}:{self.number} would serve the network without TLS: set a certificate and a key, or "
                "listen on 127.0.0.1"
            )


@asynccontextmanager
async def serve(port: GrpcPort, services: Sequence[GrpcService]) -> AsyncIterator[int]:
    """Serve while the block lasts; the port's number."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=port.most_calls,
        options=[
            ("grpc.max_receive_message_length", port.most_bytes),
            ("grpc.max_send_message_length", port.most_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ],
    )
    server.add_generic_rpc_handlers(tuple(service.handler() for service in services))
    address = f"[{port.host}]:{port.number}" if ":" in port.host else f"{port.host}:{port.number}"
    try:
        if port.files is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _credentials(port.files))
        if not bound:
            raise ServingError(f"cannot listen on {address}")
        await server.start()
    except TlsError as exc:
        raise ServingError(str(exc)) from None
    except (OSError, RuntimeError) as exc:
        await server.stop(None)
        raise ServingError(f"cannot listen on {address}: {exc}") from None
    try:
        yield bound
    finally:
        await server.stop(_GRACE_SECONDS)
        for service in services:
            await service.finish(_GRACE_SECONDS)


def _credentials(files: CertificateFiles) -> Any:
    """For a port; gRPC asks for the pair in force at every connection."""
    reloading = ReloadingTls(files, _configuration, "gRPC")

    def fetch() -> Any:
        # called by gRPC in a thread of its own, and must not raise; None: as before
        return reloading.current if reloading.refresh() else None

    demand = files.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(reloading.current, fetch, require_client_authentication=demand)


def _configuration(files: CertificateFiles) -> Any:
    """The pair as gRPC takes it; OSError, ValueError."""
    key, certificate = read(files.key), read(files.certificate)
    server_context(files)  # gRPC takes anything, and would then refuse every connection
    clients = None if files.client_ca is None else read(files.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=clients)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
