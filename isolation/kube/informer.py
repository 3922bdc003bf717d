# SPDX-License-Identifier: Apache-2.0
"""
Nodes and pods of a cluster, listed and watched into one `Store`.

Decides what is watched: every node, and the pods of a `PodSelection`. By default these are all pods that have not
ended, since all of them use CPU, memory and pod counts of a node; a scheduler extender needs only the pods with cards.
The API server leaves ended pods out: one that ends leaves the selection, which arrives as its deletion.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.kube.core.wire import identity_of
from isolation.kube.listwatch import Reflector, Selection, WatchOptions, running
from isolation.kube.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import msgspec

    from isolation.kube.listwatch import Source
    from isolation.kube.store import StoreView

NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods, apart from ended ones."""

    labels: str = ""
    """Label selector; empty is all."""
    namespace: str = ""
    """Empty is all."""
    node: str = ""
    """Only those bound to this node, for an agent; empty is all."""

    def selection(self) -> Selection:
        """As a request."""
        path = f"/api/v1/namespaces/{self.namespace}/pods" if self.namespace else "/api/v1/pods"
        fields = f"{NOT_ENDED},spec.nodeName={self.node}" if self.node else NOT_ENDED
        return Selection(path, self.labels, fields)


class _Nodes:
    """The store, as the nodes' sink."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, raw: msgspec.Raw) -> str:
        return self._store.node_is(raw)

    def drop(self, raw: msgspec.Raw) -> None:
        self._store.node_gone(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        self._store.retain_nodes(keys)


class _Pods:
    """The store, as the pods' sink."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, raw: msgspec.Raw) -> str:
        return self._store.pod_is(raw)

    def drop(self, raw: msgspec.Raw) -> None:
        self._store.pod_gone(identity_of(raw).uid)

    def only(self, keys: frozenset[str]) -> None:
        self._store.retain_pods(keys)


class Informer:
    """A store that follows the cluster while `following` lasts."""

    def __init__(
        self,
        source: Source,
        pods: PodSelection | None = None,
        store: Store | None = None,
        options: WatchOptions | None = None,
    ) -> None:
        self.store = store or Store()
        node = (pods or PodSelection()).node
        nodes = Selection("/api/v1/nodes", fields=f"metadata.name={node}" if node else "")
        self.nodes = Reflector(source, nodes, _Nodes(self.store), options)
        self.pods = Reflector(source, (pods or PodSelection()).selection(), _Pods(self.store), options)

    def view(self) -> StoreView:
        """The reading of this moment."""
        return self.store.view()

    def age(self) -> float | None:
        """Seconds since the server last said anything on the quieter of both watches; None before the first list."""
        heard = [follower.heard for follower in (self.nodes, self.pods)]
        known = [moment for moment in heard if moment is not None]
        return time.monotonic() - min(known) if len(known) == len(heard) else None

    async def synced(self) -> None:
        """Wait for the first whole reading."""
        await self.nodes.synced.wait()
        await self.pods.synced.wait()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Informer]:
        """Follow in the background; what breaks a follower for good breaks the block, as itself."""
        async with running((self.nodes, self.pods)):
            yield self
