# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler undid of its own doing: one thing done and undone within an hour.

Decides what counts: a node emptied that became usable not long before, a drain called off, a pod moved again.
Counts from what was seen and done, not from what a decider says of itself. That a pool buys for new pods after
it gave a node back is no flap: nobody can know who comes. What stood already when it first looked, it does not
judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import MachineState
from autoscaler.core.plan import CancelDrain, Drain, Evict, Move

if TYPE_CHECKING:
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan, Step

_LONG_AGO: Final = float("-inf")


class FlapDetector:
    """Remembers since when nodes are usable, and what was done to whom, as long as that can be undone too soon."""

    def __init__(self) -> None:
        self._usable: dict[str, float] = {}
        self._drained: dict[str, float] = {}
        self._moved: dict[str, float] = {}
        """When a pod of an owner was last moved."""
        self._looked = False
        self._within = 0.0
        self._pools: dict[str, str] = {}
        self._born: dict[str, float] = {}

    def observe(self, observation: Observation, plan: Plan, within: float) -> None:
        """Each turn: what a plan is made on, and how soon is too soon; seconds."""
        begun = observation.at if self._looked else _LONG_AGO
        self._looked, self._within = True, within
        self._usable = {
            name: self._usable.get(name, begun)
            for name, machine in observation.machines.items()
            if machine.state is MachineState.READY or name in self._usable
        }
        self._drained = {name: at for name, at in self._drained.items() if observation.at - at < within}
        self._moved = {owner: at for owner, at in self._moved.items() if observation.at - at < within}
        self._pools = {
            name: observation.machines[name].pool for name in map(_node, plan.steps) if name in observation.machines
        }
        moving = {step.pod for step in plan.steps if isinstance(step, Evict | Move)}
        self._born = {uid: observation.pods[uid].created for uid in moving if uid in observation.pods}

    def record(self, step: Step, at: float) -> str | None:
        """A step of that plan was taken: the pool in which it undid something, None if it did not."""
        before = _LONG_AGO
        if isinstance(step, Drain):
            before = self._usable.get(step.node, _LONG_AGO)
            self._drained[step.node] = at
        elif isinstance(step, CancelDrain):
            before = self._drained.pop(step.node, _LONG_AGO)
        elif isinstance(step, Evict | Move):
            before = self._moved.get(step.owner, _LONG_AGO)
            # replicas of one owner move one after the other; the same one was made after the move before
            if self._born.get(step.pod, _LONG_AGO) < before:
                before = _LONG_AGO
            self._moved[step.owner] = at
        return self._pools.get(_node(step), "") if at - before < self._within else None


def _node(step: Step) -> str:
    return getattr(step, "node", "")
