# SPDX-License-Identifier: Apache-2.0
"""
One turn after the other: read every source, decide who uses what, publish.

A source that fails or hangs takes its own figures away for this turn and says so in its collector's series;
the others go on. A turn that takes longer than its period leaves out the ones that it missed. Which sources
there are (`exporter.app`), what their facts mean (`exporter.evaluate`) and how readings are written is decided
elsewhere; time is asked of a clock that tests may set.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from exporter.pipeline.snapshot import Outcome, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event

    from exporter.evaluate import Judge, Told
    from exporter.pipeline.snapshot import CardFacts, KernelFacts, MachineFacts, PromiseFacts

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
_MISSING: Final[Outcome[Any]] = Outcome(None, "was not read")


class Sources(Protocol):
    """What a node can be asked, by collector name; a source that this node does not have is not in it."""

    def first(self, now: float) -> Mapping[str, Callable[[], Any]]:
        """What can be asked at once."""
        ...

    def then(
        self, now: float, machine: MachineFacts | None, promises: PromiseFacts | None
    ) -> Mapping[str, Callable[[], Any]]:
        """What needs to know of which processes."""
        ...

    def last(
        self, now: float, promises: PromiseFacts | None, kernel: KernelFacts | None
    ) -> Mapping[str, Callable[[], Any]]:
        """What needs to know of which pods and containers."""
        ...


class Reader(Protocol):
    """Runs reads side by side within a deadline: `exporter.runner.Runner`."""

    def run_all(self, reads: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, Outcome[Any]]:
        """An outcome for each."""
        ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from."""

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time


class Cycle:
    """Turns; `run` makes them until it is told to end. One thread's."""

    def __init__(
        self,
        sources: Sources,
        reader: Reader,
        judge: Judge,
        publish: Callable[[Told], None],
        *,
        period: float,
        clock: Clock = Clock(),
    ) -> None:
        self._sources, self._reader, self._judge, self._publish = sources, reader, judge, publish
        self._period, self._clock = period, clock
        self._errors: dict[str, str] = {}
        self.skipped = 0
        """Turns that were left out because one took too long."""

    def run(self, stop: Event) -> None:
        """Turn after turn until `stop`; a turn that breaks is told and the next one is made."""
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                self.turn()
            except Exception:  # noqa: BLE001 (the next turn may well work)
                _log.exception("cycle failed: nothing is published")
            due += self._period
            late = self._clock.monotonic() - due
            if late > 0:
                missed = int(late // self._period) + 1
                _log.warning("cycle took %.1f s: skipping %d cycles", late + self._period, missed)
                self.skipped += missed
                due += missed * self._period
            stop.wait(max(0.0, due - self._clock.monotonic()))

    def turn(self) -> Told:
        """Read, decide, publish."""
        snapshot = self._read()
        look = self._judge.look(snapshot)
        if look.churned and (again := self._again(snapshot)) is not None:
            look = self._judge.look(again)
        told = self._judge.tell(look)
        self._publish(told)
        self._report(told.snapshot)
        return told

    def _read(self) -> Snapshot:
        now = self._clock.monotonic()
        found = self._reader.run_all(self._sources.first(now), self._period * FIRST_SHARE)
        machine, promises = found.get(MACHINE, _MISSING), found.get(PROMISES, _MISSING)
        reads = self._sources.then(now, machine.value, promises.value)
        found |= self._reader.run_all(reads, self._period * THEN_SHARE)
        last = self._sources.last(now, promises.value, found.get(KERNEL, _MISSING).value)
        # what the others left of the period is theirs: a kubelet is in no hurry
        left = now + self._period * (FIRST_SHARE + THEN_SHARE + LAST_SHARE) - self._clock.monotonic()
        found |= self._reader.run_all(last, max(left, self._period * LAST_SHARE)) if last else {}
        return Snapshot(
            at=now,
            epoch=self._clock.epoch(),
            machine=machine,
            kernel=found.get(KERNEL, _MISSING),
            promises=promises,
            kubelet=found.get(KUBELET),
            identities=found.get(IDENTITIES),
        )

    def _again(self, before: Snapshot) -> Snapshot | None:
        """
        A process went while we read: cards and kernel once more, the rest stands. None: it did not work.

        What computed since the last turn was told already, and stays with the first look.
        """
        reads = self._sources.first(before.at)
        now: Outcome[MachineFacts] = self._reader.run_all({MACHINE: reads[MACHINE]}, self._period * FIRST_SHARE)[
            MACHINE
        ]
        if now.value is None or before.machine.value is None:
            return None
        machine = replace(now, value=_with_loads(now.value, before.machine.value))
        kernel_read = self._sources.then(before.at, machine.value, before.promises.value)[KERNEL]
        kernel: Outcome[KernelFacts] = self._reader.run_all({KERNEL: kernel_read}, self._period * THEN_SHARE)[KERNEL]
        return replace(before, machine=machine, kernel=kernel) if kernel.ok else None

    def _report(self, snapshot: Snapshot) -> None:
        """What began to fail, fails in another way, or works again; not the same every two seconds."""
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


def outcomes(snapshot: Snapshot) -> dict[str, Outcome[Any]]:
    """Every source that this node has, by collector name."""
    found: dict[str, Outcome[Any] | None] = {
        MACHINE: snapshot.machine,
        KERNEL: snapshot.kernel,
        PROMISES: snapshot.promises,
        KUBELET: snapshot.kubelet,
        IDENTITIES: snapshot.identities,
    }
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _with_loads(now: MachineFacts, before: MachineFacts) -> MachineFacts:
    """Memory and processes of now, loads of the window that the first look closed."""
    first = {card.uuid: card for card in before.cards}
    return replace(now, cards=tuple(_with_load(card, first.get(card.uuid)) for card in now.cards))


def _with_load(now: CardFacts, before: CardFacts | None) -> CardFacts:
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
