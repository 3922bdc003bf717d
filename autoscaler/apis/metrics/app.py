# SPDX-License-Identifier: Apache-2.0
"""
The metrics APIs as one part of a process: served while a block lasts, checked in the background.

Decides what must be known (the CA of the front proxy, that no other server has the APIs) and how often each is checked.
A failed check shows in readiness and in the log, and never stops serving: the namespace controller deletes no namespace
of the cluster while the discovery of one registered group fails. The values come from a `SnapshotSource`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from autoscaler.apis.metrics import registration
from autoscaler.apis.metrics.authorizer import Authorizer
from autoscaler.apis.metrics.core.answer import Clocks
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL
from autoscaler.apis.metrics.front_proxy import CONFIG_MAP, NAMESPACE, TrustError, parse_trust
from autoscaler.apis.metrics.registration import ServedElsewhereError, ServiceRef
from autoscaler.apis.metrics.server import MetricsApiServer, serve
from autoscaler.apis.metrics.tls import MetricsTls
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.host.reloading_tls import CertificateFiles, TlsError
from isolation.kube.core.errors import ClusterError
from isolation.kube.election import boottime
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from autoscaler.apis.metrics.core.readings import SnapshotSource
    from isolation.kube.access import Access
    from isolation.kube.background import Background

log = logging.getLogger(__name__)
GROUPS: Final = {"custom": CUSTOM, "external": EXTERNAL}
"""What `--metrics-api` may name."""
SERVICE: Final = ServiceRef(SYSTEM_NAMESPACE, f"{AUTOSCALER}-metrics")
FILES_SECONDS: Final = 1.0
TRUST_SECONDS: Final = 10.0
ENTRY_SECONDS: Final = 60.0
FRESH_SECONDS: Final = 45.0
"""Three scrapes."""
_CONFIG_MAP: Final = f"/api/v1/namespaces/{quote(NAMESPACE)}/configmaps/{quote(CONFIG_MAP)}"
_READ_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 5.0
"""After a failed check."""
_NEVER: Final = float("-inf")
_WRONG: Final = (ClusterError, TrustError, TlsError, ServedElsewhereError, OSError)


@dataclass(frozen=True, slots=True)
class MetricsApiSettings:
    """How the APIs are served."""

    certificate: Path
    key: Path
    """Of the Service's name, `<name>.<namespace>.svc`; read again when they change."""
    groups: frozenset[str] = frozenset((CUSTOM,))
    host: str = "0.0.0.0"  # noqa: S104 (kube-apiserver comes from outside the pod)
    port: int = 8444
    authority: Path | None = None
    """Who signed our certificate, for the APIServices; None: they have it by other means (cert-manager)."""
    service: ServiceRef = SERVICE
    enter: bool = True
    """Whether missing APIServices are created; else they are only checked."""


class _Checks:
    """The periodic checks."""

    def __init__(self, access: Access, tls: MetricsTls, settings: MetricsApiSettings) -> None:
        self._access, self._tls, self._settings = access, tls, settings
        self.wrong = {"trust": "front proxy CA not read yet", "entry": "APIServices not checked yet"}

    def unready(self) -> str:
        return "; ".join(filter(None, self.wrong.values()))

    async def trust(self) -> None:
        """Read the front proxy's CA; raises ClusterError, TrustError, TlsError."""
        found = decode_object(await self._access.send("GET", _CONFIG_MAP, seconds=_READ_SECONDS))
        self._tls.set_trust(parse_trust(found))
        self.wrong["trust"] = ""

    async def entry(self) -> None:
        """That the APIs are ours; raises ClusterError, TakenError, OSError."""
        settings = self._settings
        authority = None if settings.authority is None else await asyncio.to_thread(settings.authority.read_bytes)
        wish = registration.build_api_services(settings.groups, settings.service, authority)
        missing = await registration.register(self._access, wish, settings.service, write=settings.enter)
        self.wrong["entry"] = f"missing APIServices: {', '.join(missing)}" if missing else ""

    async def start(self) -> None:
        """Run both once; a failed one is repeated later."""
        for name, look in (("trust", self.trust), ("entry", self.entry)):
            try:
                await look()
            except _WRONG as exc:
                self._note(name, exc)

    async def run(self) -> None:
        """Repeat until cancelled."""
        due = {"trust": TRUST_SECONDS, "entry": ENTRY_SECONDS}
        looks = {"trust": self.trust, "entry": self.entry}
        last = dict.fromkeys(due, time.monotonic())
        while True:
            await asyncio.sleep(FILES_SECONDS)
            if self._tls.refresh():
                last["entry"] = _NEVER  # kube-apiserver must have the CA of the new certificate
            for name, look in looks.items():
                pause = _AGAIN_SECONDS if self.wrong[name] else due[name]
                if time.monotonic() - last[name] >= pause:
                    try:
                        await look()
                    except _WRONG as exc:
                        self._note(name, exc)
                    last[name] = time.monotonic()

    def _note(self, name: str, exc: Exception) -> None:
        if isinstance(exc, ServedElsewhereError) or self.wrong[name]:
            self.wrong[name] = str(exc)
        log.warning("metrics API check failed: check=%s: %s", name, exc)


@contextlib.asynccontextmanager
async def serve_metrics_api(
    access: Access,
    readings: SnapshotSource,
    settings: MetricsApiSettings,
    background: Background,
    *,
    closed: Callable[[], str] = str,
    fresh: Callable[[], float] = lambda: FRESH_SECONDS,
) -> AsyncIterator[int]:
    """
    Serve while the block lasts; the port. Raises TlsError where our certificate is none.

    `closed`: why no metrics are served, empty: they are; discovery is answered all the same. `fresh`: seconds, older
    figures are not served.
    """
    tls = MetricsTls(CertificateFiles(settings.certificate, settings.key))
    care = _Checks(access, tls, settings)
    authorizer = Authorizer(access, boottime)
    server = MetricsApiServer(
        tls,
        authorizer,
        readings,
        settings.groups,
        now=lambda: Clocks(boottime(), time.time(), fresh()),
        unready=care.unready,
        closed=closed,
    )
    await care.start()
    async with serve(server, tls, settings.host, settings.port) as port, background.keep("metrics-api", care.run):
        yield port
