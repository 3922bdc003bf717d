# SPDX-License-Identifier: Apache-2.0
"""
Who of the replicas decides about pods: the Lease, kept beside the kube-scheduler that asks us.

Decides when to campaign. With `beside`, only while the kube-scheduler of the same pod holds its own
Lease (the holder's identity begins with our host name): the loopback pair fails over together, and a
replica whose kube-scheduler has lost its Lease gives ours back. What the right to act is, and when it
ends, is `isolation.kube`'s.
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
"""A leader that dies is followed after 5 to 6 seconds, as kube-scheduler's Lease is in our configuration."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at the Lease of the kube-scheduler beside us."""
_TICK_SECONDS: Final = 0.1


class _Gate:
    """The Lease, where a candidate that may not campaign only looks."""

    def __init__(self, desk: LeaseStore) -> None:
        self._desk = desk
        self.open = True
        self.settled: Callable[[], bool] = lambda: True

    async def read(self, seconds: float) -> LeaseRecord | None:
        """As it is."""
        return await self._desk.read(seconds)

    async def write(self, wish: LeaseRecord, seconds: float) -> LeaseRecord | None:
        """
        Giving it back is always allowed, unless something that was sent under it may still take effect.

        Then it lapses by itself: the next holder begins seconds later, and sees what became of it.
        """
        if not (self.open if wish.holder else self.settled()):
            return None
        return await self._desk.write(wish, seconds)


class Leadership:
    """One candidate; `run` until cancelled, then the Lease is given back."""

    def __init__(
        self, desk: LeaseStore, me: str, *, terms: LeaseTiming = TERMS, beside: LeaseStore | None = None, host: str = ""
    ) -> None:
        """`host` begins the identity of the kube-scheduler beside us."""
        self._gate, self._me, self._terms = _Gate(desk), me, terms
        self._beside, self._host = beside, host
        self._gate.open = beside is None
        self._election = Election(self._gate, me, terms)
        self._listeners: list[Callable[[bool], None]] = []
        self._told = False
        """What the listeners heard last."""

    def fence(self) -> Fence | None:
        """The right to act at this moment; None without one."""
        return self._election.fence() if self._gate.open else None

    def holder(self) -> str | None:
        """Who holds the Lease by our last look; None where that is unknown."""
        return self._election.holder()

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Call this whenever the right begins (True) or has ended (False)."""
        self._listeners.append(listener)

    def give_back_when(self, settled: Callable[[], bool]) -> None:
        """Ask this before the Lease is given back: whether all that was done under it is certain."""
        self._gate.settled = settled

    async def wait(self, seconds: float) -> bool:
        """Whether we may act, at once or within so many seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.fence() is None:
            if loop.time() >= end:
                return False
            await asyncio.sleep(min(_TICK_SECONDS, seconds))
        return True

    async def run(self) -> None:
        """Campaign, look beside, tell."""
        async with asyncio.TaskGroup() as group:
            for work in self.works().values():
                group.create_task(work())

    def works(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on until cancelled, by name of the task that does it."""
        works = {"election": self._campaign, "leadership": self._tell}
        return works if self._beside is None else works | {"kube-scheduler-lease": self._look}

    async def _campaign(self) -> None:
        """One election after another: each ends when the gate closes, and gives the Lease back."""
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

    async def _look(self) -> None:
        """Whether the kube-scheduler beside us is the one that schedules; while that cannot be told, as it was."""
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
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self) -> None:
        while True:
            now = self.fence() is not None
            if now != self._told:
                self._told = now
                for listener in self._listeners:
                    listener(now)
            await asyncio.sleep(_TICK_SECONDS)
