# SPDX-License-Identifier: Apache-2.0
"""
All pools handed to cluster-autoscaler by hand, where the autoscaler is gone for long: `gpushare autoscaler hand-back`.

Decides that it is refused while the autoscaler is alive, which does the same by itself once it is switched off. What
admission reads is written first, so that new pods are not annotated again; safe to repeat.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from autoscaler.kube.handover import AnnotationChange, written
from isolation.contract.cluster_autoscaler_annotations import Ours, changes
from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.pools import KEY, decode_pools, encode_pools
from isolation.contract.names import AUTOSCALER, POOLS, SHARED
from isolation.kube.access import Access
from isolation.kube.core.errors import ClusterError, NotFoundError
from isolation.kube.core.lease import LeaseTiming
from isolation.kube.paging import list_objects
from isolation.kube.writes import LeaseClient, PodRef, decode_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from autoscaler.kube.options import Options

READ_SECONDS: Final = 10.0
MAX_ROUNDS: Final = 5
"""Pods that change while they are written to are read again so often."""


class AliveError(Exception):
    """The autoscaler would undo it."""


@dataclass(frozen=True, slots=True)
class Back:
    """What was done, or in a dry run would be."""

    pools: int
    pods: int


class _Meta(msgspec.Struct):
    name: str
    namespace: str
    uid: str
    resourceVersion: str  # noqa: N815 (Kubernetes' spelling)
    annotations: Any = None


class _Pod(msgspec.Struct):
    metadata: _Meta


_POD: Final = msgspec.json.Decoder(_Pod)


async def hand_back(
    options: Options, *, dry_run: bool, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> Back:
    """Every pool and every pod; AliveError, ClusterError."""
    async with Access(options.kubeconfig, options.context) as access:
        leases = LeaseClient(access, options.namespace, options.lease)
        before = await leases.read(READ_SECONDS)
        if before is not None and before.holder and not dry_run:
            # its time is another machine's: alive is who renews
            await sleep(1.5 * LeaseTiming().duration)
            now = await leases.read(READ_SECONDS)
            if now is not None and now.version != before.version:
                raise AliveError(
                    f"the autoscaler is running ({now.holder} holds the Lease) and would undo it; switch it off "
                    f'instead (ConfigMap {options.namespace}/{AUTOSCALER}, enabled: "false"), and it does this itself'
                )
        pools = await _pools(access, options.namespace, dry_run=dry_run)
        if dry_run:
            return Back(pools, len([wish async for wish in _wishes(access)]))
        pods = 0
        for _ in range(MAX_ROUNDS):
            wishes = [wish async for wish in _wishes(access)]
            done = await written(access, wishes, lambda: True)
            pods += done
            if done == len(wishes):
                return Back(pools, pods)
        raise ClusterError("pods keep changing while they are written to; run this again")


async def _pools(access: Access, namespace: str, *, dry_run: bool) -> int:
    """How many pools were published as ours; from now on none is."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{POOLS}"
    try:
        found = decode_object(await access.send("GET", path))
    except NotFoundError:
        return 0
    try:
        published = decode_pools((found.get("data") or {}).get(KEY) or "")
    except CodecError:
        return 0  # nobody reads it as pools
    ours = sum(pool.ours != Ours() for pool in published.pools)
    if ours and not dry_run:
        back = encode_pools((replace(pool, ours=Ours()) for pool in published.pools), complete=published.complete)
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "data": {KEY: back}}
        await access.send("PATCH", path, body, "merge-patch")
    return ours


async def _wishes(access: Access) -> AsyncIterator[AnnotationChange]:
    """Pods whose annotations are to go."""
    async with aclosing(list_objects(access, "/api/v1/pods", {"labelSelector": f"{SHARED}=true"})) as pods:
        async for raw in pods:
            meta = _POD.decode(raw).metadata
            changed = changes(At(meta.annotations).texts(), Ours())
            if changed:
                yield AnnotationChange(PodRef(meta.namespace, meta.name, meta.uid), meta.resourceVersion, changed)
