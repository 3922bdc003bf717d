# SPDX-License-Identifier: Apache-2.0
"""
TLS of the metrics APIs: the serving certificate, and the CA whose certificates may name users.

Both change while the server runs: the certificate with its files, the CA with the cluster's ConfigMap. Decides whether
a connection was made under the CA that is in force now; what a certificate's owner may say is decided in `front_proxy`.
Client certificates are requested and verified, but not required: probes have none.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context

if TYPE_CHECKING:
    from autoscaler.apis.metrics.front_proxy import FrontProxyTrust


class MetricsTls:
    """One listening socket's TLS; TlsError where the files make no certificate."""

    def __init__(self, files: CertificateFiles) -> None:
        self._trust: FrontProxyTrust | None = None
        self._trust_of: WeakKeyDictionary[ssl.SSLContext, FrontProxyTrust] = WeakKeyDictionary()
        self._reloading = ReloadingTls(files, self._build, "metrics API")
        # The listening socket keeps its context for good, so it is one of its own that gives each connection the
        # one in force.
        self.context = self._build(files)
        self.context.sni_callback = self._choose

    @property
    def trust(self) -> FrontProxyTrust | None:
        """The CA and names in force; None: not known yet, no certificate is accepted."""
        return self._trust

    def set_trust(self, trust: FrontProxyTrust) -> None:
        """Replace the CA; raises TlsError, and keeps the previous one, where the new one is unusable."""
        if trust == self._trust:
            return
        before, self._trust = self._trust, trust
        try:
            self._reloading.rebuild()
        except TlsError as exc:
            self._trust = before
            raise TlsError(f"cannot use the CA of the front proxy or the serving certificate: {exc}") from exc

    def refresh(self) -> bool:
        """Reload the certificate if its files have changed; whether it was reloaded."""
        return self._reloading.refresh()

    def is_outdated(self, connection: ssl.SSLObject | None) -> bool:
        """Whether a connection was made under another CA than the one in force: its certificate proves nothing."""
        then = None if connection is None else self._trust_of.get(connection.context)
        now = None if self._trust is None else self._trust.authority
        return (None if then is None else then.authority) != now

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._reloading.current

    def _build(self, files: CertificateFiles) -> ssl.SSLContext:
        context = server_context(files, ssl.TLSVersion.TLSv1_2)
        # without a CA no certificate passes
        context.verify_mode = ssl.CERT_OPTIONAL
        if self._trust is not None:
            context.load_verify_locations(cadata=self._trust.authority)
            self._trust_of[context] = self._trust
        return context
