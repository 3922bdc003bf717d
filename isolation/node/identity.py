# SPDX-License-Identifier: Apache-2.0
"""
Who is being admitted: the kubelet tells the agent numbers of devices, never names.

While it admits a pod, its own list already shows that pod with containers that have no devices, and not those
that queue behind it (observed). So the bound pod that is shown with a container lacking devices is the one,
and its first container without any is the container. What is not answered within a fraction of a second
is guessed, marked as guessed, and looked at again before the container starts. Never an error: that would
fail the pod for good.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isolation.node.book import FORMER, card_of
from isolation.node.handed import Call
from isolation.node.turn import Found, Turns
from isolation.node.world import Bound, UnreachableError, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.node.ledger import Ledger

LONGEST_SECONDS: Final = 0.18
"""Of all waiting together: the node stands still meanwhile."""
ASK_SECONDS: Final = 0.06
"""The kubelet answers in a few milliseconds."""
WATCH_SECONDS: Final = 0.03
FETCH_SECONDS: Final = 0.05
AT_ONCE: Final = 4
"""The kubelet answers a burst of ten, a hundred a second; exporters ask as well."""


class Identity:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world
        self._turns = Turns(ledger)
        self._deaf = False
        """Whether the API server has just not answered."""

    async def whose(self, size: int, ids: frozenset[str] = frozenset()) -> Found | None:
        """The container that gets `size` devices now; `ids`: those that are its already. None: nobody is known."""
        clock, call = self._world.clock, Call(size, ids)
        end = clock.now() + LONGEST_SECONDS
        silent = self._deaf = False
        asked: set[str] = set()
        candidates: list[Bound] = []
        perhaps: list[Found] = []
        for look in (self._seen, self._after_change, self._fetched):
            fresh = [pod for pod in self._lacking(await look(), call) if pod.uid not in asked]
            asked.update(pod.uid for pod in fresh)
            candidates += fresh
            found, answered = await self._ask(fresh, call, end, perhaps)
            silent |= not answered
            if found is not None:
                return found
        if len(perhaps) == 1:
            found = perhaps[0]
            unsure = silent or self._deaf or self._ledger.rebuilt or found.pod.deleting or self._doubts(size)
            return replace(found, guessed=bool(unsure))
        forgotten = [pod for pod in self._remembered() if self._turns.again(pod, call) and pod.uid not in asked]
        found, _ = await self._ask(forgotten, call, end, [])
        if found is None and silent:
            found = self._guess(candidates, call)
        return found

    def _doubts(self, size: int) -> bool:
        """Whether so many devices of somebody are not surely his: they may be those of whoever comes later."""
        return any((entry.guessed or not entry.uid) and len(entry.ids) == size for entry in self._ledger.book)

    async def _seen(self) -> Iterable[Bound]:
        return self._world.pods.bound()

    async def _after_change(self) -> Iterable[Bound]:
        await self._world.pods.changed(WATCH_SECONDS)
        return self._world.pods.bound()

    async def _fetched(self) -> Iterable[Bound]:
        try:
            return await self._world.pods.fetch(FETCH_SECONDS)
        except UnreachableError:
            self._deaf = True
            return ()

    def _lacking(self, pods: Iterable[Bound], call: Call) -> list[Bound]:
        """Pods with a container that has nothing yet: those in the middle of it first, then those that fit best."""
        book = self._ledger.book
        half = {entry.uid for entry in book}
        living = [pod for pod in pods if not pod.ended]
        lacking = {pod.uid: book.lacking(pod) for pod in living}
        found = [pod for pod in living if lacking[pod.uid]]

        def rank(pod: Bound) -> tuple[bool, bool, bool]:
            one = lacking[pod.uid][0]
            return one.units != call.size, pod.uid not in half, _apart(pod, one, call.ids)

        return sorted(found, key=rank)

    async def _ask(
        self, pods: Sequence[Bound], call: Call, end: float, perhaps: list[Found]
    ) -> tuple[Found | None, bool]:
        """The first that the kubelet shows in the middle of its admission; whether it answered; who may be it."""
        clock, answered = self._world.clock, True
        end = min(end, clock.now() + ASK_SECONDS)
        at = 0
        while at < len(pods):
            left = end - clock.now()
            if left <= 0:
                return None, False
            # The likeliest alone: of a hundred that are bound at once each would cost four questions.
            some = pods[at : at + (AT_ONCE if at else 1)]
            at += len(some)
            listings = await asyncio.gather(*(self._listing(pod, left) for pod in some))
            for pod, (listing, heard) in zip(some, listings, strict=True):
                answered &= heard
                found = self._turns.container(pod, listing, call) if listing is not None else None
                if found is not None and not found.guessed:
                    return found, answered
                perhaps += [found] if found is not None else []
        return None, answered

    async def _listing(self, pod: Bound, seconds: float) -> tuple[Mapping[str, frozenset[str]] | None, bool]:
        """What the kubelet shows of the pod, and whether it answered."""
        try:
            return await self._world.resources.get(pod.namespace, pod.name, seconds), True
        except UnreachableError:
            return None, False

    def _remembered(self) -> list[Bound]:
        """Every pod that the watch or, while there is none, the book knows."""
        pods = {pod.uid: pod for pod in self._world.pods.bound()}
        if not self._world.pods.synced():
            for entry in self._ledger.book:
                if entry.uid and FORMER not in entry.container:
                    before = pods.get(entry.uid) or Bound(entry.uid, entry.pod, entry.namespace, (), None)
                    if before.container(entry.container) is None:
                        one = Wanted(entry.container, len(entry.ids), entry.init)
                        pods[entry.uid] = replace(before, wanted=(*before.wanted, one))
        return list(pods.values())

    def _guess(self, pods: Sequence[Bound], call: Call) -> Found | None:
        """The oldest whose next container asks for as much, on those cards where they are known."""
        fitting = []
        for pod in pods:
            rest = self._ledger.book.lacking(pod)
            if rest and rest[0].units == call.size and not (call.ids and _apart(pod, rest[0], call.ids)):
                fitting.append(Found(pod, rest[0], guessed=True))
        # Of one second the first that the watch told of: as a kubelet sorts them.
        return min(fitting, key=lambda found: found.pod.created, default=None)


def _apart(pod: Bound, one: Wanted, ids: frozenset[str]) -> bool:
    """Whether the record names other cards than those of the devices."""
    return {card_of(ident) for ident in ids} != {part.uuid for part in pod.part(one.name) or ()}
