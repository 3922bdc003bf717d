# SPDX-License-Identifier: Apache-2.0
"""
Flapping: actions of the autoscaler that it undid within an hour.

Decides what counts: a drain of a node that became usable not long before, a cancelled drain, a pod moved again. Counts
from what was observed and done, not from what a decider says of itself. A scale-up for new pods after a scale-down is
no flapping: it could not be foreseen. Nodes that existed at the first observation do not count.
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
    """Remembers since when nodes are usable, and drains and moves for as long as undoing them would be flapping."""

    def __init__(self) -> None:
        self._usable: dict[str, float] = {}
        self._drained: dict[str, float] = {}
        self._moved: dict[str, float] = {}
        """When a pod of an owner was last moved."""
        self._observed = False
        self._within = 0.0
        self._pools: dict[str, str] = {}
        self._created: dict[str, float] = {}

    def observe(self, observation: Observation, plan: Plan, within: float) -> None:
        """Before a plan's steps: the observation it was made from; undone `within` so many seconds is flapping."""
        begun = observation.at if self._observed else _LONG_AGO
        self._observed, self._within = True, within
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
        self._created = {uid: observation.pods[uid].created for uid in moving if uid in observation.pods}

    def record(self, step: Step, at: float) -> str | None:
        """A step of that plan was done: the pool in which it undid something; None: it undid nothing."""
        before = _LONG_AGO
        if isinstance(step, Drain):
            before = self._usable.get(step.node, _LONG_AGO)
            self._drained[step.node] = at
        elif isinstance(step, CancelDrain):
            before = self._drained.pop(step.node, _LONG_AGO)
        elif isinstance(step, Evict | Move):
            before = self._moved.get(step.owner, _LONG_AGO)
            # replicas of one owner move one after the other; the same one was made after the move before
            if self._created.get(step.pod, _LONG_AGO) < before:
                before = _LONG_AGO
            self._moved[step.owner] = at
        return self._pools.get(_node(step), "") if at - before < self._within else None


def _node(step: Step) -> str:
    return getattr(step, "node", "")
