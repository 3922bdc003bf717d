# SPDX-License-Identifier: Apache-2.0
"""
How much of a card each of its tenants is granted right now.

Pure: promises and who wants the card go in, millionths of the card's time come out. A tenant without
a word (0) obeys its promise. Every tenant's keeper asks for its own tenant and comes to the same
answer, so nobody has to be in charge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import PPM, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

TRICKLE_PPM: Final = 10_000
"""What an offline job gets while an online one computes: it goes on, and nobody notices."""
CATCHING_UP: Final = 1.01
SLOWEST: Final = 0.75
"""What a tenant claims of its own region slows others no further than this."""
ACTIVE_NS: Final = 200_000_000
"""A tenant wants the card for this long after its last launch or wait."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One hold on one card."""

    core_ppm: int
    policy: Policy
    online: bool = False
    active: bool = True
    got: float = 1.0
    """What it got lately of its rate, where it had work queued all the time; else 1."""


def granted(mine: Tenant, others: Sequence[Tenant]) -> int:
    """Millionths of the card for `mine`, who counts as active; 0: as promised."""
    if not mine.core_ppm or mine.policy in {Policy.FIXED, Policy.NONE}:
        return 0
    active = [other for other in others if other.active]
    rivals = [other for other in active if other.policy is mine.policy]
    left = PPM - sum(other.core_ppm for other in active if other.policy is not mine.policy)
    match mine.policy:
        case Policy.BURST:
            spare = left - mine.core_ppm - sum(rival.core_ppm for rival in rivals)
            rate = mine.core_ppm + max(0, spare) // (1 + len(rivals))
        case Policy.PRIORITY:
            if not mine.online and any(rival.online for rival in rivals):
                return TRICKLE_PPM
            rate = _part(mine, [rival for rival in rivals if rival.online is mine.online], left)
        case _:
            rate = int(_part(mine, rivals, left) * _pace(mine, rivals))
    return min(PPM, max(TRICKLE_PPM, rate))


def _pace(mine: Tenant, rivals: Sequence[Tenant]) -> float:
    """
    Nobody runs ahead of the one who falls behind.

    Changing between processes costs the card time, so the parts of all add up to less than a card. Those
    who ask for little would get theirs in full and the largest would bear the loss alone.
    """
    slowest = min([1.0, *(rival.got for rival in rivals)])
    return max(SLOWEST, min(1.0, slowest * CATCHING_UP)) if mine.got > slowest else 1.0


def _part(mine: Tenant, rivals: Sequence[Tenant], left: int) -> int:
    """Mine of what is left, by weight: the promises are the weights."""
    return max(0, left) * mine.core_ppm // (mine.core_ppm + sum(rival.core_ppm for rival in rivals))
