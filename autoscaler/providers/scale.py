# SPDX-License-Identifier: Apache-2.0
"""
Pools behind any object with a `/scale` sub-resource: Cluster API's MachineDeployment, or somebody's own kind.

Decides which number is written and which member is marked to go; it never overwrites a wish that it has not
read. A member is marked first, then the target is lowered; how many are still owed follows from what stands and
what is marked, so a crash between the two, or an answer that was lost, is made good by asking again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.providers.base import (
    READ_SECONDS,
    WRITE_SECONDS,
    ChangedError,
    DeniedError,
    InstanceState,
    PoolState,
    ProviderError,
    ProviderInstance,
    deadline,
    raise_target,
)
from autoscaler.providers.core.node_description import capi_template
from autoscaler.providers.scale_wire import DELETE_MACHINE, NODES, ScaleClient, ScaledKind
from isolation.contract.names import AUTOSCALER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autoscaler.providers.scale_wire import ScaledMember, ScaleStatus
    from isolation.contract.codec.cursor import At
    from isolation.contract.codec.template import NodeTemplate
    from isolation.kube.access import Access

NAME: Final = "scale"
_TRIES: Final = 6
"""A status update changes the object's version too: a wish that nobody has touched is tried again."""
_AT_ONCE: Final = 8
_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """Where one pool's wish stands, and who belongs to it."""

    target: ScaledKind
    name: str
    members: ScaledKind
    """What is counted and marked: machines, or the cluster's own nodes."""
    selector: str
    """Of the members; empty: as the Scale says."""
    mark: str
    """Annotation by which a member goes first; empty: none is known, and nothing can be given back by name."""


def parse_settings(at: At) -> ScaleSettings:
    """
    A pool's settings; raises CodecError.

    apiVersion, resource, namespace, name; `machines` (the resource of the members, Cluster API's by default), or
    `nodes` (a label selector of the cluster's nodes); `mark` (the annotation on a member that is to go first).
    """
    group, _, version = at["apiVersion"].text("cluster.x-k8s.io/v1beta1").rpartition("/")
    namespace = at["namespace"].text(_NAMESPACE)
    target = ScaledKind(group, version, at["resource"].text("machinedeployments"), namespace)
    name = at["name"].name()
    known = {"apiVersion", "resource", "namespace", "name", "machines", "nodes", "mark", "selector"}
    for key, value in at.fields():
        if key not in known:
            raise value.wrong(f"unknown key; settings of provider {NAME}: {', '.join(sorted(known))}")
    if at["nodes"]:
        selector = at["nodes"].text()
        if not selector:
            raise at["nodes"].wrong("an empty selector matches every node of the cluster; set a label selector")
        return ScaleSettings(target, name, NODES, selector, at["mark"].text())
    machines = ScaledKind(group, version, at["machines"].text("machines"), namespace)
    return ScaleSettings(target, name, machines, at["selector"].text(), at["mark"].text(DELETE_MACHINE))


@dataclass(frozen=True, slots=True)
class _Look:
    """One pool: members first, then the wish, so that a wish lowered in between is seen."""

    scale: ScaleStatus
    members: Sequence[ScaledMember]

    @property
    def live(self) -> list[ScaledMember]:
        """Those that count."""
        return [member for member in self.members if member.live]

    @property
    def owed(self) -> int:
        """Members that are too many already: their controller will take the marked ones."""
        return max(0, len(self.live) - self.scale.replicas)

    def leaving(self) -> set[str]:
        """UIDs of marked members that the controller will take."""
        marked = sorted((m for m in self.live if m.marked), key=lambda m: (m.ours, m.object))
        return {member.uid for member in marked[: self.owed]}

    def still(self) -> int:
        """How many of the members too many are not explained by the marks of others."""
        return max(0, self.owed - sum(1 for m in self.live if m.marked and not m.ours))


class ScaleProvider:
    """See the module."""

    def __init__(self, access: Access, pools: Mapping[str, ScaleSettings]) -> None:
        self._pools = dict(pools)
        self._clients = {name: ScaleClient(access, one.target, one.name) for name, one in pools.items()}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    @property
    def name(self) -> str:
        """As in the configuration."""
        return NAME

    async def pools(self) -> tuple[PoolState, ...]:
        """Every pool, some at a time."""
        async with deadline(READ_SECONDS, "reading the pools"), asyncio.TaskGroup() as group:
            asked = [group.create_task(self._answer(name)) for name in self._pools]
        answers = [task.result() for task in asked]
        for answer in answers:
            if isinstance(answer, ProviderError):
                raise answer
        return tuple(answer for answer in answers if isinstance(answer, PoolState))

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """Raise the wish by so many, over exactly the one that was read."""
        if by < 1:
            raise DeniedError(f"{pool}: cannot add {by} nodes; add 1 or more")
        async with deadline(WRITE_SECONDS, f"{pool}: scaling up"):
            look = await self._look(pool)
            if look.owed:
                # a higher wish would call the removal off, and no new machine would come
                raise ChangedError(f"{pool}: {look.owed} members are still being deleted; retry when they are gone")
            return await self._write(pool, look.scale, raise_target(_state(pool, look), by, seen))

    async def cancel(self, pool: str, by: int) -> int:
        """Lower the wish by as many as are missing."""
        async with deadline(WRITE_SECONDS, f"{pool}: cancelling missing nodes"):
            before = None
            for _ in range(_TRIES):
                # a machine that came meanwhile is missing no more: its controller would take another one for it
                look = await self._look(pool)
                target = look.scale.replicas
                if before not in (None, target):
                    break
                before = target
                fewer = max(min(target, len(look.live)), target - max(0, by))
                if fewer == target or await self._client(pool).put(look.scale, fewer):
                    return fewer
            raise ChangedError(f"{pool}: another client changes the target size; nothing was written")

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """Mark, then lower; may be repeated."""
        settings = self._pool(pool)
        async with deadline(WRITE_SECONDS, f"{pool}: removing nodes"):
            look = await self._look(pool)
            wanted = [member for member in look.members if member.called(frozenset(names))]
            if not wanted:
                return ()
            if not settings.mark:
                raise DeniedError(
                    f"{pool}: cannot delete a chosen member of {settings.target.resource}: set `mark` to the annotation"
                    " that selects it for deletion, or use the pool for scale-up only"
                )
            marked = await self._mark(pool, look, wanted)
            try:
                await self._lower(pool)
            except (DeniedError, ChangedError):
                await self._unmark(pool, marked)
                raise
            return tuple(member.instance.node or member.instance.id for member in wanted)

    async def template(self, pool: str) -> NodeTemplate | None:
        """What the object's annotations say of a node from zero (Cluster API's `capacity...` annotations)."""
        async with deadline(READ_SECONDS, f"{pool}: reading the template"):
            return capi_template(await self._client(pool).parent())

    async def close(self) -> None:
        """The access belongs to somebody else."""

    # -- one pool ------------------------------------------------------------------------------

    def _pool(self, pool: str) -> ScaleSettings:
        if pool not in self._pools:
            raise DeniedError(f"pool {pool} is not configured")
        return self._pools[pool]

    def _client(self, pool: str) -> ScaleClient:
        self._pool(pool)
        return self._clients[pool]

    async def _answer(self, pool: str) -> PoolState | ProviderError:
        """An error is a value here: one pool must not cancel the look at the others half-way."""
        try:
            async with self._gate:
                return _state(pool, await self._look(pool))
        except ProviderError as exc:
            return exc

    async def _look(self, pool: str) -> _Look:
        settings, client = self._pool(pool), self._client(pool)
        selector = settings.selector or (await client.scale()).selector
        if not selector:
            raise DeniedError(
                f"{pool}: the Scale of {settings.name} has no selector, so its members are unknown; set `selector` or "
                "`nodes`"
            )
        members = await client.members(settings.members, selector, settings.mark)
        return _Look(await client.scale(), members)

    async def _write(self, pool: str, before: ScaleStatus, replicas: int) -> int:
        """Over a wish that says the same as when it was read, whatever else changed about the object."""
        client, scale = self._client(pool), before
        for _ in range(_TRIES):
            if await client.put(scale, replicas):
                return replicas
            scale = await client.scale()
            if scale.replicas != before.replicas:
                break
        raise ChangedError(f"{pool}: another client changes the target size, now {scale.replicas}; nothing was written")

    async def _mark(self, pool: str, look: _Look, wanted: Sequence[ScaledMember]) -> list[ScaledMember]:
        """Mark these; marks of ours that nobody acts on and nobody asks for any more are taken away first."""
        settings, client = self._pool(pool), self._client(pool)
        if not look.still():
            asked = {member.uid for member in wanted}
            await self._unmark(pool, [m for m in look.live if m.ours and m.uid not in asked])
        done: list[ScaledMember] = []
        try:
            for member in wanted:
                if member.live and not member.ours:
                    await client.mark(settings.members, member, settings.mark, AUTOSCALER)
                    done.append(member)
        except ProviderError:
            await self._unmark(pool, done)
            raise
        return done

    async def _unmark(self, pool: str, members: Sequence[ScaledMember]) -> None:
        settings, client = self._pool(pool), self._client(pool)
        for member in members:
            try:
                await client.mark(settings.members, member, settings.mark, None)
            except ProviderError:
                continue  # the next removal finds it stale

    async def _lower(self, pool: str) -> None:
        """By as many as are marked by us and not too many already."""
        look = await self._look(pool)
        ours = sum(1 for member in look.live if member.ours)
        fewer = max(0, look.scale.replicas - max(0, ours - look.still()))
        if fewer != look.scale.replicas:
            await self._write(pool, look.scale, fewer)


def _state(pool: str, look: _Look) -> PoolState:
    leaving = look.leaving()
    nodes = tuple(
        _leaving(member.instance) if member.uid in leaving else member.instance
        for member in sorted(look.members, key=lambda member: member.object)
    )
    return PoolState(pool, look.scale.replicas, nodes, next((m.short for m in look.members if m.short), ""))


def _leaving(one: ProviderInstance) -> ProviderInstance:
    return ProviderInstance(one.id, one.node, InstanceState.LEAVING, one.note)
