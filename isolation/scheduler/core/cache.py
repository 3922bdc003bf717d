# SPDX-License-Identifier: Apache-2.0
"""
What the scheduler decides, from everything it has been told: one object per leader, rebuilt at its start.

Takes events in any order that a watch can produce (duplicates, an echo before the answer to our
own write, a node gone before its pods) and answers the extender's verbs. A pod that is assumed
holds its room from the moment `assume` returns until it is seen bound, undone or gone, so two
answers never promise the same room. Pods bound by somebody else are booked as found: reality is
not refused. Synchronous and pure: no I/O, time as an argument (seconds since the epoch).

Only pods that ask for shares are in these books; whole cards, CPU, memory and rules are the stock
scheduler's business.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.model import Phase, Placement, Refusal, Why
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation
from isolation.placement.explain import describe_reason
from isolation.placement.policy import DEFAULT
from isolation.scheduler.core import inspection
from isolation.scheduler.core.answers import AssumedPlacement, AssumedPod, FilterResult, Preemption, Victims
from isolation.scheduler.core.capacity import Capacity
from isolation.scheduler.core.nominator import Nominator
from isolation.scheduler.core.preemption import PreemptionState, choose_preemption, correct_victims, find_candidates
from isolation.scheduler.core.reservations import Reservations, internal_name, is_internal, key_of
from isolation.scheduler.core.scores import shortlist, to_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from isolation.contract.model import Node, Pod, Request
    from isolation.scheduler.core.answers import InspectedNode, OvercommittedCard

UNRESOLVABLE: Final = frozenset({Why.TOO_FEW_CARDS, Why.CARD_TOO_SMALL, Why.MODE, Why.NOT_READY})
"""No pod that ends can change these."""
DELETING_SECONDS: Final = 60.0
"""So long a pod that was asked to end counts as about to: then its room is not waited for any more."""


class SchedulerCache:
    """See the module; `policy` is a name of `isolation.placement.policy.POLICIES`."""

    def __init__(self, *, policy: str = DEFAULT, unit_bytes: int = GIB) -> None:
        self._unit = unit_bytes
        self._room = Capacity(policy, unit_bytes)
        self._pods: dict[str, Pod] = {}
        self._reserved = Reservations(self._room, self._pods)
        self._nominated = Nominator()
        self._assumed: dict[str, tuple[AssumedPod, Pod]] = {}
        self._ending: dict[str, float] = {}
        self._now = 0.0
        self._asked_at = -1
        self._fitting: dict[Request, bool] = {}

    def on_freed(self, listener: Callable[[], None]) -> None:
        """Call this whenever something that was held is free, whoever learned of it and how."""
        self._room.freed = listener

    # -- what the cluster says ----------------------------------------------------------------

    def node_is(self, node: Node) -> None:
        """A node as it is now; room that was bought with it is kept before anybody is asked about it."""
        self._room.node_is(node)
        self._reserved.node_changed(node.name)

    def node_gone(self, name: str) -> None:
        """A node that is no more; pods that were on it keep their claim until they are gone too."""
        self._room.node_gone(name)
        self._reserved.node_changed(name)

    def pod_is(self, pod: Pod) -> None:
        """A pod as the watch shows it; one that has ended holds nothing."""
        if pod.phase is Phase.DONE:
            self.pod_gone(pod.uid)
            return
        before = self._pods.get(pod.uid)
        if pod.placement is None and before is not None and before.placement is not None:
            return  # pods are never unbound: this is older than what we know
        self._pods[pod.uid] = pod
        if before is None and pod.request.shared:
            self._room.engine.arrive(self._room.lean(pod.request))
        if pod.deleting and pod.uid not in self._ending:
            self._ending[pod.uid] = self._now
            self._nominate(pod.uid)
        if pod.placement is not None:
            self._bound(pod, pod.placement)
        elif before is None:
            self._reserved.seek(pod.uid)

    def pod_gone(self, uid: str) -> None:
        """The pod is no more, or has ended: whatever it held is free."""
        self.undo(uid)
        self._ending.pop(uid, None)
        self._room.free(uid)
        self._reserved.gone(self._pods.pop(uid, None), uid)
        self._nominated.forget(uid)
        self._nominate(uid)

    def reservation_is(self, reservation: Reservation) -> None:
        """A stored reservation."""
        holder = self._pods.get(reservation.holder)
        self._reserved.put(reservation, self._now, needed=holder is None or holder.placement is None)

    def reservation_gone(self, name: str) -> None:
        """A reservation that is no more."""
        self._reserved.drop(name)

    def quota_is(self, namespace: str, units: Mapping[str, int] | None) -> None:
        """Most units by card model that a namespace may have; None: it has no quota."""
        self._room.spending.limit(namespace, units)

    # -- the extender's verbs -----------------------------------------------------------------

    def filter(self, pod: Pod, names: Sequence[str], now: float) -> FilterResult:
        """Which of these nodes have the cards for the pod at this moment."""
        self._tick(now)
        if not pod.request.shared:
            return FilterResult(fit=list(names))
        tied = self._tied(pod, names)
        if tied is not None:
            return tied
        found = FilterResult()
        with self._lent(pod):
            for why, those in self._room.why_not(pod.request, names).items():
                if why is None:
                    self._within_quota(pod, those, found)
                elif why is Why.NO_NODES:
                    self._unknown(pod, those, found)
                else:
                    reason = _reason(why, pod)
                    (found.hopeless if why in UNRESOLVABLE else found.failed).update(dict.fromkeys(those, reason))
            self._reserved.tell(pod, found.failed, found.hopeless)
        return found

    def could_fit(self, pod: Pod, now: float) -> bool:
        """
        Whether any node at all has the cards, whatever else keeps the pod off it: quick, for thousands that wait.

        Quotas are not weighed; what is reserved for the pod counts as free.
        """
        self._tick(now)
        if self._reserved.serving(pod):
            with self._lent(pod):
                return isinstance(self._room.engine.place(self._room.lean(pod.request)), Placement)
        if self._asked_at != self._room.changes:
            self._asked_at, self._fitting = self._room.changes, {}
        request = self._room.lean(pod.request)
        known = self._fitting.get(request)
        if known is None:
            known = self._fitting[request] = isinstance(self._room.engine.place(request), Placement)
        return known

    def prioritize(self, pod: Pod, names: Sequence[str], now: float) -> list[int]:
        """What each of these nodes is worth, 0 to 10, in the order given; 10 is the best, or reserved for the pod."""
        self._tick(now)
        if not pod.request.shared:
            return [0] * len(names)
        return to_points(*self._worth(pod, names))

    def best(self, pod: Pod, names: Sequence[str], most: int, now: float) -> list[str]:
        """
        Of the nodes that `filter` would keep those that `prioritize` gives the highest score, so many at most.

        None where none fits, and where more than room on cards decides: the pod may have its node, or a quota counts.
        """
        self._tick(now)
        if not pod.request.shared or self._room.spending.limited(pod.namespace) or self._tied(pod, ()) is not None:
            return []
        return shortlist(*self._worth(pod, names), most)

    def assume(self, pod: Pod, node: str, now: float) -> AssumedPlacement | Refusal:
        """Take the room on this node, before anybody is told; asked again for the same node: the same answer."""
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
        found = self._choose(pod, node)
        if isinstance(found, Refusal):
            reason = _reason(found.why, pod) if found.why is Why.NOT_READY else found.reason
            return Refusal(found.why, f"node {node}: {reason}")
        if found.kept:
            self._reserved.use(found.kept, pod.uid)
        self._room.hold(pod.uid, pod.namespace, pod.request, found.placement)
        self._assumed[pod.uid] = (AssumedPod(pod.uid, pod.namespace, pod.name, now, found), pod)
        return found

    def confirm(self, uid: str) -> None:
        """The server says that the pod is bound as assumed; fine if the watch, or the pod's end, was faster."""
        found = self._assumed.get(uid)
        if found is not None:
            self._assumed[uid] = (replace(found[0], confirmed=True), found[1])

    def undo(self, uid: str) -> None:
        """The pod was not bound by us: give the room back, unless the watch has shown otherwise already."""
        if uid in self._assumed:
            self._room.free(uid)
            self._drop_assumption(uid)

    def assumed(self) -> dict[str, AssumedPod]:
        """By UID, the pods for whom room is taken and who have not been seen bound."""
        return {uid: found[0] for uid, found in self._assumed.items()}

    def preempt(self, pod: Pod, candidates: Mapping[str, Victims], now: float) -> dict[str, Victims]:
        """
        The victims proposed, corrected so that cards that fit become free.

        A node where that cannot be is left out; so is one where nobody needs to go.
        """
        self._tick(now)
        if not pod.request.shared:
            return dict(candidates)
        if not pod.preempts:
            return {}
        with self._lent(pod):
            scene = self._scene()
            found = correct_victims(scene, pod, candidates)
            self._nominated.offer(pod, find_candidates(scene, pod, found), self._now)
        return found

    def relief(self, pod: Pod, names: Sequence[str], now: float) -> Preemption | None:
        """
        Whom to evict so that the pod finds cards that fit, where kube-scheduler does not see the want.

        None: nothing to be gained, or not needed, because it fits, room is on its way or kept for it.
        """
        self._tick(now)
        if not pod.request.shared or pod.uid in self._assumed or self._reserved.serving(pod):
            return None
        return choose_preemption(self._scene(), pod, names)

    # -- for the leader's rounds and for people -----------------------------------------------

    def overdue(self, now: float, seconds: float) -> list[AssumedPod]:
        """Assumptions that have not been seen bound for so long: ask the server by UID."""
        return [found[0] for found in self._assumed.values() if now - found[0].at >= seconds]

    def bound_as(self, uid: str, placement: Placement, reservation: str = "") -> None:
        """
        The server says that the pod is there: book it before the watch tells.

        It stays assumed: a watch that was cut may never tell of a pod that has ended by the time it is back,
        so the server is asked again until one of them has told the end.
        """
        found = self._assumed.get(uid)
        known = self._pods.get(uid)
        pod = found[1] if found is not None else known
        if pod is None or (known is not None and known.placement is not None):
            return
        before = found[0].assumed.kept if found is not None else ""
        if before and before != reservation:
            self._reserved.unuse(before, uid)
        if reservation:
            self._reserved.use(reservation, uid)
        self._reserved.no_need(uid)
        self._room.hold(pod.uid, pod.namespace, pod.request, placement)
        self._reserved.crowded(placement.node)
        assumed = AssumedPlacement(placement, reservation)
        self._assumed[uid] = (AssumedPod(uid, pod.namespace, pod.name, self._now, assumed, confirmed=True), pod)

    def stale_reservations(self, now: float) -> list[Reservation]:
        """Reservations that the leader can delete; not while the binding that uses one up is open."""
        self._tick(now)
        open_ones = {a.assumed.reservation for a, _ in self._assumed.values() if not a.confirmed}
        hollow = self._reserved.hollow(self._pods, self._scene().ending, self._now)
        return [r for r in (*self._reserved.stale(), *hollow) if r.name not in open_ones]

    def unrecorded(self) -> list[str]:
        """Bound pods whose cards nobody recorded, as `namespace/name`: what they use is not in these books."""
        bound = (p for p in self._pods.values() if p.placement is not None and not p.placement.slices)
        return [p.key for p in bound if p.request.shared]

    def overcommitted(self) -> list[OvercommittedCard]:
        """Cards of which more is promised than they offer, reservations not counted."""
        return inspection.find_overcommitted(self._room)

    def inspect(self, name: str | None = None) -> list[InspectedNode]:
        """Every node with shared cards, or the one named, by name."""
        return inspection.inspect_nodes(self._room, self._names(), self._unit, name)

    # -- inside -------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self._now = max(self._now, now)
        self._reserved.expire(self._now)

    def _bound(self, pod: Pod, placement: Placement) -> None:
        """Book where the pod is by its record, whatever was assumed."""
        self._room.hold(pod.uid, pod.namespace, pod.request, placement)
        self._reserved.bound(pod)
        self._reserved.crowded(placement.node)
        self._nominated.forget(pod.uid)
        self._drop_assumption(pod.uid, pod.reservation)

    def _drop_assumption(self, uid: str, used: str = "") -> None:
        """It is settled; a reservation that was not used after all stands again."""
        found = self._assumed.pop(uid, None)
        if found is not None and not found[0].confirmed and found[0].assumed.kept not in {"", used}:
            self._reserved.unuse(found[0].assumed.kept, uid)

    def _nominate(self, victim: str) -> None:
        """Room that this pod's end makes for another one is kept for that one."""
        for pod, placement in self._nominated.ending(victim, self._now):
            known = self._pods.get(pod.uid, pod)
            if known.placement is None and pod.uid not in self._assumed:
                name = internal_name(pod.uid)
                made = Reservation(name, pod.uid, placement, self._now + DELETING_SECONDS, pod.namespace)
                self._reserved.put(made, self._now, needed=True)

    def _worth(
        self, pod: Pod, names: Sequence[str]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Sequence[str], frozenset[str]]:
        """The engine's scores, the names, and where room is kept for the pod."""
        with self._lent(pod):
            scores = self._room.engine.rate(self._room.lean(pod.request), names)[0]
            return scores, names, frozenset(r.placement.node for r in self._reserved.serving(pod))

    def _lent(self, pod: Pod) -> ExitStack:
        """As if what is reserved for the pod were free."""
        stack = ExitStack()
        names = [key_of(r.name) for r in self._reserved.serving(pod)]
        if names:
            stack.enter_context(self._room.without(names))
        return stack

    def _choose(self, pod: Pod, node: str) -> AssumedPlacement | Refusal:
        """Reserved cards before others; never more of them than one reservation keeps."""
        for reservation in self._reserved.serving(pod):
            if reservation.placement.node != node:
                continue
            with self._room.without([key_of(reservation.name)]):
                found = self._room.place_on(pod.request, pod.namespace, node)
                exact = self._room.place_exactly(pod.request, pod.namespace, reservation.placement)
            if isinstance(found, Placement) and exact is not None:
                return AssumedPlacement(
                    exact, "" if is_internal(reservation.name) else reservation.name, reservation.name
                )
        found = self._room.place_on(pod.request, pod.namespace, node)
        return found if isinstance(found, Refusal) else AssumedPlacement(found)

    def _tied(self, pod: Pod, names: Iterable[str]) -> FilterResult | None:
        """The answer for a pod that has its node already, or may have."""
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

    def _within_quota(self, pod: Pod, names: list[str], found: FilterResult) -> None:
        if not self._room.spending.limited(pod.namespace):
            found.fit.extend(names)
            return
        for name in names:
            reason = self._room.over_quota(pod.namespace, pod.request, name)
            if reason:
                found.failed[name] = reason
            else:
                found.fit.append(name)

    def _unknown(self, pod: Pod, names: list[str], found: FilterResult) -> None:
        for name in names:
            if name in self._room.nodes:
                found.hopeless[name] = "no shareable GPU cards"
            else:
                found.failed[name] = describe_reason(Why.NO_NODES, pod.request)

    def _scene(self) -> PreemptionState:
        fresh = frozenset(uid for uid, since in self._ending.items() if self._now - since < DELETING_SECONDS)
        return PreemptionState(self._room, self._pods, frozenset(self._assumed), fresh)

    def _names(self) -> dict[str, str]:
        """Names of pods by UID."""
        assumed = {uid: pod.name for uid, (_, pod) in self._assumed.items()}
        return assumed | {uid: pod.name for uid, pod in self._pods.items()}


def _reason(why: Why, pod: Pod) -> str:
    return "gpushare node agent is not running" if why is Why.NOT_READY else describe_reason(why, pod.request)
