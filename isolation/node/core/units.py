# SPDX-License-Identifier: Apache-2.0
"""
The units of shared memory that the kubelet counts.

Pure. A unit's ID names no card and no pod: the kubelet only counts, which card a container gets is for the record to
say. The ID carries the unit's size, so that units of another size are told apart. Units of unhealthy cards are taken
out of those that no container has; what a container has stays healthy, for the kubelet would not let it start again.

The kubelet counts for a pod what its spec requests, whatever has become of it. So what a pod that was resized holds
more is withdrawn from the units that no container has (removed, not unhealthy), and what it holds less is added. When
it ends the kubelet takes back what it counted, and the difference goes the other way: first from the ended pod's own.
"""

from __future__ import annotations

import itertools
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
    cards: Iterable[Card],
    unit_bytes: int,
    used: Collection[str],
    in_force: Mapping[str, int],
    *,
    shares: bool,
    extra: int = 0,
    ended: Collection[str] = (),
) -> tuple[Device, ...]:
    """
    What the kubelet is told.

    `used`: IDs that it has given to containers; `in_force`: bytes by card that containers use now; `shares`: whether
    the node offers any. Where it does not, only what containers have is left. `extra`: units that resized pods hold
    less than they request (below 0: more); `ended`: IDs among `used` of pods that have ended, which the kubelet has not
    taken back yet.
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
    ids = _choose(total + extra, total, {_number(one) for one in mine}, {_number(one) for one in ended})
    taken = set(mine)
    free = [one for one in (unit_id(unit_bytes, number) for number in ids) if one not in taken]
    unhealthy = set(free[max(0, len(free) - lost) :])
    return tuple(Device(one, one not in unhealthy) for one in (unit_id(unit_bytes, number) for number in ids))


def _choose(count: int, total: int, used: Collection[int], ended: Collection[int]) -> list[int]:
    """So many numbers, those of living containers always among them, as few others than before as can be."""
    found = set(range(total)) | set(used)
    surplus = len(found) - max(count, 0)
    if surplus > 0:
        idle = sorted((number for number in found if number not in used), reverse=True)
        mine = sorted((number for number in found if number in used and number in ended), reverse=True)
        found.difference_update((mine + idle)[:surplus])
    beyond = itertools.count(total)
    while len(found) < count:
        found.add(next(beyond))
    return sorted(found)


def _number(ident: str) -> int:
    return int(ident.rpartition("-")[2])
