# SPDX-License-Identifier: Apache-2.0
"""
Whether any node could ever hold a request: by the size of its cards, not by what is free on them.

Decides from the nodes that exist, full or not, ready or not, and from the nodes that the autoscaler's pools can add, as
published. Until they are published, larger cards may still come (from a pool that is empty now): then the same sentence
is only a warning, since a denied pod would never be seen by what adds nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.model import ComputePolicy, Mode, Node
from isolation.contract.names import COMPUTE_POLICY
from isolation.placement.node_rules import MODES, NO_USER, ONE_CARD, RequestKind, kind_of, meets_requirement, serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.contract.model import Request
    from isolation.contract.names import Dialect


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What one node could hold when empty."""

    mode: Mode
    bytes: int
    """Offered by its largest card."""
    cards: int
    policy: ComputePolicy = ComputePolicy.FIXED
    unheld: str = ""
    """Why nothing there can hold what its mode promises; empty: something does."""


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """The distinct sizes of all nodes."""

    sizes: frozenset[NodeSize] = frozenset()
    may_grow: bool = False
    """Whether nodes of other sizes may be added."""


UNKNOWN: Final = NodeSizes()
"""The informers are not synced yet: nothing is denied for its size."""


def measure_node(node: Node) -> NodeSize:
    """The size of one node."""
    largest = max((card.allocatable_bytes for card in node.cards), default=0)
    return NodeSize(node.mode, largest, len(node.cards), node.policy, node.unheld)


def measure_nodes(nodes: Iterable[Node], *, may_grow: bool = False) -> NodeSizes:
    """The sizes of all nodes with cards; without a node nothing is denied for its size."""
    return NodeSizes(
        frozenset(measure_node(node) for node in nodes if node.cards or node.mode is not Mode.NONE), may_grow
    )


def explain_misfit(
    request: Request, existing: NodeSizes, dialect: Dialect, unit_bytes: int, growth: NodeSizes | None = None
) -> str | None:
    """Why no existing node, and none that the pools can add (`growth`; None: not known), could hold it, or None."""
    coming = growth.sizes if growth is not None else frozenset[NodeSize]()
    if not existing.sizes and not coming:
        return None
    kind = kind_of(request)
    under_mps = request.rules.mps
    here, pools = (
        [s for s in some if serves(kind, s.mode, s.policy) and (s.mode is Mode.MPS) is under_mps]
        for some in (existing.sizes, coming)
    )
    unheld = sorted({size.unheld for size in here if size.unheld})
    here = [size for size in here if not size.unheld]
    if unheld and not here and not pools:
        return f"no node can hold this kind of GPU share: {unheld[0]}"
    each, count = request.card_bytes // unit_bytes, request.cards
    if not here and not pools:
        wanted = f"{dialect.mode_label}={' or '.join([Mode.MPS] if under_mps else sorted(MODES[kind]))}"
        if kind is RequestKind.OFFLINE:
            wanted += f" and {COMPUTE_POLICY}={ComputePolicy.PRIORITY}"
        return (
            f"no node{' and no pool' if growth is not None else ''} supports this kind of GPU share; "
            f"{_other_kind(kind, (*existing.sizes, *coming), dialect)}label a node {wanted}, or request whole cards"
        )
    if not all(size.cards for size in (*here, *pools)):  # a node whose agent has not published its cards yet
        return None
    if all(size.cards < count for size in (*here, *pools)):
        most = _most([[size.cards for size in some] for some in (here, pools)], published=growth is not None)
        return f"{count} cards on one node, but the largest node has {most}; lower label {dialect.card_count}"
    many = [[size.bytes // unit_bytes for size in some if size.cards >= count] for some in (here, pools)]
    if max(amount for some in many for amount in some) < each:
        where = f" on a node with {count} cards" if count > 1 else ""
        most = _most(many, published=growth is not None)
        return (
            f"{dialect.memory} {each} on one card, but the largest card{where} offers {most}; "
            f"request less, or spread it over more cards with label {dialect.card_count}"
        )
    return None


def _other_kind(kind: RequestKind, sizes: Iterable[NodeSize], dialect: Dialect) -> str:
    """How the pod would fit the nodes that there are; empty: in no such way."""
    modes = {size.mode for size in sizes}
    if kind is RequestKind.MEMORY and Mode.CORE_MEM in modes:
        return f"also request {dialect.compute}, for nodes of mode {Mode.CORE_MEM}, "
    if kind is RequestKind.COMPUTE and modes & MODES[RequestKind.MEMORY]:
        return f"request {dialect.memory} without {dialect.compute}, "
    return ""


def _most(amounts: Sequence[Sequence[int]], *, published: bool) -> str:
    """The largest amount, of existing nodes and, where published, of nodes that the pools can add."""
    here, pools = (str(max(some, default="none")) for some in amounts)
    return f"{here} on existing nodes and {pools} on nodes that the pools can add" if published else here


def explain_wrong_mode(request: Request, dialect: Dialect) -> str | None:
    """Why the pod's own selectors exclude every node that serves such shares, or None."""
    kind, terms = kind_of(request), request.rules.terms
    if request.rules.mps and serves(kind, Mode.MPS, ComputePolicy.FIXED):
        return ONE_CARD if request.cards > 1 else NO_USER if request.uid is None else None
    # A memory-only pod may also go to such a node under some policies, which the pod's selectors cannot tell.
    modes = MODES[kind] | ({Mode.CORE_MEM} if kind is RequestKind.MEMORY else frozenset())
    about = [[need for need in term if need.key == dialect.mode_label] for term in terms]
    if not terms or any(
        all(meets_requirement(need, _labelled(mode, dialect)) for need in term) for term in about for mode in modes
    ):
        return None
    wanted = " or ".join(sorted(MODES[kind]))
    return (
        "the node selector or affinity allows only nodes that do not support this kind of GPU share; "
        f"set {dialect.mode_label} to {wanted}"
    )


def _labelled(mode: Mode, dialect: Dialect) -> Node:
    return Node("", labels={dialect.mode_label: mode.value})
