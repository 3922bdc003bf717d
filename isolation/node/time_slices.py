# SPDX-License-Identifier: Apache-2.0
"""
How long a process has a card while others wait for it, where a label of the node says so.

The driver has four lengths and no figures for them (`nvidia-smi compute-policy --set-timeslice`); it forgets them when
it is loaded again. No API of NVML sets them, so NVIDIA's program does, as in NVIDIA's own DRA driver. Decides nothing:
a length that cannot be set is reported.
"""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.names import TIME_SLICE
from isolation.simgpu.hardware import SimulatorError, open_box

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LENGTHS: Final = ("default", "short", "medium", "long")
"""In the order of the driver's numbers."""
_SIMULATED_NS: Final = dict(zip(LENGTHS, (2_000_000, 1_000_000, 4_000_000, 8_000_000), strict=True))
_PROGRAM: Final = "nvidia-smi"
_SECONDS: Final = 20.0
AGAIN_SECONDS: Final = 600.0
_MAX_TOLD: Final = 200


class TimeSliceError(Exception):
    """The length cannot be set; the message says what to do."""


class Driver(Protocol):
    """Who sets it."""

    def set_length(self, board: str, length: str) -> None:
        """For one physical card, by UUID; TimeSliceError."""


class NvidiaDriver:
    """By NVIDIA's program, which comes with the driver."""

    def __init__(self, program: str = _PROGRAM) -> None:
        self._program = program

    def set_length(self, board: str, length: str) -> None:
        """See `Driver`."""
        command = [self._program, "compute-policy", "-i", board, f"--set-timeslice={LENGTHS.index(length)}"]
        try:
            done = subprocess.run(  # noqa: S603 (the driver's own program, with words of ours)
                command, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except OSError as exc:
            why = f"cannot run {self._program} ({exc.strerror}): the driver's utilities are missing in the agent"
            raise TimeSliceError(why) from None
        except subprocess.TimeoutExpired:
            raise TimeSliceError(f"{self._program} did not respond within {_SECONDS:.0f} s") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:_MAX_TOLD]
            raise TimeSliceError(f"card {board}: the driver refuses time slices of length {length}: {said}")


class SimulatedDriver:
    """By a parameter of the simulated cards, which is one for all of them."""

    def __init__(self, hardware: Path) -> None:
        self._hardware = hardware

    def set_length(self, board: str, length: str) -> None:  # noqa: ARG002 (see the class)
        """See `Driver`."""
        try:
            with open_box(self._hardware) as box:
                box.set("slice_ns", _SIMULATED_NS[length])
        except SimulatorError as exc:
            raise TimeSliceError(str(exc)) from None


class TimeSlices:
    """Keeps the cards of a node at the length that its label wants."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: dict[str, tuple[str, float]] = {}
        """By physical card what was set, and when; nothing for cards that were never touched."""

    def keep(self, wanted: str | None, boards: Sequence[str], now: float | None = None) -> None:
        """
        Set what is not set, or was long ago; without a wish, undo what we set and touch nothing else.

        TimeSliceError, once every card was tried, with the first reason.
        """
        if wanted is not None and wanted not in LENGTHS:
            raise TimeSliceError(f"label {TIME_SLICE} is {wanted[:63]!r}: use one of {', '.join(LENGTHS)}")
        moment, failed = time.monotonic() if now is None else now, ""
        for board in boards:
            before, at = self._set.get(board, ("", 0.0))
            length = wanted or (LENGTHS[0] if before else "")
            if not length or (length == before and moment - at < AGAIN_SECONDS):
                continue
            try:
                self._driver.set_length(board, length)
            except TimeSliceError as exc:
                failed = failed or str(exc)
                continue
            self._set[board] = (length, moment)
            if wanted is None:
                del self._set[board]
        if failed:
            raise TimeSliceError(failed)
