# SPDX-License-Identifier: Apache-2.0
"""
The pools as the scheduler and admission are told of them: one ConfigMap, written by the leader when it changes.

Decides nothing of a pool. Also in a dry run, which says that cluster-autoscaler does everything.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from isolation.contract.codec.pools import KEY, PublishedPool, encode_pools
from isolation.contract.names import POOLS
from isolation.kube.core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.observation import Observation
    from isolation.contract.handover import Ours
    from isolation.kube.access import Access

log = logging.getLogger(__name__)
_SECONDS: Final = 5.0


def pools_of(seen: Observation, ours: Mapping[str, Ours]) -> tuple[PublishedPool, ...]:
    """Those of a reading that are configured; `ours`: what is done for each here at this moment."""
    return tuple(
        PublishedPool(name, pool.template, pool.min_nodes, pool.max_nodes, ours[name])
        for name, pool in sorted(seen.pools.items())
        if name in ours
    )


class Published:
    """The ConfigMap."""

    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._all = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._written: tuple[int, str] | None = None

    async def put(self, pools: tuple[PublishedPool, ...], epoch: int, *, complete: bool = False) -> None:
        """
        Write it where it is another than this leader (by the epoch of its Lease) wrote last. Raises ClusterError.

        `complete`: these are all the pools that are configured.
        """
        text = encode_pools(pools, complete=complete)
        if self._written == (epoch, text):
            return
        body = {"metadata": {"name": POOLS}, "data": {KEY: text}}
        try:
            await self._access.send("PATCH", f"{self._all}/{POOLS}", body, "merge-patch", _SECONDS)
        except NotFoundError:
            await self._access.send(
                "POST", self._all, {"apiVersion": "v1", "kind": "ConfigMap"} | body, "json", _SECONDS
            )
        self._written = epoch, text
        log.info("published %d pools: pools=%s", len(pools), [(pool.name, pool.ours) for pool in pools])
