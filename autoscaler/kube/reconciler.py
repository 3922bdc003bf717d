# SPDX-License-Identifier: Apache-2.0
"""
Turn after turn: the configuration taken over, what was remembered inherited, the loop turned once, the rest written.

Decides what happens around `autoscaler.core.reconcile.turn` and nothing within it. Every replica turns, so that its
figures are fresh; only the one with the Lease has steps left to take, and only if nothing else holds it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.plan import Evict, Move
from autoscaler.core.reconcile import reconcile
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.composition import Wired, offers_of, opened
from autoscaler.kube.core.conditions import DoubtError
from autoscaler.kube.core.config import Config
from autoscaler.kube.core.config import ConfigError as FileError
from autoscaler.kube.core.inhibition import Facts, Hold, Why, hold_of
from autoscaler.kube.guard import GuardedWorld, Manners, Turn
from autoscaler.kube.handover import Handover
from autoscaler.kube.persisted import Kept
from autoscaler.kube.published_pools import Published, pools_of
from autoscaler.kube.state_store import Remembered
from autoscaler.kube.state_transfer import Heritage
from autoscaler.kube.world import KubeWorld, Parts
from autoscaler.providers.base import MissingError
from autoscaler.providers.registry import ConfigError
from isolation.contract.handover import Ours
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.apis.metrics.core.readings import LatestSnapshot
    from autoscaler.apis.rpc.provider_groups import ProviderGroups
    from autoscaler.core.limits import Limits
    from autoscaler.kube.config.file import ConfigFile
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.execution_context import Events
    from autoscaler.kube.state_store import StateStore
    from autoscaler.kube.switch import Switch
    from autoscaler.kube.telemetry.metrics import Telemetry
    from autoscaler.kube.watches import Sources
    from isolation.kube.access import Access
    from isolation.kube.election import Election

log = logging.getLogger(__name__)
CONFIRMED_TURNS: Final = 3
CONFIRMED_SECONDS: Final = 5.0
"""An order that no turn has confirmed for three scan intervals, and no less than this, is not told."""
SERVED_SECONDS: Final = 300.0
"""A pool whose provider has not answered for so long since the configuration was read is not served by us."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What outlives every configuration."""

    access: Access
    sources: Sources
    events: Events
    board: LatestSnapshot
    telemetry: Telemetry
    election: Election
    switch: Switch
    store: StateStore
    relay: ProviderGroups | None
    """None: nobody listens for cluster-autoscaler."""
    dry_run: bool
    wall: Callable[[], float]
    steady: Callable[[], float]
    namespace: str = SYSTEM_NAMESPACE


class Turns:
    """One process's turns; `once` after `start`."""

    def __init__(self, around: Surroundings, file: ConfigFile) -> None:
        self._around, self._file = around, file
        self._wired: Wired | None = None
        self.heritage = Heritage(around.store, around.steady)
        self.stopping = False
        self.memory = AutoscalerState()
        self.last = Turn()
        """The latest turn; without a reading where there was none."""
        self.ended: float | None = None
        """When the last whole turn ended, since the epoch."""
        self.broken = ""
        """What broke the latest turn; empty: nothing did."""
        self.world: KubeWorld | None = None
        self._acts = False
        self._not_told = ""
        """What kept pools from being handed over when that was last tried."""
        self._served: set[str] = set()
        """Pools whose provider has answered since the configuration was read."""
        self._configured = around.steady()
        self.published = Published(around.access, around.namespace)
        self.handover = Handover(around.access, lambda: self._leads() and not self.stopping)

    @property
    def wired(self) -> Wired:
        """What the configuration in force has opened."""
        if self._wired is None:
            raise RuntimeError("not started yet")
        return self._wired

    @property
    def problem(self) -> str:
        """Why the configuration file is not in force; empty: it is."""
        return self._file.problem

    def steady(self) -> float:
        """Seconds on a clock that nobody can set."""
        return self._around.steady()

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force; without one no turn is made."""
        return self._file.loaded is not None

    @property
    def unconfigured(self) -> str:
        """Why none is; empty: one is."""
        return "" if self.configured else f"{self._file.instead}: {self._file.problem}"

    def start(self, *, strict: bool = True) -> None:
        """Take the configuration over; raises its errors, or if not `strict` waits for a file that can be used."""
        try:
            self._take(self._file.first())
        except (FileError, ConfigError, MissingError) as exc:
            if strict:
                raise
            self._take(Config())
            self._file.refuse(str(exc))
        else:
            self._file.accept()

    async def close(self) -> None:
        """Let everything go that was opened."""
        if self._wired is not None:
            await self._wired.close()

    # -- whether it may act ----------------------------------------------------------------------

    def facts(self) -> Facts:
        """What `hold` is decided from, at this moment."""
        around = self._around
        fence = around.election.fence()
        return Facts(
            stopping=self.stopping,
            epoch=None if fence is None else fence.epoch,
            holder=around.election.holder(),
            position=around.switch.position(),
            where=around.switch.where,
            dry_run=around.dry_run,
            inherited=self.heritage.epoch,
            trouble=self.heritage.trouble(),
        )

    def hold(self) -> Hold | None:
        """Why nothing may be done at this moment."""
        return hold_of(self.facts())

    def acts(self) -> bool:
        """
        Whether steps are taken here, as switch and options say: not in a dry run, not switched off.

        A moment in which that cannot be told (another replica leads, the switch is unreadable) changes nothing.
        """
        facts = self.facts()
        if facts.epoch is None:
            self._acts = False
        elif not facts.position.problem:
            self._acts = facts.position.enabled is not False and not facts.only_says
        return self._acts

    def ours(self, pool: PoolConfig) -> Ours:
        """What is done for a pool here at this moment; everything else is cluster-autoscaler's."""
        served = pool.name in self._served or self.steady() - self._configured < SERVED_SECONDS
        return pool.ours if served and self.acts() else Ours()

    async def hand_over(self) -> None:
        """Tell admission, and cluster-autoscaler by the pods that exist, what is done here; by the latest reading."""
        fence = self._around.election.fence()
        if fence is not None and not self.stopping and self.last.seen is not None and not self.facts().position.problem:
            ours = {pool.name: self.ours(pool) for pool in self.wired.config.pools}
            pools = pools_of(self.last.seen, ours)
            try:
                await self.published.put(pools, fence.epoch, complete=len(pools) == len(ours))
                await self.handover.carry(self.last.seen, self._around.sources.notes.of_pod, ours)
            except ClusterError as exc:
                if str(exc) != self._not_told:
                    log.warning("cannot hand pools over: retrying: %s", exc)
                self._not_told = str(exc)
            else:
                self._not_told = ""

    def fence(self) -> str:
        """For the world, right before each write."""
        hold = self.hold()
        return "" if hold is None else hold.text

    # -- one turn --------------------------------------------------------------------------------

    async def once(self) -> str:
        """One turn; its outcome."""
        await self._reconfigured()
        if not self.configured:
            self._around.telemetry.turned("failed")
            return "failed"
        await self._inherit()
        if self.world is None:
            raise RuntimeError("not started yet")
        around = self._around
        manners = Manners(self.hold, around.telemetry, around.steady, self.wired.config.ranked, self._charge)
        guard = GuardedWorld(self.world, manners)
        outcome = await self._turned(guard)
        self.last = guard.turn
        if self.world.seen is not None:
            self._served |= self.world.seen.targets.keys()
        self._offer()
        self._confirm(outcome)
        await self._save()
        self._around.telemetry.turned(outcome)
        return outcome

    async def _turned(self, guard: GuardedWorld) -> str:
        before, limits = self.memory, self.wired.config.limits
        said, self.broken = self.broken, ""
        try:
            _, memory = await reconcile(guard, limits, before, guard.decide)
        except DoubtError:
            # there is no picture: what was seen last is not shown as if it were so now
            guard.turn.seen = None
            return "inhibited" if self._leads() else "standby"
        except Exception as exc:
            self.broken = f"{type(exc).__name__}: {exc}"
            # turn after turn the same defect: its trace once
            if self.broken != said:
                log.exception("reconcile cycle failed")
            self.memory = _as_done(guard, before, limits)
            guard.turn.seen = None
            return "failed"
        self.memory, self.ended = guard.settled(memory, before), self._around.wall()
        return _outcome(guard.turn)

    def _leads(self) -> bool:
        return self._around.election.fence() is not None

    # -- configuration ---------------------------------------------------------------------------

    async def _reconfigured(self) -> None:
        config = await self._file.news()
        if config is None:
            return
        old = self._wired
        try:
            self._take(config)
        except (ConfigError, MissingError) as exc:
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

    def _take(self, config: Config) -> None:
        self._wired = opened(config, self._around.access, self._around.relay)
        self._served, self._configured = set(), self.steady()
        self._offer()
        self._build(self.world.kept if self.world is not None else Kept())

    def _offer(self) -> None:
        """Tell cluster-autoscaler of its pools, with what fresh nodes are like by the latest reading."""
        if self._around.relay is not None:
            self._around.relay.offer(offers_of(self.wired, self.last.seen, self.ours))

    def _confirm(self, outcome: str) -> None:
        """After a whole turn that could have taken orders back, those that are left have somebody to serve."""
        if self._around.relay is not None and outcome != "failed" and self.last.seen and self.last.hold is None:
            limits = self.wired.config.limits
            turns = CONFIRMED_TURNS * limits.scan_interval_seconds + limits.action_validation_delay_seconds
            self._around.relay.confirm(max(CONFIRMED_SECONDS, turns))

    def _build(self, kept: Kept) -> None:
        around, wired = self._around, self.wired
        parts = Parts(
            access=around.access,
            sources=around.sources,
            providers=wired.providers,
            figures=wired.figures,
            events=around.events,
            fence=self.fence,
            now=around.wall,
            steady=around.steady,
            board=around.board,
        )
        self.world = KubeWorld(parts, wired.config.pools, wired.config.limits, kept)

    # -- what is remembered ----------------------------------------------------------------------

    async def _inherit(self) -> None:
        """What the leader before us remembered; also our own, after somebody else wrote it."""
        fence = self._around.election.fence()
        if fence is None:
            return
        found = await self.heritage.taken(fence.epoch, self.memory, self._around.wall())
        if found is not None:
            self.memory = found.memory
            if found.kept is not None:
                self._build(found.kept)

    async def _save(self) -> None:
        """Write what the next leader needs; not in a dry run, which touches nothing."""
        facts = self.facts()
        hold = hold_of(replace(facts, stopping=False))
        if self.world is None or facts.epoch is None or (hold is not None and hold.why is not Why.STATE):
            return
        if facts.inherited == facts.epoch:
            await self._leave(Remembered(self.memory, self.world.kept, facts.epoch))

    async def _leave(self, remembered: Remembered) -> None:
        outcome = await self.heritage.left(remembered, 2 * self.wired.config.limits.scan_interval_seconds)
        if outcome:
            self._around.telemetry.wrote(outcome)

    async def _charge(self, turned: Turn) -> None:
        """
        Write the turn's evictions down as made, before the first is.

        Whoever is killed in between has lost moves of this hour, and never spends them twice; what was not done
        after all is taken off when the turn ends. Where it cannot be written nothing is moved: the hold says so.
        """
        epoch = self.heritage.epoch
        if turned.decided is None or turned.memory is None or self.world is None or epoch is None:
            return
        moves = tuple(step for step in turned.decided.steps if isinstance(step, Evict | Move))
        memory = turned.memory.record(replace(turned.decided, steps=moves), self.wired.config.limits)
        await self._leave(Remembered(memory, self.world.kept, epoch))

    async def finish(self) -> None:
        """The last word of a process that ends: what its last turn did."""
        await self._save()


def _as_done(guard: GuardedWorld, before: AutoscalerState, limits: Limits) -> AutoscalerState:
    """What must not be forgotten of a turn that broke: the steps it had taken."""
    turned = guard.turn
    if turned.decided is None or turned.memory is None:
        return before
    plan = replace(turned.decided, steps=tuple(turned.done))
    return guard.settled(turned.memory.record(plan, limits), before)


def _outcome(turned: Turn) -> str:
    if turned.hold is not None:
        said = {Why.DRY_RUN: "dry_run", Why.STANDBY: "standby"}
        return said.get(turned.hold.why, "inhibited" if turned.decided is not None and turned.decided.steps else "idle")
    if turned.withheld or turned.failed:
        return "inhibited"
    return "done" if turned.done or turned.refused else "idle"
