# SPDX-License-Identifier: Apache-2.0
"""
One turn: observe, decide, let the cluster settle, keep what still holds, act.

The same code turns on Kubernetes and in the embedded cluster; only the `Environment` differs. It
waits through the world (`settle`), so that time is the world's and a simulation needs no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from autoscaler.core.decide import decide
from autoscaler.core.plan import ScaleUp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Nomination, Observation
    from autoscaler.core.plan import Plan, Step
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Refusal

    Decider = Callable[[Observation, Limits, AutoscalerState], tuple[Plan, AutoscalerState]]


class Environment(Protocol):
    """What the loop needs of a cluster."""

    async def observe(self) -> Observation:
        """One consistent reading, valid until the next await."""

    async def settle(self, seconds: float) -> None:
        """Let this much of the world's time pass."""

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Remember which waiting pods go on which coming machine; replaces what was said before."""

    async def apply(self, step: Step) -> Refusal | None:
        """Do one thing, and say why; why not, where the cluster would not have it."""


@runtime_checkable
class GroupBuyer(Protocol):
    """A world that can do several purchases of one pool as one."""

    async def buy(self, steps: Sequence[ScaleUp]) -> list[Refusal | None]:
        """As `World.apply` of each, in this order; all are of one pool."""


class DryRun:
    """A world that is seen and never touched: what would have been done is kept for the reader."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self.would: list[Step] = []

    async def observe(self) -> Observation:
        """The real world's reading."""
        return await self._world.observe()

    async def settle(self, seconds: float) -> None:
        """The real world's time."""
        await self._world.settle(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Nothing is expected of a dry run."""

    async def apply(self, step: Step) -> None:
        """Note it."""
        self.would.append(step)


async def reconcile(
    world: Environment, limits: Limits, memory: AutoscalerState, decider: Decider = decide
) -> tuple[Plan, AutoscalerState]:
    """The plan that was carried out, and what to remember for the next turn."""
    plan, memory = decider(await world.observe(), limits, memory)
    if plan.steps and limits.action_validation_delay_seconds:
        await world.settle(limits.action_validation_delay_seconds)
        plan = plan.still_valid(await world.observe())
    await world.nominate(plan.nominations)
    refused: list[Step] = []
    for some in group_steps(plan.steps):
        refused += [step for step, why in zip(some, await apply_steps(world, some), strict=True) if why is not None]
    return plan, memory.record(plan, limits, refused)


async def apply_steps(world: Environment, steps: Sequence[Step]) -> list[Refusal | None]:
    """Each of these done, or why not: purchases as one where the world can do that."""
    buys = [step for step in steps if isinstance(step, ScaleUp)]
    if len(buys) == len(steps) > 1 and isinstance(world, GroupBuyer):
        return await world.buy(buys)
    return [await world.apply(step) for step in steps]


def group_steps(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps in their order, but purchases that follow each other by pool, in the order of the pools' first."""
    found: list[list[Step]] = []
    run: dict[str, list[Step]] = {}
    for step in steps:
        if not isinstance(step, ScaleUp):
            run = {}
            found.append([step])
        elif step.pool in run:
            run[step.pool].append(step)
        else:
            run[step.pool] = [step]
            found.append(run[step.pool])
    return found
