# SPDX-License-Identifier: Apache-2.0
"""
Whether any node here could ever hold a request: its shape, not its room.

Decides from the hardware that the live view shows, full or not, ready or not, and from what the autoscaler has
published of the nodes that its pools may bring. Until it has, a fleet that may grow by larger cards (a pool that is
empty now) is not known by what it has: there the same sentence is a warning, since a refused pod would never be seen by
whoever adds nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.model import Mode, Node
from isolation.placement.node_rules import MODES, kind_of, meets_requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.contract.model import Request
    from isolation.contract.names import Dialect


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What one node could hold when empty."""

    mode: Mode
    bytes: int
    """That its largest card offers."""
    cards: int


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """The distinct shapes of all nodes."""

    shapes: frozenset[NodeSize] = frozenset()
    may_grow: bool = False
    """Whether nodes may come whose like is not here now."""


UNKNOWN: Final = NodeSizes()
"""A view that is not whole yet: nothing is refused for it."""


def measure_node(node: Node) -> NodeSize:
    """One node, reduced."""
    return NodeSize(node.mode, max((card.allocatable_bytes for card in node.cards), default=0), len(node.cards))


def measure_nodes(nodes: Iterable[Node], *, may_grow: bool = False) -> NodeSizes:
    """All of them; without a single one nothing can be told, and nothing is refused for it."""
    return NodeSizes(
        frozenset(measure_node(node) for node in nodes if node.cards or node.mode is not Mode.NONE), may_grow
    )


def explain_misfit(
    request: Request, fleet: NodeSizes, dialect: Dialect, unit_bytes: int, growth: NodeSizes | None = None
) -> str | None:
    """Why no node of the fleet, and none that may come (`growth`, where that is known), could hold it, or None."""
    coming = growth.shapes if growth is not None else frozenset[NodeSize]()
    if not fleet.shapes and not coming:
        return None
    modes = MODES[kind_of(request)]
    here, pools = ([shape for shape in some if shape.mode in modes] for some in (fleet.shapes, coming))
    each, count = request.card_bytes // unit_bytes, request.cards
    if not here and not pools:
        wanted = " or ".join(sorted(modes))
        return (
            f"no node{' and no pool' if growth is not None else ''} supports this kind of GPU share; "
            f"label a node {dialect.mode_label}={wanted}, or request whole cards"
        )
    if not all(shape.cards for shape in (*here, *pools)):  # a node whose agent has not said yet what it has
        return None
    if all(shape.cards < count for shape in (*here, *pools)):
        most = _most([[shape.cards for shape in some] for some in (here, pools)], told=growth is not None)
        return f"{count} cards on one node, but the largest node has {most}; lower label {dialect.card_count}"
    many = [[shape.bytes // unit_bytes for shape in some if shape.cards >= count] for some in (here, pools)]
    if max(amount for some in many for amount in some) < each:
        beside = f" on a node with {count} cards" if count > 1 else ""
        most = _most(many, told=growth is not None)
        return (
            f"{dialect.memory} {each} on one card, but the largest card{beside} offers {most}; "
            f"request less, or spread it over more cards with label {dialect.card_count}"
        )
    return None


def _most(amounts: Sequence[Sequence[int]], *, told: bool) -> str:
    """The largest amount, of nodes that are here and, where that is told, of nodes that may come."""
    here, pools = (str(max(some, default="none")) for some in amounts)
    return f"{here} on existing nodes and {pools} on nodes that the pools can add" if told else here


def explain_wrong_mode(request: Request, dialect: Dialect) -> str | None:
    """Why the pod's own selectors exclude every node that serves such shares, or None."""
    modes, terms = MODES[kind_of(request)], request.rules.terms
    about = [[need for need in term if need.key == dialect.mode_label] for term in terms]
    if not terms or any(
        all(meets_requirement(need, _labelled(mode, dialect)) for need in term) for term in about for mode in modes
    ):
        return None
    wanted = " or ".join(sorted(modes))
    return (
        "the node selector or affinity allows only nodes that do not support this kind of GPU share; "
        f"set {dialect.mode_label} to {wanted}"
    )


def _labelled(mode: Mode, dialect: Dialect) -> Node:
    return Node("", labels={dialect.mode_label: mode.value})
