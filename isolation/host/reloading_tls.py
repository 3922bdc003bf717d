# SPDX-License-Identifier: Apache-2.0
"""
A serving certificate that is read again whenever its files change; open connections go on.

Decides when files are good enough to use: whole, and certificate and key of each other. While a renewal is half
written, or after one that is unusable, the previous certificate stays in force. What a server builds of the files (an
SSL context, gRPC credentials), and whom it believes, is each server's own decision.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from isolation.host.core.certificate import first_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
MOST_BYTES: Final = 1 << 20
"""Of one file."""

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
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
        """What changes when a file does; the files of a Secret's volume are links, which are followed."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.client_ca))


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
        self._files, self._build, self._name = files, build, name
        self._stamp = files.stamp()
        self._warned: Stamp | None = None
        self.rebuild()

    def rebuild(self) -> None:
        """Build anew of what is in the files now; TlsError, and what was in force stays so."""
        self.current, self.end = self._load()
        self.loaded = time.time()
        """When that was, in seconds since the epoch; `end`: until when the pair is valid, None: unknown."""

    def refresh(self) -> bool:
        """Take what is in the files now, if it has changed and is whole; whether it was taken."""
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return False
        try:
            fresh = self._load()
        except TlsError as exc:
            if self._name and stamp != self._warned:
                log.warning("cannot reload %s certificate, keeping the previous one: %s", self._name, exc)
            self._warned = stamp
            return False
        # changed again while it was read: what was read may be of two generations
        if self._files.stamp() != stamp:
            return False
        self._stamp, (self.current, self.end), self.loaded = stamp, fresh, time.time()
        if self._name:
            log.info("reloaded %s certificate", self._name)
        return True

    async def run(self) -> None:
        """Refresh every second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()

    def _load(self) -> tuple[T, float | None]:
        files = self._files
        try:
            return self._build(files), first_end(read(files.certificate))
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            raise TlsError(f"cannot use certificate {files.certificate} with key {files.key}: {exc}") from exc


def _no_password() -> str:
    # without it `load_cert_chain` asks on the terminal
    raise ValueError("private key is encrypted: use an unencrypted key")


def read(path: Path) -> bytes:
    """A PEM file's content, MOST_BYTES at most; OSError."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
