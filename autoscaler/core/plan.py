# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler is about to do, step by step, each with a reason fit for an Event.

A plan is made from one observation and carried out after the cluster has settled:
`still_valid` keeps the steps that a latest observation still supports. Pure.
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

    from autoscaler.core.observation import Nomination, Observation, SuccessorReservation
    from autoscaler.core.rightsizing.containers import Trial
    from isolation.contract.model import Pod


SHRINK: Final = "shrink"
RESTORE: Final = "restore"
RELEASE: Final = "release"


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """Add one node to a pool."""

    pool: str
    pods: tuple[str, ...]
    """UIDs of the pending pods it is for; empty: to reach the pool's minimum size."""
    reason: str
    places: tuple[tuple[int, ...], ...] = ()
    """For each of them, the positions of its cards on that node."""
    fragmented_pods: int = 0
    """Number of these that would fit by the sum over a node's cards (`fragmentation`)."""


@dataclass(frozen=True, slots=True)
class CancelScaleUp:
    """Cancel the order for one machine, which no provider has begun to carry out."""

    node: str
    """The name of the requested machine."""
    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Cancel a drain: the node takes pods again."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Taint a node and make a reservation for every pod on it, before any is evicted."""

    node: str
    reservations: tuple[SuccessorReservation, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict one pod that has a reservation: its controller creates the successor."""

    pod: str
    node: str
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Make a reservation for one pod, then evict it; its node stays."""

    pod: str
    node: str
    """Where it is now."""
    owner: str
    reservation: SuccessorReservation
    kind: str
    """`make_room`, `defragment`, `mitigate_hot_card` or `restore`."""
    reason: str
    pods: tuple[str, ...] = ()
    """UIDs of the pending pods for which it makes room."""
    card: str = ""
    """UUID of the hot card that the pod leaves."""


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Remove an empty, drained node."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveFailedNode:
    """Remove a machine that did not become usable, and stop adding to its pool for a while."""

    node: str
    pool: str
    reason: str
    has_node: bool = False
    """Its node exists: it is tainted first, and removed as a drained one is."""


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Change what one container of a running pod is promised; the pod stays where it is."""

    pod: str
    node: str
    kind: str
    """`SHRINK` (what becomes free stays reserved for it), `RESTORE` or `RELEASE` (what was reserved)."""
    trial: Trial
    reason: str

    @property
    def card_bytes(self) -> int:
        """Promised to the container from then on, of each card."""
        return self.trial.from_bytes if self.kind == RESTORE else self.trial.to_bytes

    @property
    def reserved_bytes(self) -> int:
        """What stays booked of each card for the pod as a whole; 0: what its containers have."""
        return self.trial.reserved_bytes if self.kind == SHRINK else 0


Step: TypeAlias = (
    ScaleUp | CancelScaleUp | CancelDrain | Drain | Evict | Move | RemoveNode | RemoveFailedNode | ResizePod
)
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
    """The public name of a step; of a move and of a resize its kind."""
    return step.kind if isinstance(step, Move | ResizePod) else ACTIONS[type(step)]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one cycle, in the order in which they are done."""

    at: float
    steps: tuple[Step, ...] = ()
    capped: tuple[str, ...] = ()
    """What fleet-wide limits prevent, for people."""
    nominations: Mapping[str, Nomination] = field(default_factory=dict)
    """Pending pods' places on machines that are still coming, by UID: an expectation, not a step."""

    def still_valid(self, latest: Observation) -> Plan:
        """The steps that still hold on a later observation; the others are left to the next cycle."""
        check = _Check(latest)
        return replace(self, at=latest.at, steps=tuple(step for step in self.steps if check.holds(step)))


def list_names(pods: Iterable[Pod]) -> str:
    """The first three by name, the rest as a number."""
    keys = [pod.key for pod in pods]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")  # noqa: PLR2004 (as many as fit on a line)


class _Check:
    """Steps are checked in order, each against what the ones before it will have changed."""

    def __init__(self, latest: Observation) -> None:
        self._latest = latest
        self._simulation: Engine | None = None
        self._pending = {pod.uid for pod in latest.pending}
        self._size = latest.sizes()

    def holds(self, step: Step) -> bool:
        """Whether the step may still be taken."""
        if isinstance(step, ScaleUp):
            return self._may_scale_up(step)
        if isinstance(step, Drain):
            return self._may_drain(step)
        if isinstance(step, Move):
            return self._may_move(step)
        if isinstance(step, ResizePod):
            return self._is_present(step)
        machine = self._latest.machines.get(step.node)
        return machine is not None and self._holds_on_machine(step, machine.state)

    def _holds_on_machine(
        self, step: CancelScaleUp | CancelDrain | Evict | RemoveNode | RemoveFailedNode, state: MachineState
    ) -> bool:
        if isinstance(step, CancelScaleUp):
            return state is MachineState.REQUESTED and step.pool in self._latest.ordered
        if isinstance(step, RemoveFailedNode):
            return state in COMING or state is MachineState.FAILED
        if isinstance(step, Evict):
            # a node that stays: a single move that was cut off between its reservation and its eviction
            return (
                state in {MachineState.DRAINING, MachineState.READY}
                and self._is_present(step)
                and step.pod in self._latest.reserved
            )
        if state is not MachineState.DRAINING or isinstance(step, CancelDrain):
            return state is MachineState.DRAINING
        return not self._latest.blocking_removal(step.node)

    def _is_present(self, step: Evict | Move | ResizePod) -> bool:
        pod = self._latest.on.get(step.node, {}).get(step.pod)
        return pod is not None and not pod.deleting

    def _may_move(self, step: Move) -> bool:
        if not self._is_present(step) or step.pod in self._latest.reserved:
            return False
        # room is made for a pending pod: no longer needed once it is placed
        if step.pods and self._pending.isdisjoint(step.pods):
            return False
        return self._reserve((step.reservation,))

    def _may_scale_up(self, step: ScaleUp) -> bool:
        pool = self._latest.pools.get(step.pool)
        if pool is None or self._size[step.pool] >= (pool.max_nodes if step.pods else pool.min_nodes):
            return False
        if step.pods and self._pending.isdisjoint(step.pods):
            return False
        self._size[step.pool] += 1
        return True

    def _may_drain(self, step: Drain) -> bool:
        here = self._latest.on.get(step.node, {})
        staying = {uid for uid, pod in here.items() if not pod.deleting and not belongs_to_node(pod)}
        # a pod that came meanwhile has no reservation: the node is left alone until the next cycle
        if not self._latest.is_usable(step.node) or staying != {reservation.pod for reservation in step.reservations}:
            return False
        return self._reserve(step.reservations)

    def _reserve(self, reservations: tuple[SuccessorReservation, ...]) -> bool:
        """Hold these reservations in the simulation; False, and none held, where one no longer fits."""
        if not reservations:
            return True
        simulation = self._simulation = self._simulation or self._latest.engine.fork()
        taken: list[str] = []
        for reservation in reservations:
            if not self._latest.is_usable(reservation.placement.node) or not _hold(simulation, reservation):
                for hold in taken:
                    simulation.release(hold)
                return False
            taken.append(reservation.hold)
        return True


def _hold(simulation: Engine, reservation: SuccessorReservation) -> bool:
    """Hold a reservation, if there is still room."""
    try:
        simulation.hold(reservation.hold, reservation.request, reservation.placement)
    except PlacementError:
        return False
    return True
