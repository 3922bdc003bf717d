# SPDX-License-Identifier: Apache-2.0
"""
The room of the usable nodes, kept from turn to turn, with how full each is and what it shows of its pool's kind.

Decides what is booked anew: nodes that are another object, and nodes on which somebody came or went. What the pods
look like as a mixture is learnt from those that hold room now and from nothing else, so that the same pods give the
same answers whenever they came. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.pools import compute_load
from autoscaler.kube.annotations import ours
from autoscaler.kube.observe.pools import kind_of
from autoscaler.providers.core.profile import is_complete, make_template
from isolation.contract.names import ACK, CONTROL_PLANE
from isolation.placement.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.codec.template import NodeTemplate
    from isolation.contract.model import Node, Pod

AT_A_STRETCH: Final = 100
"""Nodes that are booked before others get their turn: some milliseconds."""
_NOBODY: Final[Mapping[str, Pod]] = {}


@dataclass(frozen=True, slots=True)
class Usable:
    """One node whose room is room."""

    node: Node
    pool: str
    draining: bool


@dataclass(frozen=True, slots=True)
class Seat:
    """One usable node as it was booked, and what it was booked from."""

    usable: Usable
    node: Node
    here: Mapping[str, Pod]
    load: float

    def holds(self, usable: Usable, here: Mapping[str, Pod]) -> bool:
        """Whether nothing is to be booked."""
        was = self.usable
        return (
            self.here is here
            and was.node is usable.node
            and was.pool == usable.pool
            and was.draining == usable.draining
        )


def drainable(node: Node) -> bool:
    """Whether our admission policy lets us mark the node: one that says what it serves, of no control plane."""
    return ACK.mode_label in node.labels and CONTROL_PLANE.isdisjoint(node.labels)


class Room:
    """See the module."""

    def __init__(self) -> None:
        self._engine = Engine()
        self._seats: dict[str, Seat] = {}
        self._learnt = False

    @property
    def nodes(self) -> list[Node]:
        """As the deciders see them, by name."""
        return [self._seats[name].node for name in sorted(self._seats)]

    def load(self) -> dict[str, float]:
        """How full each node is, by name."""
        return {name: self._seats[name].load for name in sorted(self._seats)}

    def kept(self) -> frozenset[str]:
        """Nodes that are never drained."""
        return frozenset(name for name, seat in self._seats.items() if not drainable(seat.node))

    def engine(self) -> Engine:
        """The room as it is now, for the caller alone."""
        if not self._learnt:
            self._engine.relearn(request for request, _ in self._engine.holds.values())
            self._learnt = True
        return self._engine.fork()

    def follow(self, usable: Mapping[str, Usable], on: Mapping[str, Mapping[str, Pod]]) -> Iterator[None]:
        """Book these nodes, by name, with these pods; may be left alone at each step, also for good."""
        changed = []
        for name, one in usable.items():
            seat = self._seats.get(name)
            if seat is None or not seat.holds(one, on.get(name, _NOBODY)):
                changed.append(name)
        gone = self._seats.keys() - usable.keys()
        self._learnt = self._learnt and not gone and not changed
        for name in gone:
            self._engine.drop_node(name)
            del self._seats[name]
        for name in changed:
            # who went, before anybody comes: a pod is on one node
            self._leave(name, on.get(name, _NOBODY))
        for number, name in enumerate(changed):
            self._book(name, usable[name], on.get(name, _NOBODY))
            if number % AT_A_STRETCH == 0:
                yield

    def behind(self, nodes: Iterable[Node]) -> int:
        """How many of these were not booked as they are now; those that are not usable never are."""
        seats = self._seats
        return sum(node.name in seats and seats[node.name].usable.node is not node for node in nodes)

    def differs(self, other: Room) -> str:
        """Which node, with the same pods on it, has other room in other books; empty: none."""
        for name, seat in self._seats.items():
            was = other._seats.get(name)
            if was is None or was.node != seat.node or was.here != seat.here:
                continue
            if self._engine.room(name) != other._engine.room(name) or was.load != seat.load:
                return f"the room of node {name}"
        return ""

    def _leave(self, name: str, here: Mapping[str, Pod]) -> None:
        """Let those go who are not here any more; the seat knows who still holds room, and is to be booked anew."""
        seat = self._seats.get(name)
        if seat is None:
            return
        for uid in seat.here.keys() - here.keys():
            self._engine.release(uid)
        self._seats[name] = replace(seat, here={uid: pod for uid, pod in seat.here.items() if uid in here})

    def _book(self, name: str, usable: Usable, here: Mapping[str, Pod]) -> None:
        node, engine = seen_node(usable), self._engine
        if engine.nodes.get(name) is not node:
            engine.put_node(node)
        for uid, pod in here.items():
            held = engine.holds.get(uid)
            if pod.placement is None or (held is not None and held[0] is pod.request and held[1] is pod.placement):
                continue
            if held is not None:
                engine.release(uid)
            # booked even where it over-commits a card: reality is not refused
            engine.hold(uid, pod.request, pod.placement, force=True)
        load = compute_load(node, [(pod.request, pod.placement) for pod in here.values() if pod.placement is not None])
        self._seats[name] = Seat(usable, node, here, load)


def seen_node(usable: Usable) -> Node:
    """A drained node is a cordoned one to the deciders: our own taint must not bar it from being kept."""
    node = usable.node
    if usable.draining:
        taints = tuple(taint for taint in node.taints if not ours(taint.key))
        return replace(node, pool=usable.pool, cordoned=True, taints=taints)
    return node if node.pool == usable.pool else replace(node, pool=usable.pool)


class Kinds:
    """What standing nodes show of their pools' kinds, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Node, Mapping[str, Pod], str, NodeTemplate | None]] = {}
        self._same: dict[tuple[object, ...], NodeTemplate] = {}

    def standing(self, nodes: Iterable[tuple[str, Node, Mapping[str, Pod]]]) -> dict[str, list[NodeTemplate]]:
        """By pool, from nodes with their pools and pods; those that show the same are told once."""
        found: dict[str, dict[int, NodeTemplate]] = {}
        known: dict[str, tuple[Node, Mapping[str, Pod], str, NodeTemplate | None]] = {}
        for pool, node, here in nodes:
            was = self._known.get(node.name)
            if was is None or was[0] is not node or was[1] is not here or was[2] != pool:
                was = node, here, pool, self._read(pool, node, here)
            known[node.name] = was
            if was[3] is not None:
                found.setdefault(pool, {})[id(was[3])] = was[3]
        if len(self._same) > 2 * len(known):
            self._same = {}
        self._known = known
        return {pool: list(kinds.values()) for pool, kinds in found.items()}

    def _read(self, pool: str, node: Node, here: Mapping[str, Pod]) -> NodeTemplate | None:
        shown = kind_of(node, pool, here.values())
        if not is_complete(shown):
            return None
        one = make_template(shown)
        key = (one.mode, one.choice, one.cards, one.cpu_milli, one.memory_bytes, one.pods, one.taints)
        return self._same.setdefault((*key, frozenset(one.labels.items())), one)
