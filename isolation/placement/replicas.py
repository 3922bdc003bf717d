# SPDX-License-Identifier: Apache-2.0
"""
Where the replicas of one owner are, as arrays that the native code reads.

Only nodes where that affects a choice are kept: an owner of ten thousand replicas on binpack
nodes costs nothing.
"""

from __future__ import annotations

from array import array


class Replicas:
    """Rows and the cards of them that hold a replica; every change is a constant-time edit."""

    def __init__(self) -> None:
        self.rows = array("i")
        self.masks = array("Q")
        self._at: dict[int, int] = {}
        self._parts: dict[int, dict[str, int]] = {}

    def copy(self) -> Replicas:
        """An independent copy."""
        twin = Replicas()
        twin.rows, twin.masks, twin._at = self.rows[:], self.masks[:], dict(self._at)
        twin._parts = {row: dict(parts) for row, parts in self._parts.items()}
        return twin

    def put(self, uid: str, row: int, mask: int) -> None:
        """This replica is on these cards of the row."""
        self._parts.setdefault(row, {})[uid] = mask
        if row not in self._at:
            self._at[row] = len(self.rows)
            self.rows.append(row)
            self.masks.append(0)
        self._sum(row)

    def drop(self, uid: str, row: int) -> None:
        """This replica is no longer on the row; fine if it never was."""
        parts = self._parts.get(row, {})
        if parts.pop(uid, None) is None:
            return
        if parts:
            self._sum(row)
            return
        # the last row takes the empty one's place
        at, last = self._at.pop(row), self.rows[-1]
        self.rows[at], self.masks[at] = last, self.masks[-1]
        self.rows.pop()
        self.masks.pop()
        if last != row:
            self._at[last] = at
        del self._parts[row]

    def _sum(self, row: int) -> None:
        mask = 0
        for part in self._parts[row].values():
            mask |= part
        self.masks[self._at[row]] = mask
