# SPDX-License-Identifier: Apache-2.0
"""
A gRPC port: bound, with or without TLS, its certificate read again whenever the files change.

Decides that a port without TLS is bound to the machine itself only, and what is too much: messages beyond
`most_bytes`, calls beyond `most_calls` at once. What is served is the services' business.

With an authority for clients, a client without its certificate is not heard at all. cluster-autoscaler's
expander and KEDA's simplest set-up have none: they get a port of their own.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.kube import certificate_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
MOST_BYTES: Final = 4 << 20
"""Of one question; nodes to delete and metadata of a ScaledObject are a thousandth of it."""
_GRACE_SECONDS: Final = 5.0
_MOST_PEM_BYTES: Final = 1 << 20


class ServingError(Exception):
    """The port cannot be served; the message says what to change."""


class Answerer(Protocol):
    """One service."""

    def handler(self) -> Any:
        """For the server."""

    async def finish(self, seconds: float) -> None:
        """Let what was begun come to its end."""


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate, its key, and perhaps who signs clients' certificates; PEM."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def stamp(self) -> certificate_files.Stamp:
        """What changes when a file does; a Secret's volume is a chain of links, which are followed."""
        return certificate_files.stamp((self.certificate, self.key, self.clients))


@dataclass(frozen=True, slots=True)
class Port:
    """Where, and how, to serve."""

    host: str
    number: int
    """0: any that is free."""
    files: Files | None = None
    most_bytes: int = MOST_BYTES
    most_calls: int = 64
    """At once, open streams included; a further one is told to come later."""

    def __post_init__(self) -> None:
        if self.files is None and not _is_this_machine(self.host):
            raise ServingError(
                f"{self.host}:{self.number} would serve the network without TLS: set a certificate and a key, or "
                "listen on 127.0.0.1"
            )


class _Reloading:
    """Gives gRPC the pair that is in the files, at every connection; half a pair keeps the old one in force."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stamp = files.stamp()
        self._first = _read(files)

    @property
    def credentials(self) -> Any:
        """For the port."""
        demand = self._files.clients is not None
        return grpc.dynamic_ssl_server_credentials(self._first, self._fetch, require_client_authentication=demand)

    def _fetch(self) -> Any:
        """Called by gRPC in a thread of its own; None: as before. Must not raise."""
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return None
        try:
            fresh = _read(self._files)
        except ServingError as exc:
            log.warning("cannot load the changed gRPC certificate: keeping the previous one: %s", exc)
            return None
        # changed again while it was read: what was read may be of two generations
        if self._files.stamp() != stamp:
            return None
        self._stamp = stamp
        log.info("reloaded gRPC certificate")
        return fresh


@asynccontextmanager
async def serving(port: Port, services: Sequence[Answerer]) -> AsyncIterator[int]:
    """Serve for as long as this lasts; the number of the port."""
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
            bound = server.add_secure_port(address, _Reloading(port.files).credentials)
        if not bound:
            raise ServingError(f"cannot listen on {address}")
        await server.start()
    except (OSError, RuntimeError) as exc:
        await server.stop(None)
        raise ServingError(f"cannot listen on {address}: {exc}") from None
    try:
        yield bound
    finally:
        await server.stop(_GRACE_SECONDS)
        for service in services:
            await service.finish(_GRACE_SECONDS)


def _read(files: Files) -> Any:
    """The pair as gRPC takes it; ServingError where it is none."""
    key, certificate = _pem(files.key), _pem(files.certificate)
    _check(files)
    clients = None if files.clients is None else _pem(files.clients)
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=clients)


def _check(files: Files) -> None:
    """What is wrong with the files, said at once: gRPC takes anything and then refuses every connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=certificate_files.no_password)
        if files.clients is not None:
            context.load_verify_locations(files.clients)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise ServingError(f"cannot use certificate {files.certificate} with key {files.key}: {exc}") from None


def _pem(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_PEM_BYTES)
    except OSError as exc:
        raise ServingError(f"cannot read {path}: {exc.strerror}") from None


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
