# SPDX-License-Identifier: Apache-2.0
"""
The book in use: changed in memory at once, durable before anybody is told.

Also remembers when a container was let start, who is in trouble, and since when pods wait; the last lies beside
the book, for it counts over a restart. Several who save at the same moment share one write.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.node.book import Book, BookError, dump, load
from isolation.node.waits import Waits, record, revived
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from isolation.node.book import Entry
    from isolation.node.world import Bound, World

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not start."""

    text: str
    since: float
    hopeless: bool
    """It cannot heal: the pod has to be made anew."""
    waits: bool = False
    """For somebody else's end: it heals, or takes too long."""


class Ledger:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.book = Book()
        self.rebuilt = ""
        """Why the book on the disk was not believed; empty: it was."""
        self.fault = ""
        """What keeps every container of this node from starting; empty: nothing."""
        self.started: dict[str, float] = {}
        """When a container of the pod was let start last, by UID."""
        self.trouble: dict[str, Trouble] = {}
        self.waits = Waits()
        self.noted: dict[int, float] = {}
        """When devices were given to somebody unknown, by the entry's number."""
        self.ownerless: dict[frozenset[str], float] = {}
        """When PreStart asked last for devices of which nobody could tell whose they are."""
        self.shown: dict[str, str] = {}
        """For which container the files of a hash were written last."""
        self._changed = self._saved = 0
        self._writing = asyncio.Lock()

    def open(self) -> bool:
        """Read the book; False: it has to be made anew from what others know."""
        try:
            text = self.world.shelf.load()
            self.book = load(text) if text is not None else Book()
        except (BookError, UnreachableError) as exc:
            self.rebuilt = str(exc)
            _log.error("cannot load saved allocations (%s): rebuilding them from the files on this node", exc)
            return False
        self.waits = revived(text, self.world.clock.moment()) if text is not None else Waits()
        now = self.world.clock.now()
        self.started = {entry.uid: now for entry in self.book if entry.uid}
        self.noted = {entry.made: now for entry in self.book if not entry.uid}
        return text is not None

    def claim(self, entry: Entry) -> None:
        """IDs are a container's; not yet durable."""
        if not entry.uid:
            self.noted[entry.made] = self.world.clock.now()
        self.book.claim(entry)
        self._changed += 1

    def release(self, entry: Entry) -> None:
        """IDs are free; not yet durable."""
        self.book.release(entry)
        self.noted.pop(entry.made, None)
        self._changed += 1
        if not self.book.of(entry.uid):
            self.started.pop(entry.uid, None)
            self.recovered(entry.uid)

    async def save(self) -> None:
        """Until the disk has all that was changed before. UnreachableError."""
        wanted = self._changed
        async with self._writing:
            if self._saved >= wanted:
                return
            now = self._changed
            await self.world.shelf.save(dump(self.book, record(self.waits, self.world.clock.moment())))
            self._saved = now

    def in_trouble(self, pod: Bound, text: str, *, hopeless: bool = False, waits: bool = False) -> None:
        """A pod cannot start; the time counts from the first failure of its kind on, also if another life saw that."""
        before = self.trouble.get(pod.uid)
        same = before is not None and (before.hopeless, before.waits) == (hopeless, waits)
        since = before.since if before is not None and same else self.world.clock.now()
        if waits:
            since = self.waits.blocked.setdefault(pod.uid, since)
        else:
            self._unblocked(pod.uid)
        self._changed += waits and not same
        self.trouble[pod.uid] = Trouble(text, since, hopeless, waits)

    def recovered(self, uid: str) -> None:
        """It starts, or is no more."""
        self.trouble.pop(uid, None)
        self._unblocked(uid)

    def _unblocked(self, uid: str) -> None:
        if self.waits.blocked.pop(uid, None) is not None:
            self._changed += 1  # the next life must not count from here

    def seen(self, pod: Bound) -> float:
        """Since when this pod is known."""
        if pod.uid not in self.waits.seen:
            self.waits.seen[pod.uid] = self.world.clock.now()
            self._changed += not pod.started
        return self.waits.seen[pod.uid]

    def bound(self, uid: str) -> Bound | None:
        """The pod as the watch tells."""
        return next((pod for pod in self.world.pods.bound() if pod.uid == uid), None)
