# SPDX-License-Identifier: Apache-2.0
"""
Compute of containers on cards whose utilization samples do not tell processes apart.

Pure. There the driver's figures of processes are a guess (`isolation.host.core.own_time`); the card's busy time is
right. It is divided by the event times in the containers' libraries, which are their own word: the source is `library`.
A container whose library times nothing, or that has none, has no figure, but for one that has the card for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from exporter.pipeline.attribution import find_library_book
from exporter.pipeline.process_binding import Visibility
from isolation.host.core.own_time import divide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.allocations import AllocationKey
    from exporter.pipeline.attribution import Attribution

NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SharedTotals:
    """One card at the last sample."""

    at: float
    busy_seconds: float
    events: Mapping[AllocationKey, int] = field(default_factory=lambda: MappingProxyType({}))
    """Nanoseconds, as the library of each allocation counts them."""


def divide_compute(
    found: Attribution, before: Mapping[str, SharedTotals], now: float
) -> tuple[Attribution, dict[str, SharedTotals], dict[AllocationKey, float]]:
    """
    The same with the compute of containers on such cards; the totals now; seconds since the last time.

    `now` is monotonic. What has no total of before (a new container, a card that begins to count again) has no figure.
    """
    totals: dict[str, SharedTotals] = {}
    seconds: dict[AllocationKey, float] = {}
    ratios: dict[AllocationKey, float] = {}
    for uuid, card in found.facts.items():
        if not card.samples_shared or card.busy_seconds is None or found.visibility[uuid] is not Visibility.CLEAR:
            continue
        events = {
            allocation.key: book.event_ns
            for allocation in found.container_allocations
            if allocation.uuid == uuid and (book := find_library_book(allocation)) is not None and book.event_ns
        }
        last = before.get(uuid)
        totals[uuid] = SharedTotals(now, card.busy_seconds, events)
        if last is None or now <= last.at or card.busy_seconds < last.busy_seconds:
            continue
        span = now - last.at
        grown = {key: max(0, events[key] - last.events[key]) for key in events.keys() & last.events.keys()}
        for key, part in divide(grown, int((card.busy_seconds - last.busy_seconds) * NS), int(span * NS)).items():
            seconds[key], ratios[key] = part / NS, min(1.0, part / NS / span)
    if not ratios:
        return found, totals, seconds
    containers = tuple(
        replace(one, used_core_ratio=ratios[allocation.key], core_source="library")
        if allocation.key in ratios and not one.core_source
        else one
        for allocation, one in zip(found.container_allocations, found.reading.containers, strict=True)
    )
    return replace(found, reading=replace(found.reading, containers=containers)), totals, seconds
