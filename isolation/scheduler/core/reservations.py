# SPDX-License-Identifier: Apache-2.0
"""
Which reservations stand, whom they serve, and which have had their day.

A reservation takes room from everybody but whom it serves, until a bound pod that it serves names
it, or until it expires. Told twice, late or after its use, it comes to the same end. Time is an
argument, in seconds since the epoch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import Request
from isolation.scheduler.core.planned_nodes import assign_places, may_use

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from isolation.contract.model import Placement, Pod, Slice
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.capacity import Capacity

PREEMPTION: Final = "preemption"
"""Reason of a reservation for which others are asked to go."""
ABANDONED_SECONDS: Final = 5.0
"""So long after nobody is going for it a reservation was given up by its maker; the watch may be a moment behind."""
RESERVED_FOR_OTHERS: Final = "GPU memory is reserved for pods that the node was added for"
_KEY: Final = "reservation/"
"""Before the name of a reservation among the holders of room: no UID has a slash."""


def key_of(name: str) -> str:
    """What a reservation is called among the holders of room."""
    return _KEY + name


def internal_name(uid: str) -> str:
    """What a reservation of the books' own is called, which is never stored: no object's name has a slash."""
    return f"/{uid}"


def is_internal(name: str) -> bool:
    """Whether a reservation is the books' own."""
    return name.startswith("/")


def name_of(key: str) -> str | None:
    """The reservation's name; None for a pod."""
    return key[len(_KEY) :] if key.startswith(_KEY) else None


class Reservations:
    """The reservations, and their holds in the room; `pods`: those that are known, by UID, as they are at any time."""

    def __init__(self, room: Capacity, pods: Mapping[str, Pod]) -> None:
        self._room, self._pods = room, pods
        self._stored: dict[str, Reservation] = {}
        self._by_holder: dict[str, dict[str, None]] = {}
        self._used: dict[str, str] = {}
        """By reservation, the pod that uses it up, or is about to."""
        self._claims: dict[str, Pod] = {}
        """By reservation name, a bound pod that names it, perhaps before the reservation itself was seen."""
        self._past: set[str] = set()
        """Expired, or made for a pod that has no need of it any more."""
        self._next_expiry = math.inf
        self._short: dict[str, float] = {}
        """By reservation, since when nobody is going for it."""
        self._unseated: dict[str, dict[str, None]] = {}
        """By pool, the purchases that have no node yet."""
        self._seats: dict[str, Placement] = {}
        """Where the others are kept."""

    def all(self) -> Iterator[Reservation]:
        """Every stored one."""
        yield from self._stored.values()

    def put(self, reservation: Reservation, now: float, *, needed: bool) -> None:
        """A stored reservation; it never changes, but another of its name can come after it."""
        before = self._stored.get(reservation.name)
        if before is not None and not _same(before, reservation):
            self.drop(reservation.name)
        self._stored[reservation.name] = reservation
        self._by_holder.setdefault(reservation.holder, {})[reservation.name] = None
        claimed = self._claims.get(reservation.name)
        if claimed is not None and _serves(reservation, claimed):
            self._used[reservation.name] = claimed.uid
        if reservation.expires <= now or not needed:
            self._past.add(reservation.name)
        self._next_expiry = min(self._next_expiry, reservation.expires)
        if reservation.pool and reservation.name not in self._seats:
            self._unseated.setdefault(reservation.pool, {})[reservation.name] = None
            self.seek(reservation.holder)
        self._book(reservation.name)

    def drop(self, name: str) -> None:
        """The object is gone."""
        found = self._stored.pop(name, None)
        if found is None:
            return
        held = self._by_holder[found.holder]
        del held[name]
        if not held:
            del self._by_holder[found.holder]
        self._used.pop(name, None)
        self._past.discard(name)
        self._seats.pop(name, None)
        waiting = self._unseated.get(found.pool, {})
        waiting.pop(name, None)
        if not waiting:
            self._unseated.pop(found.pool, None)
        self._room.free(key_of(name))

    # -- purchases -------------------------------------------------------------------------------

    def node_changed(self, name: str) -> None:
        """A node came, is another now, or went: who was to have a place there, and who has none yet, is looked at."""
        self.crowded(name)
        node = self._room.nodes.get(name)
        if node is not None:
            self._seat(node.pool, (name,))

    def crowded(self, name: str) -> None:
        """Places may have been lost on a node, perhaps to pods that were there before the purchases were read."""
        lost = [one for one in self._on(name) if not self._still(one)]
        for one in lost:
            self._unseat(one)
        for one in lost:
            self.seek(self._stored[one].holder)

    def seek(self, holder: str) -> None:
        """A pod, or a purchase for it, is known now: perhaps its node is up already."""
        for name in self._by_holder.get(holder, ()):
            made, pod = self._stored[name], self._pods.get(holder)
            if pod is not None and name in self._unseated.get(made.pool, ()):
                self._seat(made.pool, self._with_room(made.pool, pod))

    def tell(self, pod: Pod, failed: dict[str, str], hopeless: dict[str, str]) -> None:
        """Complete the reasons against nodes: what is kept there for others, and elsewhere for the pod."""
        failed.update(dict.fromkeys(self._kept_from(pod, failed), RESERVED_FOR_OTHERS))
        bought = (self._stored[name] for name in self._by_holder.get(pod.uid, ()) if self._stands(name))
        made = next((r for r in bought if r.pool and r.name not in self._seats and _serves(r, pod)), None)
        if made is not None:
            for reasons in (failed, hopeless):
                for name, reason in reasons.items():
                    reasons[name] = f"{reason}; GPU memory is reserved for the pod on the next node of pool {made.pool}"

    def _kept_from(self, pod: Pod, names: Container[str]) -> list[str]:
        """Of these nodes those that would have the cards but for other pods that they were bought for."""
        more: dict[str, list[Slice]] = {}
        for one, at in self._seats.items():
            others = self._stands(one) and self._stored[one].holder != pod.uid
            if others and at.node in names and at.node in self._room.engine.nodes:
                more.setdefault(at.node, []).extend(at.slices)
        return [name for name, slices in more.items() if self._would_fit(pod.request, name, slices)]

    def _would_fit(self, request: Request, name: str, freed: Iterable[Slice]) -> bool:
        rooms = self._room.engine.room(name)
        room = {card.uuid: free for card, free in zip(self._room.nodes[name].cards, rooms, strict=True)}
        for part in freed:
            free, core = room.get(part.uuid, (0, 0))
            room[part.uuid] = free + part.bytes, core + part.core
        fits = (free >= request.card_bytes and core >= request.card_core for free, core in room.values())
        return sum(fits) >= request.cards

    def _on(self, node: str) -> list[str]:
        """Purchases that are kept on a node."""
        named = (name_of(key) for key in self._room.on.get(node, ())) if self._seats else ()
        return [one for one in named if one in self._seats]

    def _with_room(self, pool: str, pod: Pod) -> list[str]:
        """Nodes of a pool that have the cards for a pod now: mostly none, or nothing would have been bought."""
        engine, names = self._room.engine, [node.name for node in self._room.nodes.values() if node.pool == pool]
        scores = engine.rate(self._room.lean(pod.request), names)[0]
        return [names[at] for at in np.flatnonzero(np.isfinite(scores)).tolist()]

    def _still(self, name: str) -> bool:
        """Whether a place that was chosen is one still."""
        at, pod = self._seats[name], self._pods.get(self._stored[name].holder)
        if pod is None or not may_use(pod, self._room.nodes.get(at.node)):
            return False
        with self._room.without([key_of(name)]):
            return self._room.place_exactly(pod.request, pod.namespace, at) is not None

    def _seat(self, pool: str, nodes: Iterable[str]) -> None:
        """Choose nodes among these for the purchases of a pool that have none."""
        for node in nodes:
            waiting = [
                (made, self._pods[made.holder])
                for made in (self._stored[name] for name in self._unseated.get(pool, ()) if self._stands(name))
                if made.holder in self._pods and _serves(made, self._pods[made.holder])
            ]
            if not waiting:
                return
            waiting.sort(key=lambda one: (one[0].expires, one[0].planned_node, one[0].name))
            found = assign_places(self._room, node, waiting, {made.name: key_of(made.name) for made, _ in waiting})
            self._seats |= found
            for name in found:
                del self._unseated[pool][name]

    def _unseat(self, name: str) -> None:
        if self._seats.pop(name, None) is not None:
            self._unseated.setdefault(self._stored[name].pool, {})[name] = None
            self._room.free(key_of(name))

    # -- all of them -----------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Let go of what has had its time."""
        if now < self._next_expiry:
            return
        for name, reservation in self._stored.items():
            if reservation.expires <= now and name not in self._past:
                self._past.add(name)
                self._book(name)
        for name in [name for name in self._past if is_internal(name)]:
            self.drop(name)
        self._next_expiry = min((r.expires for n, r in self._stored.items() if n not in self._past), default=math.inf)

    def serving(self, pod: Pod) -> list[Reservation]:
        """Those that stand and were made for this pod, in the order in which they expire."""
        if not self._by_holder:
            return []
        names = {**self._by_holder.get(pod.uid, {}), **self._by_holder.get(pod.owner_uid, {})}
        found = (self._placed(name) for name in names if self._stands(name))
        serves = (r for r in found if r.placement.node and _serves(r, pod))
        return sorted(serves, key=lambda r: (r.expires, r.name))

    def use(self, name: str, uid: str) -> None:
        """This pod has it: room is taken under the pod's own name."""
        self._used[name] = uid
        self._book(name)

    def unuse(self, name: str, uid: str) -> None:
        """The pod did not come after all: the room is kept again."""
        if self._used.get(name) == uid:
            del self._used[name]
            self._book(name)
            if name in self._seats and not self._still(name):
                self._unseat(name)
                self.seek(self._stored[name].holder)

    def bound(self, pod: Pod) -> None:
        """A pod was bound: what it names is used up, what was made for it alone has no purpose any more."""
        if pod.reservation:
            self._claims[pod.reservation] = pod
            stored = self._stored.get(pod.reservation)
            if stored is not None and _serves(stored, pod):
                self.use(pod.reservation, pod.uid)
        self.no_need(pod.uid)

    def gone(self, pod: Pod | None, uid: str) -> None:
        """The pod is no more."""
        if pod is not None and self._claims.get(pod.reservation, pod).uid == uid:
            self._claims.pop(pod.reservation, None)
        self.no_need(uid)

    def stale(self) -> list[Reservation]:
        """Those that are used up, expired or without purpose."""
        return [
            r
            for name, r in self._stored.items()
            if (name in self._past or name in self._used) and not is_internal(name)
        ]

    def hollow(self, pods: Mapping[str, Pod], ending: Collection[str], now: float) -> list[Reservation]:
        """
        Those whose pod is not known; for pre-emption also where it would not fit although all who are ending had gone.

        Whoever made one died, or lost the right to act, before it asked the victims to go: nobody else will, and
        until it expires it would keep room that somebody could use.
        """
        short = {}
        for name, made in self._stored.items():
            pod = pods.get(made.holder)
            if not self._stands(name) or (made.reason != PREEMPTION and not made.pool):
                continue
            if made.pool:
                if pod is None:
                    short[name] = self._short.get(name, now)
                continue
            going = [uid for uid in self._room.on.get(made.placement.node, ()) if uid in ending]
            with self._room.without([key_of(name), *going]):
                if pod is None or self._room.place_exactly(pod.request, pod.namespace, made.placement) is None:
                    short[name] = self._short.get(name, now)
        self._short = short
        return [self._stored[name] for name, since in short.items() if now - since >= ABANDONED_SECONDS]

    def no_need(self, uid: str) -> None:
        """The pod has its place, or needs none: what was made for it alone has no purpose any more."""
        for name in tuple(self._by_holder.get(uid, ())):
            if is_internal(name):
                self.drop(name)
                continue
            self._past.add(name)
            self._book(name)

    def _placed(self, name: str) -> Reservation:
        """The reservation as if the node that was chosen for it were its own."""
        made, at = self._stored[name], self._seats.get(name)
        return made if at is None else replace(made, placement=at)

    def _stands(self, name: str) -> bool:
        return name in self._stored and name not in self._past and name not in self._used

    def _book(self, name: str) -> None:
        if not self._stands(name):
            self._room.free(key_of(name))
            return
        made = self._placed(name)
        if not made.placement.node:
            return
        slices = made.placement.slices
        each, core = max((s.bytes for s in slices), default=0), max((s.core for s in slices), default=0)
        request = Request(cards=len(slices), card_bytes=each, card_core=core)
        self._room.hold(key_of(name), made.namespace, request, made.placement)


def _same(before: Reservation, now: Reservation) -> bool:
    """Whether this is the object that is known, perhaps from its maker, who knew no UID yet."""
    alike = (before.holder, before.placement, before.pool) == (now.holder, now.placement, now.pool)
    return before.uid == now.uid if before.uid and now.uid else alike


def _serves(reservation: Reservation, pod: Pod) -> bool:
    """Whether it was made for this pod: a tenant can name a stranger's controller, but no stranger's namespace."""
    return reservation.namespace in {"", pod.namespace} and reservation.serves(pod)
