# SPDX-License-Identifier: Apache-2.0
"""
What the agent does by itself, every second: nothing it holds outlives its owner, no pod stays stuck.

A pod is deleted only for what cannot heal, or for waiting too long behind somebody's end, and only if the
API server says at that moment that it is still that pod in that state. Trouble of the node itself (a full
disk, a missing library) is never a reason: the next pod would fare no better.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.node.bare import Bare
from isolation.node.book import FORMER, BookError, entry_from, hash_of
from isolation.node.ownerless import Ownerless
from isolation.node.starting import disagreement
from isolation.node.world import SERVED, UnreachableError

if TYPE_CHECKING:
    from isolation.node.ledger import Ledger
    from isolation.node.release import Release
    from isolation.node.resolve import Resolver
    from isolation.node.starting import Starting
    from isolation.node.world import Bound

_log: Final = logging.getLogger(__name__)
HOPELESS_SECONDS: Final = 2.0
"""Between the first refusal and the deletion: the watch may be a moment behind."""
UNRECORDED_SECONDS: Final = 10.0
"""A record comes with the binding; who has none by now was bound by somebody else."""
NAMELESS_SECONDS: Final = 20.0
"""From hearing of a pod that the kubelet has admitted until it must be known which devices it got."""
LONGEST_SECONDS: Final = 40.0
"""Of waiting for somebody's end: no pod is stuck for more than a minute, also where we are away in the middle of it."""
FRESH_SECONDS: Final = 3.0
"""Who has just come back looks around for so long before it says that somebody has waited for long enough."""
DOUBT_SECONDS: Final = 8.0
"""Between two that go because they cannot be told apart: with the first gone the other one is known."""
ANSWER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Whom the keeper calls."""

    ledger: Ledger
    release: Release
    resolver: Resolver
    starting: Starting


class Keeper:
    """See the module."""

    def __init__(self, parts: Parts, unit_bytes: int) -> None:
        self._ledger, self._release = parts.ledger, parts.release
        self._starting, self._resolver = parts.starting, parts.resolver
        self._world, self._unit = parts.ledger.world, unit_bytes
        self._began = math.inf
        """When this life of the agent saw the node's pods first."""
        self._deleted: set[str] = set()
        self._halves: set[str] = set()
        """Hashes whose files the last life of the agent may have written by half: the claim comes first."""
        self._bare, self._ownerless = Bare(parts.ledger), Ownerless(parts.ledger)
        self._next_doubt = 0.0

    def remember(self, *, book: bool) -> None:
        """For whom the files on this node were written; the book too, where the book itself is lost."""
        for text in self._world.delivery.claims():
            try:
                entry = entry_from(text)
            except BookError as exc:
                _log.error("cannot read a saved allocation of this node: %s", exc)
                continue
            self._ledger.shown[hash_of(entry.ids)] = entry.container
            self._halves.add(hash_of(entry.ids))
            if not book:
                continue
            self._ledger.claim(replace(entry, made=self._ledger.book.next()))
            self._ledger.started[entry.uid] = self._world.clock.now()

    async def turn(self) -> None:
        """Once round. What one step cannot learn now it learns later."""
        if not self._world.pods.synced():
            return
        with contextlib.suppress(UnreachableError):  # PreStart settles and saves again before anything starts
            await self._resolver.settle()
            await self._ledger.save()
        for entry in tuple(self._ledger.book):
            pod = self._ledger.bound(entry.uid) if entry.uid else None
            if pod is None or pod.ended:
                await self._release.attempt(entry)
        await self._rename()
        await self._unstick()
        await self._sweep()

    async def _rename(self) -> None:
        """Where an init container and the next have the very same devices, the files say whose turn it is."""
        for hash_, shown in tuple(self._ledger.shown.items()):
            group = [entry for entry in self._ledger.book if entry.uid and hash_of(entry.ids) == hash_]
            group = [entry for entry in group if FORMER not in entry.container]
            mine = [entry for entry in group if entry.uid == group[0].uid]
            pod = self._ledger.bound(mine[0].uid) if len(mine) > 1 else None
            if pod is None or pod.ended:
                continue
            entry = self._starting.next(mine)
            stale = entry.container != shown or hash_ in self._halves
            if stale and not disagreement(entry, pod, self._unit) and not await self._starting.deliver(entry, pod):
                self._halves.discard(hash_)

    async def _unstick(self) -> None:
        """Delete what cannot start."""
        now, waiting = self._world.clock.now(), set[str]()
        self._began = min(self._began, now)
        for pod in tuple(self._world.pods.bound()):
            if pod.ended or pod.deleting:
                continue
            waiting.add(pod.uid)
            since = self._ledger.seen(pod)
            if pod.uid not in self._deleted and (why := await self._hopeless(pod, since, now)):
                await self._delete(pod, why)
        self._ledger.waits.only(waiting)
        self._deleted &= waiting
        self._bare.only(waiting)
        self._ownerless.only_lately(now)

    async def _hopeless(self, pod: Bound, since: float, now: float) -> str:
        """Why it will not start by itself; empty: it runs, or may."""
        ours = self._world.inventory.mode() in SERVED
        if pod.allocation is None and ours and not pod.started and now - since >= UNRECORDED_SECONDS:
            return "the pod was bound without a valid allocation annotation"
        long = self._long(since, now)
        if long and now >= self._next_doubt and (why := await self._ownerless.why(pod)):
            self._next_doubt = now + DOUBT_SECONDS
            return why
        trouble = self._ledger.trouble.get(pod.uid)
        if trouble is not None:
            late = (trouble.hopeless and now - trouble.since >= HOPELESS_SECONDS) or (
                trouble.waits and self._long(trouble.since, now)
            )
            return trouble.text if late else ""
        if ours and (pod.started or long) and ((why := await self._bare.why(pod, now)) or pod.started):
            return why
        if pod.started or not (long or now - max(since, self._began) >= NAMELESS_SECONDS):
            return ""
        try:
            if self._unclear(pod):
                listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
                return "the kubelet admitted the pod but does not report its devices" if listing is not None else ""
            if long and now >= self._next_doubt and await self._doubted(pod):
                self._next_doubt = now + DOUBT_SECONDS
                return "its devices cannot be distinguished from those of another pod of the same size"
        except UnreachableError:
            return ""
        return ""

    def _long(self, since: float, now: float) -> bool:
        """Whether this is as long as anybody may wait."""
        return now - since >= LONGEST_SECONDS and now - self._began >= FRESH_SECONDS

    async def _doubted(self, pod: Bound) -> bool:
        """Whether what we guess that it has may be another pod's just as well. UnreachableError."""
        pods = tuple(self._world.pods.bound())
        guesses = [entry for entry in self._ledger.book.of(pod.uid) if entry.guessed]
        alone = [await self._resolver.alone(entry, pods) for entry in guesses]
        return not all(alone)

    async def _delete(self, pod: Bound, why: str) -> None:
        """By its UID, if it is still so by the API server's word of this moment."""
        try:
            fresh = await self._world.pods.get(pod.namespace, pod.name)
            if fresh is None or fresh.uid != pod.uid or fresh.ended or fresh.deleting:
                return
            if not self._still(fresh):
                self._held_no_more(pod)
                return
            _log.warning("deleting pod %s: %s", pod.key, why)
            await self._world.pods.delete(fresh, why)
        except UnreachableError:
            return
        self._deleted.add(pod.uid)

    def _held_no_more(self, pod: Bound) -> None:
        """What was hopeless and is not hides no other reason; PreStart says so anew if it finds it again."""
        trouble = self._ledger.trouble.get(pod.uid)
        if trouble is not None and trouble.hopeless:
            self._ledger.recovered(pod.uid)

    def _unclear(self, pod: Bound) -> bool:
        """Whether a container has no devices by our book, or such as it cannot have been given."""
        entries = [self._ledger.book.get(pod.uid, one.name) for one in pod.wanted]
        return any(entry is None or disagreement(entry, pod, self._unit) for entry in entries)

    def _still(self, fresh: Bound) -> bool:
        """Whether what was wrong is wrong."""
        if self._ownerless.may_be(fresh):
            return True
        trouble = self._ledger.trouble.get(fresh.uid)
        if trouble is None:
            guessed = any(entry.guessed for entry in self._ledger.book.of(fresh.uid)) and not fresh.started
            return fresh.allocation is None or self._unclear(fresh) or guessed or self._bare.still(fresh)
        if trouble.waits or fresh.allocation is None:
            return True
        entries = [entry for entry in self._ledger.book.of(fresh.uid) if FORMER not in entry.container]
        shared = any(len({other.uid for other in self._ledger.book.touching(entry.ids)}) > 1 for entry in entries)
        return shared or any(disagreement(entry, fresh, self._unit) for entry in entries)

    async def _sweep(self) -> None:
        """Files of which the book knows nothing; not while the book may lack something."""
        if self._ledger.rebuilt:
            return
        async with self._release.working:
            for hash_ in set(self._world.delivery.standing()) - self._ledger.book.hashes():
                await self._world.delivery.retire(hash_)
