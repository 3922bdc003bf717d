# SPDX-License-Identifier: Apache-2.0
"""
Detects breaches of promises, from outside the containers, and keeps the counters of each container.

From one attribution and the state of the last cycle to the reading that is shown and the next state. Only memory that
NVML measures can put a container over its limit: its own library could be made to say anything. What is wrong in one
sample is `exporter.pipeline.breach_rules`; when that begins and ends a breach, `exporter.pipeline.breach_log`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from exporter.pipeline.breach_log import BreachKind, BreachLog, FindingKey, LoggedBreach, update_breach_log
from exporter.pipeline.breach_rules import list_findings, list_region_pids
from exporter.pipeline.compute_seconds import ComputeTotals, attribute_compute
from exporter.pipeline.container_history import ContainerHistory, Growth, OverLimitState
from exporter.pipeline.energy import EnergyMeter, read_meter, split_energy
from exporter.pipeline.process_binding import Visibility
from exporter.pipeline.shared_compute import SharedTotals, divide_compute
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.pipeline.allocations import AllocationKey, ContainerAllocation
    from exporter.pipeline.attribution import Attribution
    from isolation.contract.reading import ContainerReading, NodeReading

SLACK_BYTES: Final = 64 * MIB
SLACK_PART: Final = 100
"""An over-limit begins this much (the smaller of both) above the promise and ends at the promise."""
LONGEST_GAP: Final = 60.0
"""Seconds between two samples after which the time between them is nobody's."""
LINGER_SECONDS: Final = 600.0
"""Counters of a container that has gone, or that cannot be seen, are kept so long."""
MAX_GONE: Final = 1024


@dataclass(frozen=True, slots=True)
class DetectorState:
    """State of a node from cycle to cycle."""

    at: float | None = None
    whole: float | None = None
    """When all sources of allocations last answered: a container without history since then is new."""
    histories: Mapping[AllocationKey, ContainerHistory] = field(default_factory=lambda: MappingProxyType({}))
    meters: Mapping[str, EnergyMeter] = field(default_factory=lambda: MappingProxyType({}))
    work: Mapping[str, ComputeTotals] = field(default_factory=lambda: MappingProxyType({}))
    shared: Mapping[str, SharedTotals] = field(default_factory=lambda: MappingProxyType({}))
    breaches: BreachLog = field(default_factory=BreachLog)


@dataclass(frozen=True, slots=True)
class Detection:
    """The reading to be shown, and the next state."""

    reading: NodeReading
    state: DetectorState
    begun: tuple[LoggedBreach, ...]
    """Breaches that this sample began."""


def detect_breaches(found: Attribution, state: DetectorState, *, now: float, epoch: float) -> Detection:
    """`now` is monotonic; `epoch` dates the records."""
    found, shared, divided = divide_compute(found, state.shared, now)
    reading = found.reading
    pairs = tuple(zip(found.container_allocations, reading.containers, strict=True))
    meters, joules = _energy(found, state.meters, now)
    work, seconds = attribute_compute(found, state.work, divided)
    histories = {}
    for allocation, one in pairs:
        grown = Growth(joules.get(allocation.key), seconds.get(allocation.key))
        histories[allocation.key] = _track(
            allocation, one, _Previous(state.histories.get(allocation.key), state, now), grown
        )
    wrong = {one.key: one for one in list_findings(found, histories, now)}
    unsure = _unsure(found)
    log, begun = update_breach_log(state.breaches, wrong, unsure, epoch)
    open_on = Counter((breach.finding.uuid, breach.finding.kind) for breach in log.open.values())
    shown = replace(
        reading,
        cards=tuple(
            card if card.uuid not in found.visibility else replace(card, breaches=_going(card.uuid, open_on, unsure))
            for card in reading.cards
        ),
        containers=tuple(_shown(one, histories[allocation.key]) for allocation, one in pairs),
        breach_counts=tuple(sorted(log.counts.items())),
    )
    histories |= _lingering(state.histories, histories, now)
    meters |= {
        uuid: kept for uuid, kept in state.meters.items() if uuid not in meters and now - kept.at < LINGER_SECONDS
    }
    whole = now if found.allocations.complete else state.whole
    return Detection(shown, DetectorState(now, whole, histories, meters, work, shared, log), begun)


def _going(
    uuid: str, numbers: Mapping[tuple[str, BreachKind], int], unsure: Callable[[FindingKey], bool]
) -> tuple[tuple[str, int], ...]:
    """Open breaches of a card, by kind; a kind that could not be detected now is absent, not 0."""
    every = ((kind, numbers.get((uuid, kind), 0)) for kind in BreachKind)
    return tuple((kind.value, number) for kind, number in every if number or not unsure((kind, uuid)))


def _shown(one: ContainerReading, history: ContainerHistory) -> ContainerReading:
    return replace(
        one,
        over_limit_seconds=history.excess.seconds,
        over_limit_episodes=history.excess.episodes,
        peak_bytes=history.peak_bytes if one.used_bytes is not None else None,
        peak_source=history.peak_source,
        energy_joules=history.joules if history.grown.joules is not None else None,
        compute_seconds=history.compute_seconds if history.grown.seconds is not None else None,
    )


def _lingering(
    before: Mapping[AllocationKey, ContainerHistory], present: Mapping[AllocationKey, ContainerHistory], now: float
) -> dict[AllocationKey, ContainerHistory]:
    gone = [(key, kept) for key, kept in before.items() if key not in present and now - kept.seen < LINGER_SECONDS]
    if len(gone) > MAX_GONE:
        gone = sorted(gone, key=lambda pair: pair[1].seen)[-MAX_GONE:]
    return dict(gone)


def _energy(
    found: Attribution, before: Mapping[str, EnergyMeter], now: float
) -> tuple[dict[str, EnergyMeter], dict[AllocationKey, float]]:
    """Every card's meter, and joules since the last sample by allocation (missing: unknown)."""
    meters: dict[str, EnergyMeter] = {}
    joules: dict[AllocationKey, float] = {}
    by_card: dict[str, list[tuple[ContainerAllocation, ContainerReading]]] = {}
    for allocation, one in zip(found.container_allocations, found.reading.containers, strict=True):
        by_card.setdefault(one.uuid, []).append((allocation, one))
    for card in found.reading.cards:
        busy = found.busy.get(card.uuid)
        meters[card.uuid], idle, active = read_meter(card, before.get(card.uuid), busy, now)
        mine = by_card.get(card.uuid, ())
        if card.energy_joules is None:
            continue
        parts = split_energy(card, [one for _, one in mine], busy, idle, active)
        joules |= {allocation.key: part for (allocation, _), part in zip(mine, parts, strict=True) if part is not None}
    return meters, joules


class _Previous(NamedTuple):
    """What was before this sample."""

    history: ContainerHistory | None
    state: DetectorState
    now: float

    @property
    def at(self) -> float | None:
        """When it was."""
        return self.state.at

    def begin(self) -> ContainerHistory:
        """
        The history to continue.

        A container that appeared since all sources were last read starts at 0 denials, so that its first ones count.
        One that may have been there before, as when the exporter starts, has an unknown past: its count at first
        sight is where counting begins, or a restart of the exporter would report old denials as new.
        """
        if self.history is not None:
            return self.history
        whole = self.state.whole
        new = whole is not None and self.now - whole < LINGER_SECONDS
        return ContainerHistory(self.now, denied=0 if new else None)


def _track(
    allocation: ContainerAllocation, one: ContainerReading, before: _Previous, grown: Growth
) -> ContainerHistory:
    history = before.begin()
    peak, source = history.peak_bytes, history.peak_source
    if one.peak_bytes is not None and (peak is None or one.peak_bytes > peak):
        peak, source = one.peak_bytes, one.peak_source
    fresh = 0
    if one.denied is not None and history.denied is not None:
        fresh = max(0, one.denied - history.denied)
    # After a gap in its readings nobody knows whether it was over its limit meanwhile: a new episode, the same sums.
    excess = history.excess if history.seen == before.at else history.excess._replace(over=False)
    return ContainerHistory(
        seen=before.now,
        excess=_excess(allocation, one, excess, before),
        peak_bytes=peak,
        peak_source=source,
        grown=grown,
        joules=history.joules + (grown.joules or 0.0),
        compute_seconds=history.compute_seconds + (grown.seconds or 0.0),
        denied=history.denied if one.denied is None else one.denied,
        denied_at=before.now if fresh else history.denied_at,
        fresh_denied=fresh,
        slotted=history.slotted or bool(list_region_pids(allocation)),
    )


def _excess(
    allocation: ContainerAllocation, one: ContainerReading, last: OverLimitState, before: _Previous
) -> OverLimitState:
    """Whether it is over its limit, with hysteresis; a peak between two samples counts as an episode of its own."""
    if one.source != "nvml" or one.used_bytes is None or allocation.bytes is None:
        return last._replace(spiked=False) if last.spiked else last
    begins = allocation.bytes + min(SLACK_BYTES, allocation.bytes // SLACK_PART)
    over = one.used_bytes > (allocation.bytes if last.over else begins)
    account = (one.peak_bytes or 0) if one.peak_source == "accounting" else 0
    spiked = not over and not last.over and account > max(begins, last.spike_bytes)
    gap = before.now - last.measured if last.measured is not None and last.measured == before.at else 0.0
    return OverLimitState(
        over=over,
        measured=before.now,
        seconds=last.seconds + (gap if over and last.over and gap <= LONGEST_GAP else 0.0),
        episodes=last.episodes + ((over and not last.over) or spiked),
        spike_bytes=max(account, one.used_bytes if over else 0),
        spiked=spiked,
    )


def _unsure(found: Attribution) -> Callable[[FindingKey], bool]:
    """Whether a finding that is missing may be there all the same: it must not end a breach then."""
    measured = {BreachKind.OVER_LIMIT, BreachKind.UNINSTRUMENTED, BreachKind.UNALLOCATED, BreachKind.MISSING_LIBRARY}
    clear = {uuid for uuid, view in found.visibility.items() if view is Visibility.CLEAR}

    def unsure(key: FindingKey) -> bool:
        return not found.allocations.complete or (key[0] in measured and key[1] not in clear)

    return unsure
