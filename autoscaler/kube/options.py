# SPDX-License-Identifier: Apache-2.0
"""
The options of `gpushare autoscaler`, checked at the start and passed down, never imported.

Every mistake is found in one go, each with what to write instead. What may change while it runs stands in the
configuration file instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.app import GROUPS, SERVICE
from autoscaler.apis.metrics.app import MetricsApiSettings as ApiSettings
from autoscaler.apis.metrics.registration import ServiceRef
from autoscaler.apis.rpc.ports import GrpcSettings as PortSettings
from autoscaler.apis.rpc.server import GrpcPort, ServingError
from isolation.contract.names import AUTOSCALER, SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.host.reloading_tls import CertificateFiles
from isolation.kube.options import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METRICS: Final = "0.0.0.0:9448"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SERVICE: Final = re.compile(f"{_NAME.pattern}/{_NAME.pattern}")


@dataclass(frozen=True, slots=True)
class Grpc:
    """The gRPC ports, each where it is given."""

    listen: Address | None = None
    """Cloud provider for cluster-autoscaler and scaler for KEDA."""
    expander: Address | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    anyone_asks: bool = False
    """Whether the expander answers clients without a certificate."""

    def problems(self) -> Iterator[str]:
        """What cannot be served as asked."""
        if (self.certificate is None) != (self.key is None):
            yield "--grpc-cert and --grpc-key must be set together"
            return
        for option, where in (("--grpc-listen", self.listen), ("--expander-listen", self.expander)):
            if where is not None:
                try:
                    GrpcPort(where.host, where.port, self.files)
                except ServingError as exc:
                    yield f"{option}: {exc} (--grpc-cert, --grpc-key)"
        if self.listen is not None and self.expander is not None and self.listen.host != self.expander.host:
            yield "--grpc-listen and --expander-listen must have the same host"
        if self.expander is not None and self.files is not None and self.client_ca is None and not self.anyone_asks:
            yield "--expander-listen needs --grpc-client-ca to authenticate its clients, or --expander-allow-anonymous"

    @property
    def files(self) -> CertificateFiles | None:
        """The certificate, where there is one."""
        if self.certificate is None or self.key is None:
            return None
        return CertificateFiles(self.certificate, self.key, self.client_ca)

    @property
    def changing(self) -> bool:
        """Whether cluster-autoscaler may change pools here: over TLS only with an authority for its certificate."""
        return self.listen is not None and (self.files is None or self.client_ca is not None)

    def settings(self, fresh_seconds: float) -> PortSettings:
        """For the ports."""
        at = self.listen or self.expander or Address("127.0.0.1", 0)
        return PortSettings(
            host=at.host,
            number=0 if self.listen is None else self.listen.port,
            expander_number=0 if self.expander is None else self.expander.port,
            files=self.files,
            anyone_asks=self.anyone_asks,
            fresh_seconds=fresh_seconds,
        )


@dataclass(frozen=True, slots=True)
class MetricsApi:
    """The aggregated metrics APIs."""

    groups: tuple[str, ...] = ()
    """`custom`, `external`; empty: none is served."""
    listen: Address | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    service: str = f"{SERVICE.namespace}/{SERVICE.name}"
    enter: bool = True

    def problems(self) -> Iterator[str]:
        """What cannot be served as asked."""
        if not self.groups:
            return
        if self.listen is None:
            yield "--metrics-api needs --metrics-api-listen, e.g. 0.0.0.0:8444"
        if self.certificate is None or self.key is None:
            yield "--metrics-api serves TLS: set --metrics-api-cert and --metrics-api-key"
        if not _SERVICE.fullmatch(self.service):
            yield f"--metrics-api-service {self.service!r} is not valid; write {SERVICE.namespace}/{SERVICE.name}"

    def settings(self) -> ApiSettings | None:
        """For the server; None where it is not served."""
        if not self.groups or self.listen is None or self.certificate is None or self.key is None:
            return None
        namespace, _, name = self.service.partition("/")
        return ApiSettings(
            certificate=self.certificate,
            key=self.key,
            groups=frozenset(GROUPS[group] for group in self.groups),
            host=self.listen.host,
            port=self.listen.port,
            authority=self.authority,
            service=ServiceRef(namespace, name),
            enter=self.enter,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """See `cli` for what each means to people."""

    config: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    dry_run: bool = False
    metrics: Address | None = None
    unit_bytes: int = GIB
    namespace: str = SYSTEM_NAMESPACE
    """Of the Lease, the switch and the state."""
    lease: str = AUTOSCALER
    identity: str = ""
    """This process and no other; empty: made up."""
    pod: str = ""
    """Our own pod's name, where we are one: Events about ourselves stand there."""
    grpc: Grpc = field(default_factory=Grpc)
    metrics_api: MetricsApi = field(default_factory=MetricsApi)

    def problems(self) -> Iterator[str]:
        """What cannot be done as asked."""
        for option, name in (("--lease-name", self.lease), ("--namespace", self.namespace)):
            if not _NAME.fullmatch(name):
                yield f"{option} {name!r} is not a valid Kubernetes name"
        yield from self.grpc.problems()
        yield from self.metrics_api.problems()

    def certificates(self) -> dict[str, CertificateFiles]:
        """What is shown, by the port that shows it: as the label `door` of its metric has it."""
        api, found = self.metrics_api, {}
        if api.groups and api.certificate is not None and api.key is not None:
            found["metrics_api"] = CertificateFiles(api.certificate, api.key)
        if self.grpc.files is not None and (self.grpc.listen is not None or self.grpc.expander is not None):
            found["grpc"] = self.grpc.files
        return found
