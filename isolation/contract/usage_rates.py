# SPDX-License-Identifier: Apache-2.0
"""
How much of a card is in use, from counters of seconds: averages over a window, not what the last moment was like.

Pure but for its memory of the last readings. Times are the exporter's own sample times, so that a late scrape changes
nothing. A counter that falls began again; one that appears between two readings began at 0 in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")


class Rate(NamedTuple):
    """An average, and the seconds that it is of."""

    value: float
    window: float


class UsageRates(Generic[K]):
    """The counters of one exporter, read one after the other."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._raw: Mapping[K, float] = {}
        self._read: list[tuple[float, dict[K, float]]] = []
        """Sample time, and by counter what it would stand at if it had never begun again; oldest first."""

    def take(self, stamp: float, counters: Mapping[K, float]) -> Mapping[K, Rate]:
        """The averages at `stamp` (seconds); counters of which one reading is known have none."""
        if self._read and stamp < self._read[-1][0]:  # its clock was set back
            self._raw, self._read = {}, []
        if not self._read or stamp > self._read[-1][0]:
            before = self._read[-1][1] if self._read else {}
            self._read.append(
                (stamp, {key: before.get(key, 0.0) + self._growth(key, value) for key, value in counters.items()})
            )
            self._raw = dict(counters)
        # one reading from before the window stays: it begins there
        while len(self._read) > 2 and stamp - self._read[1][0] >= self._window:  # noqa: PLR2004 (two make an average)
            del self._read[0]
        return {key: rate for key in self._read[-1][1] if (rate := self._rate(key)) is not None}

    def _growth(self, key: K, value: float) -> float:
        before = self._raw.get(key)
        return value - before if before is not None and value >= before else value

    def _rate(self, key: K) -> Rate | None:
        """From the oldest reading that has the counter, or from the last one that did not have it yet."""
        stamp, latest = self._read[-1]
        base: tuple[float, float] | None = None
        for begin, totals in self._read[:-1]:
            if key in totals:
                base = base or (begin, totals[key])
                break
            base = begin, 0.0
        return None if base is None else Rate((latest[key] - base[1]) / (stamp - base[0]), stamp - base[0])
