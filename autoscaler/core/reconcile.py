# SPDX-License-Identifier: Apache-2.0
"""
One reconcile cycle: observe, decide, let the cluster settle, drop the steps that no longer hold, act.

The same code runs on Kubernetes and in the embedded cluster; only the `Environment` differs. It waits through the
environment (`settle`), so that a simulation needs no clock.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from autoscaler.core.decide import decide
from autoscaler.core.plan import ScaleUp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import Plan, Step
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Refusal

    Decision = tuple[Plan, AutoscalerState]
    Decider = Callable[[Observation, ScalingLimits, AutoscalerState], Decision]
    AnyDecider = Callable[[Observation, ScalingLimits, AutoscalerState], Decision | Awaitable[Decision]]


class Environment(Protocol):
    """What a cycle needs of a cluster."""

    async def observe(self) -> Observation:
        """One consistent reading, valid until the next await."""

    async def settle(self, seconds: float) -> None:
        """Let this much of the environment's time pass."""

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Remember which pending pods go on which coming machine; replaces the previous nominations."""

    async def apply(self, step: Step) -> Refusal | None:
        """Do one step and record its reason; why not, where the cluster refuses it."""


@runtime_checkable
class GroupBuyer(Protocol):
    """An environment that can add several nodes of one pool by one call."""

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """As `Environment.apply` of each, in this order; all are of one pool."""


async def reconcile(
    environment: Environment, limits: ScalingLimits, state: AutoscalerState, decider: AnyDecider = decide
) -> Decision:
    """The plan that was carried out, and the state for the next cycle. The decider's answer may be awaitable."""
    decision = decider(await environment.observe(), limits, state)
    plan, state = await decision if isawaitable(decision) else decision
    if plan.steps and limits.action_validation_delay_seconds:
        await environment.settle(limits.action_validation_delay_seconds)
        plan = plan.still_valid(await environment.observe())
    await environment.nominate(plan.nominations)
    refused: list[Step] = []
    for group in group_steps(plan.steps):
        answers = await apply_steps(environment, group)
        refused += [step for step, refusal in zip(group, answers, strict=True) if refusal is not None]
    return plan, state.record(plan, limits, refused)


async def apply_steps(environment: Environment, steps: Sequence[Step]) -> list[Refusal | None]:
    """Do each of these; why not, by step. Scale-ups go as one where the environment can do that."""
    scale_ups = [step for step in steps if isinstance(step, ScaleUp)]
    if len(scale_ups) == len(steps) > 1 and isinstance(environment, GroupBuyer):
        return await environment.buy(scale_ups)
    return [await environment.apply(step) for step in steps]


def group_steps(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps in their order; scale-ups that follow each other are grouped by pool."""
    found: list[list[Step]] = []
    by_pool: dict[str, list[Step]] = {}
    for step in steps:
        if not isinstance(step, ScaleUp):
            by_pool = {}
            found.append([step])
        elif step.pool in by_pool:
            by_pool[step.pool].append(step)
        else:
            by_pool[step.pool] = [step]
            found.append(by_pool[step.pool])
    return found
