# SPDX-License-Identifier: Apache-2.0
"""
Tenants' regions, read so that none of them can lie about anybody else or keep us busy.

A region is opened without following links or blocking, must be a regular file, and is read with bound_label
preads into copies of our own; `isolation.contract.abi` says what the bytes mean and refuses what does not
look as it must. One that has not changed is not decoded again. One whose owner makes it slow to read is
read after all the others, and not at all once a reading has taken `BUDGET_SECONDS`.

Breach records are delivered once. What went wrong before the exporter saw a promise for the first time is
history if the promise is older than the exporter, and news otherwise.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from exporter.pipeline.snapshot import RegionSample
from isolation.contract import abi, breach_ring
from isolation.host.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

BUDGET_SECONDS: Final = 0.5
"""Of our own processor time: a machine that is busy with something else makes no region slow."""
MAX_LOST: Final = 1 << 20
"""Of records said to be lost between two readings: the count is the tenant's, and may be any."""


FEW_SLOTS: Final = 32
"""Processes of one container that are read without a second thought."""
TOO_SLOW: Final = "not read in this cycle: reading it takes too long"


class _UnchangedError(Exception):
    """The same bytes as at the last reading."""


class _ManySlotsError(Exception):
    """More than an unknown region is granted before the others had their turn."""


@dataclass(slots=True)
class _RegionState:
    """What the last reading of one region left."""

    since: int | None = None
    """Breach records reported so far; None: what there is now is history."""
    file: tuple[int, int] = (0, 0)
    sum: int = -1
    reading: abi.RegionReading | None = None
    seconds: float = 0.0
    """What it cost."""


@dataclass(slots=True)
class RegionReader:
    """Reads many regions, by a key that stays a promise's own."""

    _known: dict[str, _RegionState] = field(default_factory=dict)
    _begun: bool = False

    def read(self, paths: Mapping[str, str]) -> dict[str, RegionSample]:
        """Each region's facts; keys that are not named any more are forgotten."""
        known = {key: self._known.get(key) or _RegionState(since=0 if self._begun else None) for key in paths}
        self._known, self._begun = known, True
        found = {key: RegionSample(None, error=TOO_SLOW) for key in paths}
        end = time.thread_time() + BUDGET_SECONDS
        waiting = sorted(known, key=lambda key: known[key].seconds)
        for strangers in (FEW_SLOTS, abi.SLOTS):
            later = []
            for key in waiting:
                begun = time.thread_time()
                if begun >= end:
                    return found
                try:
                    found[key] = _read(paths[key], known[key], abi.SLOTS if known[key].seconds else strangers)
                    known[key].seconds = time.thread_time() - begun
                except _ManySlotsError:
                    later.append(key)
            waiting = later
        return found


def _read(path: str, known: _RegionState, slots: int) -> RegionSample:
    """One region; whatever is wrong with it is an error of its own."""
    try:
        with open_regular(path) as (fd, about):
            file = (about.st_dev, about.st_ino)
            if file != known.file:
                known.sum, known.reading = -1, None
                known.since = known.since if known.file == (0, 0) else 0
                known.file = file
            return _facts(fd, about.st_size, known, slots)
    except OSError as exc:
        known.sum = -1
        return RegionSample(None, error=exc.strerror or "cannot open the file")
    except abi.AbiError as exc:
        known.sum = -1
        return RegionSample(None, error=str(exc))


def _facts(fd: int, size: int, known: _RegionState, slots: int) -> RegionSample:
    copy = _Copy(fd, known.sum, slots)
    try:
        reading = abi.read_region(copy.pread, size=size)
        known.reading = reading
    except _UnchangedError:
        assert known.reading is not None  # noqa: S101 (there is no sum without one)
        reading = known.reading
    known.sum = copy.sum
    head = reading.breaches_total
    if known.since is None:
        known.since = head
    if head == known.since:
        return RegionSample(reading)
    # fewer than were reported: the file was rewritten in place
    since = known.since if known.since <= head else 0
    known.since, lost, records = breach_ring.read_breaches(copy.read, since)
    return RegionSample(reading, records, min(lost, MAX_LOST))


class _Copy:
    """A region's bytes as we read them, and their sum over all that a reading takes."""

    def __init__(self, fd: int, last: int, slots: int) -> None:
        self._fd, self._last, self._slots = fd, last, slots
        self.sum = 0

    def pread(self, length: int, offset: int, /) -> bytes:
        """The slots are read last and are slow to decode: not if nothing has changed."""
        if offset == abi.SLOT_OFFSET and length > self._slots * abi.SLOT_BYTES:
            raise _ManySlotsError
        raw = self.read(length, offset)
        self.sum = crc32(raw, self.sum)
        if offset == abi.SLOT_OFFSET and self.sum == self._last:
            raise _UnchangedError
        return raw

    def read(self, length: int, offset: int, /) -> bytes:
        """As `os.pread`, and no more than a region may have."""
        return os.pread(self._fd, min(length, abi.REGION_BYTES), offset)
