# SPDX-License-Identifier: Apache-2.0
"""
Who uses one card: processes with their bytes, and the most that each ever had.

Those that compute are asked for each cycle. Graphics and MPS processes are looked for when there were
some the last time, when memory is in use that no known process explains, and now and then: each list
costs the driver milliseconds, under a lock that tenants wait for. Peaks come from the driver's accounts,
where somebody switched them on. Whose processes these are is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from exporter.pipeline.snapshot import CardProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from exporter.sources.nvml.library import Library

LISTS_SECONDS: Final = 30.0
ENDED_SECONDS: Final = 5.0
"""For so long the peak of a process that ended is reported: a reading may be repeated, or come too late."""
_UNEXPLAINED: Final = 64 << 20


class CardProcesses:
    """The processes of one card or MIG instance, from one reading to the next."""

    def __init__(self, library: Library, model: str, handle: Any) -> None:
        self._library, self._model, self._handle = library, model, handle
        self._present: tuple[CardProcess, ...] | None = None
        self._others: tuple[CardProcess, ...] = ()
        self._due = 0.0
        self._unexplained = 0
        self._peaks: dict[int, int] = {}
        self._ended: dict[int, tuple[int, float]] = {}

    @property
    def maybe(self) -> bool:
        """Whether there was anybody at the last reading, as far as one can tell."""
        return self._present is None or bool(self._present)

    @property
    def peaks(self) -> Mapping[int, int]:
        """Most bytes by pid, of those that are there and those that ended a moment ago."""
        return self._peaks | {pid: peak for pid, (peak, _) in self._ended.items()}

    def computing(self) -> tuple[CardProcess, ...] | None:
        """Those that compute, now; None: unknown."""
        return self._list("Compute", "compute")

    def note(
        self, compute: tuple[CardProcess, ...] | None, used: int, now: float, *, accounting: bool
    ) -> tuple[CardProcess, ...] | None:
        """Everybody, beside those that compute, on a card of which so many bytes are used."""
        found = None if compute is None else merge_processes((*compute, *self._look(compute, used, now)))
        if not accounting:
            self._peaks, self._ended = {}, {}
        elif found is not None:
            self._settle({one.pid for one in found}, now)
        self._present = found
        return found

    def gone(self) -> None:
        """The card is lost, and everybody with it."""
        self._present = ()

    def account(self) -> None:
        """Ask for the accounts of everybody; of who ends they are asked for at once."""
        self._peaks |= self._accounts(one.pid for one in self._present or ())

    def _settle(self, there: set[int], now: float) -> None:
        ended = self._accounts({one.pid for one in self._present or ()} - there)
        self._peaks = {pid: peak for pid, peak in self._peaks.items() if pid in there}
        self._peaks |= self._accounts(there - self._peaks.keys())
        self._ended = {pid: (peak, till) for pid, (peak, till) in self._ended.items() if now < till}
        self._ended |= {pid: (peak, now + ENDED_SECONDS) for pid, peak in ended.items()}

    def _look(self, compute: tuple[CardProcess, ...], used: int, now: float) -> tuple[CardProcess, ...]:
        """Graphics and MPS processes, if there is a reason to look for some."""
        unexplained = used - sum(one.bytes or 0 for one in (*compute, *self._others))
        calm = not self._others and abs(unexplained - self._unexplained) < _UNEXPLAINED
        if calm and now < self._due:
            return ()
        self._due = now + LISTS_SECONDS
        self._unexplained = unexplained
        self._others = (*(self._list("MPSCompute", "mps") or ()), *(self._list("Graphics", "graphics") or ()))
        return self._others

    def _list(self, kind: str, name: str) -> tuple[CardProcess, ...] | None:
        found = self._library.processes(self._model, kind, self._handle)
        return None if found is None else tuple(CardProcess(pid, size, name) for pid, size in found)

    def _accounts(self, pids: Iterable[int]) -> dict[int, int]:
        found = {pid: self._library.ask(None, "nvmlDeviceGetAccountingStats", self._handle, pid) for pid in pids}
        return {
            pid: int(stats.maxMemoryUsage)
            for pid, stats in found.items()
            if stats is not None and stats.maxMemoryUsage is not None
        }


def merge_processes(found: Iterable[CardProcess]) -> tuple[CardProcess, ...]:
    """Each pid once: one that computes and draws is listed twice, with the same bytes. An MPS client is that first."""
    rank = {"mps": 0, "compute": 1, "graphics": 2}
    kept: dict[int, CardProcess] = {}
    for one in sorted(found, key=lambda one: rank[one.kind]):
        before = kept.setdefault(one.pid, one)
        if one.bytes is not None and (before.bytes is None or one.bytes > before.bytes):
            kept[one.pid] = replace(before, bytes=one.bytes)
    return tuple(sorted(kept.values(), key=lambda one: one.pid))
