# SPDX-License-Identifier: Apache-2.0
"""
One holder at a time among replicas: the Lease kept, and the right to act told.

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
from isolation.kube.core.lease import Record, Standing, Step, Terms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Desk(Protocol):
    """Where the Lease is."""

    async def read(self, seconds: float) -> Record | None:
        """The Lease; None where there is none."""

    async def write(self, wish: Record, seconds: float) -> Record | None:
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
        desk: Desk,
        me: str,
        terms: Terms | None = None,
        *,
        clock: Callable[[], float] = boottime,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`me` must be this process and no other, also after a restart: a pod's name and something random."""
        self._desk, self._me, self._terms = desk, me, terms or Terms()
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._standing = Standing()
        self._releasing = False

    def fence(self) -> Fence | None:
        """The right to act at this moment; None without one."""
        now, standing = self._clock(), self._standing
        if now >= standing.until or standing.record is None or self._releasing:
            return None
        return Fence(standing.record.epoch, standing.until)

    def holder(self) -> str | None:
        """Who holds the Lease by our last look; None where that is unknown."""
        return self._standing.record.holder if self._standing.record else None

    async def run(self) -> None:
        """Look, take, renew, until cancelled."""
        try:
            while True:
                try:
                    await self.turn()
                except ClusterError as exc:
                    log.warning("cannot acquire or renew the Lease: %s", exc)
                await self._sleep(self._terms.retry * (0.75 + 0.25 * self._draw()))
        finally:
            await self._release()

    async def turn(self) -> None:
        """One look, and at most one write."""
        record = self._standing.record
        # A holder writes first and looks only if that fails: one request per renewal.
        if record is None or record.holder != self._me:
            record = await self._desk.read(self._terms.request)
            self._standing = lease.saw(self._standing, record, self._me, self._clock(), self._terms)
        if lease.step(self._standing, self._me, self._clock(), self._terms) is Step.WAIT:
            return
        before, sent = self._standing, self._clock()
        try:
            got = await self._desk.write(lease.wish(before, self._me, self._terms), self._terms.request)
        except ClusterError:
            await self._look()
            raise
        if got is None:
            await self._look()
            return
        self._standing = lease.written(before, got, sent, self._clock(), self._terms)
        if before.record is None or before.record.holder != self._me:
            log.info("acquired the Lease: epoch=%d", got.epoch)

    async def _look(self) -> None:
        """What is there now, after a write that failed or may have happened."""
        record = await self._desk.read(self._terms.request)
        self._standing = lease.saw(self._standing, record, self._me, self._clock(), self._terms)

    async def _release(self) -> None:
        """First we stop acting, then we say so."""
        self._releasing = True
        standing, self._standing = self._standing, lease.given_up(self._standing)
        wish = lease.release(standing)
        if wish is None or standing.record is None or standing.record.holder != self._me:
            return
        with contextlib.suppress(ClusterError):
            if await asyncio.shield(self._desk.write(wish, self._terms.request)) is None:
                # A renewal that was cut off on the way out has taken effect after all: ours still, in a newer version.
                record = await asyncio.shield(self._desk.read(self._terms.request))
                wish = lease.release(replace(standing, record=record))
                if wish is not None and record is not None and record.holder == self._me:
                    await asyncio.shield(self._desk.write(wish, self._terms.request))
