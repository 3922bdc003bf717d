# SPDX-License-Identifier: Apache-2.0
"""
A live list of a node's pods before the first bind onto it after this replica became the leader.

The leader before may have bound pods that the watch has not shown yet, or never will while its connection is dead. So
the first bind onto each node in each epoch lists the node's shared pods once. That ends when the watch has shown
something newer than the first such list: then it is alive, and has shown everything before. A pod that the watch saw
go while the list was under way is not put back.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.names import ALLOCATION, SHARED
from isolation.kube.core.wire import identity_of, pod_wire
from isolation.kube.informer import NOT_ENDED
from isolation.kube.paging import PAGE, list_pages

if TYPE_CHECKING:
    import msgspec

    from isolation.contract.model import Pod
    from isolation.kube.listwatch import Source
    from isolation.kube.store import ClusterChange
    from isolation.scheduler.informers import Informers


class LiveRead:
    """What has been listed in the present epoch."""

    def __init__(self, source: Source, informers: Informers) -> None:
        self._source, self._store, self._watch = source, informers.store, informers.live.pods
        self._epoch = -1
        self._since: int | None = None
        """resourceVersion of the first list in the present epoch."""
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._gone: set[str] = set()
        self._running = 0
        self._store.listen(self._note)

    async def check(self, node: str, epoch: int, seconds: float) -> None:
        """List once per node and epoch; after a ClusterError or TimeoutError the next call lists again."""
        if epoch != self._epoch:
            self._epoch, self._asked, self._since = epoch, {}, None
        observed = self._watch.version
        if self._since is not None and observed is not None and observed >= self._since:
            return
        asked = self._asked  # of this epoch: another one may begin while this waits
        task = asked.get(node)
        if task is None:
            task = asked[node] = asyncio.create_task(self._list(node))
        elif task.done():
            return
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(task)
        except BaseException:
            if asked.get(node) is task:
                del asked[node]
            raise

    async def _list(self, node: str) -> None:
        self._running += 1
        try:
            fields = f"{NOT_ENDED},spec.nodeName={node}"
            query = {"labelSelector": f"{SHARED}=true", "fieldSelector": fields, "limit": str(PAGE)}
            epoch = self._epoch
            async with aclosing(list_pages(self._source, "/api/v1/pods", query)) as pages:
                async for page in pages:
                    version = page.metadata.resourceVersion
                    if self._since is None and epoch == self._epoch and version.isascii() and version.isdigit():
                        self._since = int(version)
                    for raw in page.items or ():
                        uid = identity_of(raw).uid
                        known = self._store.pods.get(uid)
                        if uid not in self._gone and (
                            known is None or known.placement is None or _is_newer(raw, known)
                        ):
                            self._store.pod_is(raw)
        finally:
            self._running -= 1
            if not self._running:
                self._gone.clear()

    def _note(self, change: ClusterChange) -> None:
        """Remember pods that go while a list is under way."""
        if self._running and change.pod is None and change.pod_before is not None:
            self._gone.add(change.pod_before.uid)


def _is_newer(raw: msgspec.Raw, known: Pod) -> bool:
    """Whether the leader before has resized the pod, and the watch has not shown it yet."""
    annotations = pod_wire(raw).get("metadata", {}).get("annotations") or {}
    try:
        found = decode_allocation(annotations.get(ALLOCATION, ""))
    except CodecError:
        return False
    return found.resize is not None and found.resize.generation > (known.resize.generation if known.resize else 0)
