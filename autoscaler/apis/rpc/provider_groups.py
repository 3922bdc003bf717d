# SPDX-License-Identifier: Apache-2.0
"""
Provider pools as cluster-autoscaler's node groups, and the orders that our own loop gives to cluster-autoscaler.

Decides what an increase means (a size, not a step: what was added meanwhile is not added twice) and how long an order
is valid: until the target size has reached it, and only while our loop confirms it (`confirm`), since a loop that
stands still no longer knows which pods it ordered for. Reads come from the last complete refresh; after a failed one
nothing is done on old data, because cluster-autoscaler skips a loop whose Refresh failed.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from autoscaler.apis.rpc.core.node_groups import (
    GroupInstance,
    InstancePhase,
    NodeGroup,
    NodeGroupError,
    NoStockError,
    OutcomeUnknownError,
)
from autoscaler.providers import base
from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.kube.core.errors import ClusterError
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeVar

    from isolation.contract.codec.template import NodeTemplate
    from isolation.contract.model import Node

    T = TypeVar("T")
    Occupied = Callable[[str, str], Awaitable[str]]
    """From a machine's ID and its node (empty: unknown) to a pod that would be lost with it; empty: none."""

_PHASES: Final = {
    base.InstanceState.COMING: InstancePhase.CREATING,
    base.InstanceState.RUNNING: InstancePhase.RUNNING,
    base.InstanceState.LEAVING: InstancePhase.DELETING,
    base.InstanceState.FAILED: InstancePhase.CREATING,
}
_MISSING: Final = "gpushare-missing://"
"""ID prefix of a machine that was ordered and cannot be had: cluster-autoscaler backs off where it sees one."""


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OfferedPool:
    """One pool that cluster-autoscaler may scale."""

    name: str
    provider: base.Provider
    min_nodes: int = 0
    max_nodes: int = 1000
    template: Node | None = None
    """A new node, as configured or learned."""
    others: Mapping[str, str] = field(default_factory=_nothing, hash=False)
    ours: Ours = field(default_factory=partial(Ours, buys=True, drains=True))
    """What our own loop does for this pool at this moment."""
    needed: Mapping[str, str] = field(default_factory=_nothing, hash=False)
    """Nodes that our loop keeps for pods that are not there yet, and which; where it drains."""


class ProviderGroups:
    """A `State` over providers; `occupied` is asked of each machine right before its removal."""

    def __init__(
        self, offers: Iterable[OfferedPool], occupied: Occupied | None = None, steady: Callable[[], float] = boottime
    ) -> None:
        self._occupied, self._steady = occupied, steady
        self._offers = {offer.name: offer for offer in offers}
        self._known: dict[str, base.PoolState] = {}
        self._commanded: dict[str, int] = {}
        self._until = math.inf
        """Until when orders are valid."""
        self._growing: Counter[str] = Counter()
        """The sizes to which pools are being brought at this moment."""
        self._changes: Counter[str] = Counter()
        self._refreshing: asyncio.Task[None] | None = None
        self._cached: tuple[bool, tuple[NodeGroup, ...]] | None = None
        """Reply of `groups` until something changes, and whether orders were valid."""

    # -- our own loop --------------------------------------------------------------------------

    def offer(self, offers: Iterable[OfferedPool]) -> None:
        """
        From now on these pools and no others; what is known of those that stay, stays.

        So do their orders, where our loop buys: where it does not any more, cluster-autoscaler sees the pods and buys.
        """
        self._cached = None
        self._offers = {offer.name: offer for offer in offers}
        for name in self._known.keys() - self._offers.keys():
            del self._known[name]
        for name in [name for name in self._commanded if not self._buys(name)]:
            del self._commanded[name]

    def _buys(self, pool: str) -> bool:
        return pool in self._offers and self._offers[pool].ours.buys

    def command(self, pool: str, size: int) -> None:
        """Order this size from cluster-autoscaler; 0 cancels the order."""
        if pool not in self._offers:
            raise NodeGroupError(f"pool {pool} does not exist")
        self._cached = None
        self._commanded.pop(pool, None)
        if size > 0:
            self._commanded[pool] = size

    def commanded(self, pool: str) -> int:
        """The size ordered and not reached yet; 0: no order."""
        return self._commanded.get(pool, 0)

    def open_orders(self, pool: str, target: int) -> int:
        """Machines ordered that cluster-autoscaler has not begun to add, where the provider has this target size."""
        return max(0, self.commanded(pool) - max(target, self._growing[pool]))

    def confirm(self, seconds: float) -> None:
        """The orders are still needed; they are valid for so long."""
        self._until = self._steady() + seconds

    # -- cluster-autoscaler --------------------------------------------------------------------

    def groups(self) -> tuple[NodeGroup, ...]:
        """Every pool that was read at least once; the same object for as long as nothing has changed."""
        stand = self._steady() <= self._until
        if self._cached is None or self._cached[0] is not stand:
            found = (self._group(o, self._known[o.name], stand) for o in self._offers.values() if o.name in self._known)
            self._cached = stand, tuple(found)
        return self._cached[1]

    async def refresh(self) -> None:
        """Read every provider; concurrent calls share one refresh."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh_all())
        await asyncio.shield(self._refreshing)

    async def grow(self, group: str, by: int) -> None:
        """See `NodeGroups`."""
        provider, seen = self._offers[group].provider, self._known[group].target
        wanted = self._growing[group] = seen + by
        try:
            target = await _call(provider.grow(group, by, seen))
        except GroupChangedError:
            target = await self._target(group)
            if target < wanted:
                target = await _call(provider.grow(group, wanted - target, target))
        finally:
            del self._growing[group]
        self._set_target(group, target)

    async def remove(self, group: str, instances: Sequence[GroupInstance]) -> None:
        """See `NodeGroups`."""
        provider = self._offers[group].provider
        real = [instance.id for instance in instances if not instance.id.startswith(_MISSING)]
        for instance in instances:
            if instance.id in real:
                self._refuse_needed(self._offers[group], instance)
                await self._refuse_occupied(instance)
        if real:
            gone = set(await _call(provider.remove(group, real)))
            known = self._known[group]
            left = {instance.id for instance in known.nodes if {instance.id, instance.node} & gone}
            nodes = tuple(replace(n, state=base.InstanceState.LEAVING) if n.id in left else n for n in known.nodes)
            self._store(replace(known, nodes=nodes))
            self._set_target(group, max(0, known.target - len(left)))
        missing = len(instances) - len(real)
        if missing:
            await self.lower(group, missing)

    async def lower(self, group: str, by: int) -> None:
        """See `NodeGroups`; an order that was not fulfilled is not repeated."""
        self._commanded.pop(group, None)
        self._cached = None
        self._set_target(group, await _call(self._offers[group].provider.cancel(group, by)))

    # -- inside --------------------------------------------------------------------------------

    @staticmethod
    def _refuse_needed(offer: OfferedPool, instance: GroupInstance) -> None:
        """Raise where our loop added the node for a pod, or moves one there: it would be added again."""
        if offer.ours.drains and instance.node and instance.node in offer.needed:
            raise NodeGroupError(f"node {instance.node} is kept for {offer.needed[instance.node]}; no node was deleted")

    async def _refuse_occupied(self, instance: GroupInstance) -> None:
        """Raise where a pod would be lost with the machine: cluster-autoscaler's own watch may be behind."""
        try:
            pod = "" if self._occupied is None else await self._occupied(instance.id, instance.node)
        except ClusterError as exc:
            raise NodeGroupError(
                f"cannot tell which pods are on {instance.node or instance.id}: {exc}; no node was deleted"
            ) from exc
        if pod:
            raise NodeGroupError(f"pod {pod} is on {instance.node or instance.id}; no node was deleted")

    async def _refresh_all(self) -> None:
        providers = list({id(offer.provider): offer.provider for offer in self._offers.values()}.values())
        before = self._changes.copy()
        for states in await asyncio.gather(*(_call(provider.pools()) for provider in providers)):
            for state in states:
                # what was changed meanwhile is newer than this refresh
                if state.name in self._offers and self._changes[state.name] == before[state.name]:
                    self._store(state)
                    self._drop_reached_order(state.name)

    async def _target(self, group: str) -> int:
        for state in await _call(self._offers[group].provider.pools()):
            if state.name == group:
                self._store(state)
                return state.target
        raise NodeGroupError(f"pool {group} no longer exists at its provider")

    def _set_target(self, group: str, target: int) -> None:
        self._changes[group] += 1
        if group not in self._known:
            return  # no longer offered
        self._store(replace(self._known[group], target=target))
        self._drop_reached_order(group)

    def _store(self, state: base.PoolState) -> None:
        self._cached = None
        self._known[state.name] = state

    def _drop_reached_order(self, group: str) -> None:
        if self._known[group].target >= self.commanded(group):
            self._commanded.pop(group, None)

    def _group(self, offer: OfferedPool, known: base.PoolState, stand: bool) -> NodeGroup:  # noqa: FBT001 (orders do)
        min_nodes = max(offer.min_nodes, known.min_nodes or 0)
        max_nodes = offer.max_nodes if known.max_nodes is None else min(offer.max_nodes, known.max_nodes)
        return NodeGroup(
            name=offer.name,
            min_nodes=min(min_nodes, max_nodes),
            max_nodes=max_nodes,
            target=known.target,
            instances=(*map(_instance, known.nodes), *_missing(known)),
            template=offer.template,
            others=offer.others,
            commanded=self.commanded(offer.name) if stand else 0,
        )


class OrderingProvider:
    """The same pools as a provider for our own loop: scale-ups become orders, which cluster-autoscaler fulfils."""

    name = "externalgrpc"

    def __init__(self, relay: ProviderGroups, inner: base.Provider) -> None:
        self._relay, self._inner = relay, inner

    async def pools(self) -> tuple[base.PoolState, ...]:
        """The provider's pools, with orders counted in the target size: nothing is ordered twice."""
        relay = self._relay
        return tuple(
            replace(
                state,
                target=max(state.target, relay.commanded(state.name)),
                ordered=relay.open_orders(state.name, state.target),
            )
            for state in await self._inner.pools()
        )

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """Order so many more."""
        now = {state.name: state.target for state in await self.pools()}
        if pool not in now:
            raise base.DeniedError(f"pool {pool} does not exist at its provider")
        if seen is not None and now[pool] != seen:
            raise base.ChangedError(f"pool {pool}: target size is now {now[pool]}, not {seen}")
        self._relay.command(pool, now[pool] + by)
        return now[pool] + by

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """Remove at once: where we drain, cluster-autoscaler does not remove nodes with shares."""
        gone = await self._inner.remove(pool, names)
        self._relay.command(pool, self._relay.commanded(pool) - len(gone))
        return gone

    async def cancel(self, pool: str, by: int) -> int:
        """Cancel what is only ordered, then what the provider has not delivered yet."""
        target = next((state.target for state in await self._inner.pools() if state.name == pool), None)
        if target is None:
            raise base.DeniedError(f"pool {pool} does not exist at its provider")
        ordered = max(0, self._relay.commanded(pool) - target)
        back = min(by, ordered)
        self._relay.command(pool, target + ordered - back if ordered > back else 0)
        return await self._inner.cancel(pool, by - back) if by > back else target + ordered - back

    async def take_back(self, pool: str, by: int) -> int:
        """What cluster-autoscaler has come for is asked of the provider, and stays."""
        target = next((state.target for state in await self._inner.pools() if state.name == pool), None)
        back = 0 if target is None else min(by, self._relay.open_orders(pool, target))
        if target is not None and back:
            size = self._relay.commanded(pool) - back
            self._relay.command(pool, size if size > target else 0)
        return back

    async def template(self, pool: str) -> NodeTemplate | None:
        """As the provider says."""
        return await self._inner.template(pool)

    async def close(self) -> None:
        """The provider's connections."""
        await self._inner.close()


class GroupChangedError(NodeGroupError):
    """Somebody else changed the pool meanwhile."""


async def _call(answer: Awaitable[T]) -> T:
    """A provider's answer, its errors as a State's."""
    try:
        return await answer
    except base.OutOfStockError as exc:
        raise NoStockError(str(exc)) from exc
    except base.ProviderUnreachableError as exc:
        raise OutcomeUnknownError(str(exc)) from exc
    except base.ChangedError as exc:
        raise GroupChangedError(str(exc)) from exc
    except base.ProviderError as exc:
        raise NodeGroupError(str(exc)) from exc


def _instance(instance: base.ProviderInstance) -> GroupInstance:
    failed = instance.state is base.InstanceState.FAILED
    trouble = (instance.note or "the machine failed and will not become a node") if failed else ""
    return GroupInstance(instance.id, instance.node, _PHASES[instance.state], trouble)


def _missing(known: base.PoolState) -> tuple[GroupInstance, ...]:
    """Stand-ins for machines that were asked for and that the provider says it cannot give."""
    count = known.missing if known.short else 0
    return tuple(
        GroupInstance(f"{_MISSING}{known.name}/{at}", "", InstancePhase.CREATING, known.short, out_of_stock=True)
        for at in range(count)
    )
