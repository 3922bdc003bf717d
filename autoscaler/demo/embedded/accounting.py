# SPDX-License-Identifier: Apache-2.0
"""
The events and the totals of a simulated cluster: what happened, how often, how much memory was promised and used.

Keeps the latest events and counts all of them; decides nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB
from isolation.contract.reading import FleetEvent

if TYPE_CHECKING:
    from autoscaler.demo.embedded.clock import SimulatedClock

MAX_EVENTS: Final = 256
"""Happenings that a frame shows at most."""
HOUR: Final = 3600.0
"""Seconds."""
TOTALS: Final = (
    "pods_arrived",
    "pods_placed",
    "pods_finished",
    "pods_refused",
    "pods_moved",
    "nodes_added",
    "nodes_ready",
    "nodes_drained",
    "drains_cancelled",
    "nodes_removed",
    "nodes_failed",
    "fragmented_pods_placed",
    "breaches",
    "pods_shrunk",
    "pods_restored",
    "pods_released",
)
"""Every total, so that one that is still 0 is shown as 0."""


class Accounting:
    """The record of one run."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._latest: deque[FleetEvent] = deque(maxlen=MAX_EVENTS)
        self._counts: Counter[str] = Counter()
        self._promised_rate = 0
        self._promised_at = 0.0
        self._promised = 0.0
        self._used = 0.0
        self.event_count = 0
        """Happenings since the start, those no longer kept included."""
        self.longest_wait = 0.0

    def record(self, kind: str, subject: str, reason: str, *counted: str) -> None:
        """Note one thing, and count it under these totals."""
        self.event_count += 1
        self._latest.append(FleetEvent(self._clock.now, kind, subject, reason))
        self.count(*counted)

    def count(self, *counted: str) -> None:
        """Count without a line of its own."""
        self._counts.update(counted)

    def add_promised(self, amount: int) -> None:
        """From now on this many bytes more (or fewer) are promised."""
        self._promised = self.promised_byte_seconds()
        self._promised_at = self._clock.now
        self._promised_rate += amount

    def promised_byte_seconds(self) -> float:
        """Bytes promised, over the time they were."""
        return self._promised + self._promised_rate * (self._clock.now - self._promised_at)

    def add_used(self, byte_seconds: float) -> None:
        """What a pod that is gone has used."""
        self._used += byte_seconds

    @property
    def latest(self) -> tuple[FleetEvent, ...]:
        """The latest events, oldest first."""
        return tuple(self._latest)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """Totals, in a fixed order."""
        return tuple((name, self._counts[name]) for name in TOTALS)

    def summary(self, running_byte_seconds: float) -> dict[str, int | float]:
        """Totals with the amounts; `running_byte_seconds` is what pods still running have used."""
        return {
            **dict(self.counts),
            "events": self.event_count,
            "promised_gib_hours": self.promised_byte_seconds() / GIB / HOUR,
            "used_gib_hours": (self._used + running_byte_seconds) / GIB / HOUR,
            "longest_wait_seconds": self.longest_wait,
        }
