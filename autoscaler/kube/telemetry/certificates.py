# SPDX-License-Identifier: Apache-2.0
"""
Until when the certificates that we show are valid, by the port that shows them.

Read again when a file changes, at a scrape. Decides as the ports do what counts as a pair: half of one on its way to
the disk keeps the old one in force, and what is told of it. What cannot be read is absent.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from isolation.contract.metrics import autoscaler as catalogue
from isolation.kube import certificate_files
from isolation.kube.certificate import first_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.apis.rpc.server import Files
    from isolation.contract.metrics import MetricSpec


class Certificates:
    """Those of every port that speaks TLS."""

    def __init__(self, pairs: Mapping[str, Files]) -> None:
        """By the label `door`."""
        self._pairs = pairs
        self._stamps: dict[str, certificate_files.Stamp] = {}
        self._ends: dict[str, float] = {}

    def __call__(self) -> Mapping[MetricSpec, Mapping[tuple[str, ...], float]]:
        """For a scrape."""
        for door, pair in self._pairs.items():
            stamp = certificate_files.stamp((pair.certificate, pair.key))
            if self._stamps.get(door) == stamp:
                continue
            self._stamps[door] = stamp
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(pair.certificate, pair.key, password=certificate_files.no_password)
                end = first_end(pair.certificate.read_bytes())
            except (OSError, ValueError):  # ssl.SSLError is an OSError; the port says in the log what is wrong
                continue
            self._ends.pop(door, None)
            if end is not None:
                self._ends[door] = end
        return {catalogue.CERTIFICATE_ENDS: {(door,): end for door, end in self._ends.items()}}
