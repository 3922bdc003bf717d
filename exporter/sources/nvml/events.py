# SPDX-License-Identifier: Apache-2.0
"""
XID errors: the driver's numbered accounts of what went wrong, by card, counted since the exporter began.

Delivered as events to whoever registered, and only what happens after that. On a divided card the event may
name the instance; it is counted there then, and not at the card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from exporter.sources.nvml.library import LostError, address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from exporter.sources.nvml.library import Library

_XID_EVENT: Final = 8
"""nvmlEventTypeXidCriticalError."""
_ECC_EVENT: Final = 2
"""nvmlEventTypeDoubleBitEccError: not every card can tell of these."""
_NO_INSTANCE: Final = 0xFFFFFFFF
_MAX_EVENTS: Final = 256
"""In one turn; the rest waits for the next."""
_MAX_KINDS: Final = 64
"""Different numbers per card; there are some two hundred, and a card has a few."""


class NvmlEvents:
    """The events of one start of NVML."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set = library.ask(None, "nvmlEventSetCreate")
        self._cards: dict[int, str] = {}

    def register(self, handle: Any, uuid: str) -> None:
        """Tell of this card from now on; a card that cannot tell is left out."""
        if self._set is not None:
            self._cards[address(handle)] = uuid
            kinds = self._library.ask(None, "nvmlDeviceGetSupportedEventTypes", handle)
            wanted = _XID_EVENT if kinds is None else (_XID_EVENT | _ECC_EVENT) & kinds
            self._library.ask(None, "nvmlDeviceRegisterEvents", handle, wanted, self._set)

    def drain(self) -> Iterable[tuple[str, int | None, int | None]]:
        """
        UUID of the card, GPU instance and number of every XID that has not been reported; never waits.

        An uncorrectable error of the card's memory has no number.
        """
        for _ in range(_MAX_EVENTS if self._set is not None else 0):
            try:
                event = self._library.ask(None, "nvmlEventSetWait_v2", self._set, 0)
            except LostError:  # the card itself reports it
                return
            if event is None:
                return
            uuid = self._cards.get(address(event.device))
            if uuid is not None and event.eventType in {_XID_EVENT, _ECC_EVENT}:
                instance = None if event.gpuInstanceId == _NO_INSTANCE else int(event.gpuInstanceId)
                yield uuid, instance, int(event.eventData) if event.eventType == _XID_EVENT else None

    def close(self) -> None:
        """Let the driver forget what it was to tell us."""
        if self._set is not None:
            self._library.ask(None, "nvmlEventSetFree", self._set)
            self._set = None


def count_xid(before: Mapping[int, int], xid: int) -> dict[int, int]:
    """One more of that number, which comes last."""
    if xid not in before and len(before) >= _MAX_KINDS:
        return dict(before)
    others = {known: number for known, number in before.items() if known != xid}
    return {**others, xid: before.get(xid, 0) + 1}
