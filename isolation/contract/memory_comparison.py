# SPDX-License-Identifier: Apache-2.0
"""
What the driver says of a card against what a container's books say: who is unseen, and how much is hidden.

Pure: callers ask NVML and /proc. Books are the tenant's word, the driver's figures are not; a process
that the preload library does not reach (static, musl, an own loader, raw ioctl, OpenCL) has memory
on the card and no slot in the region of its container. "Cannot tell" is None and accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.abi import SlotReading

TOLERANCE_BYTES: Final = 64 * MIB
TOLERANCE_PARTS: Final = 100
"""One part in so many, where that is more than TOLERANCE_BYTES: contexts and modules are booked by estimate."""


@dataclass(frozen=True, slots=True)
class CardUser:
    """A process of one container that has memory on one card, as the driver and /proc tell of it."""

    pid: int
    """In the host's PID namespace."""
    bytes: int | None
    """On this card; None where the driver cannot tell."""
    inner_pid: int | None = None
    """As the process knows itself: the last number of NSpid in /proc/<pid>/status; None: as the host knows it."""
    start_ticks: int | None = None
    """Field 22 of /proc/<pid>/stat; None: it could not be read, and the pid alone must do."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One container on one card."""

    uninstrumented: tuple[CardUser, ...]
    """Have memory on the card and no slot in the books."""
    hidden_bytes: int | None
    """What those with a slot have beyond what all books say, past the tolerance; 0 within it, None: cannot be told."""


def compare(users: Iterable[CardUser], slots: Iterable[SlotReading], card: int) -> Comparison:
    """Hold what the driver says of a container's processes against the region; `card` counts as in the limits file."""
    booked = tuple(slots)
    lives = {(slot.pid, slot.start_ticks) for slot in booked if not slot.ghost}
    pids = {pid for pid, _ in lives}
    unseen: list[CardUser] = []
    measured, untold = 0, False
    for user in users:
        pid = user.pid if user.inner_pid is None else user.inner_pid
        if (pid in pids) if user.start_ticks is None else ((pid, user.start_ticks) in lives):
            untold |= user.bytes is None
            measured += user.bytes or 0
        else:
            unseen.append(user)
    told = sum(max(0, slot.bytes_by_card[card]) for slot in booked)
    beyond = measured - told
    hidden = beyond if beyond > max(TOLERANCE_BYTES, measured // TOLERANCE_PARTS) else 0
    return Comparison(tuple(unseen), None if untold else hidden)
