# SPDX-License-Identifier: Apache-2.0
"""
Which nodes to remove, and how a drain goes on until its node is removed or kept after all.

A node can go only if every pod on it has a place elsewhere, card by card. Nodes that free the most cards for each moved
pod go first. One simulation for the whole cycle, so that two drained nodes never count on the same room, and a node
that receives pods is not drained in the same cycle. Machines that failed to come up are given up here too. Pure.
How fast the pods of a drained node move is decided by `disruption_budget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import Shape, get_shape, largest_first
from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.lifecycle import MachineState, overdue
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import CancelDrain, Drain, Evict, RemoveFailedNode, RemoveNode, list_names
from isolation.contract.model import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from autoscaler.core.disruption_budget import Budget
    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Step
    from autoscaler.core.pools import Pool
    from autoscaler.core.rebalance.cost import DisruptionCost
    from isolation.contract.model import Pod, Request
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class Removal:
    """A node that can go, and a reservation elsewhere for each of its pods."""

    node: str
    reservations: tuple[SuccessorReservation, ...]


@dataclass(frozen=True, slots=True)
class DrainTerms:
    """Since when and until when the reservations of a drain hold, and for which further requests room must remain."""

    at: float
    until: float
    headroom: tuple[Request, ...] = ()
    successors: Mapping[str, Request] = field(default_factory=dict)
    """As `Observation.successors`."""


def find_unneeded(observation: Observation, limits: ScalingLimits) -> frozenset[str]:
    """Nodes empty and old enough to be removed, if there is room for their pods elsewhere."""
    return frozenset(
        name for name in _candidates(observation, limits) if next(_unmovable(observation, name), None) is None
    )


def explain_needed(observation: Observation, limits: ScalingLimits) -> dict[str, str]:
    """By node that would be unneeded without one pod: which pod that is, and why it cannot move."""
    found = ((name, next(_unmovable(observation, name), None)) for name in _candidates(observation, limits))
    never = "it can only run where it is, or must not be moved"
    return {name: f"pod {pod.key}: {observation.blocked.get(pod.uid, never)}" for name, pod in found if pod is not None}


def _candidates(observation: Observation, limits: ScalingLimits) -> Iterator[str]:
    spare = observation.spare()
    ours = {name for name, pool in observation.pools.items() if pool.drains}
    return (
        machine.name
        for machine in observation.machines.values()
        if machine.state is MachineState.READY
        and machine.name not in observation.kept
        and machine.pool in ours
        and observation.at - machine.since >= limits.min_node_age_seconds
        and spare.get(machine.pool, 0) > 0
        and observation.load.get(machine.name, 1.0) <= limits.scale_down_utilization_threshold
    )


def _unmovable(observation: Observation, name: str) -> Iterator[Pod]:
    """Pods that keep a node: they do not end with it, are not ending, and may not be moved."""
    return (pod for pod in list_pods_to_move(observation, name) if not pod.evictable or pod.uid in observation.blocked)


def find_removals(
    observation: Observation,
    limits: ScalingLimits,
    unneeded: Mapping[str, float],
    budget: Budget,
    cost: DisruptionCost | None = None,
    *,
    most: float = inf,
) -> tuple[Removal, ...]:
    """Nodes to drain now, `most` at most; `unneeded`: since when each was. Without `cost`, every one is worth it."""
    due = [name for name, since in unneeded.items() if observation.at - since >= limits.scale_down_unneeded_seconds]
    due.sort(key=lambda name: _effort(observation, name))
    spare = observation.spare()
    # reservations of drains still under way count as well: their pods have not moved in yet
    receives = {reservation.placement.node for reservation in observation.reserved.values()}
    found: list[Removal] = []
    simulation: Engine | None = None
    moves, tried = budget.free, 0
    most = min(most, limits.max_scale_down_parallelism)
    headroom = list_recent_requests(observation, limits) if due else ()
    for name in due:
        pool = observation.machines[name].pool
        pods = list_pods_to_move(observation, name)
        if len(found) >= most or tried == limits.scale_down_non_empty_candidates_count:
            break
        if spare[pool] < 1 or name in receives or len(pods) > moves or any(budget.is_protected(pod) for pod in pods):
            continue
        if any(pod.uid in observation.reserved for pod in pods):
            continue  # a move that was started is finished first
        if pods and cost and not cost.is_worth(cost.price_ratio(observation.pools[pool].price), pods):
            continue
        tried += 1
        simulation = simulation or observation.engine.fork()
        until = observation.at + limits.drain_timeout_seconds
        terms = DrainTerms(observation.at, until, headroom, observation.successors)
        reservations = empty_node(simulation, name, pods, observation.on.get(name, {}), terms)
        if reservations is None:
            continue
        receives.update(reservation.placement.node for reservation in reservations)
        spare[pool] -= 1
        moves -= len(reservations)
        found.append(Removal(name, reservations))
    return tuple(found)


def plan_drains(
    observation: Observation,
    limits: ScalingLimits,
    unneeded: Mapping[str, float],
    budget: Budget,
    cost: DisruptionCost,
    *,
    most: float,
) -> list[Drain]:
    """The drains that begin now, each with its reason."""
    removals = find_removals(observation, limits, unneeded, budget, cost, most=most)
    return [_drain(removal, observation, observation.at - unneeded[removal.node]) for removal in removals]


def _drain(removal: Removal, observation: Observation, idle: float) -> Drain:
    load = f"utilization {observation.load.get(removal.node, 0.0):.0%}, unneeded for {idle:.0f} s"
    targets = sorted({reservation.placement.node for reservation in removal.reservations})
    pods = "its pod fits" if len(removal.reservations) == 1 else f"its {len(removal.reservations)} pods fit"
    moves = f"{pods} on {', '.join(targets)}" if targets else "no pods to move"
    return Drain(removal.node, removal.reservations, f"{load}; {moves}")


def continue_drains(observation: Observation, needed: Collection[str], budget: Budget, moving: int) -> Iterable[Step]:
    """
    What is next for nodes being drained, less those `needed` again: remove empty ones, evict pods, or cancel.

    `moving`: evictions of this cycle that are planned already.
    """
    ready: list[Pod] = []
    for machine in _sorted(observation.machines):
        if machine.state is not MachineState.DRAINING or machine.name in needed:
            continue
        # pods that are ending still hold their room: the node goes when the last of them has ended
        pods = observation.blocking_removal(machine.name)
        since = observation.at - machine.since
        if machine.name in observation.irremovable:
            yield CancelDrain(machine.name, observation.irremovable[machine.name])
        elif not pods:
            # binds that were under way when it was tainted come to their end first
            if since >= budget.limits.node_delete_delay_after_taint_seconds:
                yield RemoveNode(machine.name, f"empty, tainted for {since:.0f} s")
        elif overdue(machine, budget.limits, observation.at) is MachineState.READY:
            yield CancelDrain(machine.name, f"drain not finished after {budget.limits.drain_timeout_seconds:.0f} s")
        else:
            staying = [pod for pod in pods if not pod.deleting]
            lost = [pod for pod in staying if not _is_target_usable(observation, observation.reserved.get(pod.uid))]
            if lost:
                yield CancelDrain(machine.name, f"the reserved target of {list_names(lost)} is gone")
            else:
                ready += staying
    ready += _find_unfinished_moves(observation)
    for pod in budget.choose_evictions(ready, observation.owners_evicted(), moving):
        source = pod.placement.node if pod.placement is not None else ""
        target = observation.reserved[pod.uid].placement.node
        why = "a move that was started earlier" if observation.is_usable(source) else f"{source} is being drained"
        yield Evict(pod.uid, source, pod.request.owner, f"to its reserved target on {target}: {why}")


def _find_unfinished_moves(observation: Observation) -> Iterable[Pod]:
    """Pods with a reservation on a node that stays: the leader that made it ended before the eviction."""
    for uid, reservation in sorted(observation.reserved.items()):
        pod = observation.pods.get(uid)
        if pod is None or pod.deleting or pod.placement is None:
            continue
        if observation.is_usable(pod.placement.node) and _is_target_usable(observation, reservation):
            yield pod


def _is_target_usable(observation: Observation, reservation: SuccessorReservation | None) -> bool:
    return reservation is not None and observation.is_usable(reservation.placement.node)


def find_failed_machines(
    machines: Mapping[str, PoolMachine], limits: ScalingLimits, at: float, with_node: Collection[str]
) -> Iterable[RemoveFailedNode]:
    """Machines that failed, or that took too long to become nodes; `with_node`: names of those that have a Node."""
    for machine in _sorted(machines):
        why = ""
        if machine.state is MachineState.FAILED:
            why = f"pool {machine.pool} failed to provision it"
        elif overdue(machine, limits, at) is MachineState.FAILED:
            why = f"not ready in time: {machine.state} for {at - machine.since:.0f} s"
        if why:
            yield RemoveFailedNode(machine.name, machine.pool, why, has_node=machine.name in with_node)


def may_remove(step: RemoveFailedNode, pool: Pool | None) -> bool:
    """Whether giving it up is ours: a machine without a node is an order of whoever buys for its pool."""
    return pool is None or pool.drains or (pool.buys and not step.has_node)


def _sorted(machines: Mapping[str, PoolMachine]) -> list[PoolMachine]:
    return [machines[name] for name in sorted(machines)]


def list_recent_requests(observation: Observation, limits: ScalingLimits) -> tuple[Request, ...]:
    """Requests of the pods created lately, and one of each older shape: such pods may come again."""
    young = [
        pod
        for pod in observation.pods.values()
        if observation.at - pod.created < limits.min_node_age_seconds and not belongs_to_node(pod)
    ]
    young.sort(key=lambda pod: (-pod.created, pod.uid))
    latest = [pod.request for pod in young if observation.at - pod.created < limits.scale_down_unneeded_seconds]
    latest = latest[: limits.scale_down_headroom_pod_shapes]
    kinds: dict[Shape, Request] = {get_shape(request): request for request in latest}
    older = [pod.request for pod in young if kinds.setdefault(get_shape(pod.request), pod.request) is pod.request]
    others = [request for request in older if request not in latest][: limits.scale_down_headroom_pod_shapes]
    return tuple(sorted((*latest, *others), key=largest_first))


def list_pods_to_move(observation: Observation, name: str) -> list[Pod]:
    """The pods that need a place elsewhere before the node can go."""
    return [pod for pod in observation.on.get(name, {}).values() if not pod.deleting and not belongs_to_node(pod)]


def _effort(observation: Observation, name: str) -> tuple[float, float, str]:
    """Pods moved for each card freed; a node without cards counts as one."""
    node = observation.engine.nodes.get(name)
    cards = len(node.cards) if node is not None else 0
    return (len(list_pods_to_move(observation, name)) / max(1, cards), observation.load.get(name, 0.0), name)


def empty_node(
    simulation: Engine, name: str, pods: Iterable[Pod], here: Iterable[str], terms: DrainTerms
) -> tuple[SuccessorReservation, ...] | None:
    """
    A reservation for each of these pods on the other nodes, or None; `here`: UIDs of all that hold room on the node.

    Room for the headroom requests must remain: a node removed now and added again soon would be flapping.

    Changes the simulation only on success: then the node is gone from it, and the reservations are held.
    """
    node = simulation.nodes[name]
    held = [(uid, *simulation.holds[uid]) for uid in here if uid in simulation.holds]
    simulation.drop_node(name)
    reservations = _reserve(simulation, pods, terms)
    if reservations is not None and _has_room(simulation, terms.headroom):
        return reservations
    for reservation in reservations or ():
        simulation.release(reservation.hold)
    simulation.put_node(node)
    for uid, request, placement in held:
        simulation.hold(uid, request, placement, force=True)
    return None


def _reserve(simulation: Engine, pods: Iterable[Pod], terms: DrainTerms) -> tuple[SuccessorReservation, ...] | None:
    reservations: list[SuccessorReservation] = []
    for pod in sorted(pods, key=lambda pod: (largest_first(pod.request), pod.uid)):
        request = terms.successors.get(pod.uid, pod.request)
        answer = simulation.place(request)
        if isinstance(answer, Refusal):
            for reservation in reservations:
                simulation.release(reservation.hold)
            return None
        reservation = SuccessorReservation(pod.uid, request, answer, terms.at, terms.until)
        simulation.hold(reservation.hold, request, answer)
        reservations.append(reservation)
    return tuple(reservations)


def _has_room(simulation: Engine, headroom: Sequence[Request]) -> bool:
    """Whether these would all fit in addition to what is held; nothing stays held."""
    taken: list[str] = []
    for number, request in enumerate(headroom):
        answer = simulation.place(request)
        if isinstance(answer, Refusal):
            break
        taken.append(f"headroom/{number}")
        simulation.hold(taken[-1], request, answer)
    for hold in taken:
        simulation.release(hold)
    return len(taken) == len(headroom)
