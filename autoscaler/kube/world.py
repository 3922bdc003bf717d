# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes as the loop's world: watched objects, providers and exporters as one observation, steps as API calls.

Decides the order: what is awaited comes first, then one reading is made of it without a pause. What a reading
says is decided in `observe`, how a step is done in `acting`. Where the cluster cannot be told (never read, silent
for too long, too many nodes unwell) there is no observation at all, but a `DoubtError`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import LatestSnapshot, MetricsSnapshot, pod_uses
from autoscaler.kube.core.conditions import Doubt, DoubtError, Kind
from autoscaler.kube.execute import Actor
from autoscaler.kube.execution_context import Tools
from autoscaler.kube.observe.cache import Books
from autoscaler.kube.observe.snapshot import Snapshot, observed, observing
from autoscaler.kube.persisted import Kept
from autoscaler.providers.base import ProviderError
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from autoscaler.apis.metrics.core.readings import PodUse
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
T = TypeVar("T")
STALE_SECONDS: Final = 150.0
"""A quiet watch is begun anew after 90 s and says a word then: beyond this nobody answers."""
STEP_SECONDS: Final = 5.0
"""A wall clock that is so far from where it should be was set."""
FEW: Final = 500
"""Objects that are read at a stretch: some milliseconds."""
MOST_ROUNDS: Final = 3
"""So often the books are brought up to date beforehand, where many objects keep changing meanwhile."""
ANEW_SECONDS: Final = 3600.0
"""After so long the books are made from nothing again, and held against the old ones."""


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
        self._books, self._begun = Books(), parts.steady()
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
        await self._catch_up(reading, measured)
        # from here on without a pause: everything below is of one moment
        self._check()
        seen = observed(self._snapshot(reading, measured), self._pools, self._limits, self.kept, self._books)
        self.seen, self.kept, self._blocked = seen, seen.kept, ()
        if any(doubt.blocks for doubt in seen.doubts):
            self._block(seen.doubts)
        self._actor.begin(seen, recheck=recheck)
        if not recheck:
            await self._show(seen.observation, measured)
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
            notes=sources.notes,
            reservations=sources.reservations.all(),
            budgets=sources.budgets.all(),
            states=reading.states,
            failed=reading.failed,
            measured=measured,
            dry=dict(self._actor.dry),
            irremovable=dict(self._actor.irremovable),
            held_still=self._clock_step(),
        )

    async def _catch_up(self, reading: ProvidersReading, measured: Measured) -> None:
        """Read what has changed bit by bit, so that little is left for the moment that everything is read of."""
        books, fresh = self._books, self._parts.steady() - self._begun >= ANEW_SECONDS
        if fresh:
            books = Books()
        for number in range(MOST_ROUNDS):
            now, before = self._snapshot(reading, measured), books.changed
            for _ in books.follow(now):
                await asyncio.sleep(0)
            little = books.changed - before < FEW and books.room.behind(now.view.cluster.nodes) < FEW
            if little and (number or not fresh):
                break
            for _ in observing(now, self._pools, self._limits, self.kept, books):
                await asyncio.sleep(0)
        if fresh:
            other = books.differs(self._books)
            if other:
                log.error("cluster cache was inconsistent (a defect): rebuilt from scratch: %s", other)
            self._books, self._begun = books, self._parts.steady()

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

    async def _show(self, seen: Observation, measured: Measured) -> None:
        """For the metrics APIs and KEDA; bit by bit, of a reading that does not change any more."""
        if self._parts.board is None:
            return
        at = self._parts.steady()
        found: dict[str, list[PodUse]] = {}
        for some in batched(seen.pods.values(), FEW):
            for namespace, uses in pod_uses(some, measured.samples, measured.measured, measured.whole).items():
                found.setdefault(namespace, []).extend(uses)
            await asyncio.sleep(0)
        pods = MappingProxyType({namespace: tuple(uses) for namespace, uses in found.items()})
        rooms = summarize_pools(seen)
        await asyncio.sleep(0)
        self._parts.board.put(MetricsSnapshot(at, pods, rooms, list_pending(seen), frozenset(seen.engine.nodes)))


def batched(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many each, the last one shorter."""
    left = iter(things)
    while some := list(islice(left, size)):
        yield some


async def _asked(kept: Kept, providers: Providers, pool: str) -> Kept:
    """What the provider says of a fresh node, asked once for each pool; an error is asked again."""
    try:
        found = await providers.template(pool)
    except ProviderError:
        return kept
    profiles = {**kept.profiles} if found is None else {pool: found, **kept.profiles}
    return replace(kept, profiles=profiles, asked=kept.asked | {pool})
