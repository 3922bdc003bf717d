# SPDX-License-Identifier: Apache-2.0
"""
The reconciler: load the state, reconcile, save, report, cycle after cycle.

Every replica reconciles, so that what it reports is fresh; only the leader has steps to take, and only if nothing else
inhibits them. What a cycle does in between is `cycle`'s, what outlives it `state`'s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.plan import Evict, Move, ResizePod
from autoscaler.core.reconcile import reconcile
from autoscaler.kube.backends import KnownPools, open_backends
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.condition_reporter import ReconcilerStatus
from autoscaler.kube.core.conditions import ConditionError
from autoscaler.kube.core.config import Config, ConfigError
from autoscaler.kube.core.inhibition import Authority, Cause, Inhibition, find_inhibition
from autoscaler.kube.cycle import Cycle
from autoscaler.kube.handover import Handover, PoolsPublisher, describe_pools
from autoscaler.kube.state import ControllerState
from autoscaler.providers.base import MissingError
from autoscaler.providers.registry import ProviderConfigError
from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.apis.metrics.core.readings import LatestSnapshot
    from autoscaler.apis.rpc.provider_groups import ProviderGroups
    from autoscaler.core.state import AutoscalerState
    from autoscaler.kube.backends import Backends
    from autoscaler.kube.condition_reporter import ConditionReporter
    from autoscaler.kube.config.file import ConfigFile
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.right_sizing import RightSizing
    from autoscaler.kube.state_store import StateStore
    from autoscaler.kube.step_context import EventSink
    from autoscaler.kube.switch import Switch
    from autoscaler.kube.telemetry.metrics import Telemetry
    from autoscaler.kube.watches import Sources
    from isolation.kube.access import Access
    from isolation.kube.election import Election

log = logging.getLogger(__name__)
CONFIRMED_CYCLES: Final = 3
CONFIRMED_SECONDS: Final = 5.0
"""An order that no cycle has confirmed for three scan intervals, and no less than this, is withdrawn."""
SERVED_SECONDS: Final = 300.0
"""A pool whose provider has not answered for so long since the configuration was read is not scaled here."""


@dataclass(frozen=True, slots=True)
class Collaborators:
    """What outlives every configuration."""

    access: Access
    sources: Sources
    events: EventSink
    board: LatestSnapshot
    telemetry: Telemetry
    election: Election
    switch: Switch
    store: StateStore
    reporter: ConditionReporter
    relay: ProviderGroups | None
    """None: there is no gRPC for cluster-autoscaler."""
    dry_run: bool
    wall: Callable[[], float]
    steady: Callable[[], float]
    right_sizing: RightSizing
    namespace: str = SYSTEM_NAMESPACE


class Reconciler:
    """Of one process; `reconcile` after `start`."""

    def __init__(self, given: Collaborators, file: ConfigFile) -> None:
        self._given, self._file = given, file
        self._backends: Backends | None = None
        self._cluster: KubeCluster | None = None
        self.stopping = False
        self.last: Cycle | None = None
        """The latest cycle that has ended."""
        self.known_pools = KnownPools()
        self.finished: float | None = None
        """When the last whole cycle ended, in seconds since the epoch."""
        self.error = ""
        """What broke the latest cycle; empty: nothing did."""
        self._acts = False
        self._served: set[str] = set()
        """Pools whose provider has answered since the configuration was read."""
        self._configured = given.steady()
        self.published = PoolsPublisher(given.access, given.namespace)
        self.handover = Handover(given.access, lambda: self.leads and not self.stopping)
        self._handover_error = ""

    def _status(self) -> ReconcilerStatus:
        return ReconcilerStatus(
            inhibition=self.inhibition(),
            cycle=self.last,
            conditions=self.cluster.conditions(),
            config_error=self.config_error,
            unconfigured=self.unconfigured,
            error=self.error,
        )

    async def reconcile(self) -> str:
        """One cycle; its outcome."""
        await self._reload_config()
        outcome = await self._run() if self.configured else "failed"
        self._given.telemetry.reconciled(outcome)
        await self._given.reporter.report(self._status())
        return outcome

    async def _run(self) -> str:
        await self._load()
        before, limits, given = self.state.memory, self.backends.config.limits, self._given
        cycle = Cycle(
            self.cluster,
            given.telemetry,
            inhibition=self.inhibition,
            clock=given.steady,
            rank=self.backends.config.ranked,
            charge=self._charge,
        )
        earlier, self.error = self.error, ""
        try:
            _, memory = await reconcile(cycle, limits, before, cycle.decide)
            memory = cycle.finish(memory, before)
        except ConditionError:
            # the cluster is unknown: the earlier observation is not reported as if it were of now
            cycle.observation = None
            outcome = "inhibited" if self.leads else "standby"
        except Exception as exc:
            self.error = f"{type(exc).__name__}: {exc}"
            # a defect comes again in each cycle: its trace once
            if self.error != earlier:
                log.exception("reconcile cycle failed")
            self._remember(cycle.finish_broken(limits, before))
            cycle.observation = None
            outcome = "failed"
        else:
            self._remember(memory)
            self.finished, outcome = given.wall(), cycle.outcome()
        # only now: while a thread decides on an observation, no scrape may look at it
        self.last = cycle
        self.known_pools.observation = cycle.observation or self.known_pools.observation
        if self.cluster.observed is not None:
            self._served |= self.cluster.observed.targets.keys()
        self._offer_pools()
        self._confirm_orders(outcome)
        await self._save()
        return outcome

    # -- configuration ---------------------------------------------------------------------------

    def start(self, *, strict: bool = True) -> None:
        """Take the configuration over; raises its errors, or if not `strict` waits for a file that can be used."""
        try:
            self._configure(self._file.first())
        except (ConfigError, ProviderConfigError, MissingError) as exc:
            if strict:
                raise
            self._configure(Config())
            self._file.refuse(str(exc))
        else:
            self._file.accept()

    async def close(self) -> None:
        """Let everything go that was opened."""
        if self._backends is not None:
            await self._backends.close()

    @property
    def backends(self) -> Backends:
        """What the configuration in force has opened."""
        if self._backends is None:
            raise RuntimeError("not started yet")
        return self._backends

    @property
    def cluster(self) -> KubeCluster:
        """As the configuration in force has it."""
        if self._cluster is None:
            raise RuntimeError("not started yet")
        return self._cluster

    @property
    def config_error(self) -> str:
        """Why the configuration file is not in force; empty: it is."""
        return self._file.problem

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force; without one nothing is observed."""
        return self._file.loaded is not None

    @property
    def unconfigured(self) -> str:
        """Why none is; empty: one is."""
        return "" if self.configured else f"{self._file.instead}: {self._file.problem}"

    async def _reload_config(self) -> None:
        config = await self._file.news()
        if config is None:
            return
        old = self._backends
        try:
            self._configure(config)
        except (ProviderConfigError, MissingError) as exc:
            self._file.refuse(str(exc))
            return
        except Exception as exc:
            # an SDK that does not like its settings raises errors of its own
            log.exception("cannot apply the new configuration: keeping the previous one")
            self._file.refuse(f"{type(exc).__name__}: {exc}")
            return
        self._file.accept()
        if old is not None:
            await old.close()

    def _configure(self, config: Config) -> None:
        self._backends = open_backends(config, self._given.access, self._given.relay)
        self._served, self._configured = set(), self._given.steady()
        self._offer_pools()
        self._connect(ControllerState() if self._cluster is None else self.state)

    def _connect(self, state: ControllerState) -> None:
        given, backends = self._given, self.backends
        parts = ClusterParts(
            access=given.access,
            sources=given.sources,
            providers=backends.providers,
            usage=backends.usage,
            events=given.events,
            fence=self.fence,
            now=given.wall,
            steady=given.steady,
            board=given.board,
            histories=lambda: given.right_sizing.histories,
            policy=given.right_sizing.policy,
            recommended=lambda: given.right_sizing.recommended,
        )
        self._cluster = KubeCluster(parts, backends.config.pools, backends.config.limits, state)

    # -- the right to act ------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this replica has the Lease."""
        return self._given.election.fence() is not None

    def authority(self) -> Authority:
        """What an inhibition is decided from, at this moment."""
        given = self._given
        fence = given.election.fence()
        return Authority(
            stopping=self.stopping,
            epoch=None if fence is None else fence.epoch,
            holder=given.election.holder(),
            position=given.switch.position(),
            where=given.switch.where,
            dry_run=given.dry_run,
            loaded=given.store.epoch,
            trouble=given.store.trouble(),
        )

    def inhibition(self) -> Inhibition | None:
        """Why nothing may be done at this moment."""
        return find_inhibition(self.authority())

    def fence(self) -> str:
        """The same as text, asked right before each write; empty: it may be made."""
        inhibition = self.inhibition()
        return "" if inhibition is None else inhibition.text

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> ControllerState:
        """Everything that outlives a cycle."""
        return self.cluster.state

    def _remember(self, memory: AutoscalerState) -> None:
        self.cluster.state = replace(self.state, memory=memory)

    async def _load(self) -> None:
        """The state of the leader before us; also our own, after another client wrote it."""
        fence = self._given.election.fence()
        if fence is not None:
            state = await self._given.store.load(fence.epoch, self.state, self._given.wall())
            if state is not None:
                self._connect(state)

    async def _save(self) -> None:
        """Write what the next leader needs; not in a dry run, which touches nothing."""
        authority = replace(self.authority(), stopping=False)
        inhibition = find_inhibition(authority)
        if authority.epoch is None or (inhibition is not None and inhibition.cause is not Cause.STATE):
            return
        if authority.loaded == authority.epoch:
            await self._write(self.state)

    async def _write(self, state: ControllerState) -> None:
        seconds = 2 * self.backends.config.limits.scan_interval_seconds
        outcome = await self._given.store.save(replace(state, epoch=self._given.store.epoch or 0), seconds)
        if outcome:
            self._given.telemetry.wrote(outcome)

    async def _charge(self, cycle: Cycle) -> None:
        """
        Save the cycle's evictions and resizes as made, before the first is.

        Whoever is killed in between has lost some of this hour's, and never spends them twice; what was not done after
        all is taken off when the cycle ends. Where it cannot be written nothing is moved: the inhibition says so.
        """
        if cycle.plan is None or cycle.memory is None or self._given.store.epoch is None:
            return
        moves = tuple(step for step in cycle.plan.steps if isinstance(step, Evict | Move | ResizePod))
        memory = cycle.memory.record(replace(cycle.plan, steps=moves), self.backends.config.limits)
        await self._write(replace(self.state, memory=memory))

    async def finish(self) -> None:
        """Save what the last cycle of a process that ends has done."""
        if self._cluster is not None:
            await self._save()

    # -- cluster-autoscaler ----------------------------------------------------------------------

    def acts(self) -> bool:
        """
        Whether steps are taken here, as switch and options say: not in a dry run, not switched off.

        A moment in which that is unknown (another replica leads, the switch is unreadable) changes nothing.
        """
        now = self.authority()
        if now.epoch is None:
            self._acts = False
        elif not now.position.problem:
            self._acts = now.position.enabled is not False and not now.is_dry_run
        return self._acts

    def ours(self, pool: PoolConfig) -> Ours:
        """What is done for a pool here at this moment; everything else is cluster-autoscaler's."""
        served = pool.name in self._served or self._given.steady() - self._configured < SERVED_SECONDS
        return pool.ours if served and self.acts() else Ours()

    async def hand_over(self) -> None:
        """Tell admission, and cluster-autoscaler by the pods that exist, what is done here; by the last observation."""
        fence = self._given.election.fence()
        observation = self.last.observation if self.last is not None else None
        if fence is None or self.stopping or observation is None or self.authority().position.problem:
            return
        ours = {pool.name: self.ours(pool) for pool in self.backends.config.pools}
        pools = describe_pools(observation, ours)
        error = ""
        try:
            await self.published.put(pools, fence.epoch, complete=len(pools) == len(ours))
            await self.handover.carry(observation, self._given.sources.notes.of_pod, ours)
        except ClusterError as exc:
            error = str(exc)
            if error != self._handover_error:
                log.warning("cannot hand pools over: retrying: %s", exc)
        self._handover_error = error

    def _offer_pools(self) -> None:
        """Tell cluster-autoscaler of its pools, with what fresh nodes are like by the last observation."""
        if self._given.relay is not None:
            observation = self.last.observation if self.last is not None else None
            self._given.relay.offer(self.backends.offers(observation, self.ours))

    def _confirm_orders(self, outcome: str) -> None:
        """After a whole cycle that could have taken orders back, the remaining ones have pods that need them."""
        last = self.last
        if self._given.relay is None or outcome == "failed" or last is None or last.inhibition is not None:
            return
        if last.observation is not None:
            limits = self.backends.config.limits
            seconds = CONFIRMED_CYCLES * limits.scan_interval_seconds + limits.action_validation_delay_seconds
            # from the look on: this process may have stood still since, and a pod be gone
            age = self.cluster.now() - last.observation.at
            self._given.relay.confirm(max(CONFIRMED_SECONDS, seconds) - age)
