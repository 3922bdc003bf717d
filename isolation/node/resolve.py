"""
Whose devices are that were given away in a moment when nobody could tell.

There is time now: the kubelet lists the regular containers of every pod it has admitted. Init containers it
never lists; theirs are those that share a device with the rest of their pod, or the only ones left that
fit. A guess that the kubelet contradicts is taken back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isolation.node.book import FORMER, Entry
from isolation.node.choose import mismatch
from isolation.node.identity import owned
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound, Wanted

ANSWER_SECONDS: Final = 1.0


class Resolver:
    """See the module."""

    def __init__(self, ledger: Ledger, unit_bytes: int) -> None:
        self._ledger, self._world, self._unit = ledger, ledger.world, unit_bytes

    async def settle(self) -> None:
        """Every pod of which the book lacks something, or has guessed it."""
        book = self._ledger.book
        for pod in tuple(self._world.pods.bound()):
            if not pod.ended and (book.lacking(pod) or any(entry.guessed for entry in book.of(pod.uid))):
                await self._settle(pod)

    async def find(self, ids: frozenset[str]) -> Entry | None:
        """The entry of exactly these devices, with an owner; None: there is none to be found."""
        await self.settle()
        found = self._known(ids)
        if found is not None:
            return found
        for pod in tuple(self._world.pods.bound()):
            if not pod.ended and any(one.units == len(ids) for one in pod.wanted) and await self._settle(pod):
                found = self._known(ids)
                if found is not None:
                    return found
        return self._left_over(ids)

    def _known(self, ids: frozenset[str]) -> Entry | None:
        """The latest owner of these; what a container had before, and has again, is its own again."""
        entries = [entry for entry in self._ledger.book.exactly(ids) if entry.uid]
        if not entries:
            return None
        entry = entries[-1]
        if FORMER in entry.container:
            self._ledger.release(entry)
            entry = replace(entry, container=entry.container.partition(FORMER)[0])
            self._ledger.claim(entry)
        return entry

    async def _settle(self, pod: Bound) -> bool:
        """Take the kubelet's word for one pod; whether it has admitted it."""
        try:
            listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
        except UnreachableError:
            return False
        if listing is None:
            return False
        for one in pod.wanted:
            ids = listing.get(one.name)
            if ids and not one.init and not self._namesakes(pod, ids):
                self._regular(pod, one, ids)
        self._inits(pod, listing)
        return True

    def _regular(self, pod: Bound, one: Wanted, ids: frozenset[str]) -> None:
        """The kubelet says that this container has these."""
        book = self._ledger.book
        have = book.get(pod.uid, one.name)
        if have is not None and have.ids == ids:
            if have.guessed:
                self._ledger.claim(replace(have, guessed=False))
            return
        if have is not None and not have.guessed:
            return  # we were sure: that is for PreStart to judge
        for wrong in book.exactly(ids):
            if wrong.guessed:
                self._ledger.release(wrong)
        unknown = next((entry for entry in book.exactly(ids) if not entry.uid), None)
        self._ledger.claim(owned(unknown or Entry(ids, made=book.next()), pod, one))
        self._ledger.started.setdefault(pod.uid, self._world.clock.now())

    def _inits(self, pod: Bound, listing: Mapping[str, frozenset[str]]) -> None:
        """Init containers of the pod: who shares a device with the pod belongs to it."""
        book = self._ledger.book
        shared = frozenset(ident for ids in listing.values() for ident in ids)
        unknown = book.unknown(shared | {ident for entry in book.of(pod.uid) for ident in entry.ids})
        for one in book.lacking(pod):
            fitting = [entry for entry in unknown if one.init and len(entry.ids) == one.units]
            if fitting and self._agrees(pod, one, fitting[0].ids):
                self._ledger.claim(owned(fitting[0], pod, one))
                unknown.remove(fitting[0])

    def _left_over(self, ids: frozenset[str]) -> Entry | None:
        """An init container of the oldest pod that these would suit: first of those that lack something."""
        book = self._ledger.book
        pods = sorted(self._world.pods.bound(), key=lambda pod: (not book.lacking(pod), pod.created, pod.uid))
        for pod in pods:
            for one in book.lacking(pod) or pod.wanted:
                if one.init and not one.done and not pod.ended and self._agrees(pod, one, ids):
                    unknown = next((entry for entry in book.exactly(ids) if not entry.uid), None)
                    entry = owned(unknown or Entry(ids, made=book.next()), pod, one)
                    self._ledger.claim(replace(entry, guessed=True))
                    return entry
        return None

    def _agrees(self, pod: Bound, one: Wanted, ids: Iterable[str]) -> bool:
        part = pod.part(one.name)
        return part is not None and not mismatch(ids, part, self._unit)

    def _namesakes(self, pod: Bound, ids: frozenset[str]) -> bool:
        """Whether these devices are those of an earlier pod of that name."""
        others = self._ledger.book.touching(ids)
        return any(
            (one.namespace, one.pod) == (pod.namespace, pod.name) and one.uid not in {"", pod.uid} for one in others
        )
