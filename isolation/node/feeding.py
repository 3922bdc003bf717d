# SPDX-License-Identifier: Apache-2.0
"""
Which containers of this node are told their own GPU time and memory, and by what processes they are counted.

One feeder for each standing hold that the library enforces; they come and go with the holds. Runs in a thread
of its own: NVML may be slow, and admission must not wait for it.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import AbiError, Policy
from isolation.contract.host_allocation import HostAllocation, HostAllocationError, load
from isolation.host.feed import Feeder
from isolation.host.files import read_text
from isolation.node.overlimit import OverLimit, OverLimitWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from isolation.host.feed import KnownLedgers
    from isolation.host.machine import Machine

_log: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 0.5
BUSIEST: Final = 0.2
"""Part of a processor that feeding may take: with hundreds of containers each is fed less often."""


class Feeding:
    """See the module. `processes`: of a container, by hold; None where that cannot be told."""

    def __init__(
        self,
        alloc: Path,
        machine: Machine,
        processes: Callable[[HostAllocation], frozenset[int] | None],
        boot: str,
        policy: OverLimit = OverLimit(),  # noqa: B008 (frozen)
    ) -> None:
        self._alloc, self._machine, self._processes, self._boot = alloc, machine, processes, boot
        self._policy = policy
        self._feeders: dict[str, tuple[HostAllocation, Feeder, OverLimitWatch]] = {}
        self._due = 0.0

    def __len__(self) -> int:
        """How many containers are fed."""
        return len(self._feeders)

    def used(self, ident: str) -> Mapping[str, int]:
        """Bytes in use by card at the last sample of one container, as far as that can be told."""
        found = self._feeders.get(ident)
        if found is None:
            return {}
        pairs = zip(found[0].slices, found[1].used(), strict=True)
        return {part.uuid: amount for part, amount in pairs if amount is not None}

    def turn(self, now: float) -> float:
        """Write what is due; seconds until the next turn."""
        if now >= self._due:
            self._due = now + LOOK_SECONDS
            self._look()
        known: KnownLedgers = {}
        for ident, (hold, feeder, watch) in tuple(self._feeders.items()):
            if not feeder.due(now):
                continue
            try:
                # Rates are granted between samples too, and soon: looking for processes would take most of the time.
                pids = self._processes(hold) if feeder.samples_due(now) else frozenset[int]()
                if pids is not None and feeder.turn(pids, now, known=known):
                    watch.judge(hold, feeder.used(), partial(self._processes, hold))
            except (OSError, AbiError) as exc:  # unfed, the library goes by its promise
                _log.debug("cannot write the feed of %s: %s", hold.name, exc)
                self._feeders.pop(ident)
        return min((feeder.seconds for _, feeder, _ in self._feeders.values()), default=IDLE_SECONDS)

    def cycle(self) -> float:
        """A turn; seconds until the next, so that `BUSIEST` is kept."""
        begun = time.monotonic()
        wait = self.turn(begun)
        took = time.monotonic() - begun
        return max(wait - took, took * (1 / BUSIEST - 1))

    def _look(self) -> None:
        """Who is there now."""
        standing = dict(self._holds())
        for ident in self._feeders.keys() - standing.keys():
            del self._feeders[ident]
        for ident, (hold, folder) in standing.items():
            known = self._feeders.get(ident)
            if known is None or known[0] != hold:
                feeder = Feeder(hold, folder, self._machine, Policy[hold.policy.upper()])
                self._feeders[ident] = (hold, feeder, OverLimitWatch(self._policy))

    def _holds(self) -> Iterator[tuple[str, tuple[HostAllocation, Path]]]:
        """Holds of this boot that the library enforces."""
        for folder in sorted(self._alloc.iterdir()) if self._alloc.is_dir() else ():
            try:
                hold = load(read_text(folder / "promise.json"))
            except (OSError, UnicodeDecodeError, HostAllocationError):
                continue
            if hold.boot == self._boot and hold.enforced:
                yield folder.name, (hold, folder)
