# SPDX-License-Identifier: Apache-2.0
"""
Why a pending pod does not fit, node by node and card by card.

Pure: asks the engine that places pods, and names what each card lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboards.terminal.explain.explanation import CardCapacity, NodeReason
from isolation.contract.model import FULL_CORE, Mode, Why
from isolation.contract.quantity import show_bytes
from isolation.placement.explain import BARRED, NEAREST, describe_reason
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from isolation.contract.model import Card, Node, Request
    from isolation.placement.engine import Engine

_ORDER: Final = {why: at for at, why in enumerate(NEAREST)}
NO_AGENT: Final = "its node agent is stopping, or not registered with the kubelet: no shared cards"


def explain_nodes(engine: Engine, request: Request, away: Collection[str] = ()) -> tuple[NodeReason, ...]:
    """
    Every node that has to do with such a pod, those that come nearest to taking it first.

    Nodes that are `away` are not ready for want of their agent alone.
    """
    names = [name for name, node in engine.nodes.items() if not request.cards or node.mode is not Mode.NONE]
    found = [
        _node_why(engine, request, engine.nodes[name], why, away)
        for why, those in engine.why_not(request, names).items()
        for name in those
    ]
    return tuple(sorted(found, key=lambda one: (_ORDER.get(one.why, -1) if one.why else -1, -_most(one), one.name)))


def _most(one: NodeReason) -> int:
    return max((card.free for card in one.cards), default=0)


def _node_why(engine: Engine, request: Request, node: Node, why: Why | None, away: Collection[str]) -> NodeReason:
    if why is Why.NOT_READY and node.name in away:
        return NodeReason(node.name, node.pool, why, NO_AGENT)
    if why is not None and why in BARRED:
        found = find_barrier(needs_of(request), node)
        return NodeReason(node.name, node.pool, why, found[1] if found else describe_reason(why, request))
    cards = tuple(
        _card_room(card, free, core, request)
        for card, (free, core) in zip(node.cards, engine.room(node.name), strict=True)
    )
    return NodeReason(
        node.name, node.pool, why, "the pod fits" if why is None else describe_reason(why, request), cards
    )


def _card_room(card: Card, free: int, core: int, request: Request) -> CardCapacity:
    free, core = max(0, free), max(0, core)
    lacks = _lacks(card, free, core, request)
    return CardCapacity(card.index, card.allocatable_bytes, free, core, not lacks, lacks)


def _lacks(card: Card, free: int, core: int, request: Request) -> str:
    """What the card has not; empty: it would do."""
    if not card.healthy:
        return "unhealthy"
    if request.whole:
        return "" if free == card.allocatable_bytes and core == FULL_CORE else "in use"
    if request.card_bytes > card.allocatable_bytes:
        return f"too small: offers {show_bytes(card.allocatable_bytes)} when empty"
    if request.card_bytes > free:
        return f"{show_bytes(request.card_bytes - free)} short"
    if request.card_core > core:
        return f"{request.card_core - core} % compute short"
    return ""
