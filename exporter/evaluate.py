# SPDX-License-Identifier: Apache-2.0
"""
From a snapshot to what is told: claims, attribution, breaches, and what must be remembered in between.

Pure but for its memory, which is `exporter.pipeline.breaches.State` and nothing else. A fault of ours in these steps is
told as a failed collector, with nothing of the reading: half a judgement could be wrong anywhere.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from exporter.pipeline.allocations import claimed
from exporter.pipeline.attribution import Attribution, Place, attribute
from exporter.pipeline.breaches import State, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.pipeline.incidents import Breach
    from exporter.pipeline.snapshot import Snapshot
    from isolation.contract.reading import NodeReading

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot, and who uses what in it; nothing remembered yet."""

    snapshot: Snapshot
    found: Attribution | None
    """None: we failed."""
    seconds: float = 0.0

    @property
    def churned(self) -> bool:
        """A process went between two sources: worth another look, once."""
        return self.found is not None and self.found.churned


@dataclass(frozen=True, slots=True)
class Told:
    """One turn's result."""

    snapshot: Snapshot
    found: Attribution | None
    """None: we failed to judge."""
    begun: tuple[Breach, ...] = ()
    """Breaches that this turn began."""
    seconds: float = 0.0
    """How long judging took."""

    @property
    def reading(self) -> NodeReading | None:
        """Cards and containers with their counters."""
        return self.found.reading if self.found is not None else None


class Judge:
    """Looks as often as it is asked, tells once per turn."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.perf_counter) -> None:
        self._place, self._clock = place, clock
        self.state = State()

    def look(self, snapshot: Snapshot) -> Look:
        """Who was promised what, and who uses it."""
        begun = self._clock()
        try:
            found = attribute(snapshot, claimed(snapshot, self._place.unit_bytes), self._place)
        except Exception:  # noqa: BLE001 (one snapshot that we misjudge must not end the exporter)
            _log.exception("cannot attribute snapshot")
            found = None
        return Look(snapshot, found, self._clock() - begun)

    def tell(self, look: Look) -> Told:
        """What is to be shown; breaches and counters go on from here."""
        begun = self._clock()
        told = Told(look.snapshot, None)
        if look.found is not None:
            try:
                judged = judge(look.found, self.state, now=look.snapshot.at, epoch=look.snapshot.epoch)
            except Exception:  # noqa: BLE001 (as above)
                _log.exception("cannot detect breaches")
            else:
                self.state = judged.state
                told = replace(told, found=replace(look.found, reading=judged.reading), begun=judged.begun)
        return replace(told, seconds=look.seconds + self._clock() - begun)
