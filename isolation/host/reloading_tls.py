# SPDX-License-Identifier: Apache-2.0
"""
A serving certificate that is read again whenever its files change; open connections go on.

Files are good enough to use when they are whole, and certificate and key of each other. What a server builds of them
(an SSL context, gRPC credentials), and whom it believes, is each server's own decision.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from isolation.host.core.certificate import first_end
from isolation.host.reloading import LOOK_SECONDS, Reloading, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isolation.host.reloading import Stamp

MAX_BYTES: Final = 1 << 20
"""Of one file."""

T = TypeVar("T")


class TlsError(Exception):
    """The files make no usable certificate; the message names them and the cause."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate, its key, and optionally the CA of client certificates; PEM."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> Stamp:
        """What changes when a file does."""
        return stamp_of(path for path in (self.certificate, self.key, self.client_ca) if path is not None)


def server_context(files: CertificateFiles, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """
    A context of what is in the files now; OSError, ValueError. Clients need a certificate where there is a CA for them.

    No session outlives its connection: a resumed one would bring a client certificate checked under an older CA.
    Before TLS 1.3 sessions can be resumed without tickets, from a cache that Python cannot switch off.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ReloadingTls(Generic[T]):
    """What a server builds of its certificate files, built again when they change."""

    def __init__(self, files: CertificateFiles, build: Callable[[CertificateFiles], T], name: str = "") -> None:
        """`build`: OSError, ValueError on unusable files; `name`: for the log, empty: log nothing. Raises TlsError."""
        self._files, self._build = files, build
        self._loaded = Reloading(self._load, lambda _: files.stamp(), TlsError, f"{name} certificate" if name else "")

    @property
    def current(self) -> T:
        """What is in force."""
        return self._loaded.current.built

    @property
    def end(self) -> float | None:
        """Until when the pair is valid, in seconds since the epoch; None: unknown."""
        return self._loaded.current.end

    @property
    def loaded(self) -> float:
        """When it was read, in seconds since the epoch."""
        return self._loaded.current.at

    def rebuild(self) -> None:
        """Build again of what is in the files now; TlsError, and what was in force stays so."""
        self._loaded.rebuild()

    def refresh(self) -> bool:
        """Take what is in the files now, if it has changed and is whole; whether it was taken."""
        return self._loaded.refresh()

    async def run(self) -> None:
        """Refresh every second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()

    def _load(self) -> tuple[_Loaded[T], Stamp]:
        files, stamp = self._files, self._files.stamp()
        try:
            return _Loaded(self._build(files), first_end(read(files.certificate)), time.time()), stamp
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            raise TlsError(f"cannot use certificate {files.certificate} with key {files.key}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class _Loaded(Generic[T]):
    built: T
    end: float | None
    at: float


def _no_password() -> str:
    # without it `load_cert_chain` asks on the terminal
    raise ValueError("private key is encrypted: use an unencrypted key")


def read(path: Path) -> bytes:
    """A PEM file's content, MAX_BYTES at most; OSError."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES)
