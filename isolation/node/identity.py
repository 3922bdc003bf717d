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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.node.book import FORMER, Entry, are_ours, card_of
from isolation.node.handed import Call, predecessors
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


@dataclass(frozen=True, slots=True)
class Found:
    """A container, and how sure we are."""

    pod: Bound
    wanted: Wanted
    guessed: bool = False
    before: tuple[Entry, ...] = ()
    """Of containers of the same pod that were admitted a moment ago, when nobody knew whose they were."""
    again: bool = False
    """It has devices by our book, and the kubelet forgot: probably this one, PreStart will see."""


class Identity:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world
        self._again: tuple[str, frozenset[str]] = ("", frozenset())
        """The pod that a kubelet without memory admits again now, and which of its containers had their turn."""
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
        forgotten = [pod for pod in self._remembered() if self._turns(pod, call) and pod.uid not in asked]
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
                found = self._container(pod, listing, call) if listing is not None else None
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

    def _container(self, pod: Bound, listing: Mapping[str, frozenset[str]], call: Call) -> Found | None:
        """
        Which container of the pod is being admitted, and what its predecessors were given without being known.

        None: the kubelet shows devices for all that it lists. It lists no init containers: of a pod with nothing
        else only our book can tell, which makes it a guess.
        """
        rest = [one for one in pod.wanted if self._open(pod, one, listing)]
        lasting = [one for one in pod.wanted if not one.init]
        if lasting and all(listing.get(one.name) for one in lasting):
            return None
        if not rest:
            turns = [one for one in self._turns(pod, call) if not listing.get(one.name)]
            if not turns:
                return None
            uid, names = self._again
            self._again = (pod.uid, (names if uid == pod.uid else frozenset()) | {turns[0].name})
            return Found(pod, turns[0], again=True)
        handed = self._handed(pod, rest, listing, call)
        if handed is not None:
            before = [owned(handed[one.name], pod, one) for one in rest if one.name in handed]
            rest = rest[len(handed) :]
        else:
            before, rest = self._supposed(pod, rest, listing, call)
        # A kubelet shows also a pod that it never admits, because its deletion came first.
        return Found(pod, rest[0], guessed=not lasting or pod.deleting, before=tuple(before)) if rest else None

    def _handed(
        self, pod: Bound, rest: Sequence[Wanted], listing: Mapping[str, frozenset[str]], call: Call
    ) -> dict[str, Entry] | None:
        """What those of `rest` had that went before, where it follows from what a kubelet hands on; see `handed`."""
        entries = {one.name: self._ledger.book.get(pod.uid, one.name) for one in pod.wanted if one not in rest}
        if any(entry is None or entry.guessed for entry in entries.values()):
            return None
        known = {name: entry.ids for name, entry in entries.items() if entry is not None}
        shown = {one.name: entry for one in rest if (entry := self._shown(one, listing)) is not None}
        since = self._before(pod, rest[0])
        nobodys = [entry for entry in self._ledger.book if not entry.uid and entry.made > since]
        found = predecessors(pod, known, shown, nobodys, call)
        return None if found is None or rest[len(found)].name in _passed(pod, listing) else found

    def _supposed(
        self, pod: Bound, rest: list[Wanted], listing: Mapping[str, frozenset[str]], call: Call
    ) -> tuple[list[Entry], list[Wanted]]:
        """The same by what is likely, where the kubelet or the book has forgotten something; and who is left."""
        before: list[Entry] = []
        shown = frozenset(ident for ids in listing.values() if are_ours(ids) for ident in ids)
        since = self._before(pod, rest[0])
        unknown = [entry for entry in self._ledger.book.unknown(call.ids | shown) if entry.made > since]
        passed = _passed(pod, listing)
        while rest:
            entry = self._shown(rest[0], listing)
            if entry is None and len(rest) > 1 and unknown and len(unknown[0].ids) == rest[0].units:
                entry = unknown[0]
            if entry is None and rest[0].name not in passed and not _skipped(rest, call.size):
                break
            one = rest.pop(0)  # of an init container that had its turn PreStart finds the devices, where we do not
            if entry is not None:
                unknown = [other for other in unknown if other != entry]
                before.append(owned(entry, pod, one))
        return before, rest

    def _open(self, pod: Bound, one: Wanted, listing: Mapping[str, frozenset[str]]) -> bool:
        """Whether it has nothing yet by our book; a guess that the kubelet does not show was a wrong one."""
        entry = self._ledger.book.get(pod.uid, one.name)
        return entry is None or (entry.guessed and not one.init and not listing.get(one.name))

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

    def _turns(self, pod: Bound, call: Call) -> list[Wanted]:
        """Containers that a kubelet without memory may admit again: they do not run, and ask for as much."""
        uid, names = self._again
        if pod.ended or self._ledger.book.lacking(pod):
            return []
        turns = [one for one in pod.wanted if not one.id and one.units == call.size]
        left = [one for one in turns if uid != pod.uid or one.name not in names]
        return left or turns

    def _before(self, pod: Bound, one: Wanted) -> int:
        """When a container that comes before this one got what it surely has; later ones get theirs after it."""
        sooner = {other.name for other in pod.wanted[: pod.wanted.index(one)]}
        mine = (entry for entry in self._ledger.book.of(pod.uid) if entry.container in sooner and not entry.guessed)
        return max((entry.made for entry in mine), default=0)

    def _shown(self, one: Wanted, listing: Mapping[str, frozenset[str]]) -> Entry | None:
        """What the kubelet shows that it was given; None: it shows nothing."""
        ids = listing.get(one.name)
        if not ids or not are_ours(ids):
            return None
        known = next((entry for entry in reversed(self._ledger.book.exactly(ids)) if not entry.uid), None)
        return known or Entry(ids, made=self._ledger.book.next())

    def _guess(self, pods: Sequence[Bound], call: Call) -> Found | None:
        """The oldest whose next container asks for as much, on those cards where they are known."""
        fitting = []
        for pod in pods:
            rest = self._ledger.book.lacking(pod)
            if rest and rest[0].units == call.size and not (call.ids and _apart(pod, rest[0], call.ids)):
                fitting.append(Found(pod, rest[0], guessed=True))
        # Of one second the first that the watch told of: as a kubelet sorts them.
        return min(fitting, key=lambda found: found.pod.created, default=None)


def owned(entry: Entry, pod: Bound, wanted: Wanted) -> Entry:
    """The same devices, with their owner."""
    return replace(entry, uid=pod.uid, namespace=pod.namespace, pod=pod.name, container=wanted.name, init=wanted.init)


def _passed(pod: Bound, listing: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Containers that had their turn, in the kubelet's order: a later one is shown with devices."""
    names = [one.name for one in pod.wanted]
    last = max((at for at, name in enumerate(names) if listing.get(name)), default=0)
    return frozenset(names[:last])


def _skipped(rest: Sequence[Wanted], size: int) -> bool:
    """Whether the first had its turn unseen: it asks for another number of devices, and a later one for this one."""
    return rest[0].units != size and any(one.units == size for one in rest[1:])


def _apart(pod: Bound, one: Wanted, ids: frozenset[str]) -> bool:
    """Whether the record names other cards than those of the devices."""
    return {card_of(ident) for ident in ids} != {part.uuid for part in pod.part(one.name) or ()}
