# SPDX-License-Identifier: Apache-2.0
"""
Which sizes of cards a pod could get, by the nodes that its rules let it go to: for requests in parts of a card.

A fleet is told by one node for all nodes alike, so that it can be sent to the admission process. Labels that differ
from node to node (host names) are left out; a rule about one of them keeps every node in, so that an answer is never
too narrow.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from isolation.contract.model import NAME_FIELD, Card, Instance, Mode, Node, Taint
from isolation.placement.node_rules import MODES, Needs, RequestKind, find_barrier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.model import Rules

MAX_VALUES: Final = (64, 8, 1, 0)
"""Values of a label that is kept, tried one after another until few enough kinds of nodes are left."""
MAX_KINDS: Final = 256
_MAX_ANSWERS: Final = 1024


@dataclass(frozen=True, slots=True)
class CardKind:
    """What nodes alike have in common, for one size of their cards."""

    mode: Mode
    labels: frozenset[tuple[str, str]]
    taints: tuple[Taint, ...]
    bytes: int
    unit_bytes: int
    model: str
    instance: Instance | None = None
    """Of a MIG instance its profile."""


def _node(kind: CardKind) -> Node:
    """The kind as a node with one card."""
    card = Card("", 0, kind.bytes, unit_bytes=kind.unit_bytes, model=kind.model, instance=kind.instance)
    return Node("", (card,), kind.mode, labels=dict(kind.labels), taints=kind.taints)


@dataclass(frozen=True, slots=True)
class CardSizes:
    """Kinds of nodes."""

    kinds: tuple[CardKind, ...] = ()
    dropped: frozenset[str] = frozenset({NAME_FIELD})
    """Labels that are not known here."""
    _answers: dict[tuple[Rules, bool], frozenset[int]] = field(default_factory=dict, compare=False, repr=False)
    _nodes: dict[int, list[Node]] = field(default_factory=dict, compare=False, repr=False)
    """The kinds as nodes, by the size of their cards; made at the first question."""

    def of(self, rules: Rules, *, compute: bool) -> frozenset[int]:
        """Bytes that one card offers, of each size that a pod with such rules could get."""
        known = self._answers.get((rules, compute))
        if known is None:
            terms = tuple(tuple(need for need in term if need.key not in self.dropped) for term in rules.terms)
            free = any(not term for term in terms)
            cards = rules.cards._replace(uuids=frozenset(), not_uuids=frozenset())
            checked = rules._replace(terms=() if free else terms, cards=cards)
            known = self._find(Needs(RequestKind.COMPUTE if compute else RequestKind.MEMORY, checked))
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[rules, compute] = known
        return known

    def _find(self, needs: Needs) -> frozenset[int]:
        """Sizes of which one kind at least takes such a pod."""
        if not self._nodes:
            for one in self.kinds:
                self._nodes.setdefault(one.bytes, []).append(_node(one))
        return frozenset(
            size for size, nodes in self._nodes.items() if any(find_barrier(needs, node) is None for node in nodes)
        )


def measure_cards(nodes: Iterable[Node]) -> CardSizes:
    """The kinds of these nodes, ready or not; those without cards, or of another mode, are left out."""
    listed = [node for node in nodes if node.cards and node.mode in _MODES]
    values: defaultdict[str, set[str]] = defaultdict(set)
    for node in listed:
        for key, value in node.labels.items():
            values[key].add(value)
    for most in MAX_VALUES:
        dropped = frozenset(key for key, found in values.items() if len(found) > most) | {NAME_FIELD}
        kinds = {key: None for node in listed for key in _kinds(node, dropped)}
        if len(kinds) <= MAX_KINDS:
            break
    return CardSizes(tuple(kinds), dropped)


_MODES: Final = MODES[RequestKind.MEMORY] | MODES[RequestKind.COMPUTE]


def _kinds(node: Node, dropped: frozenset[str]) -> set[CardKind]:
    labels = frozenset((key, value) for key, value in node.labels.items() if key not in dropped)
    return {
        CardKind(
            node.mode,
            labels,
            node.taints,
            card.allocatable_bytes,
            card.unit_bytes,
            card.model,
            None if card.instance is None else Instance("", card.instance.profile),
        )
        for card in node.cards
    }
