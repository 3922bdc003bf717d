# SPDX-License-Identifier: Apache-2.0
"""
The limits file of a promise, and whether the library reads there what was promised.

The host writes it and rewrites it in place; on one machine without containers the command's own user could
too. Says in which way it differs, and not whose fault that is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

from exporter.sources.files import read_whole
from isolation.contract import abi

if TYPE_CHECKING:
    from isolation.contract.host_allocation import HostAllocation

TRIES: Final = 3
PAUSE_SECONDS: Final = 0.001
"""A rewrite takes microseconds."""
_PROMISE_CHARS: Final = 63


def read_limits(path: str) -> abi.Limits:
    """The file as a whole; one that is being rewritten is read again. OSError, AbiError."""
    for _ in range(TRIES - 1):
        try:
            return abi.unpack_limits(read_whole(path, abi.LIMITS_BYTES)[0])
        except abi.AbiError:
            time.sleep(PAUSE_SECONDS)
    return abi.unpack_limits(read_whole(path, abi.LIMITS_BYTES)[0])


def difference(hold: HostAllocation, limits: abi.Limits) -> str:
    """In which way the library is told something else than was promised; empty: in none."""
    if limits.promise != hold.id[:_PROMISE_CHARS]:
        return f"the limits file belongs to promise {limits.promise!r}"
    try:
        promised = {_uuid(part.uuid): (part.bytes, part.core * (abi.PPM // 100)) for part in hold.slices}
    except ValueError:
        return ""  # a card whose name is no UUID: nothing to compare by
    told = {card.uuid: (card.memory_bytes, card.core_ppm) for card in limits.cards}
    return "" if told == promised else "the amounts in the limits file differ from the promise"


def _uuid(card: str) -> UUID:
    return UUID(card.removeprefix("GPU-").removeprefix("MIG-"))
