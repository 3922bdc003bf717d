# SPDX-License-Identifier: Apache-2.0
"""
The machine's cards through NVML: one long-lived start, begun anew after a failure.

`read` is called once a cycle, in a thread of its own (`exporter.runner`). Between cycles a second thread
takes the driver's samples, which are kept for seconds only, of cards that have processes; it
never takes more than a small part of the time, however slow the driver is. Everything that touches NVML
stands behind one lock, so that it is never ended under a call: a call that hangs makes the others
wait, and the cycle go on without this source.

What the figures mean is told in `exporter.pipeline.snapshot`; whose processes these are is decided elsewhere.
"""

from __future__ import annotations

import logging
import time
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from exporter.sources.errors import SourceError
from exporter.sources.nvml.health import CardHealth
from exporter.sources.nvml.library import GoneError, LostError
from exporter.sources.nvml.session import Memory, Session

if TYPE_CHECKING:
    from pathlib import Path

    from exporter.pipeline.snapshot import MachineSample

_log: Final = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.15
"""Just more often than NVML samples."""
MOST_DUTY: Final = 0.02
"""Part of the time that sampling may take; beyond it the beat slows down."""
_IDLE_SECONDS: Final = 60.0
"""Without a reading for so long nobody wants samples."""
_LOST_SECONDS: Final = 60.0
"""A card that was reset is seen by those who start NVML afterwards: while one is lost, do so this often."""
_CLOSE_SECONDS: Final = 1.0


class NvmlSource:
    """The cards; `hardware` is a simulated machine's file. `beat` 0: no sampling between readings."""

    def __init__(
        self,
        hardware: Path | None = None,
        *,
        beat: float = BEAT_SECONDS,
        health: CardHealth | None = None,
        groups: frozenset[str] = frozenset(),
    ) -> None:
        self._hardware = hardware
        self._beat = beat
        self._gate = Lock()
        self._ended = Event()
        self._memory = Memory(health=health or CardHealth(), groups=groups)
        self._session: Session | None = None
        self._started_at = 0.0
        self._read_at = 0.0
        self._sampler: Thread | None = None

    def read(self, now: float) -> MachineSample:
        """Every card, at about one moment; `now` in monotonic seconds."""
        with self._gate:
            session = self._current(now)
            try:
                facts = session.read(now, time.time_ns() // 1000)
            except (GoneError, LostError) as exc:
                self._end()
                self._memory.health.reloaded()
                raise SourceError(f"NVML failed: {exc}; restarting it in the next cycle") from None
            self._read_at = time.monotonic()
            self._start_sampler()
        return facts

    def close(self) -> None:
        """End NVML, unless a call hangs in it: that must not keep anybody from leaving."""
        self._ended.set()
        leaving = Thread(target=self._leave, name="nvml end", daemon=True)
        leaving.start()
        leaving.join(_CLOSE_SECONDS)

    def _leave(self) -> None:
        with self._gate:
            self._end()

    def _current(self, now: float) -> Session:
        """NVML, started if it is not."""
        if self._session is not None and self._session.lost and now - self._started_at >= _LOST_SECONDS:
            self._end()
        if self._session is None:
            self._started_at = now
            try:
                self._session = Session(self._hardware, self._memory)
            except (GoneError, LostError) as exc:
                raise SourceError(f"cannot initialize NVML: {exc}") from None
        return self._session

    def _end(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _start_sampler(self) -> None:
        if self._beat and self._sampler is None:
            self._sampler = Thread(target=self._sample, name="nvml samples", daemon=True)
            self._sampler.start()

    def _sample(self) -> None:
        beat = self._beat
        while not self._ended.wait(beat):
            begun = time.monotonic()
            if begun - self._read_at > _IDLE_SECONDS:
                continue
            with self._gate:
                begun = time.monotonic()
                self._sample_once()
            beat = max(self._beat, (time.monotonic() - begun) / MOST_DUTY)

    def _sample_once(self) -> None:
        if self._session is None:
            return
        try:
            self._session.sample(time.time_ns() // 1000)
        except Exception:  # noqa: BLE001 (the next sample may well be had; nobody begins this thread again)
            _log.debug("cannot take NVML samples: the next reading reports the cause", exc_info=True)
