# SPDX-License-Identifier: Apache-2.0
"""
Leader election among replicas: acquires and renews the Lease, and tells whether this process may act.

Decides when to look and to write; who may act is decided in `lease`. Whoever acts asks `fence`
at the last moment and gives each request no more time than is left: the right ends by the
clock alone, also while this process cannot reach the server or does not get to run its loop.

What no lease can prevent: a request that left before the end and arrives after it. Such writes
carry the epoch, and preconditions of their own (UID; a bound pod is never bound again).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from isolation.kube.core import lease
from isolation.kube.core.errors import ClusterError
from isolation.kube.core.lease import CandidateState, LeaseRecord, LeaseStep, LeaseTiming

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class LeaseStore(Protocol):
    """Where the Lease is: `writes.LeaseClient`, or a test's."""

    async def read(self, seconds: float) -> LeaseRecord | None:
        """The Lease; None where there is none."""

    async def write(self, record: LeaseRecord, seconds: float) -> LeaseRecord | None:
        """The Lease as it is now; None where somebody else was faster."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to act, for a while."""

    epoch: int
    """Later holders have higher ones."""
    until: float
    """On the election's clock."""

    def left(self, now: float) -> float:
        """Seconds; what is begun now must be over by then."""
        return max(0.0, self.until - now)


def boottime() -> float:
    """Seconds that nobody can set, counting also while the machine sleeps."""
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(kind)


class Election:
    """A candidate; `run` until cancelled, then the Lease is given back."""

    def __init__(
        self,
        store: LeaseStore,
        me: str,
        timing: LeaseTiming | None = None,
        *,
        clock: Callable[[], float] = boottime,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`me` must be this process and no other, also after a restart: a pod's name and something random."""
        self._store, self._me, self._timing = store, me, timing or LeaseTiming()
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._state = CandidateState()
        self._releasing = False

    def fence(self) -> Fence | None:
        """The right to act at this moment; None without one."""
        now, state = self._clock(), self._state
        if now >= state.until or state.record is None or self._releasing:
            return None
        return Fence(state.record.epoch, state.until)

    def holder(self) -> str | None:
        """Who holds the Lease by our last look; None where that is unknown."""
        return self._state.record.holder if self._state.record else None

    async def run(self) -> None:
        """Look, take, renew, until cancelled."""
        try:
            while True:
                try:
                    await self.try_acquire_or_renew()
                except ClusterError as exc:
                    log.warning("cannot acquire or renew the Lease: %s", exc)
                await self._sleep(self._timing.retry * (0.75 + 0.25 * self._draw()))
        finally:
            await self._release()

    async def try_acquire_or_renew(self) -> None:
        """One look, and at most one write."""
        record = self._state.record
        # A holder writes first and looks only if that fails: one request per renewal.
        if record is None or record.holder != self._me:
            record = await self._store.read(self._timing.request)
            self._state = lease.observe(self._state, record, self._me, self._clock(), self._timing)
        if lease.choose_step(self._state, self._me, self._clock(), self._timing) is LeaseStep.WAIT:
            return
        before, sent = self._state, self._clock()
        try:
            got = await self._store.write(lease.build_record(before, self._me, self._timing), self._timing.request)
        except ClusterError:
            await self._observe()
            raise
        if got is None:
            await self._observe()
            return
        self._state = lease.record_write(before, got, sent, self._clock(), self._timing)
        if before.record is None or before.record.holder != self._me:
            log.info("acquired the Lease: epoch=%d", got.epoch)

    async def _observe(self) -> None:
        """What is there now, after a write that failed or may have happened."""
        record = await self._store.read(self._timing.request)
        self._state = lease.observe(self._state, record, self._me, self._clock(), self._timing)

    async def _release(self) -> None:
        """First we stop acting, then we say so."""
        self._releasing = True
        state, self._state = self._state, lease.stop_acting(self._state)
        release = lease.build_release(state)
        if release is None or state.record is None or state.record.holder != self._me:
            return
        with contextlib.suppress(ClusterError):
            # Shielded: the process ends by cancellation, and others should not have to wait for the Lease to expire.
            if await asyncio.shield(self._store.write(release, self._timing.request)) is None:
                # A renewal that was cut off on the way out has taken effect after all: ours still, in a newer version.
                record = await asyncio.shield(self._store.read(self._timing.request))
                release = lease.build_release(replace(state, record=record))
                if release is not None and record is not None and record.holder == self._me:
                    await asyncio.shield(self._store.write(release, self._timing.request))
