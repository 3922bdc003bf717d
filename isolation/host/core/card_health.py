# SPDX-License-Identifier: Apache-2.0
"""
Which cards are unhealthy, and when they are well again: from what the driver reported, and when.

Pure. An unhealthy card gets no new allocations; what runs on it is left alone. What a program can bring about by itself
never makes a card unhealthy: a tenant could take it from all the others. What the driver wants done with the card (its
recovery action) goes before every guess of ours, where it tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.host.card_events import Board, CardEvent

SETTLE_SECONDS: Final = 60.0
"""After an error event the driver's "nothing need be done" is believed: its verdict may come later than the event."""
HEALTHY_AFTER_SECONDS: Final = 3600.0
_PROGRAMS: Final = frozenset(
    {
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94),
        *range(96, 106),
        *range(126, 136),
        139,
    }
)
"""NVIDIA's Xid catalogue, immediate action RESTART_APP; 94 is an ECC error that was contained."""
_HARMLESS: Final = frozenset({14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160, 161})
"""The same, immediate action IGNORE (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)."""
_FOLLOWING: Final = frozenset({45, 109})
"""
45 follows a killed program; 109, a late change of context, is ignored by NVIDIA's device plugin too
(k8s-device-plugin, internal/rm/health.go: 13, 31, 43, 45, 68, 109).
"""
ACTION_CHANGED: Final = 154
"""The recovery action has changed. Where the driver tells the action, it decides; else something must be done."""
FATAL: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, *range(143, 151), ACTION_CHANGED})
"""
Of those that make a card unhealthy, those that NVIDIA's catalogue calls for a reset or more after: uncorrectable ECC,
halted, row remapping failed, NVLink, off the bus, uncontained ECC, GSP, unrecovered ECC, initialization, NVLink 5.
"""
APPLICATION: Final = frozenset({13, 31, 43, 45})
"""Those that a tenant's own mistake brings about: an exception of its kernel, a wrong address, and what follows."""
NEVER: Final = _PROGRAMS | _HARMLESS | _FOLLOWING
"""XIDs that do not make a card unhealthy."""
_ACTIONS: Final = MappingProxyType(
    {
        1: "a GPU reset",
        2: "a node reboot",
        3: "draining of peer-to-peer traffic",
        4: "draining of the card and a GPU reset",
        5: "recovery of the IMEX domain",
        6: "a GPU bus reset",
        7: "a system reboot",
    }
)
"""nvmlDeviceGpuRecoveryAction_t."""


@dataclass(frozen=True, slots=True)
class HealthTerms:
    """What makes a card unhealthy, and for how long."""

    watched: bool = True
    """False: nothing does."""
    ignored: frozenset[int] = frozenset()
    """XIDs besides `NEVER`."""
    healthy_after: float = HEALTHY_AFTER_SECONDS
    """Seconds without an event after which a card counts as healthy if its driver cannot tell; 0: not by time."""


class HealthReason(StrEnum):
    """Why a card gets no new allocations."""

    XID = "xid"
    ECC = "ecc"
    DRIVER = "driver"
    """It wants something done with the card."""
    ROW_REMAP = "row_remap"
    """A broken row of memory could not be replaced."""
    LOST = "lost"
    """NVML does not tell of it; not a fault of this module's."""
    MIG = "mig"
    """Its MIG instances were changed while containers had promises on them; not a fault of this module's either."""


@dataclass(frozen=True, slots=True)
class CardFault:
    """Of one physical card. Times are seconds since the machine's start."""

    cards: tuple[str, ...]
    """UUIDs of what is shared on it."""
    reason: HealthReason
    number: int
    """The XID, or the driver's recovery action."""
    since: float
    last: float
    """The last event."""
    asked: bool = False
    """The driver wants something done, by its last word."""
    gone: bool = False
    """The card did not answer when it was looked at last."""

    @property
    def text(self) -> str:
        """For people."""
        if self.reason is HealthReason.XID:
            return f"XID {self.number}"
        if self.reason is HealthReason.ECC:
            return "uncorrectable ECC error"
        if self.reason is HealthReason.ROW_REMAP:
            return "remapping of a broken memory row failed"
        return f"the driver requests {_ACTIONS.get(self.number, f'recovery action {self.number}')}"


UnhealthyCards = Mapping[str, CardFault]
"""By UUID of the physical card."""


def critical(event: CardEvent, terms: HealthTerms) -> bool:
    """Whether it makes a card unhealthy."""
    return event.kind.value == HealthReason.ECC or event.number not in NEVER | terms.ignored


def remembered(unhealthy: UnhealthyCards, terms: HealthTerms) -> UnhealthyCards:
    """What is still believed after a restart, maybe under other terms."""
    return {
        uuid: known
        for uuid, known in unhealthy.items()
        if terms.watched and (known.asked or known.reason is not HealthReason.XID or known.number not in terms.ignored)
    }


def apply_event(
    unhealthy: UnhealthyCards, event: CardEvent, boards: Mapping[str, Board], terms: HealthTerms, now: float
) -> UnhealthyCards:
    """
    What is known after an event. A divided card's event concerns all its instances.

    One that names no card concerns none: it would take the whole node for a word that fits nobody, and a card
    that is broken shows by its driver's wishes, or is lost.
    """
    board = boards.get(event.board)
    if board is None or not critical(event, terms) or (event.number == ACTION_CHANGED and board.action is not None):
        return unhealthy
    reason, known = HealthReason(event.kind.value), unhealthy.get(event.board)
    if known is None:
        return {**unhealthy, event.board: CardFault(board.cards, reason, event.number, now, now)}
    return {**unhealthy, event.board: replace(known, reason=reason, number=event.number, last=now)}


def apply_boards(
    unhealthy: UnhealthyCards, boards: Iterable[Board], terms: HealthTerms, now: float
) -> tuple[UnhealthyCards, Mapping[str, str]]:
    """What is known after a look at all cards, and of those that are well again why."""
    still = {uuid: replace(known, gone=True) for uuid, known in unhealthy.items()}
    well: dict[str, str] = {}
    for board in boards:
        known = unhealthy.get(board.uuid)
        if board.action or board.remap_failed:
            reason = HealthReason.DRIVER if board.action else HealthReason.ROW_REMAP
            fault = known if known is not None else CardFault(board.cards, reason, board.action or 0, now, now)
            number = board.action if board.action and fault.reason is HealthReason.DRIVER else fault.number
            still[board.uuid] = replace(fault, cards=board.cards, number=number, asked=True, gone=False)
        elif known is not None:
            still[board.uuid] = replace(known, cards=board.cards, gone=False)
            if why := _well(known, board, terms, now):
                well[board.uuid] = why
                del still[board.uuid]
    return still, well


def _well(known: CardFault, board: Board, terms: HealthTerms, now: float) -> str:
    """Why the card is well; empty: it is not. The driver wants nothing of it, or does not tell."""
    if known.gone:
        return "it was lost and is back"
    quiet = now - known.last
    if board.action is not None:
        if known.asked:
            return "the recovery action that the driver requested is done"
        return "the driver requests no recovery action" if quiet >= SETTLE_SECONDS else ""
    return f"no error for {quiet / 60:.0f} minutes" if terms.healthy_after and quiet >= terms.healthy_after else ""
