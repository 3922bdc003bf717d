# SPDX-License-Identifier: Apache-2.0
"""
What a configuration opens: the providers of its pools, the source of usage, and what cluster-autoscaler may scale.

Decides nothing about pods. What is opened here is closed here; a configuration that no provider can serve opens
nothing and leaves what is open as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.apis.rpc.provider_groups import OfferedPool, OrderingProvider
from autoscaler.kube.usage import Nothing
from autoscaler.kube.usage_http import Exporters, Past, Prometheus
from autoscaler.providers.registry import ORDERED, open_providers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.apis.rpc.provider_groups import ProviderGroups
    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool
    from autoscaler.kube.cluster import UsageSource
    from autoscaler.kube.core.config import Config, PoolConfig
    from autoscaler.kube.core.config import Figures as FiguresConfig
    from autoscaler.kube.usage import Measured
    from autoscaler.providers.base import Provider
    from autoscaler.providers.registry import OrderTracker, Providers
    from isolation.contract.cluster_autoscaler_annotations import Ours
    from isolation.contract.model import Node
    from isolation.kube.access import Access


class RecordedUsage:
    """A source of usage whose latest answer can be looked at."""

    def __init__(self, source: UsageSource) -> None:
        self._source = source
        self.last: Measured | None = None

    async def read(self, addresses: Mapping[str, str]) -> Measured:
        """See `autoscaler.kube.cluster.UsageSource`."""
        self.last = await self._source.read(addresses)
        return self.last

    def past(self, now: float) -> Past | None:
        """What it knows of the last days; None: only the present."""
        return self._source.past(now) if isinstance(self._source, Prometheus) else None

    async def close(self) -> None:
        """Let connections go."""
        if isinstance(self._source, Exporters | Prometheus):
            await self._source.__aexit__()


@dataclass(frozen=True, slots=True)
class Backends:
    """What one configuration has opened."""

    config: Config
    providers: Providers
    usage: RecordedUsage
    ordered: Mapping[str, Provider]
    """Pools that cluster-autoscaler is asked to scale, each with the provider that makes its machines."""

    async def close(self) -> None:
        """All of it."""
        await self.providers.close()
        await self.usage.close()

    def offers(self, observation: Observation | None, ours: Callable[[PoolConfig], Ours]) -> list[OfferedPool]:
        """What cluster-autoscaler may scale; `ours`: what our loop does for a pool at this moment."""
        known = observation.pools if observation is not None else {}
        needed = find_needed(observation) if observation is not None else {}
        return [
            OfferedPool(
                name=pool.name,
                provider=self.ordered[pool.name],
                # spare nodes count where we keep them ready: it would give back what we buy again
                min_nodes=known[pool.name].min_nodes if pool.name in known and ours(pool).buys else pool.min_nodes,
                max_nodes=pool.max_nodes,
                template=known[pool.name].template if pool.name in known else _template(pool),
                ours=ours(pool),
                needed=needed,
            )
            for pool in self.config.pools
            if pool.source.provider == ORDERED
        ]


def open_backends(config: Config, access: Access, relay: ProviderGroups | None) -> Backends:
    """What the configuration needs; the registry's ConfigError, and MissingError where an SDK is not installed."""
    ordered: dict[str, Provider] = {}

    def order(through: ProviderGroups) -> OrderTracker:
        def ordering(pool: str, provider: Provider) -> Provider:
            ordered[pool] = provider
            return OrderingProvider(through, provider)

        return ordering

    providers = open_providers(config.sources, access, order=None if relay is None else order(relay))
    return Backends(config, providers, RecordedUsage(open_usage(config.metrics)), ordered)


def open_usage(wanted: FiguresConfig) -> UsageSource:
    """Where usage is read."""
    if wanted.source == "prometheus":
        return Prometheus(wanted.url, wanted.scrape_interval_seconds)
    if wanted.source == "none":
        return Nothing()
    return Exporters(wanted.port, wanted.scrape_interval_seconds)


def find_needed(observation: Observation) -> dict[str, str]:
    """Nodes by name, for whom they are kept who is not there yet: pods that wait for a purchase, or are on the move."""
    waiting = {home.machine: uid for uid, home in observation.nominations.items()}
    moving = {home.placement.node: uid for uid, home in observation.reserved.items()}
    return {
        node: f"pod {observation.pods[uid].key}" if uid in observation.pods else "a pod that moves there"
        for node, uid in (waiting | moving).items()
    }


def _template(pool: PoolConfig) -> Node | None:
    shaped = pool.shaped(None)
    return None if shaped is None else shaped.node(pool.name)


class KnownPools:
    """See `autoscaler.apis.rpc.expander.Known`."""

    def __init__(self) -> None:
        self.observation: Observation | None = None

    def pools(self) -> Mapping[str, Pool]:
        """As of the latest observation that there was."""
        return {} if self.observation is None else self.observation.pools
