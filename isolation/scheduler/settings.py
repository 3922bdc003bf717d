# SPDX-License-Identifier: Apache-2.0
"""
What `gpushare scheduler` is told at its start, checked at once and passed down, never imported.

Every mistake is found in one go, each with what to write instead.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.placement.policy import POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from isolation.kube.options import Address

ADMISSION: Final = "0.0.0.0:8443"
SIDECAR: Final = "127.0.0.1:8442"
METRICS: Final = "0.0.0.0:9446"
_LEASE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """See `cli` for what each means to people."""

    kubeconfig: Path | None = None
    context: str | None = None
    admission: Address | None = None
    """TLS: admission webhooks, in a process of their own. None: not served."""
    admission_client_ca: Path | None = None
    """Whoever asks admission shows a certificate of this authority; None: everybody may ask."""
    extender: Address | None = None
    """TLS: extender and classic paths, for a scheduler elsewhere. None: not served."""
    extender_client_ca: Path | None = None
    """Whoever asks the extender over TLS shows a certificate of this authority."""
    certificate: Path | None = None
    key: Path | None = None
    sidecar: Address | None = None
    """Plain HTTP on a loopback address, for the kube-scheduler beside us. None: not served."""
    metrics: Address | None = None
    policy: str = "potential"
    unit_bytes: int = GIB
    namespace: str = SYSTEM_NAMESPACE
    lease: str = SCHEDULER
    beside: str = ""
    """Name of the Lease of the kube-scheduler beside us; empty: campaign on our own."""
    identity: str = ""
    """This process and no other; empty: made up."""
    pod: str = ""
    """Our own pod's name, where we are one: it gets the leader's label."""
    host: str = ""
    """Our host name, with which the kube-scheduler beside us begins its identity."""
    scheduler_name: str = SCHEDULER
    """`schedulerName` that admission gives to pods that ask for shares."""
    growing: bool = False
    """Whether nodes may come whose like is not here now: admission then warns of what no node holds."""
    log_format: str = "text"
    log_level: str = "info"

    def problems(self) -> Iterator[str]:
        """What cannot be done as asked."""
        served = [name for name, where in self._tls().items() if where is not None]
        if served and (self.certificate is None or self.key is None):
            yield f"{' and '.join(served)} need a certificate: set --tls-cert and --tls-key, or {served[0]} none"
        if not served and self.sidecar is None:
            yield "nothing to serve: set --admission-listen, --extender-listen or --extender-tls-listen"
        if self.extender is not None and self.extender_client_ca is None:
            yield "--extender-tls-listen needs --extender-client-ca: the extender protocol has no other authentication"
        given = (self.admission_client_ca, self.extender_client_ca)
        for (name, where), authority in zip(self._tls().items(), given, strict=True):
            if authority is not None and where is None:
                option = name.replace("-tls-listen", "").replace("-listen", "") + "-client-ca"
                yield f"{option} has no effect with {name} none: set {name}, or remove {option}"
        if self.sidecar is not None and not _loopback(self.sidecar.host):
            yield f"--extender-listen {self.sidecar} has no authentication: use a loopback address such as {SIDECAR}"
        if self.policy not in POLICIES:
            yield f"--policy {self.policy} is unknown: use one of {', '.join(sorted(POLICIES))}"
        for option, name in (("--kube-scheduler-lease", self.beside), ("--lease-name", self.lease)):
            if (name or option == "--lease-name") and not _LEASE.fullmatch(name):
                yield f"{option} {name!r} is not a valid Lease name: use lower-case letters, digits, - and ."

    def _tls(self) -> dict[str, Address | None]:
        return {"--admission-listen": self.admission, "--extender-tls-listen": self.extender}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
