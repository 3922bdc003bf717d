# SPDX-License-Identifier: Apache-2.0
"""
Preemption by card: which pods must go so that another pod finds cards that fit, not merely a sum that fits.

Two callers: kube-scheduler's preempt verb, whose proposed victims are chosen by node sum and are corrected here; and
the leader's own preemption, for pods that kube-scheduler does not preempt for because the sum fits already. Only pods
of lower priority go, as few as possible, the least important and youngest first; pods that are being deleted count as
gone for a while. Disruption budgets are the Eviction API's business.

`Nominator` remembers what was offered to the preempt verb. kube-scheduler does not tell extenders which node it chose:
it is the one where the victims end. What they leave is then reserved for the pod, in memory only: the next leader is
asked again. Pure; time is an argument, in seconds since the epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypeAlias

from isolation.contract.model import Placement, Why
from isolation.placement.node_rules import needs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from isolation.contract.model import Node, Pod
    from isolation.scheduler.core.capacity import Capacity

Cost: TypeAlias = tuple[int, list[int], int, list[float]]
MAX_CANDIDATES: Final = 100
"""Nodes with victims that are compared before one is chosen: more would hardly be cheaper, and take longer."""
_PAIRS: Final = 24
"""Up to so many pods of a card, pairs of victims are tried; beyond that the least important go first."""
_PREEMPTIBLE_REASONS: Final = (Why.FRAGMENTED, Why.CARDS)
MAX_OFFERS: Final = 256
"""Preempting pods whose offers are remembered."""
OFFER_SECONDS: Final = 30.0
"""kube-scheduler acts on an answer at once, or not at all."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would end on one node so that another fits there."""

    uids: tuple[str, ...]
    violations: int = 0
    """How many of them a disruption budget protects, as the caller counted."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods to evict on one node, and the cards to reserve there before."""

    node: str
    victims: tuple[str, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class PreemptionState:
    """The cache's content while one question is answered."""

    capacity: Capacity
    pods: Mapping[str, Pod]
    assumed: frozenset[str]
    """Not observed bound: the Eviction API could not evict them."""
    deleting: frozenset[str]
    """Deletion was requested not long ago."""

    def place_without(self, pod: Pod, name: str, gone: Iterable[str] = ()) -> Placement | None:
        """Place the pod on the node as if these pods, and those being deleted, held nothing."""
        with self.capacity.without(
            {*gone, *(uid for uid in self.capacity.keys_by_node.get(name, ()) if uid in self.deleting)}
        ):
            found = self.capacity.place_on(pod.request, pod.namespace, name)
        return found if isinstance(found, Placement) else None

    def list_lower_priority(self, pod: Pod, name: str) -> list[Pod]:
        """Pods on the node of lower priority than this one, the least important first."""
        held = (
            self.pods[uid]
            for uid in self.capacity.keys_by_node.get(name, ())
            if uid in self.pods and uid not in self.assumed
        )
        return sorted((p for p in held if p.priority < pod.priority and not p.deleting), key=_eviction_order)


def _eviction_order(pod: Pod) -> tuple[int, bool, float, str]:
    """Smaller goes first: low priority, has a controller, young; the UID makes the order total."""
    return (pod.priority, not pod.evictable, -pod.created, pod.uid)


def _cost(victims: Sequence[Pod]) -> Cost:
    """Smaller is better: fewer pods, less important, with a controller, younger."""
    ranks = sorted((p.priority for p in victims), reverse=True)
    return (len(victims), ranks, sum(not p.evictable for p in victims), sorted(-p.created for p in victims))


def correct_victims(state: PreemptionState, pod: Pod, candidates: Mapping[str, Victims]) -> dict[str, Victims]:
    """
    Correct the proposal node by node; a node whose cards cannot be freed is left out.

    Nodes with the mildest proposals are tried first, until there are enough to choose from.
    """
    found: dict[str, Victims] = {}
    for name in sorted(candidates, key=lambda node: (candidates[node].violations, len(candidates[node].uids), node)):
        victims = _correct_on_node(state, pod, name, candidates[name])
        if victims is not None and victims.uids:  # kube-scheduler takes a node without victims for an error
            found[name] = victims
            if len(found) >= MAX_CANDIDATES:
                break
    return found


def _correct_on_node(state: PreemptionState, pod: Pod, name: str, proposed: Victims) -> Victims | None:
    """One node; None: leave it out. Victims without shares are another plugin's reason, and stay."""
    if name not in state.capacity.engine.nodes:
        return None
    if isinstance(state.capacity.place_on(pod.request, pod.namespace, name), Placement):
        return proposed  # the cards are free: the victims go for CPU, ports or another in-tree reason
    if state.place_without(pod, name) is not None:
        return None  # pods that are being deleted free the cards: no further pod needs to go
    pool = state.list_lower_priority(pod, name)
    chosen = _fewest(state, pod, name, pool)
    if chosen is None:
        return None
    here = state.capacity.keys_by_node.get(name, {})
    ours = [state.pods[uid] for uid in proposed.uids if uid in here and uid in state.pods]
    going = {p.uid: p for p in chosen}
    for other in _add_for_host_resources(pod, ours, going):
        going[other.uid] = other
    kept = [uid for uid in dict.fromkeys(proposed.uids) if uid in going or uid not in {p.uid for p in ours}]
    uids = (*kept, *(uid for uid in going if uid not in proposed.uids))
    return Victims(uids, min(proposed.violations, len(kept)))


def find_candidates(state: PreemptionState, pod: Pod, found: Mapping[str, Victims]) -> dict[str, Candidate]:
    """Where the pod would be on each node once its victims there are gone."""
    made = {}
    for name, victims in found.items():
        ours = frozenset(uid for uid in victims.uids if uid in state.capacity.keys_by_node.get(name, ()))
        at = state.place_without(pod, name, ours)
        if ours and at is not None:
            made[name] = Candidate(ours, at)
    return made


def _add_for_host_resources(pod: Pod, proposed: Sequence[Pod], going: Mapping[str, Pod]) -> list[Pod]:
    """Proposed victims that must still go so that as much CPU and memory becomes free as kube-scheduler counted on."""
    cpu = min(pod.request.cpu_milli, sum(p.request.cpu_milli for p in proposed))
    memory = min(pod.request.memory_bytes, sum(p.request.memory_bytes for p in proposed))
    cpu -= sum(p.request.cpu_milli for p in going.values())
    memory -= sum(p.request.memory_bytes for p in going.values())
    added = []
    for other in sorted((p for p in proposed if p.uid not in going), key=_eviction_order):
        if (cpu > 0 and other.request.cpu_milli) or (memory > 0 and other.request.memory_bytes):
            added.append(other)
            cpu -= other.request.cpu_milli
            memory -= other.request.memory_bytes
    return added


def choose_preemption(state: PreemptionState, pod: Pod, names: Sequence[str]) -> Preemption | None:
    """See `SchedulerCache.find_preemption`."""
    if not pod.preempts:
        return None
    groups = state.capacity.why_not(pod.request, names)
    if None in groups or _fits_after_deletions(state, pod, names):
        return None
    options: list[tuple[Cost, str, list[Pod]]] = []
    for name in (name for why in _PREEMPTIBLE_REASONS for name in groups.get(why, ())):
        pool = _preemptible(state, pod, name)
        guess = _choose_by_card(state, pod, name, pool) if pool else None
        if guess:
            options.append((_cost(guess), name, guess))
            if len(options) >= MAX_CANDIDATES:
                break
    for _, name, guess in sorted(options, key=lambda option: option[:2]):
        victims = _reprieve(state, pod, name, guess) or _reprieve(state, pod, name, _preemptible(state, pod, name))
        at = state.place_without(pod, name, [p.uid for p in victims or ()])
        if victims and at is not None:
            return Preemption(name, tuple(p.uid for p in victims), at)
    return None


def _preemptible(state: PreemptionState, pod: Pod, name: str) -> list[Pod]:
    """As in-tree, also pods without a controller; but the kubelet restarts static pods, so these cannot be ended."""
    return [p for p in state.list_lower_priority(pod, name) if not p.static]


def _fits_after_deletions(state: PreemptionState, pod: Pod, names: Sequence[str]) -> bool:
    """Whether pods that are being deleted free cards for it on one of these nodes."""
    if not state.deleting:
        return False
    with state.capacity.without(state.deleting):
        return None in state.capacity.why_not(pod.request, names)


def _fewest(state: PreemptionState, pod: Pod, name: str, pool: Sequence[Pod]) -> list[Pod] | None:
    """The cheapest victims on this node; None: not even all of the pool would do."""
    guess = _choose_by_card(state, pod, name, pool)
    found = _reprieve(state, pod, name, guess) if guess is not None else None
    return found if found is not None else _reprieve(state, pod, name, pool)


def _reprieve(state: PreemptionState, pod: Pod, name: str, victims: Sequence[Pod]) -> list[Pod] | None:
    """Spare victims that need not go, the most important first; None: the pod does not fit even without all of them."""
    going = {p.uid: p for p in victims}
    if state.place_without(pod, name, going) is None:
        return None
    for spared in sorted(victims, key=_eviction_order, reverse=True):
        if state.place_without(pod, name, going.keys() - {spared.uid}) is not None:
            del going[spared.uid]
    return list(going.values())


def _choose_by_card(state: PreemptionState, pod: Pod, name: str, pool: Sequence[Pod]) -> list[Pod] | None:
    """Victims that free enough cards, the cheapest card first; None: there are not enough such cards."""
    node = state.capacity.engine.nodes[name]
    cards = _CardVictims(state, pod, node, pool)
    going: dict[str, Pod] = {}
    chosen: set[str] = set()
    for _ in range(pod.request.cards):
        options = []
        for card in node.cards:
            victims = cards.cheapest(card.uuid, going) if card.uuid not in chosen else None
            if victims is not None:
                options.append((_cost(victims), card.index, card.uuid, victims))
        if not options:
            return None
        _, _, uuid, victims = min(options, key=lambda option: option[:2])
        chosen.add(uuid)
        going |= {p.uid: p for p in victims}
    return list(going.values())


class _CardVictims:
    """What is free on each card of a node, and what each possible victim holds of it."""

    def __init__(self, state: PreemptionState, pod: Pod, node: Node, pool: Sequence[Pod]) -> None:
        self._want = (pod.request.card_bytes, pod.request.card_core)
        self._pool = pool
        holds = state.capacity.engine.holds
        self._parts = {
            p.uid: {s.uuid: (s.bytes, s.core) for s in holds[p.uid][1].slices} for p in pool if p.uid in holds
        }
        free = state.capacity.engine.room(node.name)
        large = {c.uuid for c in node.cards if c.healthy and c.allocatable_bytes >= pod.request.card_bytes}
        needs = needs_of(pod.request)
        sound = {c.uuid for c in node.cards if c.uuid in large and needs.allow(c)}
        self._free = {c.uuid: f for c, f in zip(node.cards, free, strict=True) if c.uuid in sound}
        for uid in state.capacity.keys_by_node.get(node.name, ()):
            if uid in state.deleting and uid in holds:
                for part in holds[uid][1].slices:
                    if part.uuid in self._free:
                        size, core = self._free[part.uuid]
                        self._free[part.uuid] = (size + part.bytes, core + part.core)

    def cheapest(self, uuid: str, going: Mapping[str, Pod]) -> list[Pod] | None:
        """Who must go in addition to `going` to free this card; None: the card cannot be freed."""
        if uuid not in self._free:
            return None
        size, core = self._free[uuid]
        size += sum(self._part(uid, uuid)[0] for uid in going)
        core += sum(self._part(uid, uuid)[1] for uid in going)
        lack = (self._want[0] - size, self._want[1] - core)
        if max(lack) <= 0:
            return []
        able = [p for p in self._pool if p.uid not in going and uuid in self._parts.get(p.uid, {})]
        for number in (1, 2) if len(able) <= _PAIRS else (1,):
            enough = [list(group) for group in combinations(able, number) if self._frees(group, uuid, lack)]
            if enough:
                return min(enough, key=_cost)
        taken: list[Pod] = []
        for victim in able:
            taken.append(victim)
            if self._frees(taken, uuid, lack):
                return taken
        return None

    def _part(self, uid: str, uuid: str) -> tuple[int, int]:
        return self._parts.get(uid, {}).get(uuid, (0, 0))

    def _frees(self, victims: Iterable[Pod], uuid: str, lack: tuple[int, int]) -> bool:
        parts = [self._part(p.uid, uuid) for p in victims]
        return sum(size for size, _ in parts) >= lack[0] and sum(core for _, core in parts) >= lack[1]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node on which the pod would fit without these victims."""

    victims: frozenset[str]
    placement: Placement
    """Where the pod would be without them."""


@dataclass(frozen=True, slots=True)
class _Offer:
    pod: Pod
    candidates: tuple[Candidate, ...]
    until: float


class Nominator:
    """Offers by the UID of the preempting pod."""

    def __init__(self) -> None:
        self._offers: OrderedDict[str, _Offer] = OrderedDict()
        self._offered_to: dict[str, dict[str, None]] = {}
        """By victim, the pods that it was offered to."""
        self._ended: set[str] = set()

    def add(self, pod: Pod, candidates: Mapping[str, Candidate], now: float) -> None:
        """Remember an answer to the preempt verb; a newer one replaces an older one."""
        self.remove(pod.uid)
        self._offers[pod.uid] = _Offer(pod, tuple(candidates.values()), now + OFFER_SECONDS)
        for candidate in candidates.values():
            for victim in candidate.victims:
                self._offered_to.setdefault(victim, {})[pod.uid] = None
        while len(self._offers) > MAX_OFFERS:
            self.remove(next(iter(self._offers)))

    def victims_ended(self, uid: str, now: float) -> Iterator[tuple[Pod, Placement]]:
        """A pod is being deleted, or gone: yield the pods whose last victim it was, and where they may go."""
        if uid not in self._offered_to:
            return
        self._ended.add(uid)
        for pod_uid in tuple(self._offered_to[uid]):
            offer = self._offers[pod_uid]
            chosen = next((c for c in offer.candidates if uid in c.victims and c.victims <= self._ended), None)
            if chosen is None:
                continue
            self.remove(pod_uid)
            if now < offer.until:
                yield offer.pod, chosen.placement

    def remove(self, uid: str) -> None:
        """Forget the offer: the pod needs no cards any more, or has been nominated."""
        offer = self._offers.pop(uid, None)
        if offer is None:
            return
        for victim in {uid for candidate in offer.candidates for uid in candidate.victims}:
            pods = self._offered_to[victim]
            del pods[uid]
            if not pods:
                del self._offered_to[victim]
                self._ended.discard(victim)
