# SPDX-License-Identifier: Apache-2.0
"""
Energy of a card by container.

Pure. Between two samples the card has drawn so many joules. What it draws while nobody computes (the lowest
power seen then; nothing before that was seen) is the idle part: every container answers for as much of it as it
was promised of the card's memory, one with the whole card for all. The rest is put down by compute, process by
process. What processes outside any promise compute, and what of the card nobody was promised, is nobody's: the
containers of a card never add up to more than the card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.contract.reading import CardReading, ContainerReading

IDLE_RATIO: Final = 0.005
"""Less compute than this on a whole card is nobody's."""
SETTLED: Final = 2
"""A card's power falls some time after its last kernel: only idle intervals behind so many others are idle power."""


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """One card's counter as it stood last."""

    at: float
    joules: float | None
    idle_watts: float | None = None
    idle_turns: int = 0


def read_meter(
    card: CardReading, before: EnergyMeter | None, busy: float | None, now: float
) -> tuple[EnergyMeter, float, float]:
    """The meter now, and what was drawn since: (meter, idle joules, joules of computing)."""
    drawn, seconds = _drawn(card, before, now)
    kept = before if before is not None else EnergyMeter(now, None)
    idle_turns = kept.idle_turns + 1 if busy is not None and busy <= IDLE_RATIO else 0
    idle_watts = kept.idle_watts
    if drawn is not None and seconds > 0 and idle_turns > SETTLED:
        idle_watts = min(drawn / seconds, idle_watts if idle_watts is not None else drawn / seconds)
    meter = EnergyMeter(
        now, card.energy_joules if card.energy_joules is not None else kept.joules, idle_watts, idle_turns
    )
    if drawn is None:
        return (replace(meter, at=kept.at) if card.energy_joules is None else meter), 0.0, 0.0
    if busy is not None and busy <= IDLE_RATIO:
        return meter, drawn, 0.0
    idle = min(drawn, (idle_watts or 0.0) * seconds)
    return meter, idle, drawn - idle


def _drawn(card: CardReading, before: EnergyMeter | None, now: float) -> tuple[float | None, float]:
    """Joules and seconds since the meter stood; None at first, without a counter, and when it was set back."""
    if before is None or before.joules is None or card.energy_joules is None or now <= before.at:
        return None, 0.0
    drawn = card.energy_joules - before.joules
    return (drawn, now - before.at) if drawn >= 0 else (None, 0.0)


def split_energy(
    card: CardReading, containers: Sequence[ContainerReading], busy: float | None, idle: float, active: float
) -> Iterable[float | None]:
    """
    Joules for each of the card's containers; None where its compute is not known.

    `busy` is the compute of the whole card, of processes without an allocation too; None: the card cannot tell.
    """
    room = max(card.total_bytes - card.reserved_bytes, sum(one.allocated_bytes for one in containers))
    computed_by_all = max(busy or 0.0, sum(one.used_core_ratio or 0.0 for one in containers))
    for one in containers:
        alone = one.exclusive and len(containers) == 1
        if busy is None:
            yield idle + active if alone else None
        elif one.used_core_ratio is None:
            yield None
        else:
            promised = 1.0 if alone else one.allocated_bytes / room if room > 0 else 0.0
            computed = one.used_core_ratio / computed_by_all if computed_by_all else 0.0
            yield idle * promised + active * computed
