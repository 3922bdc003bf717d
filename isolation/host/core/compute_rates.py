# SPDX-License-Identifier: Apache-2.0
"""
How much of a card each of its tenants is granted right now.

Pure: what is guaranteed and who wants the card go in, millionths of the card's time come out. A tenant without
a word (0) obeys its promise. Every tenant's feeder asks for its own tenant and comes to the same answer, so nobody has
to be in charge.

Tenants with one policy share what the others are not guaranteed. Everybody has a lower bound (what is guaranteed) and
an upper one (the ceiling); in between, parts rise together until the card is given away: by the same amount under
burst, in proportion to the weights under weight and priority. Of all that want the card the sum is at most the card,
unless more than the card was guaranteed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import PPM, CardLimit, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from isolation.contract.model import Compute, Slice

TRICKLE_PPM: Final = 10_000
"""What is kept for all tenants together that would get nothing: they go on, and nobody notices."""
CATCHING_UP: Final = 1.01
SLOWEST: Final = 0.75
"""What a tenant claims of its own region slows others no further than this."""
ACTIVE_NS: Final = 200_000_000
"""A tenant wants the card for this long after its last launch or wait."""
INELASTIC: Final = frozenset({Policy.FIXED, Policy.NONE})
"""Policies whose tenants get no word: the promise, or no limit."""


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One hold on one card."""

    core_ppm: int
    """What was promised; to an offline tenant under priority nothing is guaranteed all the same."""
    policy: Policy
    online: bool = False
    active: bool = True
    got: float = 1.0
    """What it got lately of its rate, where it had work queued all the time; else 1."""
    weight: int = 0
    """0: the promised percent, or 1 without one."""
    ceiling_ppm: int = 0
    """0: none."""

    @property
    def guaranteed(self) -> int:
        """Millionths that it gets whenever it wants them."""
        return 0 if self.policy is Policy.PRIORITY and not self.online else self.core_ppm


@dataclass(frozen=True, slots=True)
class _Part:
    """What a tenant gets by the level that is common to all: at least `low`, at most `high`."""

    low: int
    high: int
    start: int
    slope: int

    def at(self, level: float) -> float:
        return min(self.high, max(self.low, self.start + level * self.slope))


def granted(mine: TenantShare, others: Sequence[TenantShare]) -> int:
    """Millionths of the card for `mine`, who counts as active; 0: as promised."""
    if mine.policy in INELASTIC:
        return 0
    active = [other for other in others if other.active]
    elastic = [mine, *(other for other in active if other.policy not in INELASTIC)]
    left = PPM - sum(other.core_ppm for other in active if other.policy in INELASTIC)
    rivals = [other for other in elastic[1:] if other.policy is mine.policy]
    spare = max(0, left - sum(tenant.guaranteed for tenant in elastic))
    whole = mine.guaranteed + sum(rival.guaranteed for rival in rivals) + spare * (1 + len(rivals)) // len(elastic)
    parts = _parts([mine, *rivals], whole)
    rate = parts[0].at(_level(parts, whole))
    if mine.policy is Policy.WEIGHT:
        rate = max(parts[0].low, rate * _pace(mine, rivals))
    return min(PPM, max(1, int(rate)))  # 0 would be no word, and the promise would hold


def _parts(tenants: Sequence[TenantShare], whole: int) -> list[_Part]:
    """The bounds of tenants of one policy who share `whole` of a card."""
    online = any(tenant.online for tenant in tenants)
    spare = max(0, whole - sum(tenant.guaranteed for tenant in tenants))
    needy = sum(not tenant.guaranteed for tenant in tenants)
    trickle = min(TRICKLE_PPM, spare) // needy if needy else 0
    parts = []
    for tenant in tenants:
        ceiling = tenant.ceiling_ppm or PPM
        low = tenant.guaranteed or min(trickle, ceiling)
        waits = tenant.policy is Policy.PRIORITY and online and not tenant.online
        high = low if waits else max(low, ceiling)
        alike = tenant.policy is Policy.BURST
        parts.append(_Part(low, high, tenant.guaranteed if alike else 0, 1 if alike else _weight(tenant)))
    return parts


def _level(parts: Sequence[_Part], whole: int) -> float:
    """The highest level at which the parts come to no more than `whole`."""

    def total(level: float) -> float:
        return sum((part.at(level) for part in parts), 0.0)

    points = sorted((bound - part.start) / part.slope for part in parts for bound in (part.low, part.high))
    at = bisect_right(points, float(whole), key=total)
    if at in (0, len(points)):
        return points[min(at, len(points) - 1)]
    # The total is a line between two bounds. Which parts rise there cannot be asked at a bound: 90000 / 19 * 19 < 90000
    level, after = points[at - 1], points[at]
    return level + (whole - total(level)) / (total(after) - total(level)) * (after - level)


def _weight(tenant: TenantShare) -> int:
    return tenant.weight or max(1, tenant.core_ppm * 100 // PPM)


def _pace(mine: TenantShare, rivals: Sequence[TenantShare]) -> float:
    """
    Nobody runs ahead of the one who falls behind.

    Changing between processes costs the card time, so the parts of all add up to less than a card. Those
    who ask for little would get theirs in full and the largest would bear the loss alone.
    """
    slowest = min([1.0, *(rival.got for rival in rivals)])
    return max(SLOWEST, min(1.0, slowest * CATCHING_UP)) if mine.got > slowest else 1.0


def card_limit(uuid: UUID, part: Slice, compute: Compute, context_bytes: int) -> CardLimit:
    """
    What the library is told of one card of a container.

    Under a policy by which the host grants rates, a container without a guarantee has `TRICKLE_PPM` where the host is
    silent: 0 would be no limit. Under `fixed` it has none, as nobody promised its neighbours any.
    """
    policy = Policy[compute.policy.name]
    core = part.core * (PPM // 100) or (0 if policy in INELASTIC else TRICKLE_PPM)
    weight = compute.weight or max(1, part.core)
    ceiling = compute.ceiling * (PPM // 100)
    return CardLimit(uuid, part.bytes, context_bytes, core, policy, weight, compute.online, ceiling)
