# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes as the loop sees it: watched objects, providers and exporters as one observation, steps as API calls.

Decides the order: what is awaited comes first, then everything is copied at one moment, and the observation is built
from the copy in a thread, so that the event loop goes on. What it says is decided in `observe`, how a step is done in
`execute`. Where the cluster is unknown (never read, silent for too long, too many nodes not ready) there is no
observation at all, but a `ConditionError`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import LatestSnapshot, MetricsSnapshot, pod_uses
from autoscaler.core.rightsizing.recommend import EvidencePolicy
from autoscaler.kube.core.conditions import Condition, ConditionError, ConditionKind
from autoscaler.kube.executor import Executor
from autoscaler.kube.observe.observed_cluster import observe
from autoscaler.kube.observe.snapshot import ClusterSnapshot
from autoscaler.kube.state import ControllerState
from autoscaler.kube.step_context import StepContext
from autoscaler.providers.base import ProviderError
from isolation.contract.codec.recommendations import Recommended
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import ScaleUp, Step
    from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.observe.observed_cluster import ObservedCluster
    from autoscaler.kube.step_context import EventSink
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import Sources
    from autoscaler.providers.registry import Providers, ProvidersReading
    from isolation.contract.model import Refusal
    from isolation.kube.access import Access

log = logging.getLogger(__name__)
STALE_SECONDS: Final = 150.0
"""A quiet watch is restarted after 90 s, which yields a message: beyond this the API server does not answer."""
STEP_SECONDS: Final = 5.0
"""A wall clock that is so far from where it should be was set."""


class UsageSource(Protocol):
    """Where usage of cards and pods is read (`usage_http.Exporters`, `usage_http.Prometheus`, `usage.Nothing`)."""

    async def read(self, addresses: Mapping[str, str]) -> Measured:
        """The latest of these nodes, by name with their addresses; never an error: what is unknown is absent."""


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """What a cluster is observed and changed by; all of it outlives it."""

    access: Access
    sources: Sources
    providers: Providers
    usage: UsageSource
    events: EventSink
    fence: Callable[[], str]
    """Asked right before each write: why we may not act any more; empty: we may."""
    now: Callable[[], float]
    """Seconds since the epoch, as the wall clock says."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    steady: Callable[[], float] = boottime
    """Seconds on a clock that cannot be set."""
    board: LatestSnapshot | None = None
    """Where the metrics APIs look."""
    stale_seconds: float = STALE_SECONDS
    histories: Callable[[], Mapping[ProgramKey, ProgramHistory]] = dict
    """What programs have used, for right-sizing."""
    policy: EvidencePolicy = field(default_factory=EvidencePolicy)
    recommended: Callable[[], Recommended] = Recommended
    """What admission applies to new pods."""


class KubeCluster:
    """Implements `autoscaler.core.reconcile.Environment` and `GroupBuyer`."""

    def __init__(
        self,
        parts: ClusterParts,
        pools: Sequence[PoolConfig],
        limits: ScalingLimits,
        state: ControllerState | None = None,
    ) -> None:
        self._parts, self._pools, self._limits = parts, tuple(pools), limits
        self._wall, self._since = parts.now(), parts.steady()
        self.state = state or ControllerState()
        """What outlives this process; to be saved after each cycle."""
        self.observed: ObservedCluster | None = None
        """The latest observation, with what is unknown of it."""
        unit = parts.policy.unit_bytes
        context = StepContext(parts.access, parts.sources, parts.providers, parts.events, parts.fence, self.now, unit)
        self._executor = Executor(context, limits)
        self._blocked: tuple[Condition, ...] = ()
        self._settled = False

    def now(self) -> float:
        """Seconds since the epoch, on a clock that does not jump while this process lives."""
        return self._wall + self._parts.steady() - self._since

    def conditions(self) -> tuple[Condition, ...]:
        """Why nothing, or not everything, may be done now."""
        if self._blocked:
            return self._blocked
        seen = self.observed.conditions if self.observed is not None else ()
        return (*seen, *self._executor.conditions())

    def unanswered(self) -> Mapping[str, str]:
        """By UID of waiting pods: why nothing is bought for them whatever they ask."""
        return self.observed.unanswered if self.observed is not None else {}

    async def observe(self) -> Observation:
        """One reading; ConditionError where there is none that one may act on."""
        sources, parts = self._parts.sources, self._parts
        recheck, self._settled = self._settled, False
        self._check()
        reading, measured = await asyncio.gather(parts.providers.read(), parts.usage.read(sources.addresses()))
        unknown = [pool.name for pool in self._pools if pool.profile is None and pool.name not in self.state.asked]
        for pool in unknown:
            self.state = await _ask_template(self.state, parts.providers, pool)
        self._check()
        snapshot = self._snapshot(reading, measured)
        seen, picture = await asyncio.to_thread(self._build, snapshot, parts.steady(), recheck=recheck)
        self.observed, self.state, self._blocked = seen, seen.state, ()
        if any(condition.blocks for condition in seen.conditions):
            self._block(seen.conditions)
        self._executor.begin(seen, recheck=recheck)
        if picture is not None and parts.board is not None:
            parts.board.put(picture)
        return seen.observation

    async def settle(self, seconds: float) -> None:
        """Wait; the next reading rechecks what was decided on the last one."""
        self._settled = True
        await self._parts.sleep(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Remember who goes where; also removes what is not needed any more."""
        self.state = replace(self.state, homes=dict(homes))
        if self.observed is not None:
            await self._executor.tidy(self.observed)
            await self._executor.reserve_planned(self.state, self.observed)

    async def apply(self, step: Step) -> Refusal | None:
        """Do one thing, and say why."""
        if self.observed is None:
            raise RuntimeError("nothing has been observed yet")
        refused = await self._executor.apply(step, self.observed)
        await self._record()
        return refused

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """Several machines for one pool as one purchase; see `autoscaler.core.reconcile.GroupBuyer`."""
        if self.observed is None:
            raise RuntimeError("nothing has been observed yet")
        refused = await self._executor.buy(steps, self.observed)
        await self._record()
        return refused

    async def _record(self) -> None:
        """What was just bought, and for whom; the scheduler learns it by reservations."""
        before, self.state = self.state, self._executor.record(self.state)
        if self.state is not before and self.observed is not None:
            await self._executor.reserve_planned(self.state, self.observed)

    # -- reading ---------------------------------------------------------------------------------

    def _snapshot(self, reading: ProvidersReading, measured: Measured) -> ClusterSnapshot:
        sources = self._parts.sources
        return ClusterSnapshot(
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
            dry=dict(self._executor.dry),
            irremovable=dict(self._executor.irremovable),
            held_still=self._clock_step(),
            histories=self._parts.histories(),
            policy=self._parts.policy,
            recommended=self._parts.recommended(),
        )

    def _build(
        self, snapshot: ClusterSnapshot, at: float, *, recheck: bool
    ) -> tuple[ObservedCluster, MetricsSnapshot | None]:
        """In a thread: touches nothing but the snapshot. A recheck is not published."""
        seen = observe(snapshot, self._pools, self._limits, self.state)
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
            self._block((Condition(ConditionKind.NOT_READ, text, blocks=True),))
        if age is None or age > self._parts.stale_seconds:
            old = "no message received from the API server"
            old += " yet" if age is None else f" for {age:.0f} s"
            self._block((Condition(ConditionKind.NOT_READ, f"{old}; no actions are taken", blocks=True),))

    def _block(self, conditions: tuple[Condition, ...]) -> None:
        self._blocked = conditions
        raise ConditionError(conditions)

    def _clock_step(self) -> str:
        """Why nothing may be moved, where the wall clock is not where it should be."""
        step = self._parts.now() - self.now()
        if abs(step) <= STEP_SECONDS:
            return ""
        return f"the wall clock jumped by {step:+.0f} s: no pods are moved until it is correct or this process restarts"


async def _ask_template(state: ControllerState, providers: Providers, pool: str) -> ControllerState:
    """What the provider says of a fresh node, asked once for each pool; an error is asked again."""
    try:
        found = await providers.template(pool)
    except ProviderError:
        return state
    profiles = {**state.profiles} if found is None else {pool: found, **state.profiles}
    return replace(state, profiles=profiles, asked=state.asked | {pool})
