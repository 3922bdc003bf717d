# SPDX-License-Identifier: Apache-2.0
"""
Compute of containers on cards whose utilization samples do not tell processes apart.

Pure. There the driver's figures of processes are a guess (`isolation.host.core.own_time`); the card's busy time is
right. It is divided by the event times in the containers' libraries, which are their own word: the source is `library`.
A container whose library times nothing, or that has none, has no figure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from exporter.pipeline.attribution import find_library_book
from isolation.host.core.own_time import divide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.allocations import AllocationKey
    from exporter.pipeline.attribution import Attribution
    from isolation.contract.reading import ContainerReading

NS = 1_000_000_000


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
    The same with the compute of containers on such cards corrected; the totals now; seconds since the last time.

    `now` is monotonic. At the first sample of a card nothing can be told.
    """
    totals: dict[str, SharedTotals] = {}
    seconds: dict[AllocationKey, float] = {}
    spans: dict[str, float] = {}
    for uuid, card in found.facts.items():
        if not card.samples_shared or card.busy_seconds is None:
            continue
        events = {
            allocation.key: book.event_ns
            for allocation in found.container_allocations
            if allocation.uuid == uuid and (book := find_library_book(allocation)) is not None and book.event_ns
        }
        last = before.get(uuid)
        totals[uuid] = SharedTotals(now, card.busy_seconds, events)
        spans[uuid] = 0.0
        if last is None or now <= last.at:
            continue
        spans[uuid] = now - last.at
        grown = {str(at): max(0, events[key] - last.events.get(key, events[key])) for at, key in enumerate(events)}
        busy = max(0.0, card.busy_seconds - last.busy_seconds)
        parts = divide(grown, int(busy * NS), int(spans[uuid] * NS))
        seconds |= {key: parts[str(at)] / NS for at, key in enumerate(events)}
    if not totals:
        return found, totals, seconds

    def corrected(uuid: str, key: AllocationKey, one: ContainerReading) -> ContainerReading:
        if uuid not in totals or one.core_source != "nvml":
            return one
        if key not in seconds:
            return replace(one, used_core_ratio=None, core_source="", encoder_ratio=None, decoder_ratio=None)
        ratio = min(1.0, seconds[key] / spans[uuid])
        return replace(one, used_core_ratio=ratio, core_source="library", encoder_ratio=None, decoder_ratio=None)

    containers = tuple(
        corrected(allocation.uuid, allocation.key, one)
        for allocation, one in zip(found.container_allocations, found.reading.containers, strict=True)
    )
    return replace(found, reading=replace(found.reading, containers=containers)), totals, seconds
