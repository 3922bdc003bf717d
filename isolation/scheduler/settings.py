# SPDX-License-Identifier: Apache-2.0
"""
The settings of `gpushare scheduler`: checked once at the start and passed down.

All mistakes are reported together, each with what to write instead.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.placement.policy import POLICIES
from isolation.scheduler.admission.core.serving import ONLY_ACK, Serving

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
    """One field for each option of `cli`, where they are explained."""

    kubeconfig: Path | None = None
    context: str | None = None
    admission: Address | None = None
    """TLS: admission webhooks, in a process of their own. None: not served."""
    admission_client_ca: Path | None = None
    """CA that must have signed the clients' certificates; None: any client is accepted."""
    extender: Address | None = None
    """TLS: extender and classic paths, for a scheduler elsewhere. None: not served."""
    extender_client_ca: Path | None = None
    """CA that must have signed the certificates of clients of `extender`."""
    certificate: Path | None = None
    key: Path | None = None
    sidecar: Address | None = None
    """Plain HTTP on a loopback address, for the kube-scheduler in the same pod. None: not served."""
    metrics: Address | None = None
    policy: str = "potential"
    unit_bytes: int = GIB
    namespace: str = SYSTEM_NAMESPACE
    lease: str = SCHEDULER
    kube_scheduler_lease: str = ""
    """Lease of the kube-scheduler in the same pod; empty: campaign whatever it does."""
    identity: str = ""
    """Identity for the Lease; empty: generated."""
    pod: str = ""
    """Name of this pod, which gets the leader label; empty: this is no pod."""
    host: str = ""
    """Host name: prefix of the identity of the kube-scheduler in the same pod."""
    scheduler_name: str = SCHEDULER
    """`schedulerName` that admission sets on pods that request shares."""
    allow_oversized_requests: bool = False
    """Whether larger nodes may be added: admission then warns of requests that no node holds, instead of denying."""
    systems: Serving = ONLY_ACK
    """Dialects that are served, and where they are left to the systems that they come from."""
    trust_groups: tuple[tuple[str, str], ...] = ()
    """Namespaces, each with its group, of which pods may share a card under MPS."""
    log_format: str = "text"
    log_level: str = "info"

    def problems(self) -> Iterator[str]:
        """Mistakes in the settings, each with what to write instead."""
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
        for option, name in (("--kube-scheduler-lease", self.kube_scheduler_lease), ("--lease-name", self.lease)):
            if (name or option == "--lease-name") and not _LEASE.fullmatch(name):
                yield f"{option} {name!r} is not a valid Lease name: use lower-case letters, digits, - and ."

    def _tls(self) -> dict[str, Address | None]:
        return {"--admission-listen": self.admission, "--extender-tls-listen": self.extender}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
