# SPDX-License-Identifier: Apache-2.0
"""
Until when the serving certificates are valid, by the port that has them.

Reloaded at a scrape, by the rules by which the ports reload theirs. What cannot be read is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.metrics import autoscaler as catalogue
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from isolation.contract.metrics import MetricSpec


class Certificates:
    """Those of every port that speaks TLS."""

    def __init__(self, files: Mapping[str, CertificateFiles]) -> None:
        """By the label `door`."""
        # whom clients are signed by is not this metric's business
        self._files = {door: CertificateFiles(pair.certificate, pair.key) for door, pair in files.items()}
        self._loaded: dict[str, ReloadingTls[ssl.SSLContext]] = {}

    def __call__(self) -> Mapping[MetricSpec, Mapping[tuple[str, ...], float]]:
        """For a scrape."""
        for door, files in self._files.items():
            if door in self._loaded:
                self._loaded[door].refresh()
                continue
            try:
                self._loaded[door] = ReloadingTls(files, server_context)
            except TlsError:
                continue  # the port logs what is wrong
        ends = {(door,): loaded.end for door, loaded in self._loaded.items()}
        return {catalogue.CERTIFICATE_ENDS: {door: end for door, end in ends.items() if end is not None}}
