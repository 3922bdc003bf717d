# SPDX-License-Identifier: Apache-2.0
"""
Compute for names that know gauges only: averages of the last minute, since what a scrape sees of a burst is chance.

Remembers a minute of counters; what is not known for two readings has the value of the moment.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.usage_rates import UsageHistory, add_reading, usage_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.attribution import Attribution
    from isolation.contract.reading import CardReading, ContainerReading
    from isolation.contract.usage_rates import Rate

    Key = tuple[str, ...] | tuple[str, int]

WINDOW_SECONDS: Final = 60.0


class Averages:
    """The counters of one exporter."""

    def __init__(self) -> None:
        self._history: UsageHistory[Key] = UsageHistory(WINDOW_SECONDS)
        self._now: Mapping[Key, Rate] = MappingProxyType({})

    def take(self, at: float, found: Attribution) -> None:
        """A reading of that moment (monotonic seconds)."""
        counters: dict[Key, float] = {}
        for card in found.reading.cards:
            if card.busy_seconds is not None:
                counters[card.uuid,] = card.busy_seconds
        for one in found.reading.containers:
            if one.compute_seconds is not None:
                counters[_of(one)] = one.compute_seconds
        for uuid, facts in found.facts.items():
            counters |= {(uuid, pid): total for pid, total in (facts.compute_seconds or {}).items()}
        self._history = add_reading(self._history, at, counters)
        self._now = usage_rates(self._history)

    def card(self, card: CardReading) -> float | None:
        """Part of the time in which a kernel ran."""
        return self._part((card.uuid,), card.utilisation_ratio)

    def container(self, one: ContainerReading) -> float | None:
        """Part of the card."""
        return self._part(_of(one), one.used_core_ratio)

    def process(self, uuid: str, pid: int, moment: float | None) -> float | None:
        """Part of the card; `moment` is what it does now."""
        return None if moment is None else self._part((uuid, pid), moment)

    def _part(self, key: Key, moment: float | None) -> float | None:
        rate = self._now.get(key)
        return moment if rate is None or moment is None else min(1.0, rate.value)


def _of(one: ContainerReading) -> Key:
    return (one.uuid, one.namespace, one.pod, one.container, one.promise)
