# SPDX-License-Identifier: Apache-2.0
"""
The certificate we serve, read again whenever its files change; connections that are open go on.

Decides when a pair is good enough to take: whole, and certificate and key of each other. Half a pair on
its way to the disk keeps the old one in force, with a line in the log. With an authority for clients, a
handshake without a certificate that it signed fails. No session outlives its connection: a resumed one would not be
checked against the authority that is in force now.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import TYPE_CHECKING, Final

from isolation.kube import certificate_files
from isolation.kube.certificate import first_end

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0


class TlsError(Exception):
    """The files make no usable certificate; said at the start only."""


class Certificates:
    """One pair, and perhaps an authority for clients."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._stamp = self._look()
        try:
            self.context, self.ends = self._load()
        except (OSError, ssl.SSLError, ValueError) as exc:
            raise TlsError(f"cannot load certificate {certificate} with key {key}: {exc}") from exc
        self.loaded = time.time()
        """
        When the pair in force was read; `ends`: until when it is valid, None: that cannot be told. `context` is for
        the next connection.
        """

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Take what is in the files now, if it has changed and is whole."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        try:
            fresh = self._load()
        except (OSError, ssl.SSLError, ValueError) as exc:
            log.warning("cannot reload certificate, keeping the previous one: %s", exc)
            return
        # Changed again while it was read: what was read may be of two generations.
        if self._look() != stamp:
            return
        self._stamp, (self.context, self.ends), self.loaded = stamp, fresh, time.time()
        log.info("reloaded certificate")

    def _look(self) -> certificate_files.Stamp:
        return certificate_files.stamp((self._certificate, self._key, self._client_ca))

    def _load(self) -> tuple[ssl.SSLContext, float | None]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Before 1.3 sessions can be resumed without tickets, from a cache that Python cannot switch off.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.load_cert_chain(self._certificate, self._key, password=certificate_files.no_password)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context, first_end(self._certificate.read_bytes())
