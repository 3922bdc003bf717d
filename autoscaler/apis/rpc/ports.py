# SPDX-License-Identifier: Apache-2.0
"""
Which gRPC ports are open, and which clients may call which service.

    8086  cloud provider and KEDA's external scaler. With a CA for clients, each service has its own list of names:
          a client that may read metrics may not delete nodes.
    8087  the expander: cluster-autoscaler's client for it has no certificate, so this port requires none.
          It gives advice and changes nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.apis.rpc.cloud_provider import CloudProvider
from autoscaler.apis.rpc.expander import MAX_BYTES as EXPANDER_BYTES
from autoscaler.apis.rpc.expander import Expander
from autoscaler.apis.rpc.handler import CallPolicy
from autoscaler.apis.rpc.keda_scaler import FRESH_SECONDS, MAX_STREAMS, ExternalScaler
from autoscaler.apis.rpc.server import GrpcPort, ServingError, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from autoscaler.apis.metrics.core.readings import SnapshotSource
    from autoscaler.apis.rpc.core.node_groups import NodeGroups
    from autoscaler.apis.rpc.expander import ExpanderPools
    from autoscaler.apis.rpc.handler import CallCounter
    from autoscaler.apis.rpc.server import GrpcService
    from isolation.host.reloading_tls import CertificateFiles

CHANGING_PORT: Final = 8086
EXPANDER_PORT: Final = 8087
_CALLS: Final = 64


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """From flags."""

    host: str = "127.0.0.1"
    """Beyond this machine only with `files`, and the cloud provider only with an authority for clients too."""
    number: int = CHANGING_PORT
    expander_number: int = EXPANDER_PORT
    files: CertificateFiles | None = None
    provider_callers: frozenset[str] = frozenset({"cluster-autoscaler"})
    """Names in certificates (common or alternative) that may change pools."""
    figures_callers: frozenset[str] = frozenset({"keda-operator"})
    anyone_asks: bool = False
    """Whether the expander answers clients without a certificate too, as a stock cluster-autoscaler is one."""
    fresh_seconds: float = FRESH_SECONDS
    """Older figures are not served: three scrapes."""


@dataclass(frozen=True, slots=True)
class OpenPorts:
    """Numbers of the ports that are served; None: that one is not."""

    number: int | None
    expander_number: int | None


@asynccontextmanager
async def serve_ports(
    settings: GrpcSettings,
    *,
    state: NodeGroups | None = None,
    known: ExpanderPools | None = None,
    readings: SnapshotSource | None = None,
    tally: CallCounter | None = None,
) -> AsyncIterator[OpenPorts]:
    """Serve what is given for as long as this lasts; ServingError."""
    named = settings.files is not None and settings.files.client_ca is not None
    if state is not None and settings.files is not None and not named:
        raise ServingError("the cloud provider can delete nodes: set --grpc-client-ca to authenticate its clients")
    services: list[GrpcService] = []
    if state is not None:
        services.append(
            CloudProvider(state, CallPolicy(callers=settings.provider_callers if named else None, tally=tally))
        )
    if readings is not None:
        callers = settings.figures_callers if named else None
        policy = CallPolicy(callers=callers, tally=tally)
        services.append(ExternalScaler(readings, policy, fresh_seconds=settings.fresh_seconds))
    first = GrpcPort(settings.host, settings.number, settings.files, most_calls=_CALLS + MAX_STREAMS)
    files = settings.files
    if files is not None and settings.anyone_asks:
        files = replace(files, client_ca=None)
    elif files is not None and known is not None and not named:
        raise ServingError(
            "the expander has no --grpc-client-ca to authenticate its clients; set it, or --expander-allow-anonymous"
        )
    advised = settings.provider_callers if named and not settings.anyone_asks else None
    second = GrpcPort(settings.host, settings.expander_number, files, EXPANDER_BYTES, most_calls=4)
    async with AsyncExitStack() as stack:
        number = await stack.enter_async_context(serve(first, services)) if services else None
        expander = Expander(known, CallPolicy(callers=advised, tally=tally)) if known is not None else None
        other = await stack.enter_async_context(serve(second, [expander])) if expander is not None else None
        yield OpenPorts(number, other)
