# SPDX-License-Identifier: Apache-2.0
"""
What of a reading stays from turn to turn: each pod as it was read, who is on which node, the room of every node.

Decides what has changed by identity: the store keeps an object for as long as it is equal, so whatever is another one
is read again, in any order and after any number of missed changes, and nothing has to be told. What is handed out is
never changed afterwards. The same as a reading from nothing, except for time. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.drain_rules import DrainRules, explain_block, find_blocks
from autoscaler.kube.annotations import PodNote
from autoscaler.kube.observe.capacity import Kinds, Room
from autoscaler.kube.observe.pods import guarded, movable
from autoscaler.kube.usage import spots_of
from isolation.contract.model import Phase
from isolation.contract.names import SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from autoscaler.apis.metrics.core.readings import CardKey
    from autoscaler.core.drain_rules import DrainBlock
    from autoscaler.kube.observe.snapshot import Snapshot
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import Budget
    from isolation.contract.model import Pod

AT_A_STRETCH: Final = 500
"""Objects that are read before others get their turn: some milliseconds."""
_NOBODY: Final = PodNote()
_EMPTY: Final[dict[str, Pod]] = {}


@dataclass(frozen=True, slots=True)
class Read:
    """One pod as it was read, and what it was read from."""

    found: Pod
    note: PodNote
    pod: Pod
    """As to who may be moved, what is known here."""
    spots: tuple[CardKey, ...] = ()
    """What exporters call its parts of cards."""


class Books:
    """See the module."""

    def __init__(self, schedulers: Collection[str] = frozenset({SCHEDULER})) -> None:
        self._schedulers = schedulers
        self._reads: dict[str, Read] = {}
        self._pods: dict[str, Pod] = {}
        self._on: dict[str, dict[str, Pod]] = {}
        self._moving: dict[str, bool] = {}
        self._budgets: dict[str, tuple[Budget, ...]] = {}
        self._guarded: dict[str, str] = {}
        self._measured: Measured | None = None
        self._busy: dict[str, float] = {}
        self._gone_at: dict[str, float] = {}
        self._blocks: dict[str, tuple[DrainBlock, ...]] = {}
        self.queue: dict[str, Pod] = {}
        """Pods that wait for cards, by UID."""
        self.cost: dict[str, int] = {}
        """What it costs to end each pod, where its owner says so."""
        self.arrived: dict[str, Pod] = {}
        """Pods that name a reservation they came by."""
        self.room, self.kinds = Room(), Kinds()
        self._unweighed: set[str] = set()
        self._unmeasured: set[str] = set()
        self.changed = 0
        """Pods that were read anew so far."""

    def follow(self, now: Snapshot) -> Iterator[None]:
        """Catch up with a snapshot; may be left alone at each step, also for good."""
        pods, notes = now.view.cluster.pods, now.notes.of_pod
        known = self._reads
        for number, pod in enumerate(pods):
            if number % (10 * AT_A_STRETCH) == 0:
                yield
            old = known.get(pod.uid)
            if old is None or old.found is not pod or old.note is not notes.get(pod.uid, _NOBODY):
                self._put(pod, notes.get(pod.uid, _NOBODY))
                self.changed += 1
                if self.changed % AT_A_STRETCH == 0:
                    yield
        if len(known) > len(pods):
            here = {pod.uid for pod in pods}
            for uid in [uid for uid in known if uid not in here]:
                self._drop(uid)
        self._weigh(now.budgets)
        yield from self._measure(now.measured)

    # -- what is known, as of the latest snapshot ------------------------------------------------

    def pods(self, where: Collection[str]) -> dict[str, Pod]:
        """Pods that ask for cards, and whoever else is on these nodes."""
        found = dict(self._pods)
        for name, here in self._on.items():
            if name not in where:
                for uid, pod in here.items():
                    if not pod.request.cards:
                        del found[uid]
        return found

    def on(self, where: Collection[str]) -> dict[str, Mapping[str, Pod]]:
        """The same pods by node."""
        found: dict[str, Mapping[str, Pod]] = {}
        for name, here in self._on.items():
            some = here if name in where else {uid: pod for uid, pod in here.items() if pod.request.cards}
            if some:
                found[name] = some
        return found

    def lived(self) -> frozenset[str]:
        """Nodes with pods that do not go with the node."""
        return frozenset(name for name, moving in self._moving.items() if moving)

    def guarded(self, pods: Mapping[str, Pod], still: str) -> dict[str, str]:
        """Who may not be evicted now, and why; `still`: nobody may."""
        if still:
            return {uid: still for uid, pod in pods.items() if pod.placement is not None and pod.evictable}
        return {uid: why for uid, why in self._guarded.items() if uid in pods}

    def blocked(self, rules: Mapping[str, DrainRules]) -> dict[str, str]:
        """Who may not be moved by the drain rules, and why; `rules`: by node, where they are not the default ones."""
        usual, found = DrainRules(), {}
        for uid, blocks in self._blocks.items():
            placement = self._reads[uid].pod.placement
            why = explain_block(blocks, rules.get(placement.node, usual) if placement is not None else usual)
            if why:
                found[uid] = why
        return found

    def long_terminating(self, at: float) -> frozenset[str]:
        """Who should have ended long before this moment."""
        return frozenset(uid for uid, gone in self._gone_at.items() if gone < at)

    def busy(self, pods: Mapping[str, Pod]) -> dict[str, float]:
        """By UID: the most that a pod uses of the compute of one of its cards."""
        return {uid: part for uid, part in self._busy.items() if uid in pods}

    def differs(self, other: Books) -> str:
        """What other books say otherwise, made of the same cluster not quite at the same moment; empty: nothing."""
        for uid, one in self._reads.items():
            was = other._reads.get(uid)
            if was is not None and was.found is one.found and was.note is one.note and was != one:
                return f"pod {one.pod.key}"
        return self.room.differs(other.room)

    # -- one pod ---------------------------------------------------------------------------------

    def _put(self, found: Pod, note: PodNote) -> None:
        uid, pod = found.uid, found
        self._drop(uid, keep=True)
        if found.phase is Phase.DONE:
            self._reads[uid] = Read(found, note, pod)
            self._pods.pop(uid, None)
            return
        self._unweighed.add(uid)
        self._unmeasured.add(uid)
        if pod.placement is not None and pod.evictable and not movable(pod, note, self._schedulers):
            pod = replace(pod, evictable=False)
        self._reads[uid] = Read(found, note, pod, spots_of(pod))
        blocks = find_blocks(pod.request.owner, note.said) if pod.evictable and pod.placement is not None else ()
        if blocks:
            self._blocks[uid] = blocks
        if note.gone_at:
            self._gone_at[uid] = note.gone_at
        if note.deletion_cost:
            self.cost[uid] = note.deletion_cost
        if pod.reservation:
            self.arrived[uid] = pod
        if pod.placement is not None:
            self._pods[uid] = pod
            self._lives(pod.placement.node, {**self._on.get(pod.placement.node, _EMPTY), uid: pod})
        elif pod.request.cards:
            self._pods[uid] = pod
            if pod.phase is Phase.PENDING and not pod.deleting:
                self.queue[uid] = pod
        else:
            self._pods.pop(uid, None)

    def _drop(self, uid: str, *, keep: bool = False) -> None:
        """Forget it; `keep`: it is read anew and has the same place among the others."""
        old = self._reads.pop(uid, None) if not keep else self._reads.get(uid)
        if old is None:
            return
        if not keep:
            self._pods.pop(uid, None)
        self.cost.pop(uid, None)
        self._gone_at.pop(uid, None)
        self._blocks.pop(uid, None)
        self.queue.pop(uid, None)
        self.arrived.pop(uid, None)
        self._guarded.pop(uid, None)
        self._busy.pop(uid, None)
        if old.found.phase is not Phase.DONE and old.pod.placement is not None:
            node = old.pod.placement.node
            self._lives(node, {other: pod for other, pod in self._on.get(node, _EMPTY).items() if other != uid})

    def _lives(self, node: str, here: dict[str, Pod]) -> None:
        """Another set of pods, never the old one changed."""
        if here:
            self._on[node] = here
            self._moving[node] = any(not belongs_to_node(pod) for pod in here.values())
        else:
            self._on.pop(node, None)
            self._moving.pop(node, None)

    # -- what others say of pods -----------------------------------------------------------------

    def _weigh(self, budgets: Sequence[Budget]) -> None:
        """Disruption budgets: all pods of a namespace whose budgets are others now, else those read anew."""
        by_namespace: dict[str, list[Budget]] = {}
        for budget in budgets:
            by_namespace.setdefault(budget.namespace, []).append(budget)
        told = {namespace: tuple(some) for namespace, some in by_namespace.items()}
        other = {name for name in told.keys() | self._budgets.keys() if told.get(name) != self._budgets.get(name)}
        again = [self._pods[uid] for uid in self._unweighed if uid in self._pods]
        if other:
            again += [pod for pod in self._pods.values() if pod.namespace in other]
        self._budgets, self._unweighed = told, set()
        for pod in again:
            self._guarded.pop(pod.uid, None)
        asked = [pod for pod in again if pod.namespace in told and pod.placement is not None and pod.evictable]
        self._guarded.update(guarded(asked, budgets))

    def _measure(self, measured: Measured) -> Iterator[None]:
        """What pods use: of all where it was measured anew, else of those read anew."""
        if self._measured is not measured:
            self._busy, self._measured, self._unmeasured = {}, measured, set(self._pods)
        for number, uid in enumerate(tuple(self._unmeasured)):
            if number and number % (10 * AT_A_STRETCH) == 0:
                yield
            self._unmeasured.discard(uid)
            one = self._reads.get(uid)
            if one is None or one.pod.placement is None:
                continue
            used = measured.used(one.pod.placement.node, one.spots)
            if used is not None:
                self._busy[uid] = used
