# SPDX-License-Identifier: Apache-2.0
"""
Which pods may use which nodes, and which of their cards: one row for pods with the same kind of request and rules.

Rules are matched once for each group and node, and looked up after that.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isolation.contract.model import Mode, Why
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Node, Request, Trust
    from isolation.placement.node_rules import Needs

WHYS: Final = tuple(Why)
_FREE: Final = len(WHYS)
_ALL_CARDS: Final = (1 << 64) - 1


class EligibilityGroups:
    """A table [group][row]: 1 where the group may use the node."""

    def __init__(self, capacity: int) -> None:
        self.keys: list[Needs] = []
        self._index: dict[Needs, int] = {}
        self.eligible: np.ndarray[Any, Any] = np.zeros((4, capacity), np.uint8)
        self.why: np.ndarray[Any, Any] = np.full((4, capacity), _FREE, np.uint8)
        self.may: np.ndarray[Any, Any] | None = None
        """[group][row]: cards of the node that the group may use, as bits; None: no group has rules about cards."""
        self.taken: dict[int, dict[Trust | None, int]] = {}
        """Of nodes under MPS, by row: cards that pods of each group and user have, as bits; None: it is not known."""

    def copy(self) -> EligibilityGroups:
        """An independent copy."""
        twin = EligibilityGroups(1)
        twin.keys, twin._index = list(self.keys), dict(self._index)
        twin.eligible, twin.why = self.eligible.copy(), self.why.copy()
        twin.may = None if self.may is None else self.may.copy()
        twin.taken = dict(self.taken)
        return twin

    def widen(self, capacity: int) -> None:
        """Make room for that many rows."""
        groups, old = self.eligible.shape
        if capacity > old:
            self._resize(groups, capacity)

    def of(self, request: Request, nodes: Mapping[int, Node]) -> int:
        """The request's group; a new one is matched against every node."""
        return self.add(needs_of(request), nodes)

    def add(self, key: Needs, nodes: Mapping[int, Node]) -> int:
        """The group of requests that need this."""
        found = self._index.get(key)
        if found is not None:
            return found
        group = len(self.keys)
        groups, capacity = self.eligible.shape
        if group == groups:
            self._resize(groups * 2, capacity)
        self.keys.append(key)
        self._index[key] = group
        for row, node in nodes.items():
            self._match(group, row, node)
        return group

    def put(self, row: int, node: Node | None) -> None:
        """Match every group against a new or changed node; None: the row is empty."""
        if node is None or node.mode is not Mode.MPS:
            self.taken.pop(row, None)
        for group in range(len(self.keys)):
            if node is None:
                self.eligible[group, row] = 0
                self.why[group, row] = _FREE
            else:
                self._match(group, row, node)

    def take(self, row: int, node: Node, taken: dict[Trust | None, int]) -> None:
        """Other pods are on a node under MPS now."""
        self.taken[row] = taken
        for group, needs in enumerate(self.keys):
            if needs.trust is not None:
                self._match(group, row, node)

    def others(self, row: int, trust: Trust | None) -> int:
        """Cards of a node under MPS that pods of anybody else have, as bits."""
        taken = self.taken.get(row, {})
        return reduce(or_, (cards for who, cards in taken.items() if who is None or who != trust), 0)

    def barred(self, group: int, rows: int) -> dict[Why, int]:
        """Count the excluded nodes by reason."""
        counts = np.bincount(self.why[group, :rows], minlength=_FREE + 1)
        return {why: int(n) for why, n in zip(WHYS, counts[:_FREE], strict=True) if n}

    def example(self, group: int, why: Why, nodes: Mapping[int, Node]) -> str:
        """One node excluded for this reason, with what exactly excludes it."""
        for row in np.flatnonzero(self.why[group] == WHYS.index(why)).tolist():
            found = find_barrier(self.keys[group], nodes[row])
            if found is not None:
                return f"{nodes[row].name}: {found[1]}"
        return ""

    def _match(self, group: int, row: int, node: Node) -> None:
        needs = self.keys[group]
        found = find_barrier(needs, node)
        self.eligible[group, row] = found is None
        self.why[group, row] = _FREE if found is None else WHYS.index(found[0])
        allowed = _ALL_CARDS
        if needs.rules.cards or (needs.choosy and any(card.instance is not None for card in node.cards)):
            allowed = sum(1 << at for at, card in enumerate(node.cards) if needs.allow(card))
        if found is None and needs.trust is not None and (others := self.others(row, needs.trust)):
            allowed &= ~others
            if not allowed & ((1 << len(node.cards)) - 1):
                self.eligible[group, row], self.why[group, row] = 0, WHYS.index(Why.TRUST)
        if allowed != _ALL_CARDS and self.may is None:
            self.may = np.full(self.eligible.shape, _ALL_CARDS, np.uint64)
        if self.may is not None:
            self.may[group, row] = allowed

    def _resize(self, groups: int, capacity: int) -> None:
        old_groups, old = self.eligible.shape
        eligible, why = self.eligible, self.why
        self.eligible = np.zeros((groups, capacity), np.uint8)
        self.why = np.full((groups, capacity), _FREE, np.uint8)
        self.eligible[:old_groups, :old] = eligible
        self.why[:old_groups, :old] = why
        if self.may is not None:
            may, self.may = self.may, np.full((groups, capacity), _ALL_CARDS, np.uint64)
            self.may[:old_groups, :old] = may
