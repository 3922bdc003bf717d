# SPDX-License-Identifier: Apache-2.0
"""
Whether the pods of a node are known as the server knows them, since we began to lead.

The holder before us may have bound pods that our watch has not told yet, or never will while its
connection is dead. So the first bind onto a node under each new right asks the server itself, once,
which of our pods are there; until the watch has told something newer than the first such answer: then
it is alive, and has told everything before. Decides what of an answer is news: a pod that the watch has
seen go in the meantime does not come back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SHARED
from isolation.kube.core.wire import identity_of, page_of
from isolation.kube.informer import NOT_ENDED

if TYPE_CHECKING:
    from isolation.kube.listwatch import Source
    from isolation.kube.store import ClusterChange
    from isolation.scheduler.informers import Picture

_PAGE: Final = "500"


class Fresh:
    """What has been asked under the present right."""

    def __init__(self, source: Source, picture: Picture) -> None:
        self._source, self._store, self._watch = source, picture.store, picture.live.pods
        self._epoch = -1
        self._since: int | None = None
        """Version of the first answer under the present right."""
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._gone: set[str] = set()
        self._running = 0
        self._store.listen(self._note)

    async def check(self, node: str, epoch: int, seconds: float) -> None:
        """Once per node and epoch; raises ClusterError or TimeoutError, and then the next one asks again."""
        if epoch != self._epoch:
            self._epoch, self._asked, self._since = epoch, {}, None
        told = self._watch.version
        if self._since is not None and told is not None and told >= self._since:
            return
        asked = self._asked
        task = asked.get(node)
        if task is None:
            task = asked[node] = asyncio.create_task(self._ask(node))
        elif task.done():
            return
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(task)
        except BaseException:
            if asked.get(node) is task:
                del asked[node]
            raise

    async def _ask(self, node: str) -> None:
        self._running += 1
        try:
            fields = f"{NOT_ENDED},spec.nodeName={node}"
            query = {"labelSelector": f"{SHARED}=true", "fieldSelector": fields, "limit": _PAGE}
            epoch = self._epoch
            while True:
                page = page_of(await self._source.page("/api/v1/pods", query))
                version = page.metadata.resourceVersion
                if self._since is None and epoch == self._epoch and version.isascii() and version.isdigit():
                    self._since = int(version)
                for raw in page.items or ():
                    uid = identity_of(raw).uid
                    known = self._store.pods.get(uid)
                    if uid not in self._gone and (known is None or known.placement is None):
                        self._store.pod_is(raw)
                if not page.metadata.continue_:
                    return
                query["continue"] = page.metadata.continue_
        finally:
            self._running -= 1
            if not self._running:
                self._gone.clear()

    def _note(self, change: ClusterChange) -> None:
        """A pod that went while an answer is on its way."""
        if self._running and change.pod is None and change.pod_before is not None:
            self._gone.add(change.pod_before.uid)
