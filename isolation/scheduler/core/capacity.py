# SPDX-License-Identifier: Apache-2.0
"""
Who holds what of which card: nodes, holds of pods and of reservations, and what namespaces spend.

The engine sees pods and nodes stripped to cards: CPU, memory, selectors and taints are the stock
scheduler's business, which asks about nodes that it has passed already. A hold outlives its node
(it comes back with it) and a change of its cards; a card that a record calls by node and index,
because it was made before the agent named its cards, is the card of that index.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.model import Mode, Node, Placement, Refusal, Request, Slice, Why
from isolation.placement.engine import Engine
from isolation.scheduler.core.quota import Charge, QuotaUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SHARED: Final = frozenset({Mode.SHARE, Mode.CGPU, Mode.CORE_MEM})
_PLENTY_CPU: Final = 1 << 40
_PLENTY_BYTES: Final = 1 << 60
_PLENTY_PODS: Final = 1 << 20
_MOST_BYTES: Final = 1 << 46
"""More than any card has, and so little that sums over any number of pods stay within the engine's 64 bits."""
KINDS_KEPT: Final = 64
"""Card sizes that may come and go before old ones are forgotten."""
_LEAN_KEPT: Final = 65536


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """One hold as it was recorded."""

    namespace: str
    request: Request
    placement: Placement


class Capacity:
    """See the module; keys are pod UIDs, or whatever else the caller keeps apart from them."""

    def __init__(self, policy: str, unit_bytes: int) -> None:
        self.engine = Engine(policy=policy)
        self._most_kinds = KINDS_KEPT
        self.spending = QuotaUsage(unit_bytes)
        self.nodes: dict[str, Node] = {}
        self.held: dict[str, HeldCapacity] = {}
        self.on: dict[str, dict[str, None]] = {}
        """By node, the keys that hold something there, oldest first."""
        self.changes = 0
        """Grows with whatever may change an answer about cards."""
        self.freed: Callable[[], None] = lambda: None
        """Called whenever what was held is held no more."""
        self._models: dict[str, frozenset[str]] = {}
        self._charges: dict[str, Charge] = {}
        self._lean: dict[tuple[int, int, int, str], Request] = {}

    # Nodes.

    def node_is(self, node: Node) -> None:
        """A node as it is now: what is held on it stays held."""
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is not None and _bare(before) == _bare(node):
            return
        self._rebook(node.name, node)

    def node_gone(self, name: str) -> None:
        """A node that is no more; its holds are remembered in case it comes back."""
        if self.nodes.pop(name, None) is not None:
            self._rebook(name, None)

    def _rebook(self, name: str, node: Node | None) -> None:
        self.changes += 1
        keys = list(self.on.get(name, ()))
        for key in keys:
            self._give(key)
        serves = node is not None and node.mode in SHARED and bool(node.cards)
        self._models.pop(name, None)
        if node is not None and serves:
            self.engine.put_node(_bare(node))
            self._models[name] = frozenset(card.model for card in node.cards)
        elif name in self.engine.nodes:
            self.engine.drop_node(name)
        for key in keys:
            self._take(key)
        if len(self.engine.fleet.kinds) > self._most_kinds:
            self._anew()

    def _anew(self) -> None:
        """The engine never forgets a card size: begin again without those that no node has any more."""
        for key in self.held:
            self._give(key)
        nodes = list(self.engine.nodes.values())
        self.engine = Engine(nodes, policy=self.engine.policy.name)
        self._most_kinds = KINDS_KEPT + 2 * len(self.engine.fleet.kinds)
        for key in self.held:
            self._take(key)

    # Holds.

    def hold(self, key: str, namespace: str, request: Request, placement: Placement) -> None:
        """
        Book what is held, in place of what the key held before; also where there is no room for it.

        A placement without cards holds nothing.
        """
        if not placement.slices:
            self.free(key)
            return
        before = self.held.get(key)
        self._drop(key)
        self.held[key] = HeldCapacity(namespace, self.lean(request), placement)
        self.on.setdefault(placement.node, {})[key] = None
        self._take(key)
        if before is not None and before.placement != placement:
            self.freed()

    def free(self, key: str) -> None:
        """Nothing is held under this key any more; fine if nothing was."""
        if self._drop(key):
            self.freed()

    def _drop(self, key: str) -> bool:
        """Whether anything was held."""
        held = self.held.get(key)
        if held is None:
            return False
        self._give(key)
        del self.held[key]
        there = self.on[held.placement.node]
        del there[key]
        if not there:
            del self.on[held.placement.node]
        return True

    @contextmanager
    def without(self, keys: Iterable[str]) -> Iterator[None]:
        """As if these held nothing, for the length of a question."""
        lifted = [key for key in dict.fromkeys(keys) if key in self.engine.holds]
        for key in lifted:
            self._give(key)
        try:
            yield
        finally:
            for key in lifted:
                self._take(key)

    def _take(self, key: str) -> None:
        self.changes += 1
        held = self.held[key]
        node = self.engine.nodes.get(held.placement.node)
        if node is None:
            return
        found = _found(held.placement, node)
        self.engine.hold(key, held.request, found, force=True)
        models = {card.uuid: card.model for card in node.cards}
        charge = tuple((models[part.uuid], part.bytes) for part in found.slices if part.uuid in models)
        self._charges[key] = charge
        self.spending.charge(held.namespace, charge)

    def _give(self, key: str) -> None:
        self.changes += 1
        if key in self.engine.holds:
            self.engine.release(key)
            self.spending.refund(self.held[key].namespace, self._charges.pop(key))

    # Questions.

    def lean(self, request: Request) -> Request:
        """The request without what the stock scheduler answers for; alike for pods alike."""
        key = (request.cards, min(request.card_bytes, _MOST_BYTES), request.card_core, request.owner)
        found = self._lean.get(key)
        if found is None:
            if len(self._lean) >= _LEAN_KEPT:
                self._lean.clear()
            found = self._lean[key] = Request(*key[:3], owner=request.owner)
        return found

    def place_on(self, request: Request, namespace: str, name: str) -> Placement | Refusal:
        """Which cards of this node the pod takes, or why not: no room, or no quota."""
        if name not in self.engine.nodes:
            return Refusal(Why.NO_NODES, "no shareable GPU cards, or the node is not observed yet")
        placed = self.engine.place_on(self.lean(request), name)
        short = self.over_quota(namespace, request, name) if isinstance(placed, Placement) else ""
        return Refusal(Why.CARDS, short) if short else placed

    def place_exactly(self, request: Request, namespace: str, at: Placement) -> Placement | None:
        """The same cards again with the request's amounts; None where one of them has no room for it."""
        node = self.engine.nodes.get(at.node)
        if node is None or self.over_quota(namespace, request, at.node):
            return None
        wanted = _found(at, node)
        room = dict(zip((card.uuid for card in node.cards), self.engine.room(at.node), strict=True))
        for part in wanted.slices:
            free, core = room.get(part.uuid, (-1, -1))
            if free < request.card_bytes or core < request.card_core:
                return None
        slices = (Slice(s.uuid, s.index, request.card_bytes, request.card_core) for s in wanted.slices)
        return Placement(at.node, tuple(slices))

    def over_quota(self, namespace: str, request: Request, name: str) -> str:
        """
        Why the namespace may not have this on the node's cards; empty: it may.

        On a node of several card models the tightest of them counts: which card it will be is not
        known before it is chosen.
        """
        if not self.spending.limited(namespace):
            return ""
        models = self._models.get(name, frozenset())
        return self.spending.refusal(namespace, models, request.card_bytes * request.cards)

    def why_not(self, request: Request, names: Sequence[str]) -> dict[Why | None, list[str]]:
        """These nodes by what keeps the pod off; None: nothing does."""
        return self.engine.why_not(self.lean(request), names)


def _bare(node: Node) -> Node:
    """What of a node can change an answer about cards."""
    return Node(
        node.name,
        tuple(
            card if card.total_bytes <= _MOST_BYTES else replace(card, total_bytes=_MOST_BYTES) for card in node.cards
        ),
        node.mode,
        node.choice,
        _PLENTY_CPU,
        _PLENTY_BYTES,
        _PLENTY_PODS,
        ready=node.serving,
    )


def _found(placement: Placement, node: Node) -> Placement:
    """The placement by the names that the cards have now."""
    uuids = {card.uuid for card in node.cards}
    if all(part.uuid in uuids for part in placement.slices):
        return placement
    by_index = {card.index: card.uuid for card in node.cards}
    return Placement(placement.node, tuple(_renamed(part, node.name, by_index) for part in placement.slices))


def _renamed(part: Slice, node: str, by_index: dict[int, str]) -> Slice:
    """Two names of one card, where one of them is only its node and index."""
    nameless, now = f"{node}/{part.index}", by_index.get(part.index, part.uuid)
    return replace(part, uuid=now) if nameless in (part.uuid, now) else part
