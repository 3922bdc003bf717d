# SPDX-License-Identifier: Apache-2.0
"""
When device IDs are free again, and what of their former owner is cleared away.

They are free once the API server says that the pod is gone or has ended, no process of it lives, and the
kubelet does not list it: each of the three alone has been seen wrong. Whatever cannot be told keeps them:
memory that is given away too late is a nuisance, too early it is somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from isolation.node.book import FORMER, hash_of
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from isolation.node.book import Entry
    from isolation.node.ledger import Ledger

STARTING_SECONDS: Final = 5.0
"""From our leave to start until a process can be seen."""
UNKNOWN_SECONDS: Final = 20.0
"""From an Allocate until the watch must have told of the pod; outages are longer, but then it is not in step."""
ANSWER_SECONDS: Final = 1.0


class Release:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world
        self.working = asyncio.Lock()
        """Files of containers are written and removed by one at a time."""

    async def attempt(self, entry: Entry) -> str:
        """Release it if that is right: empty; or the reason why not."""
        why = await (self._owned(entry) if entry.uid else self._nobodys(entry))
        return why or await asyncio.shield(self.forget(entry))

    async def forget(self, entry: Entry) -> str:
        """
        Clear away its files, then give its devices free. pre: nobody uses them.

        In this order and under the lock: the next owner of the same devices has files of the same name, and
        writes them when the book has let the former one go.
        """
        async with self.working:
            book, hash_ = self._ledger.book, hash_of(entry.ids)
            if entry not in book:
                return ""  # somebody else was faster
            if entry.uid and self._world.cgroups.living(entry.uid) is not False and FORMER not in entry.container:
                return "its processes are still running"
            others = [other for other in book.exactly(entry.ids) if other is not entry]
            # Files of these very devices are the oldest owner's: a later one waits for its end before it gets any.
            if entry.uid and all(other.uid != entry.uid and other.made > entry.made for other in others):
                await self._world.delivery.retire(hash_)
                self._ledger.shown.pop(hash_, None)
            self._ledger.release(entry)
            with contextlib.suppress(UnreachableError):  # the disk's book keeps it: released again after a restart
                await self._ledger.save()
        return ""

    async def _owned(self, entry: Entry) -> str:
        pod = self._ledger.bound(entry.uid)
        if pod is None:
            try:
                pod = await self._world.pods.get(entry.namespace, entry.pod)
            except UnreachableError:
                return "the API server does not answer: the pod may still exist"
            if pod is not None and pod.uid != entry.uid:
                pod = None
        if pod is not None and not pod.ended:
            return "the pod still exists"
        if pod is None and self._world.clock.now() < self._ledger.started.get(entry.uid, -1e9) + STARTING_SECONDS:
            return "it may be starting"
        if pod is None and (why := await self._listed(entry)):
            return why
        living = self._world.cgroups.living(entry.uid)
        if living is None:
            return "its processes cannot be checked"
        return "its processes are still running" if living else ""

    async def _listed(self, entry: Entry) -> str:
        """Whether the kubelet still has it; a pod of the same name that came later is another one."""
        try:
            listing = await self._world.resources.get(entry.namespace, entry.pod, ANSWER_SECONDS)
        except UnreachableError:
            return "the kubelet does not answer: the pod may still exist"
        listed = {ident for ids in (listing or {}).values() for ident in ids}
        for other in self._ledger.book:
            if other.uid != entry.uid and (other.namespace, other.pod) == (entry.namespace, entry.pod):
                listed -= other.ids
        return "the kubelet still lists it" if listed & entry.ids else ""

    async def _nobodys(self, entry: Entry) -> str:
        """Devices of a pod that was never known: free when they can be nobody's here."""
        book = self._ledger.book
        young = self._world.clock.now() < self._ledger.noted.get(entry.made, 0.0) + UNKNOWN_SECONDS
        if young or not self._world.pods.synced():
            return "their owner is not known yet"
        for pod in tuple(self._world.pods.bound()):
            if pod.ended:
                continue
            if book.lacking(pod) or any(one.guessed for one in book.of(pod.uid)):
                return f"they may belong to {pod.key}"
            try:
                listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
            except UnreachableError:
                return "the kubelet does not answer: their owner is not known"
            known = {ident for one in book.of(pod.uid) for ident in one.ids}
            if any(not ids.isdisjoint(entry.ids - known) for ids in (listing or {}).values()):
                return f"the kubelet lists them for {pod.key}"
        return ""
