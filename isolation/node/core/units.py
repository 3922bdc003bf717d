# SPDX-License-Identifier: Apache-2.0
"""
The units of shared memory that the kubelet counts.

Pure. A unit's ID names no card and no pod: the kubelet only counts, which card a container gets is for the record to
say. The ID carries the unit's size, so that units of another size are told apart. Units of unhealthy cards are taken
out of those that no container has; what a container has stays healthy, for the kubelet would not let it start again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import UNITS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from isolation.contract.model import Card

_ID: Final = re.compile(rf"({'|'.join(UNITS)})-(0|[1-9][0-9]{{0,6}})")
_NAMES: Final = {amount: name for name, amount in UNITS.items()}


@dataclass(frozen=True, slots=True)
class Device:
    """One unit, as the kubelet is told."""

    id: str
    healthy: bool


def unit_id(unit_bytes: int, number: int) -> str:
    """ID of a unit: `1GiB-0` is the first of one GiB."""
    return f"{_NAMES[unit_bytes]}-{number}"


def foreign_ids(ids: Iterable[str], unit_bytes: int) -> list[str]:
    """Those that this agent would not offer: of another unit size, or of an older release."""
    name = _NAMES[unit_bytes]
    return sorted(one for one in ids if (match := _ID.fullmatch(one)) is None or match[1] != name)


def offer(
    cards: Iterable[Card], unit_bytes: int, used: Collection[str], in_force: Mapping[str, int], *, shares: bool
) -> tuple[Device, ...]:
    """
    What the kubelet is told.

    `used`: IDs that it has given to containers; `in_force`: bytes by card that containers use now; `shares`: whether
    the node offers any. Where it does not, only what containers have is left.
    """
    mine = [one for one in used if (match := _ID.fullmatch(one)) and match[1] == _NAMES[unit_bytes]]
    if not shares:
        return tuple(Device(one, healthy=True) for one in sorted(mine, key=_number))
    total = lost = 0
    for card in cards:
        units = card.allocatable_bytes // unit_bytes
        total += units
        if not card.healthy:
            lost += max(0, units - -(-in_force.get(card.uuid, 0) // unit_bytes))
    ids = [unit_id(unit_bytes, number) for number in range(total)]
    taken = set(mine)
    ids += sorted(taken.difference(ids), key=_number)  # of a card that is gone: its containers may still run
    free = [one for one in ids if one not in taken]
    unhealthy = set(free[max(0, len(free) - lost) :])
    return tuple(Device(one, one not in unhealthy) for one in ids)


def _number(ident: str) -> int:
    return int(ident.rpartition("-")[2])
