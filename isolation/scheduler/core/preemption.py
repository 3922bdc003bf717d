# SPDX-License-Identifier: Apache-2.0
"""
Which pods must go so that another finds cards that fit, not merely a sum that fits.

Two askers: kube-scheduler's preempt verb, whose victims are by node sum and are corrected here; and
relief, for pods that kube-scheduler does not pre-empt for, because the sum fits already. Only pods
of lower priority go, as few as possible, the least important and youngest first; pods that are
ending anyway are counted as gone while that is fresh. Disruption budgets are the Eviction API's business. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypeAlias

from isolation.contract.model import Placement, Why
from isolation.scheduler.core.answers import Preemption, Victims
from isolation.scheduler.core.nominator import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.model import Node, Pod
    from isolation.scheduler.core.capacity import Capacity

Cost: TypeAlias = tuple[int, list[int], int, list[float]]
MOST_CANDIDATES: Final = 100
"""Nodes with victims that are compared before one is chosen: more would hardly be cheaper, and takes longer."""
_PAIRS: Final = 24
"""So many pods of a card are tried in pairs; beyond that the least important go first."""
_RELIEVABLE: Final = (Why.FRAGMENTED, Why.CARDS)


@dataclass(frozen=True, slots=True)
class PreemptionState:
    """The books as they stand while the question lasts."""

    room: Capacity
    pods: Mapping[str, Pod]
    assumed: frozenset[str]
    """Not seen bound: nobody can be told to evict them."""
    ending: frozenset[str]
    """Asked to end not long ago."""

    def fits(self, pod: Pod, name: str, gone: Iterable[str] = ()) -> Placement | None:
        """Where on the node the pod would be if these, and those that are ending, held nothing."""
        with self.room.without({*gone, *(uid for uid in self.room.on.get(name, ()) if uid in self.ending)}):
            found = self.room.place_on(pod.request, pod.namespace, name)
        return found if isinstance(found, Placement) else None

    def lower(self, pod: Pod, name: str) -> list[Pod]:
        """Pods on the node that may go for this one, the least important first."""
        held = (self.pods[uid] for uid in self.room.on.get(name, ()) if uid in self.pods and uid not in self.assumed)
        return sorted((p for p in held if p.priority < pod.priority and not p.deleting), key=_eviction_order)


def _eviction_order(pod: Pod) -> tuple[int, bool, float, str]:
    """Smaller goes first: low priority, made again elsewhere, young; by UID so that there is one answer."""
    return (pod.priority, not pod.evictable, -pod.created, pod.uid)


def _cost(victims: Sequence[Pod]) -> Cost:
    """Smaller is better: fewer, less important, made again elsewhere, younger."""
    ranks = sorted((p.priority for p in victims), reverse=True)
    return (len(victims), ranks, sum(not p.evictable for p in victims), sorted(-p.created for p in victims))


def correct_victims(scene: PreemptionState, pod: Pod, candidates: Mapping[str, Victims]) -> dict[str, Victims]:
    """
    The proposal node by node; a node whose cards cannot be freed is left out.

    Of very many nodes those with the mildest proposals are looked at, until there are enough to choose from.
    """
    found: dict[str, Victims] = {}
    for name in sorted(candidates, key=lambda one: (candidates[one].violations, len(candidates[one].uids), one)):
        victims = _correct_on_node(scene, pod, name, candidates[name])
        if victims is not None and victims.uids:  # kube-scheduler takes a node without victims for an error
            found[name] = victims
            if len(found) >= MOST_CANDIDATES:
                break
    return found


def _correct_on_node(scene: PreemptionState, pod: Pod, name: str, proposed: Victims) -> Victims | None:
    """One node; None: leave it out. Victims unknown here are somebody else's reason, and stay."""
    if name not in scene.room.engine.nodes:
        return None
    if isinstance(scene.room.place_on(pod.request, pod.namespace, name), Placement):
        return proposed  # the cards are free: they go for CPU, ports or another reason that is not ours
    if scene.fits(pod, name) is not None:
        return None  # pods that end already make room: nobody needs to go for it
    pool = scene.lower(pod, name)
    chosen = _fewest(scene, pod, name, pool)
    if chosen is None:
        return None
    here = scene.room.on.get(name, {})
    ours = [scene.pods[uid] for uid in proposed.uids if uid in here and uid in scene.pods]
    going = {p.uid: p for p in chosen}
    for other in _add_for_host_resources(pod, ours, going):
        going[other.uid] = other
    kept = [uid for uid in dict.fromkeys(proposed.uids) if uid in going or uid not in {p.uid for p in ours}]
    uids = (*kept, *(uid for uid in going if uid not in proposed.uids))
    return Victims(uids, min(proposed.violations, len(kept)))


def find_candidates(scene: PreemptionState, pod: Pod, found: Mapping[str, Victims]) -> dict[str, Candidate]:
    """Where the pod would be on each node without the victims there that hold cards."""
    made = {}
    for name, victims in found.items():
        ours = frozenset(uid for uid in victims.uids if uid in scene.room.on.get(name, ()))
        at = scene.fits(pod, name, ours)
        if ours and at is not None:
            made[name] = Candidate(ours, at)
    return made


def _add_for_host_resources(pod: Pod, proposed: Sequence[Pod], going: Mapping[str, Pod]) -> list[Pod]:
    """Proposed victims that must still go so that as much CPU and memory becomes free as was counted on."""
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


def choose_preemption(scene: PreemptionState, pod: Pod, names: Sequence[str]) -> Preemption | None:
    """See `Books.relief`."""
    if not pod.preempts:
        return None
    groups = scene.room.why_not(pod.request, names)
    if None in groups or _fits_after_deletions(scene, pod, names):
        return None
    options: list[tuple[Cost, str, list[Pod]]] = []
    for name in (name for why in _RELIEVABLE for name in groups.get(why, ())):
        pool = _preemptible(scene, pod, name)
        guess = _choose_by_card(scene, pod, name, pool) if pool else None
        if guess:
            options.append((_cost(guess), name, guess))
            if len(options) >= MOST_CANDIDATES:
                break
    for _, name, guess in sorted(options, key=lambda option: option[:2]):
        victims = _reprieve(scene, pod, name, guess) or _reprieve(scene, pod, name, _preemptible(scene, pod, name))
        at = scene.fits(pod, name, [p.uid for p in victims or ()])
        if victims and at is not None:
            return Preemption(name, tuple(p.uid for p in victims), at)
    return None


def _preemptible(scene: PreemptionState, pod: Pod, name: str) -> list[Pod]:
    """Priority asks nobody, as in-tree: also pods that nobody makes again; but a node's static pods cannot be ended."""
    return [p for p in scene.lower(pod, name) if not p.static]


def _fits_after_deletions(scene: PreemptionState, pod: Pod, names: Sequence[str]) -> bool:
    """Whether pods that are ending make room for it somewhere among these."""
    if not scene.ending:
        return False
    with scene.room.without(scene.ending):
        return None in scene.room.why_not(pod.request, names)


def _fewest(scene: PreemptionState, pod: Pod, name: str, pool: Sequence[Pod]) -> list[Pod] | None:
    """The cheapest victims on this node; None: not even all of the pool would do."""
    guess = _choose_by_card(scene, pod, name, pool)
    found = _reprieve(scene, pod, name, guess) if guess is not None else None
    return found if found is not None else _reprieve(scene, pod, name, pool)


def _reprieve(scene: PreemptionState, pod: Pod, name: str, victims: Sequence[Pod]) -> list[Pod] | None:
    """The same without those who need not go, the most important spared first; None: it does not fit even so."""
    going = {p.uid: p for p in victims}
    if scene.fits(pod, name, going) is None:
        return None
    for spared in sorted(victims, key=_eviction_order, reverse=True):
        if scene.fits(pod, name, going.keys() - {spared.uid}) is not None:
            del going[spared.uid]
    return list(going.values())


def _choose_by_card(scene: PreemptionState, pod: Pod, name: str, pool: Sequence[Pod]) -> list[Pod] | None:
    """Victims that free enough cards, card by card the cheapest; None: there are not enough such cards."""
    node = scene.room.engine.nodes[name]
    cards = _CardVictims(scene, pod, node, pool)
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
    """What is free on each card of a node, and what each of the pool has of it."""

    def __init__(self, scene: PreemptionState, pod: Pod, node: Node, pool: Sequence[Pod]) -> None:
        self._want = (pod.request.card_bytes, pod.request.card_core)
        self._pool = pool
        holds = scene.room.engine.holds
        self._parts = {
            p.uid: {s.uuid: (s.bytes, s.core) for s in holds[p.uid][1].slices} for p in pool if p.uid in holds
        }
        free = scene.room.engine.room(node.name)
        sound = {c.uuid for c in node.cards if c.healthy and c.allocatable_bytes >= pod.request.card_bytes}
        self._free = {c.uuid: f for c, f in zip(node.cards, free, strict=True) if c.uuid in sound}
        for uid in scene.room.on.get(node.name, ()):
            if uid in scene.ending and uid in holds:
                for part in holds[uid][1].slices:
                    if part.uuid in self._free:
                        size, core = self._free[part.uuid]
                        self._free[part.uuid] = (size + part.bytes, core + part.core)

    def cheapest(self, uuid: str, going: Mapping[str, Pod]) -> list[Pod] | None:
        """Who must go beside those that go already; None: the card cannot be had."""
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
