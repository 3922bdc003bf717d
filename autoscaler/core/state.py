# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler remembers from turn to turn: since when, how often, and who could not deliver.

A value: a turn gets one and returns the next. Everything else is observed anew each time, so a
restart loses patience and nothing more. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.core.disruption_budget import HOUR, Budget
from autoscaler.core.plan import CancelDrain, Evict, Move, RemoveFailedNode, RemoveNode, ScaleUp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan, Step
    from autoscaler.core.scale_up import Demand


@dataclass(frozen=True, slots=True)
class Backoff:
    """Who could not deliver, or would not let go, and until when it is left alone."""

    until: float
    seconds: float


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """Everything that outlives a turn."""

    unneeded: Mapping[str, float] = field(default_factory=dict)
    """Since when each superfluous node has been so."""
    last_add: float = float("-inf")
    """When a node was last bought, or kept after all."""
    moves: tuple[float, ...] = ()
    """When pods were evicted, in the last hour."""
    removals: tuple[float, ...] = ()
    """When machines were removed, in the last hour."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """When a pod of an owner was last evicted."""
    closed: Mapping[str, Backoff] = field(default_factory=dict)
    """Pools that could not deliver, by name."""
    refused: Mapping[str, Backoff] = field(default_factory=dict)
    """Owners whose pod the cluster would not let go."""
    hot: Mapping[str, float] = field(default_factory=dict)
    """Since when each hot card has been so, by UUID."""
    defragmenting: bool = False
    """Whether the high mark was passed and the low one has not been reached yet."""
    demand: Demand | None = None
    """The last answer for every waiting pod: for people."""

    def budget(self, observation: Observation, limits: Limits, replicas: Mapping[str, int]) -> Budget:
        """How much disruption is left; `replicas` are running pods by owner."""
        resting = {owner: rest.until for owner, rest in self.refused.items() if observation.at < rest.until}
        pods = sum(map(len, observation.on.values()))
        promised = sum(uid in observation.pods and not observation.pods[uid].deleting for uid in observation.reserved)
        return Budget(
            limits,
            observation.at,
            self.moves,
            self.moved,
            pods,
            replicas,
            observation.guarded,
            observation.blocked,
            resting,
            promised,
        )

    def pools_in_backoff(self, now: float) -> frozenset[str]:
        """Pools that are not asked for nodes now."""
        return frozenset(name for name, backoff in self.closed.items() if now < backoff.until)

    def record(self, plan: Plan, limits: Limits, refused: Collection[Step] = ()) -> AutoscalerState:
        """What to remember of the steps that were taken, and of those the cluster would not have."""
        done = [step for step in plan.steps if step not in refused] if refused else list(plan.steps)
        gone = [step for step in done if isinstance(step, Evict | Move)]
        removed = [step for step in done if is_removal(step)]
        added = any(isinstance(step, ScaleUp | CancelDrain) for step in done)
        failed = sorted({step.pool for step in done if isinstance(step, RemoveFailedNode)})
        # what is measured next is of before the move: a card that was relieved must be hot anew for as long
        relieved = {step.card for step in gone if isinstance(step, Move)}
        stuck = sorted({step.owner for step in refused if isinstance(step, Evict | Move)})
        moved = {owner: at for owner, at in self.moved.items() if plan.at - at < limits.move_cooldown_seconds}
        resting = {owner: rest for owner, rest in self.refused.items() if plan.at - rest.until < HOUR}
        return replace(
            self,
            last_add=plan.at if added else self.last_add,
            moves=(*(at for at in self.moves if plan.at - at < HOUR), *(plan.at for _ in gone)),
            removals=(*(at for at in self.removals if plan.at - at < HOUR), *(plan.at for _ in removed)),
            moved=moved | {step.owner: plan.at for step in gone},
            closed={**self.closed, **{pool: _longer(self.closed.get(pool), limits, plan.at) for pool in failed}},
            hot={uuid: at for uuid, at in self.hot.items() if uuid not in relieved} if relieved else self.hot,
            refused=resting | {owner: _longer(self.refused.get(owner), limits, plan.at) for owner in stuck},
        )


def is_removal(step: Step) -> bool:
    """Whether a machine goes: what was only asked for is none yet, and a failed one with a node is tainted first."""
    if isinstance(step, RemoveNode):
        return True
    return isinstance(step, RemoveFailedNode) and not step.has_node and not step.node.startswith(f"{step.pool}/")


def _longer(before: Backoff | None, limits: Limits, now: float) -> Backoff:
    # who has been well for long enough starts again with the shortest rest
    if before is None or now - before.until > limits.max_pool_backoff_seconds:
        return Backoff(now + limits.initial_pool_backoff_seconds, limits.initial_pool_backoff_seconds)
    seconds = min(2 * before.seconds, limits.max_pool_backoff_seconds)
    return Backoff(now + seconds, seconds)
