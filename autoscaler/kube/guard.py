# SPDX-License-Identifier: Apache-2.0
"""
The world as one turn sees it: what was decided is noted, what may not be done is not done, and both are counted.

Decides nothing about the cluster. A step that breaks off (the API server or a provider is gone) ends the steps of
its turn: what follows was planned on a cluster that could be told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.core.decide import decide
from autoscaler.core.plan import Evict, Move, get_action
from autoscaler.core.reconcile import GroupBuyer, apply_steps
from autoscaler.providers.base import ProviderError
from isolation.contract.model import Refusal, Why
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import Plan, ScaleUp, Step
    from autoscaler.core.pools import Pool
    from autoscaler.core.reconcile import Environment
    from autoscaler.core.state import AutoscalerState
    from autoscaler.kube.core.inhibition import Hold
    from autoscaler.kube.telemetry.metrics import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Manners:
    """What a turn is held to."""

    hold: Callable[[], Hold | None]
    telemetry: Telemetry
    clock: Callable[[], float]
    """For durations."""
    ranked: Callable[[Mapping[str, Pool]], Mapping[str, Pool]] = dict
    """Pools with the priorities that their operator gave them."""
    charge: Callable[[Turn], Awaitable[None]] | None = None
    """Asked once in a turn, before its first eviction: the turn's evictions are written down as made."""


@dataclass(slots=True)
class Turn:
    """What became of one turn."""

    seen: Observation | None = None
    """The latest reading."""
    decided: Plan | None = None
    """Everything that was decided, whether or not it may be done."""
    memory: AutoscalerState | None = None
    """As the deciders left it."""
    done: list[Step] = field(default_factory=list)
    refused: list[tuple[Step, str]] = field(default_factory=list)
    withheld: list[tuple[Step, str]] = field(default_factory=list)
    failed: list[tuple[Step, str]] = field(default_factory=list)
    hold: Hold | None = None
    """What kept all of it from being done, when it was decided."""


class GuardedWorld:
    """One turn's world around the real one; see `autoscaler.core.reconcile.World`."""

    def __init__(self, world: Environment, manners: Manners) -> None:
        self._world, self._manners = world, manners
        self._charged = False
        self.turn = Turn()

    def decide(self, seen: Observation, limits: Limits, memory: AutoscalerState) -> tuple[Plan, AutoscalerState]:
        """The deciders' answer; with a hold in force a plan without steps, so that nothing is remembered as done."""
        began = self._manners.clock()
        plan, memory = decide(seen, limits, memory)
        self._manners.telemetry.took("decide", self._manners.clock() - began)
        self._manners.telemetry.decided(seen, plan, limits)
        self.turn.decided, self.turn.memory, self.turn.hold = plan, memory, self._manners.hold()
        if self.turn.hold is not None:
            return replace(plan, steps=()), memory
        return plan, memory

    async def observe(self) -> Observation:
        """The real world's reading."""
        began = self._manners.clock()
        try:
            seen = await self._world.observe()
            self.turn.seen = replace(seen, pools=self._manners.ranked(seen.pools))
        finally:
            self._manners.telemetry.took("observe", self._manners.clock() - began)
        return self.turn.seen

    async def settle(self, seconds: float) -> None:
        """The real world's time."""
        await self._world.settle(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Whoever may not act expects nothing and tidies nothing away."""
        if self._manners.hold() is None:
            await self._world.nominate(homes)

    async def apply(self, step: Step) -> Refusal | None:
        """Do it if it may be done; a refusal otherwise, never an error of the cluster's."""
        return (await self._all([step]))[0]

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """Several purchases of one pool: as one where the real world can do that, else each with a look of its own."""
        if isinstance(self._world, GroupBuyer):
            return await self._all(steps)
        return [await self.apply(step) for step in steps]

    async def _all(self, steps: Sequence[Step]) -> list[Refusal | None]:
        hold = self._manners.hold()
        if hold is None and isinstance(steps[0], Evict | Move) and not self.turn.failed:
            hold = await self._paid()
        if hold is not None:
            return [self._not_done(step, self.turn.withheld, "inhibited", hold.text) for step in steps]
        if self.turn.failed:
            broke = "an earlier step of this cycle failed"
            return [self._not_done(step, self.turn.withheld, "inhibited", broke) for step in steps]
        began = self._manners.clock()
        try:
            refused = await apply_steps(self._world, steps)
        except (ClusterError, ProviderError) as exc:
            return [self._not_done(step, self.turn.failed, "failed", str(exc)) for step in steps]
        finally:
            self._manners.telemetry.took("act", self._manners.clock() - began)
        return [self._noted(step, why) for step, why in zip(steps, refused, strict=True)]

    def _noted(self, step: Step, refused: Refusal | None) -> Refusal | None:
        """What became of one that was tried."""
        if refused is not None:
            return self._not_done(step, self.turn.refused, "refused", refused.reason, loud=False)
        self.turn.done.append(step)
        self._manners.telemetry.stepped(step, "done", self.turn.seen)
        return None

    async def _paid(self) -> Hold | None:
        """Why no pod may be moved now that the turn's moves have been put on the account, once; None: they may."""
        if not self._charged and self._manners.charge is not None:
            await self._manners.charge(self.turn)
        self._charged = True
        return self._manners.hold()

    def _not_done(
        self, step: Step, where: list[tuple[Step, str]], outcome: str, why: str, *, loud: bool = True
    ) -> Refusal:
        """Note it; what the world refused it has said itself."""
        if loud:
            log.warning("action %s: %s: %s", outcome, told(step), why)
        where.append((step, why))
        self._manners.telemetry.stepped(step, outcome)
        return Refusal(Why.NOT_READY, why)

    def settled(self, memory: AutoscalerState, before: AutoscalerState) -> AutoscalerState:
        """
        Without rests for owners whose pod nobody refused to let go: that step was only not taken.

        An eviction that broke off may have happened, and counts as one.
        """
        at = self.turn.seen.at if self.turn.seen is not None else 0.0
        broken = [step.owner for step, _ in self.turn.failed if isinstance(step, Evict | Move)]
        ours = {step.owner for step, _ in (*self.turn.withheld, *self.turn.failed) if isinstance(step, Evict | Move)}
        asked = {step.owner for step, _ in self.turn.refused if isinstance(step, Evict | Move)}
        rests = {
            owner: before.refused.get(owner, rest) if owner in ours - asked else rest
            for owner, rest in memory.refused.items()
            if owner not in ours - asked or owner in before.refused
        }
        moved = {**memory.moved, **dict.fromkeys(broken, at)}
        return replace(memory, refused=rests, moves=(*memory.moves, *[at] * len(broken)), moved=moved)


def told(step: Step) -> str:
    """A step on one line, for the log."""
    parts = [get_action(step)]
    parts += [str(value) for name in ("pool", "node", "pod", "owner") if (value := getattr(step, name, ""))]
    return f"{' '.join(parts)}: {step.reason}"
