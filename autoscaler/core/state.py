# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler remembers from cycle to cycle: since when, how often, and what is in backoff.

A value: a cycle gets one and returns the next. Everything else is observed again in each cycle, so a restart without it
only waits longer before it acts. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.core.disruption_budget import HOUR, Budget
from autoscaler.core.plan import CancelDrain, Evict, Move, RemoveFailedNode, RemoveNode, ResizePod, ScaleUp
from autoscaler.core.rightsizing.trial import TrialState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan, Step
    from autoscaler.core.scale_up import Demand


@dataclass(frozen=True, slots=True)
class Backoff:
    """Of a pool whose scale-up failed, or an owner whose eviction was refused: until when it is left alone."""

    until: float
    seconds: float


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """Everything that outlives a cycle."""

    unneeded: Mapping[str, float] = field(default_factory=dict)
    """Since when each unneeded node has been so."""
    last_add: float = float("-inf")
    """When a node was last added, or its drain cancelled."""
    moves: tuple[float, ...] = ()
    """When pods were evicted, in the last hour."""
    removals: tuple[float, ...] = ()
    """When machines were removed, in the last hour."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """When a pod of an owner was last evicted."""
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    """Pools whose scale-up failed, by name."""
    refused: Mapping[str, Backoff] = field(default_factory=dict)
    """Owners whose pod's eviction was refused."""
    hot: Mapping[str, float] = field(default_factory=dict)
    """Since when each hot card has been so, by UUID."""
    defragmenting: bool = False
    """Whether `defragment_start_ratio` was passed and `defragment_stop_ratio` has not been reached yet."""
    trials: TrialState = field(default_factory=TrialState)
    """Running pods that were made smaller."""
    demand: Demand | None = None
    """The last answer for every pending pod: for people."""

    def budget(self, observation: Observation, limits: ScalingLimits, replicas: Mapping[str, int]) -> Budget:
        """How much disruption is left; `replicas` are running pods by owner."""
        in_backoff = {owner: backoff.until for owner, backoff in self.refused.items() if observation.at < backoff.until}
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
            in_backoff,
            promised,
        )

    def pools_in_backoff(self, now: float) -> frozenset[str]:
        """Pools that get no nodes now."""
        return frozenset(name for name, backoff in self.backoffs.items() if now < backoff.until)

    def record(self, plan: Plan, limits: ScalingLimits, refused: Collection[Step] = ()) -> AutoscalerState:
        """The state after the steps of a plan, less those that the cluster refused."""
        done = [step for step in plan.steps if step not in refused] if refused else list(plan.steps)
        gone = [step for step in done if isinstance(step, Evict | Move)]
        removed = [step for step in done if is_removal(step)]
        added = any(isinstance(step, ScaleUp | CancelDrain) for step in done)
        failed = sorted({step.pool for step in done if isinstance(step, RemoveFailedNode)})
        # what is measured next is from before the move: the card must be hot for the whole time again
        mitigated = {step.card for step in gone if isinstance(step, Move)}
        stuck = sorted({step.owner for step in refused if isinstance(step, Evict | Move)})
        moved = {owner: at for owner, at in self.moved.items() if plan.at - at < limits.move_cooldown_seconds}
        in_backoff = {owner: backoff for owner, backoff in self.refused.items() if plan.at - backoff.until < HOUR}
        return replace(
            self,
            last_add=plan.at if added else self.last_add,
            moves=(*(at for at in self.moves if plan.at - at < HOUR), *(plan.at for _ in gone)),
            removals=(*(at for at in self.removals if plan.at - at < HOUR), *(plan.at for _ in removed)),
            moved=moved | {step.owner: plan.at for step in gone},
            backoffs={**self.backoffs, **{pool: _extend(self.backoffs.get(pool), limits, plan.at) for pool in failed}},
            hot={uuid: at for uuid, at in self.hot.items() if uuid not in mitigated} if mitigated else self.hot,
            refused=in_backoff | {owner: _extend(self.refused.get(owner), limits, plan.at) for owner in stuck},
            trials=self.trials.record([step for step in done if isinstance(step, ResizePod)], plan.at),
        )


def is_removal(step: Step) -> bool:
    """Whether a machine is removed: one only requested is none yet, and a failed one with a node is tainted first."""
    if isinstance(step, RemoveNode):
        return True
    return isinstance(step, RemoveFailedNode) and not step.has_node and not step.node.startswith(f"{step.pool}/")


def _extend(before: Backoff | None, limits: ScalingLimits, now: float) -> Backoff:
    # after long enough without a failure the backoff starts again with the shortest
    if before is None or now - before.until > limits.max_pool_backoff_seconds:
        return Backoff(now + limits.initial_pool_backoff_seconds, limits.initial_pool_backoff_seconds)
    seconds = min(2 * before.seconds, limits.max_pool_backoff_seconds)
    return Backoff(now + seconds, seconds)
