# SPDX-License-Identifier: Apache-2.0
"""
The scheduler's cache: which pod holds which cards, assumed or bound, and what the extender's verbs answer from that.

Like kube-scheduler's own cache it can assume, confirm and forget. It takes events in any order that a watch can
produce (duplicates, an echo before the answer to our own write, a node gone before its pods). An assumed pod holds its
cards from the moment `assume` returns until it is observed bound, is forgotten or is gone, so two answers never
promise the same memory. Pods that another client bound are taken as they are found. One object per leader, rebuilt
when it starts to lead. Synchronous and pure: no I/O, time is an argument (seconds since the epoch).

It holds only pods that request GPU shares; whole cards, CPU, memory and node rules are kube-scheduler's business.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isolation.contract.model import ComputePolicy, Phase, Placement, Refusal, Why
from isolation.contract.quantity import GIB
from isolation.contract.reservation import GANG, Reservation
from isolation.placement.explain import describe_reason
from isolation.placement.policy import DEFAULT
from isolation.scheduler.core import inspection
from isolation.scheduler.core.capacity import Capacity
from isolation.scheduler.core.gang_placement import (
    BOOKED_SECONDS,
    SPARE_SECONDS,
    has_place,
    place_gang,
    reservation_names,
)
from isolation.scheduler.core.preemption import (
    Nominator,
    PreemptionState,
    choose_preemption,
    correct_victims,
    find_candidates,
)
from isolation.scheduler.core.reservations import Reservations, hold_key, internal_name, is_internal
from isolation.scheduler.core.resizing import next_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from isolation.contract.model import Node, Pod, Request
    from isolation.contract.provisioning_request import ProvisioningRequest
    from isolation.scheduler.core.gang_placement import Member
    from isolation.scheduler.core.inspection import InspectedNode, OvercommittedCard
    from isolation.scheduler.core.preemption import Preemption, Victims
    from isolation.scheduler.core.resizing import ResizeStep

    Scores = np.ndarray[Any, np.dtype[np.float64]]

UNRESOLVABLE: Final = frozenset({Why.TOO_FEW_CARDS, Why.CARD_TOO_SMALL, Why.INSTANCES, Why.MODE, Why.NOT_READY})
"""Reasons that preemption cannot change (`FailedAndUnresolvableNodes` of the extender protocol)."""
DELETING_SECONDS: Final = 60.0
"""A pod counts as about to end for so long after its deletion was requested; then its cards are not waited for."""
HIGHEST_SCORE: Final = 10
"""Of the extender protocol (`MaxExtenderPriority`)."""
_EQUAL_SCORES: Final = 1e-12
"""Engine scores closer than this are one score: rounding."""
BEHIND: Final = "the kubelet still counts units of a resized pod that has ended"


@dataclass(frozen=True, slots=True)
class FilterResult:
    """
    Every node that was asked about, in exactly one of three places.

    Reasons are sentences for people, and the same for all nodes alike: kube-scheduler counts nodes by the text.
    """

    fit: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Not now: pods that end, or are preempted, may change it."""
    unresolvable: dict[str, str] = field(default_factory=dict)
    """Whatever ends there, this node cannot take the pod as it is."""


@dataclass(frozen=True, slots=True)
class AssumedPlacement:
    """Cards taken for a pod before its binding is sent."""

    placement: Placement
    reservation: str = ""
    """Name of the stored reservation that it uses up; empty: none."""
    kept_by: str = ""
    """What kept the cards for it until now: the stored reservation, or one that the cache made itself."""


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """An assumed pod that has not been observed bound."""

    uid: str
    namespace: str
    name: str
    at: float
    """When the cards were taken."""
    assumed: AssumedPlacement
    confirmed: bool = False
    """The API server has answered that the pod is bound; the watch has not shown it yet."""


class SchedulerCache:
    """See the module; `policy` is a name of `isolation.placement.policy.POLICIES`."""

    def __init__(self, *, policy: str = DEFAULT, unit_bytes: int = GIB) -> None:
        self._unit = unit_bytes
        self._capacity = Capacity(policy, unit_bytes)
        self._pods: dict[str, Pod] = {}
        self._reservations = Reservations(self._capacity, self._pods)
        self._nominator = Nominator()
        self._assumed: dict[str, tuple[AssumedPod, Pod]] = {}
        self._resizing: dict[str, tuple[int, Placement]] = {}
        """By UID, the generation of a record that is being written and what it books; held until the watch shows it."""
        self._deleting_since: dict[str, float] = {}
        self._now = 0.0
        self._fitting_version = -1
        self._fitting: dict[Request, bool] = {}

    def on_capacity_freed(self, listener: Callable[[], None]) -> None:
        """Call this whenever something that was held is free, whatever the cause."""
        self._capacity.freed = listener

    # -- events -------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Add or update a node; cards for its planned pods are reserved before any filter call can give them away."""
        self._capacity.set_node(node)
        self._reservations.node_changed(node.name)

    def remove_node(self, name: str) -> None:
        """Remove a node; what its pods hold is remembered until they are gone too, in case it comes back."""
        self._capacity.remove_node(name)
        self._reservations.node_changed(name)

    def set_pod(self, pod: Pod) -> None:
        """Add or update a pod as the watch shows it; one that has ended holds nothing."""
        if pod.phase is Phase.DONE:
            self.remove_pod(pod.uid)
            return
        before = self._pods.get(pod.uid)
        if pod.placement is None and before is not None and before.placement is not None:
            return  # Kubernetes never unbinds a pod: this event is older than what the cache has
        if before is not None and _generation(pod) < _generation(before):
            return  # nor does a record go back
        self._pods[pod.uid] = pod
        if before is None and pod.request.shared:
            self._capacity.engine.arrive(self._capacity.strip_request(pod.request))
        if pod.deleting and pod.uid not in self._deleting_since:
            self._deleting_since[pod.uid] = self._now
            self._nominate(pod.uid)
        if pod.placement is not None:
            self._set_bound(pod, pod.placement)
        elif before is None:
            self._reservations.assign_for_holder(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that is gone or has ended: whatever it held is free."""
        self.forget(uid)
        self._resizing.pop(uid, None)
        self._deleting_since.pop(uid, None)
        self._capacity.free(uid)
        self._reservations.pod_removed(self._pods.pop(uid, None), uid)
        self._nominator.remove(uid)
        self._nominate(uid)

    def set_reservation(self, reservation: Reservation) -> None:
        """Add a stored reservation."""
        holder = self._pods.get(reservation.holder)
        self._reservations.add(reservation, self._now, needed=holder is None or holder.placement is None)

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation that was deleted."""
        self._reservations.remove(name)

    def set_quota(self, namespace: str, units: Mapping[str, int] | None) -> None:
        """Limit the units by card model that a namespace may have; None: no quota."""
        self._capacity.quota.set_limit(namespace, units)

    # -- the extender's verbs -----------------------------------------------------------------

    def filter(self, pod: Pod, names: Sequence[str], now: float) -> FilterResult:
        """Sort these nodes by whether they have the cards for the pod now."""
        self._tick(now)
        if not pod.request.shared:
            return FilterResult(fit=list(names))
        answer = self._answer_if_bound(pod, names)
        if answer is not None:
            return answer
        found = FilterResult()
        with self._without_own_reservations(pod):
            for why, those in self._capacity.why_not(pod.request, names).items():
                if why is None:
                    self._filter_by_quota(pod, those, found)
                elif why is Why.NO_NODES:
                    self._explain_no_cards(pod, those, found)
                else:
                    reason = _reason(why, pod)
                    (found.unresolvable if why in UNRESOLVABLE else found.failed).update(dict.fromkeys(those, reason))
            self._reservations.add_reasons(pod, found.failed, found.unresolvable)
        for name in [name for name in found.fit if self._is_behind(name)]:
            found.fit.remove(name)
            found.failed[name] = BEHIND
        return found

    def could_fit(self, pod: Pod, now: float) -> bool:
        """
        Whether any node at all has the cards, whatever else excludes it: quick, for thousands of pending pods.

        Quotas are not considered; what is reserved for the pod counts as free.
        """
        self._tick(now)
        if self._reservations.list_for_pod(pod):
            with self._without_own_reservations(pod):
                return isinstance(self._capacity.engine.place(self._capacity.strip_request(pod.request)), Placement)
        if self._fitting_version != self._capacity.changes:
            self._fitting_version, self._fitting = self._capacity.changes, {}
        request = self._capacity.strip_request(pod.request)
        known = self._fitting.get(request)
        if known is None:
            known = self._fitting[request] = isinstance(self._capacity.engine.place(request), Placement)
        return known

    def prioritize(self, pod: Pod, names: Sequence[str], now: float) -> list[int]:
        """Score each of these nodes from 0 to 10, in the order given; 10: the best, or reserved for the pod."""
        self._tick(now)
        if not pod.request.shared:
            return [0] * len(names)
        return to_points(*self._score(pod, names))

    def shortlist(self, pod: Pod, names: Sequence[str], most: int, now: float) -> list[str]:
        """
        Of the nodes that `filter` would keep, those that `prioritize` scores highest; `most` at most.

        Empty where no node fits, and where more than free cards decides: the pod is bound already, or has a quota.
        """
        self._tick(now)
        if (
            not pod.request.shared
            or self._capacity.quota.is_limited(pod.namespace)
            or self._answer_if_bound(pod, ()) is not None
        ):
            return []
        return choose_best(*self._score(pod, names), most)

    def assume(self, pod: Pod, node: str, now: float) -> AssumedPlacement | Refusal:
        """Take cards on this node before the binding is sent; the same node again gives the same answer."""
        self._tick(now)
        if not pod.request.shared or not pod.uid:
            reason = f"{pod.key} requests no GPU shares; bind it with another scheduler"
            return Refusal(Why.INVALID, reason)
        if pod.uid in self._assumed:
            assumption = self._assumed[pod.uid][0]
            if assumption.assumed.placement.node == node:
                return assumption.assumed
            at = assumption.assumed.placement.node
            return Refusal(Why.NOT_READY, f"{pod.key} is already being bound to {at}; wait for that binding to finish")
        known = self._pods.get(pod.uid, pod)
        if known.placement is not None:
            return Refusal(Why.INVALID, f"{pod.key} is already bound to {known.placement.node}")
        if known.deleting:
            return Refusal(Why.INVALID, f"{pod.key} is being deleted")
        if self._is_behind(node):
            return Refusal(Why.NOT_READY, f"node {node}: {BEHIND}")
        found = self._choose(pod, node)
        if isinstance(found, Refusal):
            reason = _reason(found.why, pod) if found.why is Why.NOT_READY else found.reason
            return Refusal(found.why, f"node {node}: {reason}")
        if found.kept_by:
            self._reservations.use(found.kept_by, pod.uid)
        self._capacity.hold(pod.uid, pod.namespace, pod.request, found.placement)
        self._assumed[pod.uid] = (AssumedPod(pod.uid, pod.namespace, pod.name, now, found), pod)
        return found

    def policy_of(self, name: str) -> ComputePolicy:
        """How compute is shared among pods that are bound to this node now."""
        node = self._capacity.nodes.get(name)
        return node.policy if node is not None else ComputePolicy.FIXED

    def still_fits(self, uid: str) -> bool:
        """Whether this pod is still assumed and its cards have room: another leader may have bound pods to them."""
        found = self._assumed.get(uid)
        if found is None:
            return False
        assumption, pod = found
        with self._capacity.without([uid]):
            exact = self._capacity.place_exactly(pod.request, pod.namespace, assumption.assumed.placement)
        return exact is not None

    def confirm(self, uid: str) -> None:
        """Note that the API server has bound the pod as assumed; fine if the watch, or the pod's end, was faster."""
        found = self._assumed.get(uid)
        if found is not None:
            self._assumed[uid] = (replace(found[0], confirmed=True), found[1])

    def forget(self, uid: str) -> None:
        """Give the cards back: the pod was not bound by us, and the watch has not shown otherwise."""
        if uid in self._assumed:
            self._capacity.free(uid)
            self._drop_assumption(uid)

    def assumed_pods(self) -> dict[str, AssumedPod]:
        """By UID, the pods that hold cards and have not been observed bound."""
        return {uid: found[0] for uid, found in self._assumed.items()}

    def preempt(self, pod: Pod, candidates: Mapping[str, Victims], now: float) -> dict[str, Victims]:
        """
        Correct the proposed victims so that cards that fit become free.

        A node where that is impossible is left out; so is one where no pod needs to go.
        """
        self._tick(now)
        if not pod.request.shared:
            return dict(candidates)
        if not pod.preempts:
            return {}
        with self._without_own_reservations(pod):
            scene = self._preemption_state()
            found = correct_victims(scene, pod, candidates)
            self._nominator.add(pod, find_candidates(scene, pod, found), self._now)
        return found

    def find_preemption(self, pod: Pod, names: Sequence[str], now: float) -> Preemption | None:
        """
        Choose pods to evict for a pod that kube-scheduler does not preempt for, because the node's sum fits already.

        None: nothing can be gained, or it is not needed: the pod fits, or cards are reserved for it or becoming free.
        """
        self._tick(now)
        if not pod.request.shared or pod.uid in self._assumed or self._reservations.list_for_pod(pod):
            return None
        return choose_preemption(self._preemption_state(), pod, names)

    # -- gangs --------------------------------------------------------------------------------

    def reserve_gang(
        self, asked: ProvisioningRequest, members: Sequence[Member], now: float
    ) -> list[Reservation] | Refusal:
        """Keep cards for every pod of the request, before anything is stored; or for none, and why."""
        self._tick(now)
        names = reservation_names(asked, len(members))
        found = place_gang(self._capacity, asked.namespace, members, [hold_key(name) for name in names])
        if isinstance(found, Refusal):
            return found
        expires = now + BOOKED_SECONDS + SPARE_SECONDS
        made = [
            Reservation(name, asked.uid, at, expires, asked.namespace, GANG, provisioning_request=asked.name)
            for name, at in zip(names, found, strict=True)
        ]
        for one in made:
            self._reservations.add(one, self._now, needed=True)
        return made

    def gang_reservations(self, uid: str, now: float) -> list[Reservation]:
        """Reservations for this ProvisioningRequest that are in force and that no pod has used."""
        self._tick(now)
        return self._reservations.list_for_holder(uid)

    def lacks_place(self, made: Reservation) -> bool:
        """Whether the cards of an unused reservation are not there any more, or not free."""
        return not has_place(self._capacity, made, hold_key(made.name))

    # -- live resize --------------------------------------------------------------------------

    def resize_step(self, uid: str) -> ResizeStep | None:
        """What to do next for this pod; None: nothing can be said now, or a write for it is under way."""
        pod = self._pods.get(uid)
        if pod is None or pod.placement is None or pod.deleting or uid in self._resizing:
            return None
        return next_step(pod, self._capacity.nodes.get(pod.placement.node), self._capacity, self._unit)

    def book_resize(self, uid: str, generation: int, booked: Placement) -> None:
        """Hold what a record is about to book, before it is written; `settle_resize` or the watch ends that."""
        pod = self._pods[uid]
        self._resizing[uid] = (generation, booked)
        self._capacity.hold(uid, pod.namespace, pod.request, booked)
        self._reservations.recheck_node(booked.node)

    def settle_resize(self, uid: str) -> None:
        """The record was not written: the pod holds what it says."""
        pod = self._pods.get(uid)
        if self._resizing.pop(uid, None) is not None and pod is not None and pod.placement is not None:
            self._capacity.hold(uid, pod.namespace, pod.request, pod.placement)

    def extra_bytes(self, namespace: str) -> int:
        """By how much the namespace's pods hold more (below 0: less) than they request: for Kubernetes' own quotas."""
        return sum(
            sum(part.bytes for part in held.placement.slices) - pod.request.card_bytes * pod.request.cards
            for uid, pod in self._pods.items()
            if (pod.resize is not None or uid in self._resizing) and pod.namespace == namespace
            if (held := self._capacity.held.get(uid)) is not None
        )

    # -- for the leader's tasks and for people ------------------------------------------------

    def find_overdue(self, now: float, seconds: float) -> list[AssumedPod]:
        """Pods assumed for at least so long and not observed bound: look them up by UID."""
        return [found[0] for found in self._assumed.values() if now - found[0].at >= seconds]

    def record_binding(self, uid: str, placement: Placement, reservation: str = "") -> None:
        """
        Record where the API server says that the pod is, before the watch shows it.

        It stays assumed: a watch that was interrupted may never show a pod that has ended by the time it is back,
        so the pod is looked up again until its end is known.
        """
        found = self._assumed.get(uid)
        known = self._pods.get(uid)
        pod = found[1] if found is not None else known
        if pod is None or (known is not None and known.placement is not None):
            return
        before = found[0].assumed.kept_by if found is not None else ""
        if before and before != reservation:
            self._reservations.unuse(before, uid)
        if reservation:
            self._reservations.use(reservation, uid)
        self._reservations.release_for(uid)
        self._capacity.hold(pod.uid, pod.namespace, pod.request, placement)
        self._reservations.recheck_node(placement.node)
        assumed = AssumedPlacement(placement, reservation)
        self._assumed[uid] = (AssumedPod(uid, pod.namespace, pod.name, self._now, assumed, confirmed=True), pod)

    def find_stale_reservations(self, now: float) -> list[Reservation]:
        """Find reservations that the leader can delete; not while the binding that uses one up is open."""
        self._tick(now)
        open_ones = {a.assumed.reservation for a, _ in self._assumed.values() if not a.confirmed}
        hollow = self._reservations.list_abandoned(self._pods, self._preemption_state().deleting, self._now)
        return [r for r in (*self._reservations.list_unneeded(), *hollow) if r.name not in open_ones]

    def find_overcommitted(self) -> list[OvercommittedCard]:
        """Find cards of which more is promised than they offer, reservations not counted."""
        return inspection.find_overcommitted(self._capacity)

    def inspect(self, name: str | None = None) -> list[InspectedNode]:
        """Describe every node with shared cards, or the one named, by name."""
        return inspection.inspect_nodes(self._capacity, self._pod_names(), self._unit, name)

    # -- internal -----------------------------------------------------------------------------

    def _is_behind(self, name: str) -> bool:
        """
        Whether the node still names a resized pod that has ended.

        Until it does not, its kubelet counts more units as used than the cards have in use, and would reject a pod.
        """
        node = self._capacity.nodes.get(name)
        named = node.applied if node is not None else None
        return named is not None and not named.keys() <= self._pods.keys()

    def _tick(self, now: float) -> None:
        self._now = max(self._now, now)
        self._reservations.expire(self._now)

    def _set_bound(self, pod: Pod, placement: Placement) -> None:
        """Hold what the pod's allocation record says, whatever was assumed; what a later record books meanwhile."""
        generation, booked = self._resizing.get(pod.uid, (0, placement))
        if _generation(pod) >= generation:
            self._resizing.pop(pod.uid, None)
        else:
            placement = booked
        self._capacity.hold(pod.uid, pod.namespace, pod.request, placement)
        self._reservations.pod_bound(pod)
        self._reservations.recheck_node(placement.node)
        self._nominator.remove(pod.uid)
        self._drop_assumption(pod.uid, pod.reservation)

    def _drop_assumption(self, uid: str, used: str = "") -> None:
        """The outcome is known; a reservation that was not used after all is active again."""
        found = self._assumed.pop(uid, None)
        if found is not None and not found[0].confirmed and found[0].assumed.kept_by not in {"", used}:
            self._reservations.unuse(found[0].assumed.kept_by, uid)

    def _nominate(self, victim: str) -> None:
        """Reserve what this pod's end frees for the pod that preempted it."""
        for pod, placement in self._nominator.victims_ended(victim, self._now):
            known = self._pods.get(pod.uid, pod)
            if known.placement is None and pod.uid not in self._assumed:
                name = internal_name(pod.uid)
                made = Reservation(name, pod.uid, placement, self._now + DELETING_SECONDS, pod.namespace)
                self._reservations.add(made, self._now, needed=True)

    def _score(self, pod: Pod, names: Sequence[str]) -> tuple[Scores, Sequence[str], frozenset[str]]:
        """The engine's scores, the names, and the nodes with a reservation for the pod."""
        with self._without_own_reservations(pod):
            scores = self._capacity.engine.rate(self._capacity.strip_request(pod.request), names)[0]
            return scores, names, frozenset(r.placement.node for r in self._reservations.list_for_pod(pod))

    def _without_own_reservations(self, pod: Pod) -> ExitStack:
        """As if what is reserved for the pod were free."""
        stack = ExitStack()
        names = [hold_key(r.name) for r in self._reservations.list_for_pod(pod)]
        if names:
            stack.enter_context(self._capacity.without(names))
        return stack

    def _choose(self, pod: Pod, node: str) -> AssumedPlacement | Refusal:
        """Choose reserved cards before others; never more of them than one reservation keeps."""
        for reservation in self._reservations.list_for_pod(pod):
            if reservation.placement.node != node:
                continue
            with self._capacity.without([hold_key(reservation.name)]):
                found = self._capacity.place_on(pod.request, pod.namespace, node)
                exact = self._capacity.place_exactly(pod.request, pod.namespace, reservation.placement)
            if isinstance(found, Placement) and exact is not None:
                return AssumedPlacement(
                    exact, "" if is_internal(reservation.name) else reservation.name, reservation.name
                )
        found = self._capacity.place_on(pod.request, pod.namespace, node)
        return found if isinstance(found, Refusal) else AssumedPlacement(found)

    def _answer_if_bound(self, pod: Pod, names: Iterable[str]) -> FilterResult | None:
        """The answer for a pod that is bound, or may be."""
        known = self._pods.get(pod.uid)
        if known is not None and known.placement is not None:
            return FilterResult(failed=dict.fromkeys(names, f"the pod is already bound to {known.placement.node}"))
        if (known or pod).deleting:
            return FilterResult(failed=dict.fromkeys(names, "the pod is being deleted"))
        if pod.uid not in self._assumed:
            return None
        at = self._assumed[pod.uid][0].assumed.placement.node
        reason = f"the pod is already being bound to {at}"
        return FilterResult([n for n in names if n == at], {n: reason for n in names if n != at})

    def _filter_by_quota(self, pod: Pod, names: list[str], found: FilterResult) -> None:
        if not self._capacity.quota.is_limited(pod.namespace):
            found.fit.extend(names)
            return
        for name in names:
            reason = self._capacity.explain_over_quota(pod.namespace, pod.request, name)
            if reason:
                found.failed[name] = reason
            else:
                found.fit.append(name)

    def _explain_no_cards(self, pod: Pod, names: list[str], found: FilterResult) -> None:
        for name in names:
            if name in self._capacity.nodes:
                found.unresolvable[name] = "no shareable GPU cards"
            else:
                found.failed[name] = describe_reason(Why.NO_NODES, pod.request)

    def _preemption_state(self) -> PreemptionState:
        fresh = frozenset(uid for uid, since in self._deleting_since.items() if self._now - since < DELETING_SECONDS)
        return PreemptionState(self._capacity, self._pods, frozenset(self._assumed), fresh)

    def _pod_names(self) -> dict[str, str]:
        """Names of pods by UID."""
        assumed = {uid: pod.name for uid, (_, pod) in self._assumed.items()}
        return assumed | {uid: pod.name for uid, pod in self._pods.items()}


def _reason(why: Why, pod: Pod) -> str:
    return "gpushare node agent is not running" if why is Why.NOT_READY else describe_reason(why, pod.request)


def to_points(scores: Scores, names: Sequence[str], reserved: frozenset[str]) -> list[int]:
    """Extender points by node; where a node has a reservation for the pod, it comes before every other."""
    if not reserved:
        return [*map(int, np.maximum(scale_scores(scores, HIGHEST_SCORE), 0).tolist())]
    points = scale_scores(scores, HIGHEST_SCORE - 1).tolist()
    pairs = zip(names, points, strict=True)
    return [HIGHEST_SCORE if name in reserved and point >= 0 else max(0, point) for name, point in pairs]


def choose_best(scores: Scores, names: Sequence[str], reserved: frozenset[str], most: int) -> list[str]:
    """The nodes to which `to_points` gives the highest points, `most` at most; empty: none fits."""
    fitting = np.isfinite(scores)
    best = []
    if reserved:  # the usual case has none, and thousands of nodes
        best = [name for name, fits in zip(names, fitting.tolist(), strict=True) if fits and name in reserved]
    if not best and fitting.any():
        equal = np.flatnonzero(scores <= scores[fitting].min() + _EQUAL_SCORES)
        best = [names[row] for row in equal[:most].tolist()]
    return best[:most]


def scale_scores(scores: Scores, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """
    Points from 0 to `most` by the engine's scores, of which smaller is better; -1: it does not fit.

    Only the best nodes, and those within rounding of them, get `most`; the others get points in proportion.
    """
    fitting = np.isfinite(scores)
    points = np.full(len(scores), -1, np.int64)
    if fitting.any():
        best, worst = scores[fitting].min(), scores[fitting].max()
        span = worst - best
        if span <= _EQUAL_SCORES:
            points[fitting] = most
        else:
            part = (worst - scores[fitting]) / span
            # Rounded down, so that a merely good node never ties with the best one.
            points[fitting] = np.where(scores[fitting] - best <= _EQUAL_SCORES, most, np.floor(part * (most - 1)))
    return points


def _generation(pod: Pod) -> int:
    """Of the pod's record; 0: it was never changed."""
    return pod.resize.generation if pod.resize is not None else 0
