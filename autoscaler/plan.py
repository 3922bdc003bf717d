"""
What the autoscaler is about to do, step by step, each with a reason fit for an Event.

A plan is made from one observation and carried out after the cluster has settled:
`still_valid` keeps the steps that a fresh observation still supports. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from autoscaler.lifecycle import COMING, State
from isolation.placement.engine import Engine, PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.observation import Home, Observation, Reservation


@dataclass(frozen=True, slots=True)
class Buy:
    """One more node for a pool."""

    pool: str
    serves: tuple[str, ...]
    """UIDs of the pods that wait for it; empty: to reach the pool's smallest size."""
    reason: str
    places: tuple[tuple[int, ...], ...] = ()
    """For each of them, the positions of its cards on that node."""
    phantoms: int = 0
    """Of these, pods that node sums would have called placeable and left waiting for ever."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Call a drain off: the node takes pods again."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Take a node out of service and reserve a home for every pod on it, before any is evicted."""

    node: str
    homes: tuple[Reservation, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Move one pod to the home reserved for it: its controller makes it again."""

    pod: str
    node: str
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Give an empty, drained node back."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Give up on a machine that did not become usable, and on its pool for a while."""

    node: str
    pool: str
    reason: str


Step: TypeAlias = Buy | Keep | Drain | Evict | Delete | Discard


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one turn, in the order in which they are taken."""

    at: float
    steps: tuple[Step, ...] = ()
    homes: Mapping[str, Home] = field(default_factory=dict)
    """Where waiting pods go on machines that are still coming, by UID: an expectation, not a step."""

    def still_valid(self, fresh: Observation) -> Plan:
        """The steps that hold on a later observation; what does not is left for the next turn."""
        check = _Check(fresh)
        return replace(self, at=fresh.at, steps=tuple(step for step in self.steps if check.holds(step)))


class _Check:
    """Steps are checked in order, each against what the ones before it will have changed."""

    def __init__(self, fresh: Observation) -> None:
        self._fresh = fresh
        self._trial: Engine | None = None
        self._waiting = {pod.uid for pod in fresh.pending}
        self._size = fresh.sizes()

    def holds(self, step: Step) -> bool:
        """Whether the step may still be taken."""
        if isinstance(step, Buy):
            return self._buy(step)
        if isinstance(step, Drain):
            return self._drain(step)
        machine = self._fresh.machines.get(step.node)
        return machine is not None and self._on_machine(step, machine.state)

    def _on_machine(self, step: Keep | Evict | Delete | Discard, state: State) -> bool:
        if isinstance(step, Discard):
            return state in COMING or state is State.FAILED
        if state is not State.DRAINING or isinstance(step, Keep):
            return state is State.DRAINING
        here = self._fresh.on.get(step.node, {})
        if isinstance(step, Delete):
            return not here
        pod = here.get(step.pod)
        return pod is not None and not pod.deleting and step.pod in self._fresh.reserved

    def _buy(self, step: Buy) -> bool:
        pool = self._fresh.pools.get(step.pool)
        if pool is None or self._size[step.pool] >= (pool.largest if step.serves else pool.smallest):
            return False
        if step.serves and self._waiting.isdisjoint(step.serves):
            return False
        self._size[step.pool] += 1
        return True

    def _drain(self, step: Drain) -> bool:
        staying = {uid for uid, pod in self._fresh.on.get(step.node, {}).items() if not pod.deleting}
        # a pod that came meanwhile has no home: the node is left alone until the next turn
        if not self._fresh.usable(step.node) or staying != {home.pod for home in step.homes}:
            return False
        if not step.homes:
            return True
        trial = (self._trial or self._fresh.engine).fork()
        for home in step.homes:
            if not self._fresh.usable(home.placement.node):
                return False
            try:
                trial.hold(home.hold, home.request, home.placement)
            except PlacementError:
                return False
        self._trial = trial
        return True
