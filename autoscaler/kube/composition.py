# SPDX-License-Identifier: Apache-2.0
"""
From a configuration to what it is about: providers of its pools, whoever measures, and what cluster-autoscaler sees.

Decides nothing about pods. What is opened here is closed here; a configuration that no provider can serve opens
nothing and leaves what is open as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.apis.rpc.provider_groups import OfferedPool, OrderingProvider
from autoscaler.kube.usage import Nothing
from autoscaler.kube.usage_http import Exporters, Prometheus
from autoscaler.providers.registry import ORDERED, open_providers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.apis.rpc.provider_groups import ProviderGroups
    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool
    from autoscaler.kube.core.config import Config, PoolConfig
    from autoscaler.kube.core.config import Figures as FiguresConfig
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.world import Figures
    from autoscaler.providers.base import Provider
    from autoscaler.providers.registry import OrderTracker, Providers
    from isolation.contract.handover import Ours
    from isolation.contract.model import Node
    from isolation.kube.access import Access


class Watched:
    """Figures, of which the last reading can be looked at."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.last: Measured | None = None

    async def read(self, addresses: Mapping[str, str]) -> Measured:
        """See `autoscaler.kube.world.Figures`."""
        self.last = await self._figures.read(addresses)
        return self.last

    async def close(self) -> None:
        """Let connections go."""
        if isinstance(self._figures, Exporters | Prometheus):
            await self._figures.__aexit__()


@dataclass(frozen=True, slots=True)
class Wired:
    """What one configuration has opened."""

    config: Config
    providers: Providers
    figures: Watched
    ordered: Mapping[str, Provider]
    """Pools that are ordered of cluster-autoscaler, with who is asked for machines in the end."""

    async def close(self) -> None:
        """All of it."""
        await self.providers.close()
        await self.figures.close()


def opened(config: Config, access: Access, relay: ProviderGroups | None) -> Wired:
    """What the configuration needs; the registry's ConfigError, and MissingError where an SDK is not installed."""
    ordered: dict[str, Provider] = {}

    def order(through: ProviderGroups) -> OrderTracker:
        def ordering(pool: str, provider: Provider) -> Provider:
            ordered[pool] = provider
            return OrderingProvider(through, provider)

        return ordering

    providers = open_providers(config.sources, access, order=None if relay is None else order(relay))
    return Wired(config, providers, Watched(figures_of(config.metrics)), ordered)


def figures_of(wanted: FiguresConfig) -> Figures:
    """Whoever measures."""
    if wanted.source == "prometheus":
        return Prometheus(wanted.url, wanted.scrape_interval_seconds)
    if wanted.source == "none":
        return Nothing()
    return Exporters(wanted.port, wanted.scrape_interval_seconds)


def offers_of(wired: Wired, seen: Observation | None, ours: Callable[[PoolConfig], Ours]) -> list[OfferedPool]:
    """What cluster-autoscaler may scale; `ours`: what our loop does for a pool at this moment."""
    known = seen.pools if seen is not None else {}
    needed = needed_by(seen) if seen is not None else {}
    return [
        OfferedPool(
            name=pool.name,
            provider=wired.ordered[pool.name],
            # spare nodes count where we keep them ready: it would give back what we buy again
            min_nodes=known[pool.name].min_nodes if pool.name in known and ours(pool).buys else pool.min_nodes,
            max_nodes=pool.max_nodes,
            template=known[pool.name].template if pool.name in known else _template(pool),
            ours=ours(pool),
            needed=needed,
        )
        for pool in wired.config.pools
        if pool.source.provider == ORDERED
    ]


def needed_by(seen: Observation) -> dict[str, str]:
    """Nodes by name, for whom they are kept who is not there yet: pods that wait for a purchase, or are on the move."""
    waiting = {home.machine: uid for uid, home in seen.nominations.items()}
    moving = {home.placement.node: uid for uid, home in seen.reserved.items()}
    return {
        node: f"pod {seen.pods[uid].key}" if uid in seen.pods else "a pod that moves there"
        for node, uid in (waiting | moving).items()
    }


def _template(pool: PoolConfig) -> Node | None:
    shaped = pool.shaped(None)
    return None if shaped is None else shaped.node(pool.name)


class KnownPools:
    """See `autoscaler.apis.rpc.expander.Known`."""

    def __init__(self) -> None:
        self.seen: Observation | None = None

    def pools(self) -> Mapping[str, Pool]:
        """As of the latest reading."""
        return {} if self.seen is None else self.seen.pools
