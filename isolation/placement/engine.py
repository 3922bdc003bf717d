"""
Live room of a fleet: one engine for single decisions, batch simulation and the autoscaler.

Incremental: a decision re-rates only the nodes that changed since a pod of the same shape was
last placed. Decides (`place`) and keeps the books (`hold`, `release`) apart, so that a what-if
is a `fork` and a crash between the two loses nothing. Does no I/O and knows no clock.
"""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import FULL_CORE, CardChoice, Placement, Slice
from isolation.placement import native
from isolation.placement.answers import Answers
from isolation.placement.arrays import FleetArrays
from isolation.placement.explain import BARRED, KERNEL_WHYS, nearest, refusal
from isolation.placement.groups import Groups
from isolation.placement.mix import Learner, MixTable, Shape
from isolation.placement.policy import DEFAULT, Rank, policy_named
from isolation.placement.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Node, Refusal, Request

REQUESTS_KEPT: Final = 65536
"""Request objects whose shape is remembered."""


class PlacementError(ValueError):
    """A hold that the books cannot take: unknown node or card, no room, or held already."""


class Engine:
    """See the module; `policy` is a name of `isolation.placement.policy.POLICIES`."""

    def __init__(self, nodes: Iterable[Node] = (), *, policy: str = DEFAULT, seed: int = 0) -> None:
        self.policy = policy_named(policy)
        self.seed = seed
        self.fleet = FleetArrays()
        self.groups = Groups(self.fleet.capacity)
        self.learner = Learner()
        self._nodes: dict[str, Node] = {}
        self._row_of: dict[str, int] = {}
        self._node_at: dict[int, Node] = {}
        self._spare: list[int] = []
        self._holds: dict[str, tuple[Request, Placement]] = {}
        self._masks: dict[str, tuple[int, int, native.Ask]] = {}
        self._held_on: dict[int, dict[str, None]] = {}
        self._owners: dict[str, Replicas] = {}
        self._draws = 0
        self._forget()
        self._learn()
        for node in nodes:
            self.put_node(node)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Every node by name."""
        return MappingProxyType(self._nodes)

    @property
    def holds(self) -> Mapping[str, tuple[Request, Placement]]:
        """What is held, by pod UID."""
        return MappingProxyType(self._holds)

    def fork(self) -> Engine:
        """An independent copy for what-if; remembers the mix and the nodes' potential, not the answers."""
        twin = Engine(policy=self.policy.name, seed=self.seed)
        twin.fleet, twin.groups, twin.learner = self.fleet.copy(), self.groups.copy(), self.learner.copy()
        twin._nodes, twin._row_of, twin._node_at = dict(self._nodes), dict(self._row_of), dict(self._node_at)
        twin._spare, twin._holds, twin._masks = list(self._spare), dict(self._holds), dict(self._masks)
        twin._held_on = {row: dict(uids) for row, uids in self._held_on.items()}
        twin._owners = {owner: replicas.copy() for owner, replicas in self._owners.items()}
        twin._draws, twin._table = self._draws, self._table
        twin._forget()
        twin._answers = self._answers.copy(twin.fleet)
        return twin

    # -- the fleet ---------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        """Add a node, or replace it by name: what is held on it stays held."""
        row = self._row_of.get(node.name)
        if row is None:
            row = self._spare.pop() if self._spare else self.fleet.rows
        capacity, stride = self.fleet.capacity, self.fleet.stride
        self.fleet.reserve(max(self.fleet.rows, row + 1), len(node.cards))
        self._nodes[node.name], self._row_of[node.name], self._node_at[row] = node, row, node
        grown = (capacity, stride) != (self.fleet.capacity, self.fleet.stride)
        new_kind = self.fleet.fill(row, node)
        if grown:
            self.groups.widen(self.fleet.capacity)
            self._forget()
        self.groups.put(row, node)
        for uid in self._held_on.get(row, ()):
            request, placement = self._holds[uid]
            mask, ask = self._mask(row, placement), self._shape(request)[0]
            self._masks[uid] = (row, mask, ask)
            self._part(uid, request, row, mask)
            native.LIB.gs_take(self.fleet.struct, ask, row, mask, 1)
        if new_kind:
            self._learn()
        self._spans()

    def drop_node(self, name: str) -> None:
        """Forget the node and every hold on it; KeyError if there is none of that name."""
        row = self._row_of.pop(name)
        for uid in tuple(self._held_on.get(row, ())):
            self.release(uid)
        del self._nodes[name], self._node_at[row]
        self.fleet.clear(row)
        self.groups.put(row, None)
        self._spare.append(row)
        self._spans()

    def room(self, name: str) -> tuple[tuple[int, int], ...]:
        """Free (bytes, percent of compute) of each card, in the node's card order; negative: over-committed."""
        row, cards = self._row_of[name], len(self._nodes[name].cards)
        free, core = self.fleet.card["free"][row, :cards], self.fleet.card["core"][row, :cards]
        return tuple(zip(free.tolist(), core.tolist(), strict=True))

    def fragments(self) -> tuple[float, float]:
        """Idle cards, and the part of them that the mix could not use (FGD's measure)."""
        idle = ctypes.c_double()
        lost = native.LIB.gs_fragment(self.fleet.struct, self._mix, ctypes.byref(idle))
        return idle.value, float(lost)

    # -- the workload ------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """Teach the mix one arrival; a policy that is not online ignores it."""
        if self.policy.online and self.policy.rank is Rank.POTENTIAL and self.learner.add(self._shape(request)[1]):
            self._learn()

    def teach(self, requests: Iterable[Request]) -> None:
        """Preload the mix with a known workload, as the published baseline is given it."""
        for request in requests:
            self.learner.add(self._shape(request)[1])
        self._learn()

    # -- decisions ---------------------------------------------------------------------------

    def place(self, request: Request) -> Placement | Refusal:
        """Where the pod goes, or the true reason why it cannot; changes nothing."""
        ask, shape = self._shape(request)
        mask = ctypes.c_uint64()
        row = self._answers.row(shape, anew=self.policy.rank is Rank.RANDOM)
        near = self._near(request)
        found = native.LIB.gs_pick(self.fleet.struct, self._mix, self._weights(), ask, row, *near, ctypes.byref(mask))
        if found < 0:
            return self._refuse(request, ask)
        return self._placement(request, self._node_at[found], mask.value)

    def hold(self, uid: str, request: Request, placement: Placement, *, force: bool = False) -> None:
        """
        Take the room; PlacementError, with nothing taken, if there is none.

        `force` books what is held in reality already: an over-committed card has no room left.
        """
        row = self._row_of.get(placement.node)
        if uid in self._holds or row is None:
            raise PlacementError(f"{uid}: " + ("held already" if row is not None else f"no node {placement.node}"))
        mask, ask = self._mask(row, placement), self._shape(request)[0]
        if mask.bit_count() != len(placement.slices) and not force:
            raise PlacementError(f"{uid}: node {placement.node} has no such card")
        if native.LIB.gs_take(self.fleet.struct, ask, row, mask, int(force)) < 0:
            raise PlacementError(f"{uid}: no room on node {placement.node}")
        self._holds[uid] = (request, placement)
        self._masks[uid] = (row, mask, ask)
        self._held_on.setdefault(row, {})[uid] = None
        self._part(uid, request, row, mask)

    def release(self, uid: str) -> None:
        """Give the room back; KeyError for a UID that holds nothing."""
        request, _ = self._holds.pop(uid)
        row, mask, ask = self._masks.pop(uid)
        native.LIB.gs_give(self.fleet.struct, ask, row, mask)
        del self._held_on[row][uid]
        self._part(uid, request, row, 0)

    # -- inside ------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Arrays have moved: every remembered answer and pointer goes."""
        self._answers = Answers(self.fleet)
        self._shapes: dict[int, tuple[Request, native.Ask, Shape]] = {}
        if hasattr(self, "_table"):
            self._mix = self._table.struct(self.groups.eligible)
        self._spans()

    def _learn(self) -> None:
        self._table: MixTable = self.learner.table(self.fleet.kinds)
        self._mix = self._table.struct(self.groups.eligible)
        self.fleet.touch()

    def _spans(self) -> None:
        """Best fit measures in parts of the largest node."""
        p = self.policy
        cpu = max((n.cpu_milli for n in self._nodes.values()), default=1) if p.rank is Rank.BEST_FIT else 1
        cards = max((len(n.cards) for n in self._nodes.values()), default=1) if p.rank is Rank.BEST_FIT else 1
        weights = (p.fragment, p.price, p.strand, p.mismatch, p.host, p.tie, p.grain)
        self._policy = native.Policy(p.rank, 0, *weights, max(1, cpu), max(1, cards), self.seed)

    def _weights(self) -> native.Policy:
        if self.policy.rank is Rank.RANDOM:
            self._draws += 1
            self._policy.salt = (self.seed * 0x9E3779B97F4A7C15 + self._draws) & (1 << 64) - 1
        return self._policy

    def _shape(self, request: Request) -> tuple[native.Ask, Shape]:
        known = self._shapes.get(id(request))
        if known is not None:
            return known[1], known[2]
        before = self.groups.eligible
        group = self.groups.of(request, self._node_at)
        if self.groups.eligible is not before:
            self._mix = self._table.struct(self.groups.eligible)
        r = request
        shape = Shape(r.cpu_milli, r.memory_bytes, r.card_bytes, r.card_core, r.cards, r.whole, group)
        ask = native.Ask(*shape[:2], r.card_bytes, r.card_core, r.cards, r.whole, group)
        if len(self._shapes) >= REQUESTS_KEPT:
            self._shapes.clear()
        self._shapes[id(request)] = (request, ask, shape)
        return ask, shape

    def _part(self, uid: str, request: Request, row: int, mask: int) -> None:
        """Remember where a replica is, if that weighs on where the next one goes."""
        if not request.owner or not request.cards:
            return
        replicas = self._owners.get(request.owner)
        spread = self.policy.rank is Rank.SPREAD or self._node_at[row].choice is CardChoice.SPREAD
        if mask and spread:
            if replicas is None:
                replicas = self._owners[request.owner] = Replicas()
            replicas.put(uid, row, mask)
        elif replicas is not None:
            replicas.drop(uid, row)
            if not replicas.rows:
                del self._owners[request.owner]

    def _near(self, request: Request) -> tuple[int | None, int | None, int]:
        """Nodes where a replica of the owner weighs on the choice, with the cards it is on."""
        replicas = self._owners.get(request.owner) if request.owner else None
        if replicas is None:
            return None, None, 0
        return replicas.rows.buffer_info()[0], replicas.masks.buffer_info()[0], len(replicas.rows)

    def _mask(self, row: int, placement: Placement) -> int:
        uuids = {part.uuid for part in placement.slices}
        return sum(1 << at for at, card in enumerate(self._node_at[row].cards) if card.uuid in uuids)

    def _placement(self, request: Request, node: Node, mask: int) -> Placement:
        taken = (card for at, card in enumerate(node.cards) if mask >> at & 1)
        if request.whole:
            return Placement(node.name, tuple(Slice(c.uuid, c.index, c.offered_bytes, FULL_CORE) for c in taken))
        return Placement(node.name, tuple(Slice(c.uuid, c.index, request.card_bytes, request.card_core) for c in taken))

    def _refuse(self, request: Request, ask: native.Ask) -> Refusal:
        best, found = native.Best(), np.zeros(len(KERNEL_WHYS) + 1, np.int32)
        eligible = native.pointer(self.groups.eligible[ask.group])
        native.LIB.gs_why(self.fleet.struct, ask, eligible, native.pointer(found), best)
        counts = self.groups.barred(ask.group, self.fleet.rows)
        counts |= {why: n for why, n in zip(KERNEL_WHYS, found.tolist(), strict=False) if why is not None and n}
        why = nearest(counts)
        example = self.groups.example(ask.group, why, self._node_at) if why in BARRED else ""
        return refusal(request, counts, best, example)
