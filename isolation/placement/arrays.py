# SPDX-License-Identifier: Apache-2.0
"""
The fleet as arrays, as the native code reads it: one row per node with what is free on it.

Knows nothing of pods and policies. A dropped node leaves an empty row that the next one takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isolation.contract.model import FULL_CORE, CardChoice
from isolation.placement import native

if TYPE_CHECKING:
    from isolation.contract.model import Node

CHOICES: Final = (CardChoice.POLICY, CardChoice.BINPACK, CardChoice.SPREAD)
_PER_NODE: Final = {
    "cpu": np.int64,
    "memory": np.int64,
    "pods": np.int32,
    "cards": np.int32,
    "choice": np.uint8,
    "version": np.uint32,
}
_PER_CARD: Final = {"offered": np.int64, "free": np.int64, "core": np.int32, "kind": np.int32, "offline": np.int32}


class FleetArrays:
    """Rows of free amounts; grows by doubling, and a row's index stays while its node exists."""

    def __init__(self, capacity: int = 16, stride: int = 8) -> None:
        self.rows = 0
        """Rows in use, empty ones included."""
        self.capacity, self.stride = capacity, stride
        self.node: dict[str, np.ndarray[Any, Any]] = {n: np.zeros(capacity, t) for n, t in _PER_NODE.items()}
        self.card: dict[str, np.ndarray[Any, Any]] = {n: np.zeros((capacity, stride), t) for n, t in _PER_CARD.items()}
        self.kinds: list[int] = []
        """Size classes: offered bytes of a card, in order of appearance."""
        self.struct = native.FleetStruct()
        self._point()

    def copy(self) -> FleetArrays:
        """An independent copy."""
        twin = FleetArrays(1, 1)
        twin.rows, twin.capacity, twin.stride, twin.kinds = self.rows, self.capacity, self.stride, list(self.kinds)
        twin.node = {name: array.copy() for name, array in self.node.items()}
        twin.card = {name: array.copy() for name, array in self.card.items()}
        twin._point()
        return twin

    def reserve(self, rows: int, stride: int) -> None:
        """Make room for that many rows and cards per row."""
        if stride > native.MAX_CARDS:
            raise ValueError(f"a node has {stride} cards; at most {native.MAX_CARDS} are supported")
        if rows > self.capacity or stride > self.stride:
            old, kept = self.capacity, self.stride
            while self.capacity < rows:
                self.capacity *= 2
            self.stride = max(self.stride, stride)
            for name, array in self.node.items():
                self.node[name] = np.zeros(self.capacity, array.dtype)
                self.node[name][:old] = array
            for name, array in self.card.items():
                self.card[name] = np.zeros((self.capacity, self.stride), array.dtype)
                self.card[name][:old, :kept] = array
        self.rows = max(self.rows, rows)
        self._point()

    def fill(self, row: int, node: Node) -> bool:
        """Write the node as if nothing were on it; True when a card size is new to the fleet."""
        known = len(self.kinds)
        for name, value in (("cpu", node.cpu_milli), ("memory", node.memory_bytes), ("pods", node.pods)):
            self.node[name][row] = value
        self.node["cards"][row] = len(node.cards)
        self.node["choice"][row] = CHOICES.index(node.choice)
        for at, card in enumerate(node.cards):
            offered = card.allocatable_bytes if card.healthy else 0
            if card.allocatable_bytes not in self.kinds:
                self.kinds.append(card.allocatable_bytes)
            self.card["offered"][row, at] = self.card["free"][row, at] = offered
            self.card["core"][row, at] = FULL_CORE
            self.card["offline"][row, at] = 0
            self.card["kind"][row, at] = self.kinds.index(card.allocatable_bytes)
        self.touch(row)
        return len(self.kinds) > known

    def clear(self, row: int) -> None:
        """Empty the row: nothing fits there."""
        self.node["cards"][row] = self.node["pods"][row] = 0
        self.card["offered"][row] = self.card["free"][row] = 0
        self.touch(row)

    def touch(self, row: int | None = None) -> None:
        """Invalidate the cached scores of this row, or of every row."""
        self.node["version"][slice(None) if row is None else row] += 1

    def _point(self) -> None:
        self.struct.nodes, self.struct.stride = self.rows, self.stride
        for name, array in (*self.node.items(), *self.card.items()):
            setattr(self.struct, name, native.pointer(array))
