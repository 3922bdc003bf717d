# SPDX-License-Identifier: Apache-2.0
"""
Providers by name from the configuration, and all of them together as one.

Decides which provider answers for a pool and that one pool is changed by one call at a time. A provider that
cannot be reached hides its own pools only. SDKs are imported when a pool asks for them, never before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from autoscaler.providers import ack, aws, scale
from autoscaler.providers.base import DeniedError, Orders, PoolState, ProviderError
from autoscaler.providers.naming import NodeNames
from isolation.contract.codec.cursor import CodecError, show

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autoscaler.providers.base import Provider, ProviderInstance
    from isolation.contract.codec.cursor import At
    from isolation.contract.codec.template import NodeTemplate
    from isolation.kube.access import Access

ORDERED: Final = "externalgrpc"
"""Pools that are ordered of a cluster-autoscaler, which asks the provider named inside."""
NAMES: Final = (ack.NAME, aws.NAME, scale.NAME, ORDERED)
_MAX_POOLS: Final = 1000


class ProviderConfigError(ValueError):
    """Pools that no provider can serve; every one of the reasons, a line each."""


@dataclass(frozen=True, slots=True)
class PoolSource:
    """Where one pool's machines come from."""

    pool: str
    provider: str
    settings: At
    """Of the provider, as they stand in the configuration."""


@dataclass(frozen=True, slots=True)
class ProvidersReading:
    """One look at everything."""

    states: Mapping[str, PoolState] = field(default_factory=dict)
    failed: Mapping[str, ProviderError] = field(default_factory=dict)
    """Pools whose provider did not answer, and why: they are neither empty nor as they were."""


class OrderTracker(Protocol):
    """Who makes a pool's provider one that orders of cluster-autoscaler instead of buying."""

    def __call__(self, pool: str, provider: Provider) -> Provider:
        """The provider to use instead."""


class NodeNaming(Protocol):
    """Who knows which node a machine has become."""

    async def of(self, ids: Collection[str]) -> Mapping[str, str]:
        """Node names by provider ID, those that are nodes; a ProviderError where nobody can tell."""


class Providers:
    """Every configured pool; the loop sees no difference between them."""

    def __init__(self, by_pool: Mapping[str, Provider], naming: NodeNaming | None = None) -> None:
        self._by_pool = dict(by_pool)
        self._naming = naming
        self._names: dict[str, Mapping[str, str]] = {}
        """Of each pool: nodes by ID, as of the last look."""
        self._locks = {pool: asyncio.Lock() for pool in by_pool}

    async def read(self) -> ProvidersReading:
        """All pools; nodes that a provider does not know by name are named by their `spec.providerID`."""
        groups = {id(provider): provider for provider in self._by_pool.values()}
        answers = await asyncio.gather(*(_asked(provider) for provider in groups.values()))
        states: dict[str, PoolState] = {}
        failed: dict[str, ProviderError] = {}
        for provider, answer in zip(groups.values(), answers, strict=True):
            mine = [pool for pool, other in self._by_pool.items() if other is provider]
            if isinstance(answer, ProviderError):
                failed |= dict.fromkeys(mine, answer)
                continue
            by_name = {state.name: state for state in answer}
            for pool in mine:
                if pool not in by_name:
                    failed[pool] = DeniedError(f"provider {provider.name} does not report it")
                    continue
                try:
                    states[pool] = await self._named(by_name[pool])
                except ProviderError as exc:
                    failed[pool] = exc
        return ProvidersReading(states, failed)

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """As the pool's provider does it, one call at a time."""
        async with self._lock(pool):
            return await self._of(pool).grow(pool, by, seen)

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """Named by node or by ID; the answer is in the words of the question."""
        ids = {node: ident for ident, node in self._names.get(pool, {}).items()}
        asked = {ids.get(name, name): name for name in names}
        async with self._lock(pool):
            gone = await self._of(pool).remove(pool, {*asked, *names})
        return tuple(asked.get(name, name) for name in gone)

    async def cancel(self, pool: str, by: int) -> int:
        """As the pool's provider does it, one call at a time."""
        async with self._lock(pool):
            return await self._of(pool).cancel(pool, by)

    async def take_back(self, pool: str, by: int) -> int:
        """Orders that nobody has carried out yet; how many there were of a pool that is ordered."""
        provider = self._of(pool)
        if not isinstance(provider, Orders):
            raise DeniedError(f"pool {pool}: its nodes are bought, not ordered")
        async with self._lock(pool):
            return await provider.take_back(pool, by)

    async def template(self, pool: str) -> NodeTemplate | None:
        """What a fresh node will look like, if the provider can tell."""
        return await self._of(pool).template(pool)

    async def close(self) -> None:
        """Let every connection go."""
        for provider in {id(one): one for one in self._by_pool.values()}.values():
            await provider.close()

    def _of(self, pool: str) -> Provider:
        if pool not in self._by_pool:
            raise DeniedError(
                f"pool {pool} is not configured; configured pools: {', '.join(sorted(self._by_pool)) or 'none'}"
            )
        return self._by_pool[pool]

    def _lock(self, pool: str) -> asyncio.Lock:
        self._of(pool)
        return self._locks[pool]

    async def _named(self, state: PoolState) -> PoolState:
        """A machine that may be a node and has no name is looked up; if that fails there is no answer."""
        nameless = {one.id for one in state.nodes if not one.node}
        names = await self._naming.of(nameless) if nameless and self._naming is not None else {}
        self._names[state.name] = names
        return replace(state, nodes=tuple(_with_name(one, names) for one in state.nodes))


def _with_name(one: ProviderInstance, names: Mapping[str, str]) -> ProviderInstance:
    return one if one.node or one.id not in names else replace(one, node=names[one.id])


async def _asked(provider: Provider) -> tuple[PoolState, ...] | ProviderError:
    try:
        return await provider.pools()
    except ProviderError as exc:
        return exc


def open_providers(
    sources: Sequence[PoolSource],
    access: Access | None,
    clock: Callable[[], float] = monotonic,
    order: OrderTracker | None = None,
) -> Providers:
    """
    A provider for each pool; ConfigError with everything that is wrong, MissingError without the SDK.

    `access` to the cluster serves `scale` pools, and names the nodes of clouds that know machines only. `order`
    serves `externalgrpc` pools; without it there may be none.
    """
    problems: list[str] = []
    sources, ordered = _inner(sources, order, problems)
    scaled: dict[str, scale.ScaleSettings] = {}
    groups: dict[str, aws.AwsSettings] = {}
    node_pools: dict[str, ack.AckSettings] = {}
    seen: set[str] = set()
    if len(sources) > _MAX_POOLS:
        raise ProviderConfigError(f"{len(sources)} pools: the maximum is {_MAX_POOLS}")
    for source in sources:
        try:
            if source.pool in seen:
                problems.append(f"pool {source.pool}: duplicate name")
            seen.add(source.pool)
            if source.provider == scale.NAME:
                scaled[source.pool] = scale.parse_settings(source.settings)
            elif source.provider == aws.NAME:
                groups[source.pool] = aws.parse_settings(source.settings)
            elif source.provider == ack.NAME:
                node_pools[source.pool] = ack.parse_settings(source.settings)
            else:
                problems.append(
                    f"pool {source.pool}: unknown provider {show(source.provider)}; providers: {', '.join(NAMES)}"
                )
        except CodecError as exc:
            problems.append(f"pool {source.pool}: {exc}")
    if (scaled or groups) and access is None:
        problems.append(f"pools of providers {scale.NAME} and {aws.NAME} need access to a cluster")
    problems += _shared({pool: (s.target, s.name) for pool, s in scaled.items()})
    problems += _shared({pool: (s.region, s.group) for pool, s in groups.items()})
    problems += _shared({pool: (s.cluster, s.node_pool) for pool, s in node_pools.items()})
    if problems:
        raise ProviderConfigError("\n".join(problems))
    naming = NodeNames(access, clock) if groups and access is not None else None
    built = _built(scaled, groups, node_pools, access)
    return Providers(built | {pool: wrap(pool, built[pool]) for pool, wrap in ordered.items()}, naming)


def _inner(
    sources: Sequence[PoolSource], order: OrderTracker | None, problems: list[str]
) -> tuple[list[PoolSource], dict[str, OrderTracker]]:
    """Every pool by the provider that is asked for machines in the end, and which of them are ordered."""
    found: list[PoolSource] = []
    ordered: dict[str, OrderTracker] = {}
    for source in sources:
        try:
            found.append(make_provider(source))
        except CodecError as exc:
            problems.append(f"pool {source.pool}: {exc}")
            continue
        if source.provider == ORDERED and order is None:
            problems.append(f"pool {source.pool}: no gRPC endpoint for cluster-autoscaler; set --grpc-listen")
        elif source.provider == ORDERED and order is not None:
            ordered[source.pool] = order
    return found, ordered


def make_provider(source: PoolSource) -> PoolSource:
    """The pool by the provider that is asked for its machines in the end; CodecError."""
    if source.provider != ORDERED:
        return source
    inside = source.settings["provider"].text()
    for key, value in source.settings.fields():
        if key not in {"provider", "settings"}:
            raise value.wrong(f"unknown key; settings of provider {ORDERED}: provider, settings")
    if not inside or inside == ORDERED:
        raise source.settings["provider"].wrong(f"missing or not allowed; write one of {', '.join(NAMES[:-1])}")
    return PoolSource(source.pool, inside, source.settings["settings"])


def _shared(places: Mapping[str, object]) -> list[str]:
    """Two pools on one source would each buy what the other gives back."""
    first: dict[object, str] = {}
    for pool, place in places.items():
        first.setdefault(place, pool)
    return [
        f"pool {pool}: same source as pool {first[p]}; merge them, or give each its own source"
        for pool, p in places.items()
        if first[p] != pool
    ]


def _built(
    scaled: Mapping[str, scale.ScaleSettings],
    groups: Mapping[str, aws.AwsSettings],
    node_pools: Mapping[str, ack.AckSettings],
    access: Access | None,
) -> dict[str, Provider]:
    """One provider for what one look answers, so that trouble with a pool hides no other."""
    made: dict[str, Provider] = {}
    if access is not None:
        made |= {pool: scale.ScaleProvider(access, {pool: one}) for pool, one in scaled.items()}
    for region in sorted({one.region for one in groups.values()}):
        mine = {pool: one for pool, one in groups.items() if one.region == region}
        made |= dict.fromkeys(mine, aws.AwsProvider(aws.make_client(region), mine))
    for region in sorted({one.region for one in node_pools.values()}):
        api = ack.make_client(region)
        made |= {pool: ack.AckProvider(api, {pool: o}) for pool, o in node_pools.items() if o.region == region}
    return made
