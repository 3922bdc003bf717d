# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler knows of the cluster in one cycle: capacity, pods, machines, pools, reservations, nominations.

Values and views only; every decision is made from one of these and from nothing else. The mappings may be live views of
a cache: they hold until the next await, which is as long as a decision takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.lifecycle import COMING, STANDING, MachineState, PoolMachine
from autoscaler.core.pools import compute_load
from isolation.contract.model import FULL_CORE, CardChoice, Placement, Slice
from isolation.placement.place import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.pools import Pool
    from autoscaler.core.rightsizing.containers import LivePod
    from isolation.contract.model import Cluster, Node, Pod, Request
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class SuccessorReservation:
    """Room kept free for the successor of a pod that is being moved."""

    pod: str
    """UID of the pod that moves; its successor has another."""
    request: Request
    placement: Placement
    at: float = 0.0
    until: float = float("inf")
    """When it expires if no pod used it."""

    @property
    def hold(self) -> str:
        """The key under which the engine holds the room."""
        return f"reserved/{self.pod}"

    def matches(self, pod: Pod) -> bool:
        """Whether a pod is the successor: same controller, same request."""
        return bool(pod.request.owner) and pod.request == self.request


@dataclass(frozen=True, slots=True)
class Nomination:
    """The machine a pending pod is expected on once that is usable, and the positions of its cards there."""

    machine: str
    cards: tuple[int, ...]

    def place_on(self, node: Node, request: Request) -> Placement | None:
        """The placement; None on a node that spreads, which chooses its cards itself."""
        if node.choice is CardChoice.SPREAD:
            return None
        cards = tuple(node.cards[position] for position in self.cards)
        if request.whole:
            return Placement(node.name, tuple(Slice(c.uuid, c.index, c.allocatable_bytes, FULL_CORE) for c in cards))
        return Placement(node.name, tuple(Slice(c.uuid, c.index, request.card_bytes, request.card_core) for c in cards))


_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_NOMINATIONS: Final[Mapping[str, Nomination]] = MappingProxyType({})
_NO_RESERVATIONS: Final[Mapping[str, SuccessorReservation]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent reading of everything a cycle needs."""

    at: float
    engine: Engine
    """The capacity of every usable node, less reservations; deciders work on a fork."""
    pods: Mapping[str, Pod]
    """By UID: pending, running and ending ones."""
    on: Mapping[str, Mapping[str, Pod]]
    """Pods by the node they hold room on."""
    load: Mapping[str, float]
    """How full each usable node is (`autoscaler.core.pools.compute_load`)."""
    machines: Mapping[str, PoolMachine]
    pools: Mapping[str, Pool]
    kept: frozenset[str] = frozenset()
    """Nodes that are never drained, however empty."""
    pending: tuple[Pod, ...] = ()
    """In the order in which the scheduler takes them."""
    reserved: Mapping[str, SuccessorReservation] = field(default_factory=lambda: _NO_RESERVATIONS)
    """By UID of the pod that moves."""
    nominations: Mapping[str, Nomination] = field(default_factory=lambda: _NO_NOMINATIONS)
    """Pending pods' places on machines ordered for them, by UID; from the last cycle."""
    guarded: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """By UID: why a pod may not be evicted now (a disruption budget that has nothing left)."""
    blocked: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """By UID: why a pod keeps its node and its place by the rules of its pool (`drain_rules`)."""
    deletion_cost: Mapping[str, int] = field(default_factory=lambda: _NONE)
    """By UID, as the pod's owner set it (`controller.kubernetes.io/pod-deletion-cost`)."""
    card_utilization: Mapping[str, float] = field(default_factory=lambda: _NONE)
    """Measured use of each card's compute by UUID, 0..1; unknown is absent."""
    pod_utilization: Mapping[str, float] = field(default_factory=lambda: _NONE)
    """By UID: what a pod uses of the compute of each of its cards, 0..1; unknown is absent."""

    long_terminating: frozenset[str] = frozenset()
    """UIDs of pods that should have ended long ago, grace included: they keep no node."""
    with_node: frozenset[str] = frozenset()
    """Machines whose Node object exists, whatever their state; may be empty where no machine can fail."""
    ordered: Mapping[str, int] = field(default_factory=lambda: _NONE)
    """By pool: how many of its `requested` machines no provider has begun to provide yet."""
    live: Mapping[str, LivePod] = field(default_factory=lambda: _NONE)
    """Containers of running pods that may be resized, by `LivePod.key`."""
    successors: Mapping[str, Request] = field(default_factory=lambda: _NONE)
    """By UID: what the pod that takes the place of this one will request, where right-sizing makes that less."""
    irremovable: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Nodes that were to be removed, and what the API server then showed against it (a pod there)."""

    def blocking_removal(self, node: str) -> tuple[Pod, ...]:
        """Pods for which a node cannot be removed now: those that do not go with it and have not ended."""
        return tuple(
            pod
            for pod in self.on.get(node, {}).values()
            if not belongs_to_node(pod) and not (pod.deleting and pod.uid in self.long_terminating)
        )

    def succeeding(self, pod: Pod) -> Request:
        """What the pod that takes the place of this one will request."""
        return self.successors.get(pod.uid, pod.request)

    def sizes(self) -> dict[str, int]:
        """Machines that count towards each pool's size."""
        size = dict.fromkeys(self.pools, 0)
        for machine in self.machines.values():
            if machine.state in STANDING and machine.pool in size:
                size[machine.pool] += 1
        return size

    def spare(self) -> dict[str, int]:
        """Machines that each pool has beyond its smallest size."""
        size = self.sizes()
        return {name: size[name] - pool.min_nodes for name, pool in self.pools.items()}

    def coming(self) -> tuple[PoolMachine, ...]:
        """Machines requested or booting, not usable yet; oldest first."""
        found = (m for m in self.machines.values() if m.state in COMING)
        return tuple(sorted(found, key=lambda m: (m.since, m.name)))

    def owners_moving(self) -> frozenset[str]:
        """Owners of a pod that has a reservation elsewhere: their other pods wait until it has moved."""
        return frozenset(reservation.request.owner for reservation in self.reserved.values())

    def owners_evicted(self) -> frozenset[str]:
        """Owners of a pod that was evicted and whose successor has not been placed yet."""
        return frozenset(
            reservation.request.owner
            for uid, reservation in self.reserved.items()
            if uid not in self.pods or self.pods[uid].deleting
        )

    def is_usable(self, name: str) -> bool:
        """Whether pods may be sent to a node."""
        machine = self.machines.get(name)
        return machine is not None and machine.state is MachineState.READY


def observe_cluster(
    cluster: Cluster, pools: Iterable[Pool], machines: Iterable[PoolMachine] | None = None, at: float = 0.0
) -> Observation:
    """A whole reading from a plain cluster; without `machines`, every node is a ready one of its pool."""
    if machines is None:
        machines = (PoolMachine(node.name, node.pool, MachineState.READY) for node in cluster.nodes)
    on: dict[str, dict[str, Pod]] = {node.name: {} for node in cluster.nodes}
    for pod in cluster.on(on):
        if pod.placement is not None:
            on[pod.placement.node][pod.uid] = pod
    return Observation(
        at=at,
        engine=engine_of(cluster),
        pods={pod.uid: pod for pod in cluster.pods},
        on=on,
        load={
            node.name: compute_load(node, [(p.request, p.placement) for p in on[node.name].values() if p.placement])
            for node in cluster.nodes
        },
        machines={machine.name: machine for machine in machines},
        pools={pool.name: pool for pool in pools},
        pending=cluster.pending,
    )
