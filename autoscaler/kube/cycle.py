# SPDX-License-Identifier: Apache-2.0
"""
One reconcile cycle of a cluster whose steps may be inhibited, and what became of each step.

`autoscaler.core.reconcile` has the order; this is its environment and its decider. Decides nothing about the cluster.
Whether a step may be taken is asked right before it. A step that fails because the API server or a provider is gone
ends the actions of its cycle: what follows was planned on a cluster that answered.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.decide import decide
from autoscaler.core.plan import Evict, Move, ResizePod, get_action
from autoscaler.core.reconcile import GroupBuyer, apply_steps
from autoscaler.kube.core.inhibition import Cause
from autoscaler.providers.base import ProviderError
from isolation.contract.model import Refusal, Why
from isolation.kube.core.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import Plan, ScaleUp, Step
    from autoscaler.core.pools import Pool
    from autoscaler.core.reconcile import Environment
    from autoscaler.core.state import AutoscalerState
    from autoscaler.kube.core.inhibition import Inhibition
    from autoscaler.kube.telemetry.metrics import Telemetry

    Steps = list[tuple[Step, str]]

log = logging.getLogger(__name__)
_OUTCOMES: Final = {Cause.DRY_RUN: "dry_run", Cause.STANDBY: "standby"}


class Cycle:
    """
    The environment of one `reconcile`, whose decider is `decide`; `finish` or `finish_broken` after it.

    A `GroupBuyer` over any cluster: one that adds one node at a time is asked before each whether it may.
    """

    def __init__(
        self,
        cluster: Environment,
        telemetry: Telemetry,
        *,
        inhibition: Callable[[], Inhibition | None],
        clock: Callable[[], float],
        rank: Callable[[Mapping[str, Pool]], Mapping[str, Pool]] = dict,
        charge: Callable[[Cycle], Awaitable[None]] | None = None,
    ) -> None:
        """
        `inhibition`: why nothing may be done now; `clock`: for durations; `rank`: pools with their priorities.

        `charge`: called once, before the first eviction or resize: saves those of the plan as made.
        """
        self._cluster, self._telemetry = cluster, telemetry
        self._inhibition, self._clock, self._rank, self._charge = inhibition, clock, rank, charge
        self._charged = False
        self.observation: Observation | None = None
        """The latest one; None: there is none that may be used."""
        self.plan: Plan | None = None
        """Everything that was decided, whether or not it may be done."""
        self.memory: AutoscalerState | None = None
        """As the deciders left it."""
        self.inhibition: Inhibition | None = None
        """What kept the plan from being acted on when it was decided."""
        self.done: list[Step] = []
        self.refused: Steps = []
        """With the reason, as the two below."""
        self.inhibited: Steps = []
        self.failed: Steps = []

    async def observe(self) -> Observation:
        """One observation; ConditionError where the cluster is unknown."""
        began = self._clock()
        try:
            found = await self._cluster.observe()
        finally:
            self._telemetry.took("observe", self._clock() - began)
        self.observation = replace(found, pools=self._rank(found.pools))
        return self.observation

    async def decide(
        self, observation: Observation, limits: ScalingLimits, memory: AutoscalerState
    ) -> tuple[Plan, AutoscalerState]:
        """The plan to act on: without steps while actions are inhibited, so that nothing is remembered as done."""
        began = self._clock()
        # in a thread: half a second at 5,000 nodes, in which the Lease is to be renewed
        plan, memory = await asyncio.to_thread(decide, observation, limits, memory)
        self._telemetry.took("decide", self._clock() - began)
        self._telemetry.decided(observation, plan, limits)
        self.plan, self.memory, self.inhibition = plan, memory, self._inhibition()
        return plan if self.inhibition is None else replace(plan, steps=()), memory

    async def settle(self, seconds: float) -> None:
        """Wait: what was true by chance is over at the next observation."""
        await self._cluster.settle(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Pass the nominations on, unless actions are inhibited."""
        if self._inhibition() is None:
            await self._cluster.nominate(homes)

    async def apply(self, step: Step) -> Refusal | None:
        """Take the step if it may be taken."""
        (answer,) = await self._take([step])
        return answer

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """Add the nodes if they may be added; a refusal for each that was not."""
        groups = [steps] if isinstance(self._cluster, GroupBuyer) else [[step] for step in steps]
        return [answer for group in groups for answer in await self._take(group)]

    def outcome(self) -> str:
        """Of a cycle that was carried to its end, as the metric has it."""
        if self.inhibition is not None:
            idle = self.plan is None or not self.plan.steps
            return _OUTCOMES.get(self.inhibition.cause, "idle" if idle else "inhibited")
        if self.inhibited or self.failed:
            return "inhibited"
        return "done" if self.done or self.refused else "idle"

    def finish(self, memory: AutoscalerState, before: AutoscalerState) -> AutoscalerState:
        """
        Without backoff for owners whose pod nobody refused to evict: that step was only not taken.

        An eviction that failed may have happened, and counts as one.
        """
        at = self.observation.at if self.observation is not None else 0.0
        failed = [step.owner for step, _ in self.failed if isinstance(step, Evict | Move)]
        untried = {step.owner for step, _ in (*self.inhibited, *self.failed) if isinstance(step, Evict | Move)}
        untried -= {step.owner for step, _ in self.refused if isinstance(step, Evict | Move)}
        rests = {
            owner: before.refused.get(owner, rest) if owner in untried else rest
            for owner, rest in memory.refused.items()
            if owner not in untried or owner in before.refused
        }
        moved = {**memory.moved, **dict.fromkeys(failed, at)}
        return replace(memory, refused=rests, moves=(*memory.moves, *[at] * len(failed)), moved=moved)

    def finish_broken(self, limits: ScalingLimits, before: AutoscalerState) -> AutoscalerState:
        """What must not be forgotten of a cycle that broke off: the steps that were taken."""
        if self.plan is None or self.memory is None:
            return before
        plan = replace(self.plan, steps=tuple(self.done))
        return self.finish(self.memory.record(plan, limits), before)

    async def _take(self, steps: Sequence[Step]) -> list[Refusal | None]:
        """Take them if they may be taken; a refusal for each that was not, never an error of the cluster's."""
        inhibition = self._inhibition()
        if inhibition is None and isinstance(steps[0], Evict | Move | ResizePod) and not self.failed:
            inhibition = await self._charge_evictions()
        if inhibition is not None:
            return [self._note(step, self.inhibited, "inhibited", inhibition.text) for step in steps]
        if self.failed:
            why = "an earlier step of this cycle failed"
            return [self._note(step, self.inhibited, "inhibited", why) for step in steps]
        began = self._clock()
        try:
            refusals = await apply_steps(self._cluster, steps)
        except (ClusterError, ProviderError) as exc:
            return [self._note(step, self.failed, "failed", str(exc)) for step in steps]
        finally:
            self._telemetry.took("act", self._clock() - began)
        return [self._note_answer(step, refusal) for step, refusal in zip(steps, refusals, strict=True)]

    async def _charge_evictions(self) -> Inhibition | None:
        """Why no pod may be moved now that the cycle's moves have been charged, once; None: they may."""
        if not self._charged and self._charge is not None:
            await self._charge(self)
        self._charged = True
        return self._inhibition()

    def _note_answer(self, step: Step, refusal: Refusal | None) -> Refusal | None:
        if refusal is not None:
            # the cluster has logged why
            return self._note(step, self.refused, "refused", refusal.reason, loud=False)
        self.done.append(step)
        self._telemetry.stepped(step, "done", self.observation)
        return None

    def _note(self, step: Step, where: Steps, outcome: str, why: str, *, loud: bool = True) -> Refusal:
        if loud:
            log.warning("action %s: %s: %s", outcome, describe(step), why)
        where.append((step, why))
        self._telemetry.stepped(step, outcome)
        return Refusal(Why.NOT_READY, why)


def describe(step: Step) -> str:
    """A step on one line, for the log."""
    parts = [get_action(step)]
    parts += [str(value) for name in ("pool", "node", "pod", "owner") if (value := getattr(step, name, ""))]
    return f"{' '.join(parts)}: {step.reason}"
