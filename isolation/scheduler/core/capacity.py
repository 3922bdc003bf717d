# SPDX-License-Identifier: Apache-2.0
"""
Which pod or reservation holds what of which card, what is free, and what each namespace uses of its quota.

The placement engine gets pods and nodes stripped to cards and rules about cards: CPU, memory, selectors and taints are
kube-scheduler's business, which asks about nodes that passed its own filters. A hold outlives its node (it is back when
the node is) and a change of the node's cards. A record made before the agent had published UUIDs names a card by node
and index; it means the card of that index.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.model import SHARED_MODES, Compute, Node, Placement, Refusal, Request, Rules, Slice, Why
from isolation.placement.engine import Engine
from isolation.placement.node_rules import needs_of
from isolation.scheduler.core.quota import Charge, QuotaUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


SHARED: Final = SHARED_MODES
_PLENTY_CPU: Final = 1 << 40
_PLENTY_BYTES: Final = 1 << 60
_PLENTY_PODS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 46
"""More than any card has, and so little that sums over any number of pods stay within the engine's 64 bits."""
KINDS_KEPT: Final = 64
"""Card sizes that may come and go before old ones are forgotten."""
_LEAN_KEPT: Final = 65536
RULES_KEPT: Final = 256
"""Sets of rules about cards, each matched against every node; tenants write them."""


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """What one key holds, as it was recorded."""

    namespace: str
    request: Request
    placement: Placement


class Capacity:
    """See the module; a key is a pod's UID, or a reservation's (`reservations.hold_key`)."""

    def __init__(self, policy: str, unit_bytes: int) -> None:
        self.engine = Engine(policy=policy)
        self._most_kinds = KINDS_KEPT
        self.quota = QuotaUsage(unit_bytes)
        self.nodes: dict[str, Node] = {}
        self.held: dict[str, HeldCapacity] = {}
        self.keys_by_node: dict[str, dict[str, None]] = {}
        """By node, the keys that hold something there, oldest first."""
        self.changes = 0
        """Version: grows with whatever may change an answer about cards."""
        self.freed: Callable[[], None] = lambda: None
        """Called whenever something held becomes free."""
        self._models: dict[str, frozenset[str]] = {}
        self._charges: dict[str, Charge] = {}
        self._stripped: dict[tuple[object, ...], Request] = {}

    # -- nodes -----------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Add or update a node; what is held on it stays held."""
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is not None and _strip_node(before) == _strip_node(node):
            return
        self._reapply(node.name, node)

    def remove_node(self, name: str) -> None:
        """Remove a node; its holds are remembered in case it comes back."""
        if self.nodes.pop(name, None) is not None:
            self._reapply(name, None)

    def _reapply(self, name: str, node: Node | None) -> None:
        self.changes += 1
        keys = list(self.keys_by_node.get(name, ()))
        for key in keys:
            self._give(key)
        serves = node is not None and node.mode in SHARED and bool(node.cards)
        self._models.pop(name, None)
        if node is not None and serves:
            self.engine.put_node(_strip_node(node))
            self._models[name] = frozenset(card.model for card in node.cards)
        elif name in self.engine.nodes:
            self.engine.drop_node(name)
        for key in keys:
            self._take(key)
        if len(self.engine.fleet.kinds) > self._most_kinds:
            self._rebuild_engine()

    def _rebuild_engine(self) -> None:
        """Start again without card sizes that no node has any more: the engine never forgets one."""
        for key in self.held:
            self._give(key)
        nodes = list(self.engine.nodes.values())
        self.engine = Engine(nodes, policy=self.engine.policy.name)
        self._most_kinds = KINDS_KEPT + 2 * len(self.engine.fleet.kinds)
        for key in self.held:
            self._take(key)

    # -- holds -----------------------------------------------------------------------------------

    def hold(self, key: str, namespace: str, request: Request, placement: Placement) -> None:
        """
        Hold this instead of what the key held before, even where it over-commits a card.

        A placement without cards holds nothing.
        """
        if not placement.slices:
            self.free(key)
            return
        before = self.held.get(key)
        self._drop(key)
        self.held[key] = HeldCapacity(namespace, self.strip_request(request), placement)
        self.keys_by_node.setdefault(placement.node, {})[key] = None
        self._take(key)
        if before is not None and before.placement != placement:
            self.freed()

    def free(self, key: str) -> None:
        """Release what the key holds; fine if it holds nothing."""
        if self._drop(key):
            self.freed()

    def _drop(self, key: str) -> bool:
        """Release without a call of `freed`; whether anything was held."""
        held = self.held.get(key)
        if held is None:
            return False
        self._give(key)
        del self.held[key]
        there = self.keys_by_node[held.placement.node]
        del there[key]
        if not there:
            del self.keys_by_node[held.placement.node]
        return True

    @contextmanager
    def without(self, keys: Iterable[str]) -> Iterator[None]:
        """As if these keys held nothing, inside of the block."""
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
        found = _resolve_cards(held.placement, node)
        self.engine.hold(key, held.request, found, force=True)
        models = {card.uuid: card.model for card in node.cards}
        charge = tuple((models[part.uuid], part.bytes) for part in found.slices if part.uuid in models)
        self._charges[key] = charge
        self.quota.charge(held.namespace, charge)

    def _give(self, key: str) -> None:
        self.changes += 1
        if key in self.engine.holds:
            self.engine.release(key)
            self.quota.refund(self.held[key].namespace, self._charges.pop(key))

    # -- questions -------------------------------------------------------------------------------

    def strip_request(self, request: Request) -> Request:
        """The request without what kube-scheduler decides; equal pods get one object, by which the engine caches."""
        online = request.compute.online
        amounts = (request.cards, min(request.card_bytes, _MAX_BYTES), request.card_core)
        trust = request.trust if request.rules.mps else None
        key = (*amounts, request.owner, online, request.rules.cards, request.rules.mps, trust)
        found = self._stripped.get(key)
        if found is None:
            if self.engine.eligibility_groups > RULES_KEPT:
                self.engine.forget_card_rules()
                self._stripped.clear()
            if len(self._stripped) >= _LEAN_KEPT:
                self._stripped.clear()
            rules = Rules(cards=request.rules.cards, mps=request.rules.mps)
            found = Request(*amounts, owner=request.owner, rules=rules, compute=Compute(online=online))
            found = found if trust is None else replace(found, group=trust.group, uid=trust.uid)
            self._stripped[key] = found
        return found

    def place_on(self, request: Request, namespace: str, name: str) -> Placement | Refusal:
        """Which cards of this node the pod takes, or why it cannot: not enough free, or the quota."""
        if name not in self.engine.nodes:
            return Refusal(Why.NO_NODES, "no shareable GPU cards, or the node is not observed yet")
        placed = self.engine.place_on(self.strip_request(request), name)
        over = self.explain_over_quota(namespace, request, name) if isinstance(placed, Placement) else ""
        return Refusal(Why.CARDS, over) if over else placed

    def place_exactly(self, request: Request, namespace: str, at: Placement) -> Placement | None:
        """The same cards with the request's amounts; None where one of them has not enough free."""
        node = self.engine.nodes.get(at.node)
        if node is None or self.explain_over_quota(namespace, request, at.node):
            return None
        wanted = _resolve_cards(at, node)
        if self.engine.has_strangers(wanted, request):
            return None
        pairs, needs = zip(node.cards, self.engine.room(at.node), strict=True), needs_of(request)
        room = {card.uuid: free for card, free in pairs if needs.allow(card)}
        for part in wanted.slices:
            free, core = room.get(part.uuid, (-1, -1))
            if free < request.card_bytes or core < request.card_core:
                return None
        slices = (Slice(s.uuid, s.index, request.card_bytes, request.card_core) for s in wanted.slices)
        return Placement(at.node, tuple(slices))

    def explain_over_quota(self, namespace: str, request: Request, name: str) -> str:
        """
        Why the namespace's quota excludes this on the node's cards; empty: it does not.

        On a node with several card models the tightest quota counts: which card it will be is not known yet.
        """
        if not self.quota.is_limited(namespace):
            return ""
        models = self._models.get(name, frozenset())
        return self.quota.explain_refusal(namespace, models, request.card_bytes * request.cards)

    def why_not(self, request: Request, names: Sequence[str]) -> dict[Why | None, list[str]]:
        """These nodes by the reason why the pod does not fit; None: it fits."""
        return self.engine.why_not(self.strip_request(request), names)


def _strip_node(node: Node) -> Node:
    """What of a node can change an answer about cards; CPU and memory that never run out."""
    return Node(
        node.name,
        tuple(card if card.total_bytes <= _MAX_BYTES else replace(card, total_bytes=_MAX_BYTES) for card in node.cards),
        node.mode,
        node.choice,
        _PLENTY_CPU,
        _PLENTY_BYTES,
        _PLENTY_PODS,
        ready=node.serving,
        policy=node.policy,
    )


def _resolve_cards(placement: Placement, node: Node) -> Placement:
    """The placement with the UUIDs that its cards have now."""
    uuids = {card.uuid for card in node.cards}
    if all(part.uuid in uuids for part in placement.slices):
        return placement
    by_index = {card.index: card.uuid for card in node.cards}
    return Placement(placement.node, tuple(_rename_card(part, node.name, by_index) for part in placement.slices))


def _rename_card(part: Slice, node: str, by_index: dict[int, str]) -> Slice:
    """The slice with its card's present name, where the recorded or the present name is only node and index."""
    nameless, now = f"{node}/{part.index}", by_index.get(part.index, part.uuid)
    return replace(part, uuid=now) if nameless in (part.uuid, now) else part
