# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes as the loop's world: watched objects, providers and exporters as one observation, steps as API calls.

Decides the order: what is awaited comes first, then everything is copied at one moment, and the observation is built
from the copy in a thread, so that the event loop goes on. What it says is decided in `observe`, how a step is done in
`execute`. Where the cluster is unknown (never read, silent for too long, too many nodes not ready) there is no
observation at all, but a `DoubtError`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import LatestSnapshot, MetricsSnapshot, pod_uses
from autoscaler.kube.core.conditions import Doubt, DoubtError, Kind
from autoscaler.kube.execute import Actor
from autoscaler.kube.execution_context import Tools
from autoscaler.kube.observe.snapshot import Snapshot, observe
from autoscaler.kube.persisted import Kept
from autoscaler.providers.base import ProviderError
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import ScaleUp, Step
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.execution_context import Events
    from autoscaler.kube.observe.snapshot import Seen
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import Sources
    from autoscaler.providers.registry import Providers, ProvidersReading
    from isolation.contract.model import Refusal
    from isolation.kube.access import Access

log = logging.getLogger(__name__)
STALE_SECONDS: Final = 150.0
"""A quiet watch is begun anew after 90 s and says a word then: beyond this nobody answers."""
STEP_SECONDS: Final = 5.0
"""A wall clock that is so far from where it should be was set."""


class Figures(Protocol):
    """Who measures cards and pods (`figures_http.Exporters`, `figures_http.Prometheus`, `figures.Nothing`)."""

    async def read(self, addresses: Mapping[str, str]) -> Measured:
        """The latest of these nodes, by name with their addresses; never an error: what cannot be told is absent."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a world is made of; all of it outlives it."""

    access: Access
    sources: Sources
    providers: Providers
    figures: Figures
    events: Events
    fence: Callable[[], str]
    """Asked right before each write: why we may not act any more; empty: we may."""
    now: Callable[[], float]
    """Seconds since the epoch, as the wall clock says."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    steady: Callable[[], float] = boottime
    """Seconds on a clock that nobody can set."""
    board: LatestSnapshot | None = None
    """Where the metrics APIs look."""
    stale_seconds: float = STALE_SECONDS


class KubeWorld:
    """Implements `autoscaler.core.reconcile.World`."""

    def __init__(self, parts: Parts, pools: Sequence[PoolConfig], limits: Limits, kept: Kept | None = None) -> None:
        self._parts, self._pools, self._limits = parts, tuple(pools), limits
        self._wall, self._since = parts.now(), parts.steady()
        self.kept = kept or Kept()
        """What has to outlive this process besides `Memory`; to be stored after each turn (`kept.shown`)."""
        self.seen: Seen | None = None
        """The latest reading, with what could not be told of it."""
        tools = Tools(parts.access, parts.sources, parts.providers, parts.events, parts.fence, self.now)
        self._actor = Actor(tools, limits)
        self._blocked: tuple[Doubt, ...] = ()
        self._settled = False

    def now(self) -> float:
        """Seconds since the epoch, on a clock that does not jump while this process lives."""
        return self._wall + self._parts.steady() - self._since

    def doubts(self) -> tuple[Doubt, ...]:
        """Why nothing, or not everything, may be done now."""
        if self._blocked:
            return self._blocked
        told = self.seen.doubts if self.seen is not None else ()
        return (*told, *self._actor.doubts())

    def unanswered(self) -> Mapping[str, str]:
        """By UID of waiting pods: why nothing is bought for them whatever they ask."""
        return self.seen.unanswered if self.seen is not None else {}

    async def observe(self) -> Observation:
        """One reading; DoubtError where there is none that one may act on."""
        sources, parts = self._parts.sources, self._parts
        recheck, self._settled = self._settled, False
        self._check()
        reading, measured = await asyncio.gather(parts.providers.read(), parts.figures.read(sources.addresses()))
        unknown = [pool.name for pool in self._pools if pool.profile is None and pool.name not in self.kept.asked]
        for pool in unknown:
            self.kept = await _asked(self.kept, parts.providers, pool)
        self._check()
        snapshot = self._snapshot(reading, measured)
        seen, picture = await asyncio.to_thread(self._build, snapshot, parts.steady(), recheck=recheck)
        self.seen, self.kept, self._blocked = seen, seen.kept, ()
        if any(doubt.blocks for doubt in seen.doubts):
            self._block(seen.doubts)
        self._actor.begin(seen, recheck=recheck)
        if picture is not None and parts.board is not None:
            parts.board.put(picture)
        return seen.observation

    async def settle(self, seconds: float) -> None:
        """Wait; the next reading rechecks what was decided on the last one."""
        self._settled = True
        await self._parts.sleep(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Remember who goes where; also the moment to tidy away what nobody needs any more."""
        self.kept = replace(self.kept, homes=dict(homes))
        if self.seen is not None:
            await self._actor.tidy(self.seen)
            await self._actor.keep_places(self.kept, self.seen)

    async def apply(self, step: Step) -> Refusal | None:
        """Do one thing, and say why."""
        if self.seen is None:
            raise RuntimeError("nothing has been observed yet")
        refused = await self._actor.apply(step, self.seen)
        await self._remember()
        return refused

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """Several machines for one pool as one purchase; see `autoscaler.core.reconcile.Grouping`."""
        if self.seen is None:
            raise RuntimeError("nothing has been observed yet")
        refused = await self._actor.buy(steps, self.seen)
        await self._remember()
        return refused

    async def _remember(self) -> None:
        """What was just bought, and for whom; the scheduler is told too."""
        before, self.kept = self.kept, self._actor.remembered(self.kept)
        if self.kept is not before and self.seen is not None:
            await self._actor.keep_places(self.kept, self.seen)

    # -- reading ---------------------------------------------------------------------------------

    def _snapshot(self, reading: ProvidersReading, measured: Measured) -> Snapshot:
        sources = self._parts.sources
        return Snapshot(
            at=self.now(),
            view=sources.view(),
            # copies: the watches go on writing while a thread reads
            node_notes=dict(sources.notes.of_node),
            pod_notes=dict(sources.notes.of_pod),
            reservations=sources.reservations.all(),
            budgets=sources.budgets.all(),
            states=reading.states,
            failed=reading.failed,
            measured=measured,
            dry=dict(self._actor.dry),
            irremovable=dict(self._actor.irremovable),
            held_still=self._clock_step(),
        )

    def _build(self, snapshot: Snapshot, at: float, *, recheck: bool) -> tuple[Seen, MetricsSnapshot | None]:
        """In a thread: touches nothing but the snapshot. A recheck is not published."""
        seen = observe(snapshot, self._pools, self._limits, self.kept)
        if recheck or self._parts.board is None:
            return seen, None
        found, measured = seen.observation, snapshot.measured
        pods = pod_uses(found.pods.values(), measured.samples, measured.measured, measured.whole)
        return seen, MetricsSnapshot(
            at, pods, summarize_pools(found), list_pending(found), frozenset(found.engine.nodes)
        )

    # -- what keeps it from acting ---------------------------------------------------------------

    def _check(self) -> None:
        """Raise where the cluster is not known."""
        missing, age = self._parts.sources.missing(), self._parts.sources.age()
        if missing:
            text = f"waiting for the initial list of: {missing}; no actions are taken"
            self._block((Doubt(Kind.NOT_READ, text, blocks=True),))
        if age is None or age > self._parts.stale_seconds:
            old = "no message received from the API server"
            old += " yet" if age is None else f" for {age:.0f} s"
            self._block((Doubt(Kind.NOT_READ, f"{old}; no actions are taken", blocks=True),))

    def _block(self, doubts: tuple[Doubt, ...]) -> None:
        self._blocked = doubts
        raise DoubtError(doubts)

    def _clock_step(self) -> str:
        """Why nothing may be moved, where the wall clock is not where it should be."""
        step = self._parts.now() - self.now()
        if abs(step) <= STEP_SECONDS:
            return ""
        return f"the wall clock jumped by {step:+.0f} s: no pods are moved until it is correct or this process restarts"


async def _asked(kept: Kept, providers: Providers, pool: str) -> Kept:
    """What the provider says of a fresh node, asked once for each pool; an error is asked again."""
    try:
        found = await providers.template(pool)
    except ProviderError:
        return kept
    profiles = {**kept.profiles} if found is None else {pool: found, **kept.profiles}
    return replace(kept, profiles=profiles, asked=kept.asked | {pool})
