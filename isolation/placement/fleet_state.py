# SPDX-License-Identifier: Apache-2.0
"""
The engine's state: what every node has, which pod holds what of it, and the shapes of requests.

A node that changes keeps what is held on it, even where that over-commits its cards; dropping the node drops its holds.
Decides nothing, does no I/O and knows no clock.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import CardChoice, Mode
from isolation.placement import native
from isolation.placement.arrays import FleetArrays
from isolation.placement.fit_cache import FitCache
from isolation.placement.groups import EligibilityGroups
from isolation.placement.policy import DEFAULT, Rank, find_policy
from isolation.placement.replicas import Replicas
from isolation.placement.workload_mix import MixTable, RequestShape, WorkloadMix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.model import Node, Placement, Request, Trust

REQUESTS_KEPT: Final = 65536
"""Request objects whose shape is remembered."""
_MAX_BYTES: Final = 1 << 46
"""More than any card has, and so little that sums over any number of pods stay within 64 bits."""


class PlacementError(ValueError):
    """A hold that is impossible: unknown node or card, not enough free, or held already."""


class FleetState:
    """See the module; `policy` is a name of `isolation.placement.policy.POLICIES`."""

    def __init__(self, nodes: Iterable[Node] = (), *, policy: str = DEFAULT, seed: int = 0) -> None:
        self.policy = find_policy(policy)
        self.seed = seed
        self.fleet = FleetArrays()
        self.groups = EligibilityGroups(self.fleet.capacity)
        self.learner = WorkloadMix()
        self._nodes: dict[str, Node] = {}
        self._row_of: dict[str, int] = {}
        self._node_at: dict[int, Node] = {}
        self._spare: list[int] = []
        self._holds: dict[str, tuple[Request, Placement]] = {}
        self._masks: dict[str, tuple[int, int, native.AskStruct]] = {}
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
        may = self.groups.may
        self.groups.put(row, node)
        if self.groups.may is not may:  # the first node with cards that are not for all
            self._mix = self._table.struct(self.groups.eligible, self.groups.may)
        for uid in self._held_on.get(row, ()):
            request, placement = self._holds[uid]
            mask, ask = self._mask(row, placement), self._held(request, placement)
            self._masks[uid] = (row, mask, ask)
            self._track_replica(uid, request, row, mask)
            native.LIB.gs_take(self.fleet.struct, ask, row, mask, 1)
        self._take_for_groups(row)
        if new_kind:
            self._learn()
        self._measure_largest_node()

    def drop_node(self, name: str) -> None:
        """Forget the node and every hold on it; KeyError if there is none of that name."""
        row = self._row_of.pop(name)
        for uid in tuple(self._held_on.get(row, ())):
            self.release(uid)
        del self._nodes[name], self._node_at[row]
        self.fleet.clear(row)
        self.groups.put(row, None)
        self._spare.append(row)
        self._measure_largest_node()

    def room(self, name: str) -> tuple[tuple[int, int], ...]:
        """Free (bytes, percent of compute) of each card, in the node's card order; negative: over-committed."""
        row, cards = self._row_of[name], len(self._nodes[name].cards)
        free, core = self.fleet.card["free"][row, :cards], self.fleet.card["core"][row, :cards]
        return tuple(zip(free.tolist(), core.tolist(), strict=True))

    def strained(self) -> list[str]:
        """Nodes with a card of which more is held than it offers; an unhealthy card offers nothing."""
        short = (self.fleet.card["free"] < 0) | (self.fleet.card["core"] < 0)
        return [self._node_at[row].name for row in np.flatnonzero(short.any(axis=1)).tolist() if row in self._node_at]

    # -- what is held ------------------------------------------------------------------------

    def hold(self, uid: str, request: Request, placement: Placement, *, force: bool = False) -> None:
        """
        Take the cards for the pod; PlacementError, with nothing taken, where not enough is free.

        `force` takes what is held in reality already, even where that over-commits a card.
        """
        row = self._row_of.get(placement.node)
        if uid in self._holds or row is None:
            why = "already placed" if row is not None else f"unknown node {placement.node}"
            raise PlacementError(f"{uid}: {why}")
        mask, ask = self._mask(row, placement), self._held(request, placement)
        if mask.bit_count() != len(placement.slices) and not force:
            raise PlacementError(f"{uid}: node {placement.node} has no such card")
        if not force and self.has_strangers(placement, request):
            raise PlacementError(f"{uid}: the card of node {placement.node} is another group's or user's")
        if native.LIB.gs_take(self.fleet.struct, ask, row, mask, int(force)) < 0:
            raise PlacementError(f"{uid}: not enough free on node {placement.node}")
        self._holds[uid] = (request, placement)
        self._masks[uid] = (row, mask, ask)
        self._held_on.setdefault(row, {})[uid] = None
        self._track_replica(uid, request, row, mask)
        self._take_for_groups(row)

    def release(self, uid: str) -> None:
        """Give the cards back; KeyError for a UID that holds nothing."""
        request, _ = self._holds.pop(uid)
        row, mask, ask = self._masks.pop(uid)
        native.LIB.gs_give(self.fleet.struct, ask, row, mask)
        del self._held_on[row][uid]
        self._track_replica(uid, request, row, 0)
        self._take_for_groups(row)

    @property
    def eligibility_groups(self) -> int:
        """Sets of requests that may use the same nodes and cards, of all requests ever seen."""
        return len(self.groups.keys)

    def forget_card_rules(self) -> None:
        """
        Forget rules about single cards: a tenant can write new ones for ever. They are matched again when asked for.

        The workload mix counts such requests as ones without these rules.
        """
        keys, taken = self.groups.keys, self.groups.taken
        self.groups = EligibilityGroups(self.fleet.capacity)
        self.groups.taken = taken
        counts: Counter[RequestShape] = Counter()
        for shape, number in self.learner.counts.items():
            counts[shape._replace(group=self.groups.add(keys[shape.group].without_card_rules(), self._node_at))] += (
                number
            )
        self.learner.counts = dict(counts)
        self._forget()
        self._learn()

    def has_strangers(self, placement: Placement, request: Request) -> bool:
        """Whether a card of it is under MPS, with pods of another group or user than the pod's; KeyError."""
        row = self._row_of[placement.node]
        return bool(self._mask(row, placement) & self.groups.others(row, request.trust))

    # -- internal ----------------------------------------------------------------------------

    def _take_for_groups(self, row: int) -> None:
        """Under MPS a card is one group's and one user's as long as a pod of theirs is on it."""
        node = self._node_at[row]
        if node.mode is not Mode.MPS:
            return
        taken: dict[Trust | None, int] = {}
        for uid in self._held_on.get(row, ()):
            trust = self._holds[uid][0].trust
            taken[trust] = taken.get(trust, 0) | self._masks[uid][1]
        may = self.groups.may
        self.groups.take(row, node, taken)
        if self.groups.may is not may:
            self._mix = self._table.struct(self.groups.eligible, self.groups.may)

    def _forget(self) -> None:
        """The arrays have moved: drop every cached answer and every pointer into them."""
        self._answers = FitCache(self.fleet)
        self._shapes: dict[int, tuple[Request, native.AskStruct, RequestShape]] = {}
        if hasattr(self, "_table"):
            self._mix = self._table.struct(self.groups.eligible, self.groups.may)
        self._measure_largest_node()

    def _learn(self) -> None:
        self._table: MixTable = self.learner.table(self.fleet.kinds)
        self._mix = self._table.struct(self.groups.eligible, self.groups.may)
        self.fleet.touch()

    def _measure_largest_node(self) -> None:
        """Best fit measures in fractions of the largest node."""
        p = self.policy
        cpu = max((n.cpu_milli for n in self._nodes.values()), default=1) if p.rank is Rank.BEST_FIT else 1
        cards = max((len(n.cards) for n in self._nodes.values()), default=1) if p.rank is Rank.BEST_FIT else 1
        weights = (p.fragment, p.price, p.strand, p.mismatch, p.host, p.tie, p.grain)
        self._policy = native.PolicyStruct(p.rank, 0, *weights, max(1, cpu), max(1, cards), self.seed)

    def _shape(self, request: Request) -> tuple[native.AskStruct, RequestShape]:
        known = self._shapes.get(id(request))
        if known is not None:
            return known[1], known[2]
        before, may = self.groups.eligible, self.groups.may
        group = self.groups.of(request, self._node_at)
        if self.groups.eligible is not before or self.groups.may is not may:
            self._mix = self._table.struct(self.groups.eligible, self.groups.may)
        r = request
        offline = r.cards > 0 and not r.compute.online
        shape = RequestShape(r.cpu_milli, r.memory_bytes, r.card_bytes, r.card_core, r.cards, r.whole, group, offline)
        ask = native.AskStruct(*shape)
        if len(self._shapes) >= REQUESTS_KEPT:
            self._shapes.clear()
        self._shapes[id(request)] = (request, ask, shape)
        return ask, shape

    def _held(self, request: Request, placement: Placement) -> native.AskStruct:
        """What the pod takes off each card: a pod that was resized holds what is booked, not what it requests."""
        ask, shape = self._shape(request)
        if request.whole or not placement.slices:
            return ask
        each, core = min(placement.slices[0].bytes, _MAX_BYTES), placement.slices[0].core
        if (each, core) == (request.card_bytes, request.card_core):
            return ask
        return native.AskStruct(*shape._replace(bytes=each, core=core))

    def _track_replica(self, uid: str, request: Request, row: int, mask: int) -> None:
        """Remember where a replica is, where the spread policy keeps the next one away from it."""
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

    def _mask(self, row: int, placement: Placement) -> int:
        uuids = {part.uuid for part in placement.slices}
        return sum(1 << at for at, card in enumerate(self._node_at[row].cards) if card.uuid in uuids)
