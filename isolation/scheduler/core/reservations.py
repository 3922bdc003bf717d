# SPDX-License-Identifier: Apache-2.0
"""
Which reservations are active, for which pods, and which can be deleted.

A reservation keeps cards from every pod but those it was made for, until one of them is bound and names it, or until
it expires. Events may come twice, late or after its use: the result is the same. Those for a planned node name a pool
and no node; `planned_nodes` chooses the node once it is up. Time is an argument, in seconds since the epoch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import Request
from isolation.placement.node_rules import needs_of
from isolation.scheduler.core.planned_nodes import assign_places, may_use

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from isolation.contract.model import Placement, Pod, Slice
    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.capacity import Capacity

PREEMPTION: Final = "preemption"
"""Reason of a reservation whose cards other pods are evicted from."""
ABANDONED_SECONDS: Final = 5.0
"""A preemption without deleted victims for so long was given up by its leader; the watch may be a moment behind."""
RESERVED_FOR_OTHERS: Final = "GPU memory is reserved for pods that the node was added for"
_KEY: Final = "reservation/"
"""Prefix of a reservation's key in `Capacity`: no UID has a slash, so it is never a pod's."""


def hold_key(name: str) -> str:
    """The reservation's key in `Capacity`."""
    return _KEY + name


def internal_name(uid: str) -> str:
    """Name of a reservation that the cache made itself and that is never stored: no object's name has a slash."""
    return f"/{uid}"


def is_internal(name: str) -> bool:
    """Whether the cache made the reservation itself."""
    return name.startswith("/")


def reservation_name(key: str) -> str | None:
    """The reservation's name; None for a pod's key."""
    return key[len(_KEY) :] if key.startswith(_KEY) else None


class Reservations:
    """The reservations and what they hold in `capacity`; `pods` by UID is the cache's own, live mapping."""

    def __init__(self, capacity: Capacity, pods: Mapping[str, Pod]) -> None:
        self._capacity, self._pods = capacity, pods
        self._stored: dict[str, Reservation] = {}
        self._by_holder: dict[str, dict[str, None]] = {}
        self._by_request: dict[tuple[str, str], dict[str, None]] = {}
        """By namespace and name of a ProvisioningRequest."""
        self._used: dict[str, str] = {}
        """By reservation, the pod that uses it up, or is about to."""
        self._claims: dict[str, Pod] = {}
        """By reservation name, a bound pod that names it, perhaps observed before the reservation itself."""
        self._ended: set[str] = set()
        """Expired, or made for a pod that does not need it any more."""
        self._next_expiry = math.inf
        self._abandoned_since: dict[str, float] = {}
        """By reservation, since when no pod is being deleted for it."""
        self._unplaced: dict[str, dict[str, None]] = {}
        """By pool, the reservations of planned nodes that have no node yet (an ordered set)."""
        self._places: dict[str, Placement] = {}
        """By reservation of a planned node, the cards chosen for it."""

    def add(self, reservation: Reservation, now: float, *, needed: bool) -> None:
        """Add a stored reservation; it never changes, but another of the same name can follow it."""
        before = self._stored.get(reservation.name)
        if before is not None and not _is_same(before, reservation):
            self.remove(reservation.name)
        self._stored[reservation.name] = reservation
        self._by_holder.setdefault(reservation.holder, {})[reservation.name] = None
        if reservation.provisioning_request:
            self._by_request.setdefault(_request_key(reservation), {})[reservation.name] = None
        claimed = self._claims.get(reservation.name)
        if claimed is not None and _serves(reservation, claimed):
            self._used[reservation.name] = claimed.uid
        if reservation.expires <= now or not needed:
            self._ended.add(reservation.name)
        self._next_expiry = min(self._next_expiry, reservation.expires)
        if reservation.pool and reservation.name not in self._places:
            self._unplaced.setdefault(reservation.pool, {})[reservation.name] = None
            self.assign_for_holder(reservation.holder)
        self._update_hold(reservation.name)

    def remove(self, name: str) -> None:
        """Remove a reservation whose object is gone."""
        found = self._stored.pop(name, None)
        if found is None:
            return
        held = self._by_holder[found.holder]
        del held[name]
        if not held:
            del self._by_holder[found.holder]
        for_request = self._by_request.get(_request_key(found), {})
        for_request.pop(name, None)
        if not for_request:
            self._by_request.pop(_request_key(found), None)
        self._used.pop(name, None)
        self._ended.discard(name)
        self._places.pop(name, None)
        unplaced = self._unplaced.get(found.pool, {})
        unplaced.pop(name, None)
        if not unplaced:
            self._unplaced.pop(found.pool, None)
        self._capacity.free(hold_key(name))

    # -- planned nodes ---------------------------------------------------------------------------

    def node_changed(self, name: str) -> None:
        """A node came, changed or went: check the places chosen there, and assign reservations that have none."""
        self.recheck_node(name)
        node = self._capacity.nodes.get(name)
        if node is not None:
            self._assign(node.pool, (name,))

    def recheck_node(self, name: str) -> None:
        """Give up places that no longer fit, perhaps for pods that were bound before the reservations were read."""
        lost = [reservation for reservation in self._planned_on(name) if not self._still_fits(reservation)]
        # All are given up before any is assigned again: what one frees may be what another needs.
        for reservation in lost:
            self._unassign(reservation)
        for reservation in lost:
            self.assign_for_holder(self._stored[reservation].holder)

    def assign_for_holder(self, holder: str) -> None:
        """A pod, or a reservation for it, is known now: perhaps its planned node is up already."""
        for name in self._by_holder.get(holder, ()):
            made, pod = self._stored[name], self._pods.get(holder)
            if pod is not None and name in self._unplaced.get(made.pool, ()):
                self._assign(made.pool, self._nodes_with_capacity(made.pool, pod))

    def add_reasons(self, pod: Pod, failed: dict[str, str], unresolvable: dict[str, str]) -> None:
        """Add to the reasons against nodes what is reserved there for other pods, and elsewhere for this pod."""
        failed.update(dict.fromkeys(self._nodes_reserved_for_others(pod, failed), RESERVED_FOR_OTHERS))
        planned = (self._stored[name] for name in self._by_holder.get(pod.uid, ()) if self._is_active(name))
        unplaced = next((r for r in planned if r.pool and r.name not in self._places and _serves(r, pod)), None)
        if unplaced is not None:
            why = f"GPU memory is reserved for the pod on the next node of pool {unplaced.pool}"
            for reasons in (failed, unresolvable):
                for name, reason in reasons.items():
                    reasons[name] = f"{reason}; {why}"

    def _nodes_reserved_for_others(self, pod: Pod, names: Container[str]) -> list[str]:
        """Of these nodes those that would fit the pod without the reservations for other pods of planned nodes."""
        more: dict[str, list[Slice]] = {}
        for name, at in self._places.items():
            others = self._is_active(name) and self._stored[name].holder != pod.uid
            if others and at.node in names and at.node in self._capacity.engine.nodes:
                more.setdefault(at.node, []).extend(at.slices)
        return [name for name, slices in more.items() if self._would_fit(pod.request, name, slices)]

    def _would_fit(self, request: Request, name: str, freed: Iterable[Slice]) -> bool:
        rooms = self._capacity.engine.room(name)
        room = {card.uuid: free for card, free in zip(self._capacity.nodes[name].cards, rooms, strict=True)}
        for part in freed:
            free, core = room.get(part.uuid, (0, 0))
            room[part.uuid] = free + part.bytes, core + part.core
        needs = needs_of(request)
        cards = [card.uuid for card in self._capacity.nodes[name].cards if needs.allow(card)]
        fits = (
            free >= request.card_bytes and core >= request.card_core for free, core in (room[uuid] for uuid in cards)
        )
        return sum(fits) >= request.cards

    def _planned_on(self, node: str) -> list[str]:
        """Reservations of planned nodes that have a place on this node."""
        if not self._places:
            return []
        names = (reservation_name(key) for key in self._capacity.keys_by_node.get(node, ()))
        return [name for name in names if name in self._places]

    def _nodes_with_capacity(self, pool: str, pod: Pod) -> list[str]:
        """Nodes of a pool that fit a pod now: mostly none, or no node would have been planned."""
        names = [node.name for node in self._capacity.nodes.values() if node.pool == pool]
        scores = self._capacity.engine.rate(self._capacity.strip_request(pod.request), names)[0]
        return [names[row] for row in np.flatnonzero(np.isfinite(scores)).tolist()]

    def _still_fits(self, name: str) -> bool:
        """Whether the cards that were chosen still fit."""
        at, pod = self._places[name], self._pods.get(self._stored[name].holder)
        if pod is None or not may_use(pod, self._capacity.nodes.get(at.node)):
            return False
        with self._capacity.without([hold_key(name)]):
            return self._capacity.place_exactly(pod.request, pod.namespace, at) is not None

    def _assign(self, pool: str, nodes: Iterable[str]) -> None:
        """Choose cards on these nodes for the reservations of a pool that have none."""
        for node in nodes:
            active = (self._stored[name] for name in self._unplaced.get(pool, ()) if self._is_active(name))
            pending = [
                (reservation, self._pods[reservation.holder])
                for reservation in active
                if reservation.holder in self._pods and _serves(reservation, self._pods[reservation.holder])
            ]
            if not pending:
                return
            pending.sort(key=lambda pair: (pair[0].expires, pair[0].planned_node, pair[0].name))
            keys = {reservation.name: hold_key(reservation.name) for reservation, _ in pending}
            places = assign_places(self._capacity, node, pending, keys)
            self._places |= places
            for name in places:
                del self._unplaced[pool][name]

    def _unassign(self, name: str) -> None:
        if self._places.pop(name, None) is not None:
            self._unplaced.setdefault(self._stored[name].pool, {})[name] = None
            self._capacity.free(hold_key(name))

    # -- all reservations ------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End reservations whose time is over."""
        if now < self._next_expiry:
            return
        for name, reservation in self._stored.items():
            if reservation.expires <= now and name not in self._ended:
                self._ended.add(name)
                self._update_hold(name)
        for name in [name for name in self._ended if is_internal(name)]:
            self.remove(name)
        self._next_expiry = min((r.expires for n, r in self._stored.items() if n not in self._ended), default=math.inf)

    def list_for_pod(self, pod: Pod) -> list[Reservation]:
        """Active reservations for this pod, in the order in which they expire."""
        if not self._by_holder:
            return []
        names = {**self._by_holder.get(pod.uid, {}), **self._by_holder.get(pod.owner_uid, {})}
        if pod.provisioning_request:
            names |= self._by_request.get((pod.namespace, pod.provisioning_request), {})
        found = (self._with_place(name) for name in names if self._is_active(name))
        serves = (r for r in found if r.placement.node and _serves(r, pod))
        return sorted(serves, key=lambda r: (r.expires, r.name))

    def list_for_holder(self, holder: str) -> list[Reservation]:
        """Active reservations made out to this UID, in the order in which they were added."""
        return [self._stored[name] for name in self._by_holder.get(holder, ()) if self._is_active(name)]

    def use(self, name: str, uid: str) -> None:
        """The pod takes its cards: from now on they are held under the pod's own key."""
        self._used[name] = uid
        self._update_hold(name)

    def unuse(self, name: str, uid: str) -> None:
        """The pod was not bound after all: the reservation is active again."""
        if self._used.get(name) == uid:
            del self._used[name]
            self._update_hold(name)
            if name in self._places and not self._still_fits(name):
                self._unassign(name)
                self.assign_for_holder(self._stored[name].holder)

    def pod_bound(self, pod: Pod) -> None:
        """A pod was bound: the reservation that it names is used up, others for it alone are not needed any more."""
        if pod.reservation:
            self._claims[pod.reservation] = pod
            stored = self._stored.get(pod.reservation)
            if stored is not None and _serves(stored, pod):
                self.use(pod.reservation, pod.uid)
        self.release_for(pod.uid)

    def pod_removed(self, pod: Pod | None, uid: str) -> None:
        """The pod is gone: reservations for it alone are not needed any more."""
        if pod is not None and self._claims.get(pod.reservation, pod).uid == uid:
            self._claims.pop(pod.reservation, None)
        self.release_for(uid)

    def list_unneeded(self) -> list[Reservation]:
        """Stored reservations that are used up, expired or not needed any more."""
        over = self._ended | self._used.keys()
        return [r for name, r in self._stored.items() if name in over and not is_internal(name)]

    def list_abandoned(self, pods: Mapping[str, Pod], deleting: Collection[str], now: float) -> list[Reservation]:
        """
        Reservations whose pod is unknown; for preemption also where the pod would not fit even without `deleting`.

        The leader that made one died, or lost its Lease, before it evicted the victims. No other process will, and
        until it expires the reservation would keep cards that other pods could use.
        """
        since = {}
        for name, made in self._stored.items():
            pod = pods.get(made.holder)
            if not self._is_active(name) or (made.reason != PREEMPTION and not made.pool):
                continue
            if made.pool:
                if pod is None:
                    since[name] = self._abandoned_since.get(name, now)
                continue
            going = [uid for uid in self._capacity.keys_by_node.get(made.placement.node, ()) if uid in deleting]
            with self._capacity.without([hold_key(name), *going]):
                if pod is None or self._capacity.place_exactly(pod.request, pod.namespace, made.placement) is None:
                    since[name] = self._abandoned_since.get(name, now)
        self._abandoned_since = since
        return [self._stored[name] for name, first in since.items() if now - first >= ABANDONED_SECONDS]

    def release_for(self, uid: str) -> None:
        """End reservations made for this pod alone: it is bound, or gone."""
        for name in tuple(self._by_holder.get(uid, ())):
            if is_internal(name):
                self.remove(name)
                continue
            self._ended.add(name)
            self._update_hold(name)

    def _with_place(self, name: str) -> Reservation:
        """The reservation with the cards that were chosen for it."""
        made, at = self._stored[name], self._places.get(name)
        return made if at is None else replace(made, placement=at)

    def _is_active(self, name: str) -> bool:
        return name in self._stored and name not in self._ended and name not in self._used

    def _update_hold(self, name: str) -> None:
        if not self._is_active(name):
            self._capacity.free(hold_key(name))
            return
        made = self._with_place(name)
        if not made.placement.node:
            return
        slices = made.placement.slices
        each, core = max((s.bytes for s in slices), default=0), max((s.core for s in slices), default=0)
        request = Request(cards=len(slices), card_bytes=each, card_core=core)
        self._capacity.hold(hold_key(name), made.namespace, request, made.placement)


def _request_key(reservation: Reservation) -> tuple[str, str]:
    return reservation.namespace, reservation.provisioning_request


def _is_same(before: Reservation, now: Reservation) -> bool:
    """Whether both are one object; the leader that creates one adds it before the API server has given it a UID."""
    equal = (before.holder, before.placement, before.pool) == (now.holder, now.placement, now.pool)
    return before.uid == now.uid if before.uid and now.uid else equal


def _serves(reservation: Reservation, pod: Pod) -> bool:
    """Whether it is for this pod: a tenant can forge another's controller UID, but not another's namespace."""
    return reservation.namespace in {"", pod.namespace} and reservation.serves(pod)
