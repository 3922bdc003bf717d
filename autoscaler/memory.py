"""
What the autoscaler remembers from turn to turn: since when, how often, and who could not deliver.

A value: a turn gets one and returns the next. Everything else is observed anew each time, so a
restart loses patience and nothing more. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.budget import HOUR, Budget
from autoscaler.plan import Buy, Discard, Evict, Keep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.demand import Demand
    from autoscaler.limits import Limits
    from autoscaler.plan import Plan


@dataclass(frozen=True, slots=True)
class Backoff:
    """A pool that could not deliver, and until when it is not asked."""

    until: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that outlives a turn."""

    unneeded: Mapping[str, float] = field(default_factory=dict)
    """Since when each superfluous node has been so."""
    last_add: float = float("-inf")
    """When a node was last bought, or kept after all."""
    moves: tuple[float, ...] = ()
    """When pods were evicted, in the last hour."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """When a pod of an owner was last evicted."""
    closed: Mapping[str, Backoff] = field(default_factory=dict)
    """Pools that could not deliver, by name."""
    demand: Demand | None = None
    """The last answer for every waiting pod: for people."""

    def budget(self, limits: Limits, now: float) -> Budget:
        """How much disruption is left."""
        return Budget(limits, now, self.moves, self.moved)

    def shut(self, now: float) -> frozenset[str]:
        """Pools that are not asked for nodes now."""
        return frozenset(name for name, backoff in self.closed.items() if now < backoff.until)

    def acted(self, plan: Plan, limits: Limits) -> Memory:
        """What to remember of the steps that were taken."""
        evicted = [step for step in plan.steps if isinstance(step, Evict)]
        added = any(isinstance(step, Buy | Keep) for step in plan.steps)
        failed = sorted({step.pool for step in plan.steps if isinstance(step, Discard)})
        moved = {owner: at for owner, at in self.moved.items() if plan.at - at < limits.immune_seconds}
        return replace(
            self,
            last_add=plan.at if added else self.last_add,
            moves=(*(at for at in self.moves if plan.at - at < HOUR), *(plan.at for _ in evicted)),
            moved=moved | {step.owner: plan.at for step in evicted},
            closed={**self.closed, **{pool: self._backoff(pool, limits, plan.at) for pool in failed}},
        )

    def _backoff(self, pool: str, limits: Limits, now: float) -> Backoff:
        before = self.closed.get(pool)
        # a pool that has delivered for long enough starts again with the shortest rest
        if before is None or now - before.until > limits.backoff_longest_seconds:
            return Backoff(now + limits.backoff_seconds, limits.backoff_seconds)
        seconds = min(2 * before.seconds, limits.backoff_longest_seconds)
        return Backoff(now + seconds, seconds)
