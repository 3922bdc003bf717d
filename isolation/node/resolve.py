# SPDX-License-Identifier: Apache-2.0
"""
Whose devices are that were given away in a moment when nobody could tell.

There is time now: the kubelet lists the regular containers of every pod it has admitted. Init containers it
never lists; theirs are those that share a device with the rest of their pod, or the only ones left that
fit. A guess that the kubelet contradicts is taken back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isolation.node.book import FORMER, Entry, are_ours
from isolation.node.choose import mismatch
from isolation.node.turn import owned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound, Wanted

ANSWER_SECONDS: Final = 1.0


class Resolver:
    """See the module."""

    def __init__(self, ledger: Ledger, unit_bytes: int) -> None:
        self._ledger, self._world, self._unit = ledger, ledger.world, unit_bytes

    async def settle(self, pods: Iterable[Bound] | None = None) -> None:
        """Every pod (of the watch, or of these) of which the book lacks something, or guessed it. UnreachableError."""
        book = self._ledger.book
        every = tuple(self._world.pods.bound() if pods is None else pods)
        await self.look(
            pod
            for pod in every
            if not pod.ended and (book.lacking(pod) or any(entry.guessed for entry in book.of(pod.uid)))
        )

    async def find(self, ids: frozenset[str]) -> Entry | None:
        """The entry of exactly these devices, with an owner; None: there is none to be found. UnreachableError."""
        if not are_ours(ids):
            return None
        await self.settle()
        found = self._known(ids)
        if found is not None:
            return found
        pods = tuple(await self._world.pods.fetch(ANSWER_SECONDS))  # it may be one that the watch has not told of
        sized = [pod for pod in pods if not pod.ended and any(one.units == len(ids) for one in pod.wanted)]
        admitted = await self.look(sized, ids)
        return self._known(ids) or self._left_over(ids, [pod for pod in sized if pod.uid in admitted])

    async def alone(self, entry: Entry, pods: Iterable[Bound]) -> bool:
        """Whether no other pod that the kubelet has admitted may be the one. UnreachableError."""
        for pod in pods:
            rival = pod.uid != entry.uid and self._in_doubt(pod, entry.ids)
            if rival and await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS) is not None:
                return False
        return True

    def _known(self, ids: frozenset[str]) -> Entry | None:
        """The latest owner of these; what a container had before, and has again, is its own again."""
        entries = self._ledger.book.exactly(ids)
        if not entries or not entries[-1].uid:
            return None
        entry = entries[-1]
        if FORMER in entry.container:
            self._ledger.release(entry)
            entry = replace(entry, container=entry.container.partition(FORMER)[0])
            self._ledger.claim(entry)
        return entry

    async def look(self, pods: Iterable[Bound], starting: frozenset[str] = frozenset()) -> frozenset[str]:
        """
        Take the kubelet's word for pods that it has admitted; the UIDs of those. UnreachableError.

        What it says of any of them comes before what follows from it for init containers. `starting`: devices with
        which it starts somebody just now: whose those are it knows better than we do.
        """
        seen = []
        for pod in tuple(pods):
            listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
            if listing is None:
                continue
            seen.append((pod, listing))
            for one in pod.wanted:
                ids = listing.get(one.name)
                if ids and are_ours(ids) and not one.init and not self._namesakes(pod, ids):
                    self._regular(pod, one, listing, certain=ids == starting)
        for pod, listing in seen:
            self._contradict(pod, listing)
            self._inits(pod, listing)
        return frozenset(pod.uid for pod, _ in seen)

    def _regular(self, pod: Bound, one: Wanted, listing: Mapping[str, frozenset[str]], *, certain: bool) -> None:
        """The kubelet lists devices for this container; `certain`: and starts somebody with them."""
        book, ids = self._ledger.book, listing[one.name]
        have = book.get(pod.uid, one.name)
        if have is not None and have.ids == ids:
            if have.guessed:
                self._ledger.claim(replace(have, guessed=False))
            if (again := self._nobodys(ids)) is not None:
                self._ledger.release(again)  # a kubelet without memory gave it what it had
            return
        taken = have is not None and have.ids in [other for name, other in listing.items() if name != one.name]
        if have is not None and not (certain or have.guessed or taken) and self._nobodys(ids) is None:
            return  # we were sure, and it is nobody else's in the pod: that is for PreStart to judge
        for wrong in book.exactly(ids):
            if wrong.guessed:  # nobody's now: it may be the init container's that had the very same devices
                self._ledger.release(wrong)
                self._ledger.claim(Entry(ids, made=wrong.made))
        unknown = self._nobodys(ids)
        self._ledger.claim(owned(unknown or Entry(ids, made=book.next()), pod, one))
        self._ledger.started.setdefault(pod.uid, self._world.clock.now())

    def _contradict(self, pod: Bound, listing: Mapping[str, frozenset[str]]) -> None:
        """Guesses about pods that live, on devices that the kubelet has handed on in this one, are nobody's again."""
        book = self._ledger.book
        sure = [one for one in book.of(pod.uid) if not one.guessed and listing.get(one.container) == one.ids]
        for wrong in book.touching(frozenset(ident for one in sure for ident in one.ids)):
            other = self._ledger.bound(wrong.uid) if wrong.guessed and wrong.uid != pod.uid else None
            if other is not None and not (other.ended or other.deleting):
                self._ledger.release(wrong)
                self._ledger.claim(Entry(wrong.ids, made=wrong.made))

    def _inits(self, pod: Bound, listing: Mapping[str, frozenset[str]]) -> None:
        """Init containers of the pod: who shares a device with the pod belongs to it, on the right card or not."""
        book = self._ledger.book
        settled = self._handed_on(pod, listing)
        shared = frozenset(ident for ids in listing.values() for ident in ids)
        sure = (entry for entry in book.of(pod.uid) if not entry.guessed)  # a guess proves nothing
        unknown = book.unknown(shared | {ident for entry in sure for ident in entry.ids})
        for one in (*book.lacking(pod), *(one for one in pod.wanted if book.get(pod.uid, one.name) is not None)):
            has = book.get(pod.uid, one.name)
            since = has.made if has is not None and not has.guessed else 0  # what it has surely, it got last
            fitting = [e for e in unknown if one.init and len(e.ids) == one.units and e.made > since]
            if fitting and one.name not in settled:
                self._ledger.claim(owned(fitting[0], pod, one))
                unknown.remove(fitting[0])

    def _handed_on(self, pod: Bound, listing: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """
        Init containers whose devices are those of the first container after them, whatever was guessed; they get them.

        The kubelet gives that one the devices of the largest init container before any other: as many are the same.
        So devices of nobody that merely share one with it are what an earlier pod left.
        """
        last = next((one for one in pod.wanted if not one.init), None)
        has = self._ledger.book.get(pod.uid, last.name) if last is not None else None
        if last is None or has is None or has.guessed or has.ids != listing.get(last.name):
            return frozenset()
        inits = pod.wanted[: pod.wanted.index(last)]
        if max((one.units for one in inits), default=0) != len(has.ids):
            return frozenset()
        doubtful = self._doubtful(pod)
        for one in inits:
            if one.units == len(has.ids) and one in doubtful:
                made = self._nobodys(has.ids) or Entry(has.ids, made=self._ledger.book.next())
                self._ledger.claim(owned(made, pod, one))
        entries = ((one.name, self._ledger.book.get(pod.uid, one.name)) for one in inits)
        return frozenset(name for name, entry in entries if entry is not None and entry.ids == has.ids)

    def _left_over(self, ids: frozenset[str], pods: Iterable[Bound]) -> Entry | None:
        """An init container, if there is one only that these can be: two of a kind are not told apart by luck."""
        book = self._ledger.book
        if any(entry.uid for entry in book.exactly(ids)):
            return None  # somebody has them: who comes later and is not known yet waits
        fitting = [(pod, one) for pod in pods for one in self._could_be(pod, ids)]
        lacking = [(pod, one) for pod, one in fitting if one in self._doubtful(pod)]
        # The devices that it got may be wrong ones: then the only one that is left is told so. Whose devices are
        # known comes last: it would have been given others by a kubelet without memory.
        chosen = lacking or [(pod, one) for pod in pods for one in self._in_doubt(pod, ids)] or fitting
        if len({pod.uid for pod, _ in chosen}) != 1:
            return None
        entry = owned(self._nobodys(ids) or Entry(ids, made=book.next()), *chosen[0])
        self._ledger.claim(replace(entry, guessed=True))
        return entry

    def _doubtful(self, pod: Bound) -> list[Wanted]:
        """Containers that were given nothing yet, or of which we only guess what."""
        entries = [(one, self._ledger.book.get(pod.uid, one.name)) for one in pod.wanted]
        return [one for one, entry in entries if entry is None or entry.guessed]

    def _could_be(self, pod: Bound, ids: frozenset[str]) -> list[Wanted]:
        """Init containers of a pod that may have these, and may by its record."""
        parts = ((one, pod.part(one.name)) for one in self._sized(pod, ids))
        return [one for one, part in parts if part is not None and not mismatch(ids, part, self._unit)]

    def _in_doubt(self, pod: Bound, ids: frozenset[str]) -> list[Wanted]:
        """Init containers of a pod that may have these, rightly or not, by what is known for sure."""
        doubtful = self._doubtful(pod)
        return [one for one in self._sized(pod, ids) if one in doubtful]

    def _sized(self, pod: Bound, ids: frozenset[str]) -> list[Wanted]:
        """
        Init containers of a pod that ask for as many as these.

        Its regular containers are listed, and the first after an init container has devices of it.
        """
        have = {ident for entry in self._ledger.book.of(pod.uid) for ident in entry.ids}
        if pod.ended or any(one.id for one in pod.wanted if not one.init):
            return []
        found, followed = [], False
        for one in reversed(pod.wanted):
            followed |= not one.init
            if one.init and one.units == len(ids) and not (followed and have.isdisjoint(ids)):
                found.append(one)
        return found[::-1]

    def _nobodys(self, ids: frozenset[str]) -> Entry | None:
        """The latest entry of these devices without an owner: init containers come before the others."""
        return next((entry for entry in reversed(self._ledger.book.exactly(ids)) if not entry.uid), None)

    def _namesakes(self, pod: Bound, ids: frozenset[str]) -> bool:
        """Whether these devices are those of an earlier pod of that name, and were not given anew since."""
        if self._nobodys(ids) is not None:
            return False
        others = self._ledger.book.touching(ids)
        return any(
            (one.namespace, one.pod) == (pod.namespace, pod.name) and one.uid not in {"", pod.uid} for one in others
        )
