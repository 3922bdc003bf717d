# SPDX-License-Identifier: Apache-2.0
"""
The clock of a simulated cluster: actions in the order of their time.

Actions of the same moment run in the order in which they were scheduled, so a run depends on its seed and on nothing
else. Knows no wall clock.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SimulatedClock:
    """Time that passes only when the caller advances it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ahead: list[tuple[float, int, Callable[[], None]]] = []
        self._put = 0

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Let something happen at a moment; one that has passed means now."""
        self._put += 1
        heapq.heappush(self._ahead, (max(moment, self.now), self._put, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self.at(self.now + seconds, action)

    def run_until(self, moment: float) -> None:
        """Let everything up to a moment happen, that moment included."""
        while self._ahead and self._ahead[0][0] <= moment:
            self.now, _, action = heapq.heappop(self._ahead)
            action()
        self.now = max(self.now, moment)
