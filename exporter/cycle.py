# SPDX-License-Identifier: Apache-2.0
"""
The loop of a node's exporter: every period, read all sources, evaluate them, publish the result.

A source that fails or hangs loses its own metrics for this cycle, and its collector's series says so; the others go
on. A cycle that takes longer than its period skips those that it missed. Which sources there are is decided in
`exporter.app`, what their samples mean in `exporter.evaluate`. Tests set the clock.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from exporter.pipeline.snapshot import Snapshot, SourceOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event

    from exporter.evaluate import CycleResult, Evaluator
    from exporter.pipeline.snapshot import CardSample, KernelSample, MachineSample, PromiseSample

_log: Final = logging.getLogger(__name__)

MACHINE: Final = "nvml"
KERNEL: Final = "kernel"
PROMISES: Final = "promises"
KUBELET: Final = "kubelet"
IDENTITIES: Final = "identities"
FIRST_SHARE: Final = 0.5
"""Parts of the period for sources that need no other, for the kernel, and for those that need it."""
THEN_SHARE: Final = 0.2
LAST_SHARE: Final = 0.3
LEAST_SECONDS: Final = 1.0
"""
No deadline is shorter, however short the period: a busy node keeps a read from the processor for parts of a second, and
figures that are late are better than none. A source that hangs costs this once: it is not asked again until it returns.
"""
_MISSING: Final[SourceOutcome[Any]] = SourceOutcome(None, "was not read")


class CycleSources(Protocol):
    """The reads of a cycle, by collector name; a source that this node does not have is missing."""

    def read_first(self, now: float) -> Mapping[str, Callable[[], Any]]:
        """Those that need no other."""
        ...

    def read_kernel(
        self, now: float, machine: MachineSample | None, promises: PromiseSample | None
    ) -> Mapping[str, Callable[[], Any]]:
        """Those that need to know the processes."""
        ...

    def read_kubelet(
        self, now: float, promises: PromiseSample | None, kernel: KernelSample | None
    ) -> Mapping[str, Callable[[], Any]]:
        """Those that need to know the pods and containers."""
        ...


class ParallelReads(Protocol):
    """Runs reads in parallel within a deadline: `exporter.runner.Runner`."""

    def run_all(self, reads: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, SourceOutcome[Any]]:
        """An outcome for each."""
        ...


@dataclass(frozen=True, slots=True)
class CycleClock:
    """Where time comes from."""

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


class ExporterCycle:
    """See the module; for one thread."""

    def __init__(
        self,
        sources: CycleSources,
        reader: ParallelReads,
        evaluator: Evaluator,
        publish: Callable[[CycleResult], None],
        *,
        period: float,
        clock: CycleClock = CycleClock(),
    ) -> None:
        self._sources, self._reader, self._evaluator, self._publish = sources, reader, evaluator, publish
        self._period, self._clock = period, clock
        self._errors: dict[str, str] = {}
        self.skipped = 0
        """Cycles that were skipped because one took too long."""

    def run(self, stop: Event) -> None:
        """Cycle after cycle until `stop`; one that fails is logged."""
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                self.run_once()
            except Exception:  # noqa: BLE001 (the next cycle may well work)
                _log.exception("cycle failed: nothing is published")
            due += self._period
            late = self._clock.monotonic() - due
            if late > 0:
                missed = int(late // self._period) + 1
                _log.warning("cycle took %.1f s: skipping %d cycles", late + self._period, missed)
                self.skipped += missed
                due += missed * self._period
            stop.wait(max(0.0, due - self._clock.monotonic()))

    def run_once(self) -> CycleResult:
        """Read, evaluate, publish."""
        result = self._evaluator.attribute(self._read())
        # A process that ended between two reads would be unattributed: once more, but not for ever on a busy node.
        if result.churned and (again := self._reread(result.snapshot)) is not None:
            result = self._evaluator.attribute(again)
        result = self._evaluator.detect(result)
        self._publish(result)
        self._log_changes(result.snapshot)
        return result

    def _read(self) -> Snapshot:
        now = self._clock.monotonic()
        found = self._reader.run_all(self._sources.read_first(now), self._deadline(FIRST_SHARE))
        machine, promises = found.get(MACHINE, _MISSING), found.get(PROMISES, _MISSING)
        reads = self._sources.read_kernel(now, machine.value, promises.value)
        found |= self._reader.run_all(reads, self._deadline(THEN_SHARE))
        last = self._sources.read_kubelet(now, promises.value, found.get(KERNEL, _MISSING).value)
        # The kubelet may take what the others left of the period.
        left = now + self._period * (FIRST_SHARE + THEN_SHARE + LAST_SHARE) - self._clock.monotonic()
        found |= self._reader.run_all(last, max(left, self._deadline(LAST_SHARE))) if last else {}
        return Snapshot(
            at=now,
            epoch=self._clock.epoch(),
            machine=machine,
            kernel=found.get(KERNEL, _MISSING),
            promises=promises,
            kubelet=found.get(KUBELET),
            identities=found.get(IDENTITIES),
        )

    def _deadline(self, share: float) -> float:
        """Of a read, in seconds."""
        return max(self._period * share, LEAST_SECONDS)

    def _reread(self, before: Snapshot) -> Snapshot | None:
        """
        The snapshot with cards and kernel read again, because a process ended meanwhile. None: that failed.

        Compute since the last cycle stays as it was first read: the driver reports each sample once.
        """
        reads = self._sources.read_first(before.at)
        now: SourceOutcome[MachineSample] = self._reader.run_all(
            {MACHINE: reads[MACHINE]}, self._deadline(FIRST_SHARE)
        )[MACHINE]
        if now.value is None or before.machine.value is None:
            return None
        machine = replace(now, value=_with_loads(now.value, before.machine.value))
        kernel_read = self._sources.read_kernel(before.at, machine.value, before.promises.value)[KERNEL]
        kernel: SourceOutcome[KernelSample] = self._reader.run_all({KERNEL: kernel_read}, self._deadline(THEN_SHARE))[
            KERNEL
        ]
        return replace(before, machine=machine, kernel=kernel) if kernel.ok else None

    def _log_changes(self, snapshot: Snapshot) -> None:
        """Which sources began to fail, fail in another way, or work again: not the same every two seconds."""
        for name, outcome in outcomes(snapshot).items():
            before = self._errors.get(name, "")
            error = "" if outcome.ok else outcome.error
            if bool(error) != bool(before):
                if error:
                    _log.warning("source %s failed: %s; the metrics of this source are absent", name, error)
                else:
                    _log.info("source %s works again", name)
            elif error != before:
                _log.debug("source %s failed: %s", name, error)
            self._errors[name] = error


def outcomes(snapshot: Snapshot) -> dict[str, SourceOutcome[Any]]:
    """Every source that this node has, by collector name."""
    found: dict[str, SourceOutcome[Any] | None] = {
        MACHINE: snapshot.machine,
        KERNEL: snapshot.kernel,
        PROMISES: snapshot.promises,
        KUBELET: snapshot.kubelet,
        IDENTITIES: snapshot.identities,
    }
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _with_loads(now: MachineSample, before: MachineSample) -> MachineSample:
    """Memory and processes of now, compute of the window that the first read closed."""
    first = {card.uuid: card for card in before.cards}
    return replace(now, cards=tuple(_with_load(card, first.get(card.uuid)) for card in now.cards))


def _with_load(now: CardSample, before: CardSample | None) -> CardSample:
    if before is None:
        return now
    return replace(
        now,
        busy=before.busy,
        copy_busy=before.copy_busy,
        encoder_busy=before.encoder_busy,
        decoder_busy=before.decoder_busy,
        utilisation_ratio=before.utilisation_ratio,
        memory_utilisation_ratio=before.memory_utilisation_ratio,
    )
