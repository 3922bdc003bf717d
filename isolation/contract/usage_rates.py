# SPDX-License-Identifier: Apache-2.0
"""
How much of a card is in use, from counters of seconds: averages over a window, not what the last moment was like.

Pure: the readings of a window are a value, which its user keeps. Times are the exporter's own sample times, so that a
late scrape changes nothing. A counter that falls began again; one that appears between two readings began at 0 in
between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")


class Rate(NamedTuple):
    """An average, and the seconds that it is of."""

    value: float
    window: float


@dataclass(frozen=True, slots=True)
class UsageHistory(Generic[K]):
    """The counters of one exporter over the last `window` seconds."""

    window: float
    counters: Mapping[K, float] = field(default_factory=dict)
    """As they were read last."""
    readings: tuple[tuple[float, Mapping[K, float]], ...] = ()
    """Sample time, and by counter what it would stand at if it had never begun again; oldest first."""


def add_reading(history: UsageHistory[K], stamp: float, counters: Mapping[K, float]) -> UsageHistory[K]:
    """The history with what was sampled at `stamp` (seconds) in it; the same sample twice changes nothing."""
    readings = history.readings
    if readings and stamp < readings[-1][0]:  # its clock was set back
        history, readings = UsageHistory(history.window), ()
    if not readings or stamp > readings[-1][0]:
        before = readings[-1][1] if readings else {}
        totals = {
            key: before.get(key, 0.0) + _growth(history.counters.get(key), value) for key, value in counters.items()
        }
        history = UsageHistory(history.window, dict(counters), (*readings, (stamp, totals)))
    # one reading from before the window stays: it begins there
    first, last = 0, len(history.readings) - 1
    while last - first > 1 and stamp - history.readings[first + 1][0] >= history.window:
        first += 1
    return UsageHistory(history.window, history.counters, history.readings[first:])


def usage_rates(history: UsageHistory[K]) -> dict[K, Rate]:
    """The averages up to the last reading; counters of which one reading is known have none."""
    if not history.readings:
        return {}
    latest = history.readings[-1][1]
    return {key: rate for key in latest if (rate := _rate(history, key)) is not None}


def _growth(before: float | None, value: float) -> float:
    return value - before if before is not None and value >= before else value


def _rate(history: UsageHistory[K], key: K) -> Rate | None:
    """From the oldest reading that has the counter, or from the last one that did not have it yet."""
    *earlier, (stamp, latest) = history.readings
    base: tuple[float, float] | None = None
    for begin, totals in earlier:
        if key in totals:
            base = base or (begin, totals[key])
            break
        base = begin, 0.0
    return None if base is None else Rate((latest[key] - base[1]) / (stamp - base[0]), stamp - base[0])
