# SPDX-License-Identifier: Apache-2.0
"""
Which pods may use which nodes, and which of their cards: one row for pods with the same kind of request and rules.

Rules are matched once for each group and node, and looked up after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isolation.contract.model import Why
from isolation.placement.node_rules import find_barrier, needs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.contract.model import Node, Request
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

    def copy(self) -> EligibilityGroups:
        """An independent copy."""
        twin = EligibilityGroups(1)
        twin.keys, twin._index = list(self.keys), dict(self._index)
        twin.eligible, twin.why = self.eligible.copy(), self.why.copy()
        twin.may = None if self.may is None else self.may.copy()
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
        for group in range(len(self.keys)):
            if node is None:
                self.eligible[group, row] = 0
                self.why[group, row] = _FREE
            else:
                self._match(group, row, node)

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
            if self.may is None:
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
