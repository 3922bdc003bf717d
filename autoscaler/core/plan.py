# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler is about to do, step by step, each with a reason fit for an Event.

A plan is made from one observation and carried out after the cluster has settled:
`still_valid` keeps the steps that a fresh observation still supports. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.lifecycle import COMING, MachineState
from isolation.placement.engine import Engine, PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.observation import Nomination, Observation, Reservation
    from isolation.contract.model import Pod


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """One more node for a pool."""

    pool: str
    pods: tuple[str, ...]
    """UIDs of the pods that wait for it; empty: to reach the pool's smallest size."""
    reason: str
    places: tuple[tuple[int, ...], ...] = ()
    """For each of them, the positions of its cards on that node."""
    fragmented_pods: int = 0
    """Of these, pods that node sums would have called placeable and left waiting for ever."""


@dataclass(frozen=True, slots=True)
class CancelScaleUp:
    """Take back the order for one machine, which nobody has begun to carry out."""

    node: str
    """The machine's name among the others."""
    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Call a drain off: the node takes pods again."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Take a node out of service and reserve a home for every pod on it, before any is evicted."""

    node: str
    reservations: tuple[Reservation, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Move one pod to the home reserved for it: its controller makes it again."""

    pod: str
    node: str
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Reserve a home for one pod, then evict it; its node stays."""

    pod: str
    node: str
    """Where it is now."""
    owner: str
    reservation: Reservation
    kind: str
    """`make_room`, `defragment` or `mitigate_hot_card`."""
    reason: str
    pods: tuple[str, ...] = ()
    """UIDs of the waiting pods for which it makes room."""
    card: str = ""
    """The hot card that it relieves."""


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Give an empty, drained node back."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveFailedNode:
    """Give up on a machine that did not become usable, and on its pool for a while."""

    node: str
    pool: str
    reason: str
    has_node: bool = False
    """Its node exists: it is tainted first, and removed as a drained one is."""


Step: TypeAlias = ScaleUp | CancelScaleUp | CancelDrain | Drain | Evict | Move | RemoveNode | RemoveFailedNode
ACTIONS: Final = MappingProxyType(
    {
        ScaleUp: "scale_up",
        CancelScaleUp: "cancel_scale_up",
        CancelDrain: "cancel_drain",
        Drain: "drain",
        Evict: "evict",
        RemoveNode: "remove_node",
        RemoveFailedNode: "remove_failed_node",
    }
)
"""Public name of each step that has one name only: metric label, log, `plan`."""


def get_action(step: Step) -> str:
    """The public name of a step; of a move its kind."""
    return step.kind if isinstance(step, Move) else ACTIONS[type(step)]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one turn, in the order in which they are taken."""

    at: float
    steps: tuple[Step, ...] = ()
    capped: tuple[str, ...] = ()
    """Fleet-wide limits that keep something from being done, each with what."""
    nominations: Mapping[str, Nomination] = field(default_factory=dict)
    """Where waiting pods go on machines that are still coming, by UID: an expectation, not a step."""

    def still_valid(self, fresh: Observation) -> Plan:
        """The steps that hold on a later observation; what does not is left for the next turn."""
        check = _Check(fresh)
        return replace(self, at=fresh.at, steps=tuple(step for step in self.steps if check.holds(step)))


def list_names(pods: Iterable[Pod]) -> str:
    """The first three by name, the rest as a number."""
    keys = [pod.key for pod in pods]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")  # noqa: PLR2004 (a line's worth)


class _Check:
    """Steps are checked in order, each against what the ones before it will have changed."""

    def __init__(self, fresh: Observation) -> None:
        self._fresh = fresh
        self._trial: Engine | None = None
        self._waiting = {pod.uid for pod in fresh.pending}
        self._size = fresh.sizes()

    def holds(self, step: Step) -> bool:
        """Whether the step may still be taken."""
        if isinstance(step, ScaleUp):
            return self._buy(step)
        if isinstance(step, Drain):
            return self._drain(step)
        if isinstance(step, Move):
            return self._move(step)
        machine = self._fresh.machines.get(step.node)
        return machine is not None and self._on_machine(step, machine.state)

    def _on_machine(
        self, step: CancelScaleUp | CancelDrain | Evict | RemoveNode | RemoveFailedNode, state: MachineState
    ) -> bool:
        if isinstance(step, CancelScaleUp):
            return state is MachineState.REQUESTED and step.pool in self._fresh.ordered
        if isinstance(step, RemoveFailedNode):
            return state in COMING or state is MachineState.FAILED
        if isinstance(step, Evict):
            # a node that stays: a single move that was cut off between its reservation and its eviction
            return (
                state in {MachineState.DRAINING, MachineState.READY}
                and self._there(step)
                and step.pod in self._fresh.reserved
            )
        if state is not MachineState.DRAINING or isinstance(step, CancelDrain):
            return state is MachineState.DRAINING
        return not self._fresh.blocking_removal(step.node)

    def _there(self, step: Evict | Move) -> bool:
        pod = self._fresh.on.get(step.node, {}).get(step.pod)
        return pod is not None and not pod.deleting

    def _move(self, step: Move) -> bool:
        if not self._there(step) or step.pod in self._fresh.reserved:
            return False
        # a rescue is for somebody: no longer if that pod has its place
        if step.pods and self._waiting.isdisjoint(step.pods):
            return False
        return self._reserve((step.reservation,))

    def _buy(self, step: ScaleUp) -> bool:
        pool = self._fresh.pools.get(step.pool)
        if pool is None or self._size[step.pool] >= (pool.max_nodes if step.pods else pool.min_nodes):
            return False
        if step.pods and self._waiting.isdisjoint(step.pods):
            return False
        self._size[step.pool] += 1
        return True

    def _drain(self, step: Drain) -> bool:
        here = self._fresh.on.get(step.node, {})
        staying = {uid for uid, pod in here.items() if not pod.deleting and not belongs_to_node(pod)}
        # a pod that came meanwhile has no home: the node is left alone until the next turn
        if not self._fresh.is_usable(step.node) or staying != {home.pod for home in step.reservations}:
            return False
        return self._reserve(step.reservations)

    def _reserve(self, homes: tuple[Reservation, ...]) -> bool:
        """Take these homes off the trial; False, and nothing taken, where one is no more."""
        if not homes:
            return True
        trial = self._trial = self._trial or self._fresh.engine.fork()
        taken: list[str] = []
        for home in homes:
            if not self._fresh.is_usable(home.placement.node) or not _held(trial, home):
                for hold in taken:
                    trial.release(hold)
                return False
            taken.append(home.hold)
        return True


def _held(trial: Engine, home: Reservation) -> bool:
    """Take a home, if it is still there."""
    try:
        trial.hold(home.hold, home.request, home.placement)
    except PlacementError:
        return False
    return True
