# SPDX-License-Identifier: Apache-2.0
"""
Which container of a pod it is that the kubelet gives devices to now.

The first that has none, by our book and by what the kubelet shows. Where those before it were given theirs in a moment
when nobody knew whose they were, they get them here: by what a kubelet must have handed on, or, where it or the book
has forgotten something, by what is likely. Does not decide which pod it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isolation.node.book import Entry, are_ours
from isolation.node.handed import predecessors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.node.handed import Call
    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound, Wanted


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


class Turns:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._again: tuple[str, frozenset[str]] = ("", frozenset())
        """The pod that a kubelet without memory admits again now, and which of its containers had their turn."""

    def container(self, pod: Bound, listing: Mapping[str, frozenset[str]], call: Call) -> Found | None:
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
            turns = [one for one in self.again(pod, call) if not listing.get(one.name)]
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

    def again(self, pod: Bound, call: Call) -> list[Wanted]:
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
