# SPDX-License-Identifier: Apache-2.0
"""
From a snapshot of all sources to the result of a cycle: allocations, attribution, breaches.

All state between cycles is `exporter.pipeline.breach_detector.DetectorState`. A bug in one of these steps shows as a
failed collector without any reading: half an evaluation could be wrong anywhere.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import Attribution, NodeLabels, attribute
from exporter.pipeline.breach_detector import DetectorState, detect_breaches

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.pipeline.breach_log import LoggedBreach
    from exporter.pipeline.snapshot import Snapshot
    from isolation.contract.reading import NodeReading

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CycleResult:
    """A snapshot, and what was made of it."""

    snapshot: Snapshot
    found: Attribution | None
    """None: the evaluation failed."""
    begun: tuple[LoggedBreach, ...] = ()
    """Breaches that began in this cycle."""
    seconds: float = 0.0
    """How long the evaluation took."""

    @property
    def reading(self) -> NodeReading | None:
        """Cards and containers with their counters."""
        return self.found.reading if self.found is not None else None

    @property
    def churned(self) -> bool:
        """A process ended between the reads of two sources: both are read again, once."""
        return self.found is not None and self.found.churned


class Evaluator:
    """`attribute` may be called several times in a cycle, `detect` once: it advances counters and breaches."""

    def __init__(
        self,
        labels: NodeLabels,
        clock: Callable[[], float] = time.perf_counter,
        enforcer: Callable[[], str] = str,
    ) -> None:
        """`enforcer`: what enforces promises by the node agent's own word; empty: it says nothing."""
        self._fixed, self._clock, self._enforcer = labels, clock, enforcer
        self.state = DetectorState()

    def attribute(self, snapshot: Snapshot) -> CycleResult:
        """Which memory and compute are promised to whom, and who uses them."""
        begun = self._clock()
        labels = replace(self._fixed, isolation=self._enforcer() or self._fixed.isolation)
        try:
            found = attribute(snapshot, list_allocations(snapshot, labels.unit_bytes), labels)
        except Exception:  # noqa: BLE001 (one snapshot that we cannot handle must not end the exporter)
            _log.exception("cannot attribute snapshot")
            found = None
        return CycleResult(snapshot, found, seconds=self._clock() - begun)

    def detect(self, result: CycleResult) -> CycleResult:
        """The same with breaches and counters, which go on from the last cycle."""
        begun = self._clock()
        found, snapshot = None, result.snapshot
        fresh: tuple[LoggedBreach, ...] = ()
        if result.found is not None:
            try:
                detection = detect_breaches(result.found, self.state, now=snapshot.at, epoch=snapshot.epoch)
            except Exception:  # noqa: BLE001 (as above)
                _log.exception("cannot detect breaches")
            else:
                self.state, fresh = detection.state, detection.begun
                found = replace(result.found, reading=detection.reading)
        return CycleResult(snapshot, found, fresh, result.seconds + self._clock() - begun)
