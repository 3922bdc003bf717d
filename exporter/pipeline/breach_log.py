# SPDX-License-Identifier: Apache-2.0
"""
The log of breaches: one record from beginning to end, in a ring that one tenant cannot flood.

A new finding begins a record, one that goes on keeps it open, one that is gone ends it. A finding that could not be
detected in this cycle ends nothing. The number of records is limited, also for one tenant and kind.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RING: Final = 256
"""Records kept."""
ONE_OWNER: Final = 8
"""Records kept of one kind, owner and card."""
MAX_OPEN: Final = 1024
"""Breaches followed at the same time."""
MAX_PIDS: Final = 16
"""Pids named in one record."""


class BreachKind(StrEnum):
    """What goes against a promise, as the exporter sees it from outside the container."""

    OVER_LIMIT = "over_limit"
    DENIED = "denied"
    UNINSTRUMENTED = "uninstrumented"
    UNALLOCATED = "unallocated"
    MISSING_LIBRARY = "missing_library"
    UNREADABLE_REGION = "unreadable_region"
    WRONG_LIMITS = "wrong_limits"
    """The file by which the library goes cannot be read, or says something else than was promised."""


SAMPLES_IN_A_ROW: Final = MappingProxyType({BreachKind.OVER_LIMIT: 1, BreachKind.DENIED: 1})
"""Samples in a row after which a finding is a breach; two for all others: starting up is none."""

FindingKey: TypeAlias = tuple[str, ...]
"""Kind, card, owner."""


@dataclass(frozen=True, slots=True)
class BreachFinding:
    """What goes against a promise in one sample."""

    kind: BreachKind
    uuid: str
    card: int
    namespace: str
    pod: str
    container: str
    promise: str
    source: str
    """nvml, accounting, library, limits (the file that the host writes): whose word it is."""
    text: str
    """What happens, for people."""
    process: str = ""
    pids: tuple[int, ...] = ()
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    times: int = 0
    """How often since the last sample, for what can be counted."""

    @property
    def key(self) -> FindingKey:
        """What makes it the same breach in the next sample."""
        return (self.kind, self.uuid, self.namespace, self.pod, self.container, self.promise, self.process)


@dataclass(frozen=True, slots=True)
class LoggedBreach:
    """A finding from its beginning on."""

    number: int
    finding: BreachFinding
    begun: float
    """Seconds since the epoch."""
    last: float
    open: bool = True
    peak_bytes: int | None = None
    times: int = 1

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return self.last - self.begun


@dataclass(frozen=True, slots=True)
class BreachLog:
    """Every record that is kept."""

    ring: Mapping[int, LoggedBreach] = field(default_factory=lambda: MappingProxyType({}))
    """By number, oldest first."""
    open: Mapping[FindingKey, LoggedBreach] = field(default_factory=lambda: MappingProxyType({}))
    waiting: Mapping[FindingKey, int] = field(default_factory=lambda: MappingProxyType({}))
    """Findings that are not breaches yet: in how many samples they were."""
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict.fromkeys(BreachKind, 0)))
    numbers: int = 0


def update_breach_log(
    before: BreachLog,
    findings: Mapping[FindingKey, BreachFinding],
    unsure: Callable[[FindingKey], bool],
    epoch: float,
) -> tuple[BreachLog, tuple[LoggedBreach, ...]]:
    """The records after one more sample, and the breaches that it began."""
    ring, counts, numbers = dict(before.ring), dict(before.counts), before.numbers
    waiting: dict[FindingKey, int] = {}
    going: dict[FindingKey, LoggedBreach] = {}
    begun: list[LoggedBreach] = []
    for key, known in before.open.items():
        finding = findings.get(key)
        if finding is not None:
            going[key] = _goes_on(known, finding, epoch)
        elif unsure(key):
            going[key] = known
        if known.number in ring:
            ring[known.number] = going.get(key, replace(known, open=False))
    for key, finding in findings.items():
        if key in before.open or len(going) >= MAX_OPEN:
            continue
        seen = before.waiting.get(key, 0) + 1
        if seen < SAMPLES_IN_A_ROW.get(finding.kind, 2):
            waiting[key] = seen
            continue
        numbers += 1
        breach = LoggedBreach(
            numbers, finding, epoch, epoch, peak_bytes=finding.used_bytes, times=max(1, finding.times)
        )
        ring[numbers] = going[key] = breach
        counts[finding.kind] += 1
        begun.append(breach)
    waiting |= {key: seen for key, seen in before.waiting.items() if key not in findings and unsure(key)}
    return BreachLog(_kept(ring), going, waiting, counts, numbers), tuple(begun)


def _goes_on(known: LoggedBreach, finding: BreachFinding, epoch: float) -> LoggedBreach:
    amounts = [one for one in (known.peak_bytes, finding.used_bytes) if one is not None]
    peak = max(amounts) if amounts else None
    return replace(known, finding=finding, last=epoch, peak_bytes=peak, times=known.times + finding.times)


def _kept(ring: dict[int, LoggedBreach]) -> dict[int, LoggedBreach]:
    """The latest records; of one owner's only so many, so that nobody can push the others out."""
    if len(ring) <= ONE_OWNER:
        return ring
    seen: dict[FindingKey, int] = {}
    kept: deque[LoggedBreach] = deque()
    for breach in reversed(tuple(ring.values())):
        key = breach.finding.key
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= ONE_OWNER and len(kept) < RING:
            kept.appendleft(breach)
    return {breach.number: breach for breach in kept}


def to_json(log: BreachLog, node: str) -> str:
    """Recent breaches for people and programs, the latest first."""
    found = [_record(breach) for breach in reversed(tuple(log.ring.values()))]
    return json.dumps({"version": 1, "node": node, "totals": dict(log.counts), "breaches": found}) + "\n"


def _record(breach: LoggedBreach) -> dict[str, object]:
    finding = asdict(breach.finding)
    finding.pop("times")
    finding["message"] = finding.pop("text")
    return finding | {
        "number": breach.number,
        "started": breach.begun,
        "last_seen": breach.last,
        "seconds": breach.seconds,
        "open": breach.open,
        "peak_bytes": breach.peak_bytes,
        "count": breach.times,
    }
