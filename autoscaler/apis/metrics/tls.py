# SPDX-License-Identifier: Apache-2.0
"""
TLS for the metrics APIs: the certificate that is shown, and whose certificates may vouch for users.

Both change while we run: the pair with its files, the authority with the cluster's ConfigMap. Decides
which pair is good enough to take, and whether a connection was made under the authority that counts now;
what a certificate's owner may say is decided in `front_proxy`. Certificates of clients are asked for and
checked, but not demanded: probes have none.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from isolation.kube import certificate_files

if TYPE_CHECKING:
    from pathlib import Path

    from autoscaler.apis.metrics.front_proxy import Trust

log = logging.getLogger(__name__)


class TlsError(Exception):
    """The files make no usable certificate."""


class Door:
    """One listening socket's TLS."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._trust: Trust | None = None
        self._under: WeakKeyDictionary[ssl.SSLContext, Trust] = WeakKeyDictionary()
        self._stamp = self._look()
        try:
            self._current = self._load()
            self.context = self._load()
        except (OSError, ssl.SSLError, ValueError) as exc:
            raise TlsError(f"cannot use certificate {certificate} with key {key}: {exc}") from exc
        # For the listening socket: hands every connection what is in force.
        self.context.sni_callback = self._choose

    @property
    def trust(self) -> Trust | None:
        """Who may vouch now; None: nobody yet."""
        return self._trust

    def believe(self, trust: Trust) -> None:
        """From now on these may vouch; raises TlsError, and keeps the ones before, where the authority is none."""
        if trust == self._trust:
            return
        before, self._trust = self._trust, trust
        try:
            self._current = self._load()
        except (OSError, ssl.SSLError, ValueError) as exc:
            self._trust = before
            raise TlsError(f"cannot use the CA of the front proxy or the serving certificate: {exc}") from exc

    def refresh(self) -> bool:
        """Take what is in the files now, if it has changed and is whole; whether it was taken."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        try:
            fresh = self._load()
        except (OSError, ssl.SSLError, ValueError) as exc:
            log.warning("cannot load the changed metrics API certificate: keeping the previous one: %s", exc)
            return False
        # Changed again while it was read: what was read may be of two generations.
        if self._look() != stamp:
            return False
        self._stamp, self._current = stamp, fresh
        log.info("reloaded metrics API certificate")
        return True

    def outdated(self, connection: ssl.SSLObject | None) -> bool:
        """Whether a connection was made under another authority than today's: its certificate proves nothing."""
        made = None if connection is None else self._under.get(connection.context)
        now = None if self._trust is None else self._trust.authority
        return (None if made is None else made.authority) != now

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _look(self) -> certificate_files.Stamp:
        return certificate_files.stamp((self._certificate, self._key))

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A session that is taken up again would bring along a certificate that was checked under an older authority.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.load_cert_chain(self._certificate, self._key, password=certificate_files.no_password)
        # The mode is the listening socket's for good; without an authority no certificate passes.
        context.verify_mode = ssl.CERT_OPTIONAL
        if self._trust is not None:
            context.load_verify_locations(cadata=self._trust.authority)
            self._under[context] = self._trust
        return context
