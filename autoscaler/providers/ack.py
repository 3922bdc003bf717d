# SPDX-License-Identifier: Apache-2.0
"""
Pools on ACK node pools, by Alibaba's SDK for Container Service.

Decides how a node pool is read and how one node more or less is asked for; knows no pods. The API has no
compare-and-set: the pool is read again just before each write, and what the reader expected is compared. A pool
that ACK's own autoscaler scales is left alone.

Source: Alibaba Cloud, Container Service for Kubernetes API 2015-12-15 (DescribeClusterNodePoolDetail,
DescribeClusterNodes, ModifyClusterNodePool, ScaleClusterNodePool, RemoveNodePoolNodes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoscaler.providers.base import (
    READ_SECONDS,
    WRITE_SECONDS,
    ChangedError,
    DeniedError,
    InstanceState,
    OutOfStockError,
    PoolState,
    ProviderError,
    ProviderInstance,
    ProviderUnreachableError,
    deadline,
    raise_target,
)
from autoscaler.providers.cloud import ANSWER_SECONDS, CONNECT_SECONDS, import_sdk, is_raised_by, read_texts
from autoscaler.providers.core.stock import is_out_of_stock, shorten_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from isolation.contract.codec.cursor import At
    from isolation.contract.codec.template import NodeTemplate

NAME: Final = "ack"
_EXTRA: Final = "ack"
_PAGE: Final = 100
_MAX_PAGES: Final = 200
_MAX_AT_ONCE: Final = 500
"""Nodes that one request may add."""
_THROTTLED: Final = 429
_OWN_TROUBLE: Final = 500
_STATES: Final = {
    "initial": InstanceState.COMING,
    "pending": InstanceState.COMING,
    "starting": InstanceState.COMING,
    "running": InstanceState.RUNNING,
    "failed": InstanceState.FAILED,
    "removing": InstanceState.LEAVING,
    "stopping": InstanceState.LEAVING,
}
"""What ACK says of a node; an unknown word is a running one with a note."""
_CLOSED: Final = frozenset({"removing", "deleting", "updating"})
"""States of a node pool in which it takes no new size."""


@dataclass(frozen=True, slots=True)
class AckSettings:
    """One node pool."""

    region: str
    cluster: str
    node_pool: str


def parse_settings(at: At) -> AckSettings:
    """`region`, `cluster` and `nodePool`; raises CodecError."""
    return AckSettings(*read_texts(at, NAME, ("region", "cluster", "nodePool")))


@dataclass(frozen=True, slots=True)
class AckSdk:
    """The SDK, as far as it is used."""

    client: Any
    models: Any
    runtime: Any


def make_client(region: str, **config: Any) -> AckSdk:
    """The SDK's client for this region, every time bounded; MissingError without the SDK."""
    service = import_sdk("alibabacloud_cs20151215.client", _EXTRA)
    models = import_sdk("alibabacloud_cs20151215.models", _EXTRA)
    openapi = import_sdk("alibabacloud_tea_openapi.models", _EXTRA)
    runtime = import_sdk("darabonba.runtime", _EXTRA)
    connect, answer = int(CONNECT_SECONDS * 1000), int(ANSWER_SECONDS * 1000)
    if "access_key_id" not in config:
        config["credential"] = import_sdk("alibabacloud_credentials.client", _EXTRA).Client()
    bounded = openapi.Config(region_id=region, connect_timeout=connect, read_timeout=answer, **config)
    options = runtime.RuntimeOptions(autoretry=False, max_attempts=1, connect_timeout=connect, read_timeout=answer)
    return AckSdk(service.Client(bounded), models, options)


class AckProvider:
    """Node pools of one region."""

    def __init__(self, api: AckSdk, pools: Mapping[str, AckSettings]) -> None:
        self._api, self._pools = api, dict(pools)

    @property
    def name(self) -> str:
        """As in the configuration."""
        return NAME

    async def pools(self) -> tuple[PoolState, ...]:
        """Each node pool and its nodes."""
        async with deadline(READ_SECONDS, "reading the node pools"):
            return tuple([(await self._look(pool)).state for pool in sorted(self._pools)])

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """Raise the desired size; a pool without one is asked for so many more."""
        if not 1 <= by <= _MAX_AT_ONCE:
            raise DeniedError(f"{pool}: cannot add {by} nodes; ACK adds 1 to {_MAX_AT_ONCE} nodes in one request")
        async with deadline(WRITE_SECONDS, f"{pool}: scaling up"):
            look = await self._open(pool)
            target = raise_target(look.state, by, seen, "the node pool's maximum")
            if look.desired is not None:
                return await self._resize(pool, target)
            request = self._api.models.ScaleClusterNodePoolRequest(count=by)
            await self._ask("scale_cluster_node_pool", *self._place(pool), request)
            return target

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """Remove and release these; ACK lowers the desired size itself. They have been emptied before."""
        async with deadline(WRITE_SECONDS, f"{pool}: removing nodes"):
            look, wanted = await self._look(pool), frozenset(names)
            called = {one: {one.id, one.node, _machine_id(one)} & wanted for one in look.state.nodes}
            meant = [one for one, words in called.items() if words]
            fresh = [_machine_id(one) for one in meant if one.state is not InstanceState.LEAVING]
            if fresh:
                request = self._api.models.RemoveNodePoolNodesRequest(
                    instance_ids=fresh, release_node=True, drain_node=False
                )
                await self._ask("remove_node_pool_nodes", *self._place(pool), request)
            return tuple(min(called[one]) for one in meant)

    async def cancel(self, pool: str, by: int) -> int:
        """Lower the desired size by as many as have not been found."""
        async with deadline(WRITE_SECONDS, f"{pool}: cancelling missing nodes"):
            look = await self._open(pool)
            target = look.state.target
            fewer = target - min(max(0, by), look.state.missing)
            return target if look.desired is None or fewer == target else await self._resize(pool, fewer)

    async def template(self, pool: str) -> NodeTemplate | None:
        """ACK names instance types, not what they hold: learnt from the first node."""
        self._place(pool)
        return None

    async def close(self) -> None:
        """The SDK keeps no connection open."""

    # -- requests ------------------------------------------------------------------------------

    def _place(self, pool: str) -> tuple[str, str]:
        if pool not in self._pools:
            raise DeniedError(f"pool {pool} is not configured")
        return self._pools[pool].cluster, self._pools[pool].node_pool

    async def _ask(self, method: str, *given: Any) -> Any:
        call = getattr(self._api.client, f"{method}_with_options_async")
        try:
            return (await call(*given, {}, self._api.runtime)).body
        except Exception as exc:
            raise _understood(exc) from exc

    async def _resize(self, pool: str, size: int) -> int:
        models = self._api.models
        group = models.ModifyClusterNodePoolRequestScalingGroup(desired_size=size)
        await self._ask(
            "modify_cluster_node_pool", *self._place(pool), models.ModifyClusterNodePoolRequest(scaling_group=group)
        )
        return size

    async def _open(self, pool: str) -> _Look:
        """The node pool now, if it takes a new size from us."""
        look = await self._look(pool)
        if look.scaled:
            raise DeniedError(f"{pool}: ACK's own autoscaler scales this node pool; turn off auto scaling for it")
        if look.condition in _CLOSED:
            raise ChangedError(f"{pool}: the node pool is {look.condition}; retry when it is active")
        return look

    async def _look(self, pool: str) -> _Look:
        detail = await self._ask("describe_cluster_node_pool_detail", *self._place(pool))
        nodes = [_instance(self._pools[pool].region, node) for node in await self._nodes(pool)]
        return _look(pool, detail, nodes)

    async def _nodes(self, pool: str) -> list[Any]:
        cluster, node_pool = self._place(pool)
        found: list[Any] = []
        for number in range(1, _MAX_PAGES + 1):
            request = self._api.models.DescribeClusterNodesRequest(
                nodepool_id=node_pool, page_number=str(number), page_size=str(_PAGE), state="all"
            )
            body = await self._ask("describe_cluster_nodes", cluster, request)
            found += body.nodes or []
            if len(body.nodes or []) < _PAGE or len(found) >= (getattr(body.page, "total_count", None) or 0):
                return found
        raise DeniedError(f"{pool}: the node pool has more than {_PAGE * _MAX_PAGES} nodes")


@dataclass(frozen=True, slots=True)
class _Look:
    """A node pool, and what of it decides whether it can be changed."""

    state: PoolState
    desired: int | None
    """None: the pool keeps no desired size."""
    scaled: bool
    condition: str


def _look(pool: str, detail: Any, nodes: list[tuple[ProviderInstance, str]]) -> _Look:
    group, status, scaling = detail.scaling_group, detail.status, detail.auto_scaling
    desired = getattr(group, "desired_size", None)
    instances = tuple(one for one, _ in sorted(nodes, key=lambda each: each[0].id))
    standing = sum(1 for one in instances if one.state is not InstanceState.LEAVING)
    target = standing if desired is None else int(desired)
    words = [text for _, text in nodes]
    if target > standing:
        words += [f"{c.reason or ''}: {c.message or ''}" for c in getattr(status, "conditions", None) or ()]
    short = next((shorten_error(text) for text in words if is_out_of_stock(text)), "")
    largest = getattr(detail, "max_nodes", None)
    state = PoolState(name=pool, target=target, nodes=instances, short=short, max_nodes=largest or None)
    return _Look(state, desired, bool(getattr(scaling, "enable", False)), getattr(status, "state", None) or "")


def _instance(region: str, node: Any) -> tuple[ProviderInstance, str]:
    """One node, and what ACK says went wrong with it."""
    word, wrong = node.state or "", shorten_error(node.error_message or "")
    state = _STATES.get(word, InstanceState.RUNNING)
    return ProviderInstance(f"{region}.{node.instance_id}", node.node_name or "", state, wrong or word), wrong


def _machine_id(one: ProviderInstance) -> str:
    return one.id.rpartition(".")[2]


def _understood(exc: Exception) -> Exception:
    """An error of the SDK as a provider's; anything else as it is."""
    if isinstance(exc, ProviderError) or not is_raised_by(
        exc, "alibabacloud_tea_openapi", "darabonba", "Tea", "aiohttp"
    ):
        return exc
    status = getattr(exc, "status_code", None) or getattr(exc, "statusCode", None)
    text = shorten_error(f"{getattr(exc, 'code', '')}: {getattr(exc, 'message', '') or exc}")
    if not isinstance(status, int) or status >= _OWN_TROUBLE or status == _THROTTLED or "Throttling" in text:
        return ProviderUnreachableError(text)
    return OutOfStockError(text) if is_out_of_stock(text) else DeniedError(text)
