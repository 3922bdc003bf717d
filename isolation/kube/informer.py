# SPDX-License-Identifier: Apache-2.0
"""
The live picture: nodes and pods of a cluster, kept up to date, as one store.

Decides what is watched: every node, and the pods that `Pods` names. By default that is every
pod that has not ended, since CPU, memory and pod counts of a node are used by all of them; a
scheduler extender, whom only nodes with room in those reach, needs the pods with cards alone.
Finished pods are left out by the server: one that finishes leaves the selection, which arrives
as its deletion.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.kube.core.wire import identity_of
from isolation.kube.listwatch import Follower, Habits, What
from isolation.kube.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import msgspec

    from isolation.kube.listwatch import Source
    from isolation.kube.store import View

NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Pods:
    """Which pods, apart from ended ones."""

    labels: str = ""
    """Label selector; empty is all."""
    namespace: str = ""
    """Empty is all."""
    node: str = ""
    """Only those bound to this node, for an agent; empty is all."""

    def what(self) -> What:
        """As a request."""
        path = f"/api/v1/namespaces/{self.namespace}/pods" if self.namespace else "/api/v1/pods"
        fields = f"{NOT_ENDED},spec.nodeName={self.node}" if self.node else NOT_ENDED
        return What(path, self.labels, fields)


class _Nodes:
    """The store, as the nodes' sink."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, raw: msgspec.Raw) -> str:
        return self._store.node_is(raw)

    def drop(self, raw: msgspec.Raw) -> None:
        self._store.node_gone(identity_of(raw).name)

    def only(self, keys: frozenset[str]) -> None:
        self._store.keep_nodes(keys)


class _Pods:
    """The store, as the pods' sink."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, raw: msgspec.Raw) -> str:
        return self._store.pod_is(raw)

    def drop(self, raw: msgspec.Raw) -> None:
        self._store.pod_gone(identity_of(raw).uid)

    def only(self, keys: frozenset[str]) -> None:
        self._store.keep_pods(keys)


class Live:
    """A store that follows the cluster while `following` lasts."""

    def __init__(
        self, source: Source, pods: Pods | None = None, store: Store | None = None, habits: Habits | None = None
    ) -> None:
        self.store = store or Store()
        node = (pods or Pods()).node
        nodes = What("/api/v1/nodes", fields=f"metadata.name={node}" if node else "")
        self.nodes = Follower(source, nodes, _Nodes(self.store), habits)
        self.pods = Follower(source, (pods or Pods()).what(), _Pods(self.store), habits)

    def view(self) -> View:
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
    async def following(self) -> AsyncIterator[Live]:
        """Follow in the background; what breaks a follower for good breaks the block, as itself."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.nodes.run()), group.create_task(self.pods.run())]
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
        except BaseExceptionGroup as exc:
            raise exc.exceptions[0] from None
