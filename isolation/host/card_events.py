# SPDX-License-Identifier: Apache-2.0
"""
What NVML tells by itself of a card in trouble: XIDs, uncorrectable ECC errors, what the driver wants done.

Translates, decides nothing: whether an event makes a card unhealthy is the node agent's business. A call may hang as
long as the driver does: all of them belong in one thread of their own. What the driver cannot tell is None.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from isolation.host.machine import MachineError, NvmlMachine

_XID: Final = 8
"""nvmlEventTypeXidCriticalError (NVML API reference, event types)."""
_ECC: Final = 2
"""nvmlEventTypeDoubleBitEccError."""
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; drivers of release 565 and later (NVML API reference, field values)."""
_FIGURES: Final = {1: "uiVal", 2: "ulVal", 3: "ullVal"}
"""nvmlValueType_t: the whole numbers that are not negative."""
_MAX_CARDS: Final = 64
_LONGEST: Final = 100


class CardEventKind(StrEnum):
    """What an event is about."""

    XID = "xid"
    ECC = "ecc"
    """An error of the card's memory that could not be corrected."""


@dataclass(frozen=True, slots=True)
class CardEvent:
    """One event."""

    board: str
    """UUID of the physical card; empty: of none that is known."""
    kind: CardEventKind
    number: int = 0
    """The XID; 0 for ECC."""


@dataclass(frozen=True, slots=True)
class Board:
    """One physical card that answers."""

    uuid: str
    cards: tuple[str, ...]
    """UUIDs of what is shared on it: its MIG instances, or itself."""
    action: int | None = None
    """What the driver wants done before the card is used again (nvmlDeviceGpuRecoveryAction_t); 0: nothing."""
    remap_failed: bool = False
    """A broken row of its memory could not be replaced."""


class CardEvents(Protocol):
    """Where events come from."""

    def boards(self) -> tuple[Board, ...]:
        """Every card that answers; listened to from now on. MachineError."""

    def monitored(self) -> int:
        """How many cards tell of their events."""

    def unmonitored(self) -> str:
        """Why some card does not; empty: all do."""

    def wait(self, seconds: float) -> CardEvent | None:
        """The next event; None: there was none in that time. MachineError where no event can come."""


class NvmlCardEvents(NvmlMachine):
    """Fulfils `CardEvents`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._set: Any = None
        self._names: dict[int, str] = {}
        self._monitored: dict[str, str] = {}
        """By UUID why events of a card do not come; empty: they do."""

    def boards(self) -> tuple[Board, ...]:
        """See `CardEvents`. One that was lost and is back is registered again."""
        nvml = self._open()
        try:
            count = min(nvml.nvmlDeviceGetCount(), _MAX_CARDS)
        except nvml.NVMLError as exc:
            self.close()
            raise MachineError(f"cannot read cards: {exc}") from None
        found = [board for at in range(count) if (board := self._board(nvml, at)) is not None]
        present = {board.uuid for board in found}
        self._monitored = {uuid: why for uuid, why in self._monitored.items() if uuid in present}
        return tuple(found)

    def monitored(self) -> int:
        """See `CardEvents`."""
        return sum(1 for why in self._monitored.values() if not why)

    def unmonitored(self) -> str:
        """See `CardEvents`."""
        return "; ".join(f"card {uuid}: {why}" for uuid, why in sorted(self._monitored.items()) if why)

    def wait(self, seconds: float) -> CardEvent | None:
        """See `CardEvents`."""
        nvml = self._open()
        if self._set is None or not self.monitored():
            raise MachineError(self.unmonitored() or "no card reports error events")
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError as exc:
            self._hang_up(nvml)
            raise MachineError(f"cannot read NVML events: {exc}") from None
        board = self._names.get(_address(event.device), "")
        if event.eventType == _XID:
            return CardEvent(board, CardEventKind.XID, int(event.eventData))
        return CardEvent(board, CardEventKind.ECC) if event.eventType == _ECC else None

    def close(self) -> None:
        """See `Machine`; one that is gone is closed already."""
        if self._nvml is None:
            return
        nvml = self._nvml
        self._hang_up(nvml)
        try:
            super().close()
        except nvml.NVMLError:
            self._nvml = None
            self._handles.clear()

    def _board(self, nvml: Any, at: int) -> Board | None:
        """None: the card does not answer."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(at)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            cards = self._cards_at(at)
        except nvml.NVMLError:
            return None
        if not all(card.healthy for card in cards):
            return None
        uuid = (uuid.decode("utf-8", "replace") if isinstance(uuid, bytes) else uuid)[:_LONGEST]
        self._names[_address(handle)] = uuid
        if uuid not in self._monitored:
            self._monitored[uuid] = self._listen(nvml, handle)
        return Board(uuid, tuple(card.uuid for card in cards), _action(nvml, handle), _remap_failed(nvml, handle))

    def _listen(self, nvml: Any, handle: Any) -> str:
        """Why that cannot be; empty: it can."""
        try:
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
            supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & (_XID | _ECC)
            if not supported:
                return "reports neither XID nor ECC events"
            nvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
        except nvml.NVMLError as exc:
            return str(exc)
        return ""

    def _hang_up(self, nvml: Any) -> None:
        """The next reading of the boards registers again."""
        gone, self._set = self._set, None
        self._monitored.clear()
        if gone is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(gone)


def _action(nvml: Any, handle: Any) -> int | None:
    try:
        field = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]
    except nvml.NVMLError:
        return None
    figure = _FIGURES.get(field.valueType)
    return None if field.nvmlReturn or figure is None else int(getattr(field.value, figure))


def _remap_failed(nvml: Any, handle: Any) -> bool:
    """False also where the card has no such rows."""
    try:
        return bool(nvml.nvmlDeviceGetRemappedRows(handle)[3])
    except nvml.NVMLError:
        return False


def _address(handle: Any) -> int:
    """What tells one card's handle from another's."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
