# SPDX-License-Identifier: Apache-2.0
"""
Which replica decides about pods: leader election, together with the kube-scheduler in the same pod.

Decides when to campaign for the Lease. With `beside` (the Lease of kube-scheduler), only while the kube-scheduler of
the same pod holds it (the holder's identity begins with this host's name): the pair fails over together, and a replica
whose kube-scheduler has lost its Lease releases its own. When the right to act ends is decided in `isolation.kube`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from isolation.kube.core.errors import ClusterError
from isolation.kube.core.lease import LeaseTiming
from isolation.kube.election import Election

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from isolation.kube.core.lease import LeaseRecord
    from isolation.kube.election import Fence, LeaseStore

log = logging.getLogger(__name__)
TERMS: Final = LeaseTiming(duration=5.0, act=4.0, retry=1.0, request=2.0)
"""A dead leader is replaced after 5 to 6 seconds, as kube-scheduler's is by our configuration of it."""
READ_SECONDS: Final = 1.0
"""Between two reads of kube-scheduler's Lease."""
_TICK_SECONDS: Final = 0.1


class _GatedLease:
    """The Lease; a candidate that may not campaign only reads it."""

    def __init__(self, desk: LeaseStore) -> None:
        self._desk = desk
        self.open = True
        self.settled: Callable[[], bool] = lambda: True

    async def read(self, seconds: float) -> LeaseRecord | None:
        """Read the Lease."""
        return await self._desk.read(seconds)

    async def write(self, wish: LeaseRecord, seconds: float) -> LeaseRecord | None:
        """
        Write the Lease; releasing it is always allowed, unless a request sent under it may still take effect.

        Then the Lease expires by itself: the next leader begins seconds later, and observes the outcome.
        """
        if not (self.open if wish.holder else self.settled()):
            return None
        return await self._desk.write(wish, seconds)


class Leadership:
    """One candidate; `run` until cancelled, then the Lease is released."""

    def __init__(
        self, desk: LeaseStore, me: str, *, terms: LeaseTiming = TERMS, beside: LeaseStore | None = None, host: str = ""
    ) -> None:
        """`host`: prefix of the identity of the kube-scheduler in this pod."""
        self._gate, self._me, self._terms = _GatedLease(desk), me, terms
        self._beside, self._host = beside, host
        self._gate.open = beside is None
        self._election = Election(self._gate, me, terms)

    def fence(self) -> Fence | None:
        """The right to act now; None: this replica does not lead."""
        return self._election.fence() if self._gate.open else None

    def holder(self) -> str | None:
        """The Lease's holder when it was last read; None: unknown."""
        return self._election.holder()

    def release_when(self, settled: Callable[[], bool]) -> None:
        """Call this before the Lease is released: whether the outcome of everything done under it is certain."""
        self._gate.settled = settled

    async def wait(self, seconds: float) -> bool:
        """Wait for the right to act, so long at most; whether there is one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.fence() is None:
            if loop.time() >= end:
                return False
            await asyncio.sleep(min(_TICK_SECONDS, seconds))
        return True

    async def run(self) -> None:
        """Campaign, and follow the kube-scheduler's Lease."""
        async with asyncio.TaskGroup() as group:
            for work in self.works().values():
                group.create_task(work())

    def works(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Coroutines to run until cancelled, by task name."""
        works = {"election": self._campaign}
        return works if self._beside is None else works | {"kube-scheduler-lease": self._follow_kube_scheduler}

    async def _campaign(self) -> None:
        """One election after another: each ends, and releases the Lease, when kube-scheduler loses its own."""
        while True:
            running = asyncio.create_task(self._election.run())
            try:
                was_open = self._gate.open
                while self._gate.open or not was_open:
                    was_open = was_open or self._gate.open
                    await asyncio.wait((running,), timeout=_TICK_SECONDS)
                    if running.done():
                        running.result()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            self._election = Election(self._gate, self._me, self._terms)

    async def _follow_kube_scheduler(self) -> None:
        """Follow whether the kube-scheduler in this pod leads; while its Lease cannot be read, nothing changes."""
        while (beside := self._beside) is not None:
            try:
                record = await beside.read(self._terms.request)
            except ClusterError as exc:
                log.warning("cannot read the Lease of the kube-scheduler in this pod: %s", exc)
            else:
                holds = record is not None and record.holder.split("_", 1)[0] == self._host
                if holds != self._gate.open:
                    log.info("kube-scheduler in this pod %s", "is the leader" if holds else "is not the leader")
                self._gate.open = holds
            await asyncio.sleep(READ_SECONDS)
