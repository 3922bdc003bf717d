# SPDX-License-Identifier: Apache-2.0
"""
Seconds of compute by container.

`exporter.pipeline.busy_time` adds the driver's samples up by process, so that a lost reading loses nothing. Here each
total's growth goes to the container of the process. Growth of a process without a known owner waits until the owner
is known, or is dropped with the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.allocations import AllocationKey
    from exporter.pipeline.attribution import Attribution


@dataclass(frozen=True, slots=True)
class ComputeTotals:
    """One card's totals as far as they have been put down."""

    card: float | None = None
    """Of the whole card."""
    processes: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """By pid."""


def attribute_compute(
    found: Attribution, before: Mapping[str, ComputeTotals], divided: Mapping[AllocationKey, float]
) -> tuple[dict[str, ComputeTotals], dict[AllocationKey, float]]:
    """
    The totals now, and seconds since the last time by allocation.

    Allocations whose compute is unknown are missing. A card without its totals keeps the last ones. `divided`: seconds
    of allocations on cards whose samples do not tell processes apart.
    """
    sources = {
        allocation.key: one.core_source
        for allocation, one in zip(found.container_allocations, found.reading.containers, strict=True)
    }
    seconds = {key: divided.get(key, 0.0) for key, source in sources.items() if source}
    alone = {
        allocation.uuid: allocation.key
        for allocation in found.container_allocations
        if sources[allocation.key] == "allocation"
    }
    work: dict[str, ComputeTotals] = {}
    for uuid, card in found.facts.items():
        last = before.get(uuid, ComputeTotals())
        if uuid in alone and card.busy_seconds is not None:
            seconds[alone[uuid]] = _growth(card.busy_seconds, last.card)
        processes = last.processes
        if card.compute_seconds is not None:
            key_by_pid = found.key_by_pid[uuid]
            known = {pid: total for pid, total in card.compute_seconds.items() if pid in key_by_pid}
            for pid, total in known.items():
                key = key_by_pid[pid]
                if key is not None and sources.get(key) == "nvml":
                    seconds[key] += _growth(total, last.processes.get(pid))
            waiting = {pid: last.processes[pid] for pid in card.compute_seconds if pid in last.processes}
            processes = waiting | known
        work[uuid] = ComputeTotals(last.card if card.busy_seconds is None else card.busy_seconds, processes)
    return {**before, **work}, seconds


def _growth(now: float, before: float | None) -> float:
    """Of a total that begins at 0 again with whoever keeps it."""
    return now - before if before is not None and now >= before else now
