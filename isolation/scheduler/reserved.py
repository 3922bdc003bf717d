"""
Which reservations stand, whom they serve, and which have had their day.

A reservation takes room from everybody but whom it serves, until a bound pod that it serves names
it, or until it expires. Told twice, late or after its use, it comes to the same end. Time is an
argument, in seconds since the epoch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from isolation.contract.model import Request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from isolation.contract.model import Pod
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.room import Room

PREEMPTION: Final = "preemption"
"""Reason of a reservation for which others are asked to go."""
HOLLOW_SECONDS: Final = 5.0
"""So long after nobody is going for it a reservation was given up by its maker; the watch may be a moment behind."""
_KEY: Final = "reservation/"
"""Before the name of a reservation among the holders of room: no UID has a slash."""


def key_of(name: str) -> str:
    """What a reservation is called among the holders of room."""
    return _KEY + name


def own_name(uid: str) -> str:
    """What a reservation of the books' own is called, which is never stored: no object's name has a slash."""
    return f"/{uid}"


def own(name: str) -> bool:
    """Whether a reservation is the books' own."""
    return name.startswith("/")


def name_of(key: str) -> str | None:
    """The reservation's name; None for a pod."""
    return key[len(_KEY) :] if key.startswith(_KEY) else None


class Reserved:
    """The reservations, and their holds in the room."""

    def __init__(self, room: Room) -> None:
        self._room = room
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
        self._room.free(key_of(name))

    def expire(self, now: float) -> None:
        """Let go of what has had its time."""
        if now < self._next_expiry:
            return
        for name, reservation in self._stored.items():
            if reservation.expires <= now and name not in self._past:
                self._past.add(name)
                self._book(name)
        for name in [name for name in self._past if own(name)]:
            self.drop(name)
        self._next_expiry = min((r.expires for n, r in self._stored.items() if n not in self._past), default=math.inf)

    def serving(self, pod: Pod) -> list[Reservation]:
        """Those that stand and were made for this pod, in the order in which they expire."""
        if not self._by_holder:
            return []
        names = {**self._by_holder.get(pod.uid, {}), **self._by_holder.get(pod.owner_uid, {})}
        found = (self._stored[name] for name in names if self._stands(name))
        return sorted((r for r in found if _serves(r, pod)), key=lambda r: (r.expires, r.name))

    def use(self, name: str, uid: str) -> None:
        """This pod has it: room is taken under the pod's own name."""
        self._used[name] = uid
        self._book(name)

    def unuse(self, name: str, uid: str) -> None:
        """The pod did not come after all: the room is kept again."""
        if self._used.get(name) == uid:
            del self._used[name]
            self._book(name)

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
        return [r for name, r in self._stored.items() if (name in self._past or name in self._used) and not own(name)]

    def hollow(self, pods: Mapping[str, Pod], ending: Collection[str], now: float) -> list[Reservation]:
        """
        Those for pre-emption whose pod is not known, or would not fit there although everybody who is ending had gone.

        Whoever made it died, or lost the right to act, before it asked the victims to go: nobody else will, and
        until it expires it would keep room that somebody could use.
        """
        short = {}
        for name, made in self._stored.items():
            pod = pods.get(made.holder)
            if made.reason != PREEMPTION or not self._stands(name):
                continue
            going = [uid for uid in self._room.on.get(made.placement.node, ()) if uid in ending]
            with self._room.without([key_of(name), *going]):
                if pod is None or self._room.place_exactly(pod.request, pod.namespace, made.placement) is None:
                    short[name] = self._short.get(name, now)
        self._short = short
        return [self._stored[name] for name, since in short.items() if now - since >= HOLLOW_SECONDS]

    def no_need(self, uid: str) -> None:
        """The pod has its place, or needs none: what was made for it alone has no purpose any more."""
        for name in tuple(self._by_holder.get(uid, ())):
            if own(name):
                self.drop(name)
                continue
            self._past.add(name)
            self._book(name)

    def _stands(self, name: str) -> bool:
        return name in self._stored and name not in self._past and name not in self._used

    def _book(self, name: str) -> None:
        if not self._stands(name):
            self._room.free(key_of(name))
            return
        made = self._stored[name]
        slices = made.placement.slices
        each, core = max((s.bytes for s in slices), default=0), max((s.core for s in slices), default=0)
        request = Request(cards=len(slices), card_bytes=each, card_core=core)
        self._room.hold(key_of(name), made.namespace, request, made.placement)


def _same(before: Reservation, now: Reservation) -> bool:
    """Whether this is the object that is known, perhaps from its maker, who knew no UID yet."""
    alike = (before.holder, before.placement) == (now.holder, now.placement)
    return before.uid == now.uid if before.uid and now.uid else alike


def _serves(reservation: Reservation, pod: Pod) -> bool:
    """Whether it was made for this pod: a tenant can name a stranger's controller, but no stranger's namespace."""
    return reservation.namespace in {"", pod.namespace} and reservation.serves(pod)
