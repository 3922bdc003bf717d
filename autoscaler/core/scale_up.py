# SPDX-License-Identifier: Apache-2.0
"""
Which nodes to add: how many of which pool the pending pods need, counted card by card, from zero too.

Pods first get what stands and what is already coming, so that nothing is bought twice; the rest is packed
first-fit-decreasing into new nodes, each time of the pool that the expander chooses. Pools and the fleet have maximum
sizes. Pure. When a machine will be there, and whether the provider has one, is not known here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Self

from autoscaler.core.bin_packing import Bin, PodGroup, Shape, Slot, fill_node, get_shape, group_pods, take_pods
from autoscaler.core.expander import PoolExpander
from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.lifecycle import MachineState
from autoscaler.core.observation import Nomination
from autoscaler.core.plan import CancelDrain, CancelScaleUp, ScaleUp, list_names
from autoscaler.core.templates import EmptyNode, get_templates
from isolation.contract.model import Refusal
from isolation.placement.engine import PlacementError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import RemoveFailedNode
    from autoscaler.core.pools import Pool
    from isolation.contract.model import Placement, Pod, Request
    from isolation.placement.engine import Engine

_NOT_PAID = frozenset({MachineState.FAILED, MachineState.GONE})


@dataclass(slots=True)
class FleetGrowth:
    """By how much all pools together may still grow (`max_nodes_total`, `max_cost_per_hour`)."""

    limits: ScalingLimits
    nodes: float = inf
    cost: float = inf
    """Per hour, in the currency of the pools' prices."""

    @classmethod
    def of(cls, machines: Iterable[PoolMachine], pools: Mapping[str, Pool], limits: ScalingLimits) -> Self:
        """With these machines, also those that somebody else takes out of service: they are paid for."""
        paid = [pools[m.pool] for m in machines if m.pool in pools and m.state not in _NOT_PAID]
        return cls(
            limits,
            limits.max_nodes_total - len(paid) if limits.max_nodes_total else inf,
            limits.max_cost_per_hour - sum(pool.price for pool in paid) if limits.max_cost_per_hour else inf,
        )

    def refuses(self, pool: Pool) -> str:
        """Why the pool may not grow by one more; empty: it may."""
        if self.nodes < 1:
            return f"the fleet is at max_nodes_total, {self.limits.max_nodes_total} nodes"
        # prices are decimal fractions: a thousandth of a price is rounding, not a breach
        if pool.price > self.cost + pool.price / 1000:
            return f"one more node would exceed max_cost_per_hour, {self.limits.max_cost_per_hour:g}"
        return ""

    def count(self, pool: Pool) -> None:
        """One more node of this pool."""
        self.nodes -= 1
        self.cost -= pool.price


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node to add, and the pods it is for (Karpenter: NodeClaim)."""

    pool: str
    slots: tuple[Slot, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods in its slots."""
        return tuple(slot.pod for slot in self.slots)


@dataclass(slots=True)
class Demand:
    """The answer for every pending pod; each is in exactly one of these."""

    planned_nodes: list[PlannedNode] = field(default_factory=list)
    keep: dict[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Pods that need a node which is being drained, by its name."""
    nominations: dict[str, Nomination] = field(default_factory=dict)
    """By UID, on machines that are coming or have just come."""
    fits: list[str] = field(default_factory=list)
    """By UID: there is room now, the scheduler has not placed them yet."""
    unplaceable: dict[str, Refusal] = field(default_factory=dict)
    """By UID: no pool could host it, however many nodes it had."""
    capped: dict[str, Refusal] = field(default_factory=dict)
    """By UID: a pool could, but may not grow now."""
    refused_growth: str = ""
    """Which fleet-wide limit keeps pools from growing for those in `capped`; empty: none does."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By UID: why no usable node has room; for all that do not fit."""

    def answered_pods(self) -> frozenset[str]:
        """UIDs of the pods that get a node, or a reason why none."""
        groups = (*(planned.pods for planned in self.planned_nodes), *self.keep.values())
        return frozenset(
            (*(pod.uid for pods in groups for pod in pods), *self.nominations, *self.unplaceable, *self.capped)
        )


def compute_demand(observation: Observation, limits: ScalingLimits, in_backoff: Collection[str] = ()) -> Demand:
    """The answer for every pending pod; pools of `in_backoff` get no node."""
    found = Demand()
    if not observation.pending:
        return found
    rest, nominated = _keep_nominated(observation, _without_room(observation, found), found)
    groups = group_pods(rest)
    if not groups:
        return found
    expander = PoolExpander(observation.pools, frozenset(in_backoff), get_templates(tuple(observation.pools.values())))
    _fill_draining(observation, groups, found)
    _fill_coming(observation, expander, nominated, groups, found)
    size, growth = observation.sizes(), FleetGrowth.of(observation.machines.values(), observation.pools, limits)
    addable = {
        name: pool.max_nodes - size[name]
        for name, pool in observation.pools.items()
        if pool.buys and name not in in_backoff
    }
    _cap(addable, growth, observation)
    for name, slots in islice(expander.open_nodes(addable, groups), limits.max_nodes_per_scaleup):
        found.planned_nodes.append(PlannedNode(name, tuple(slots)))
        growth.count(observation.pools[name])
        _cap(addable, growth, observation)
    _explain(expander, groups, found, growth)
    return found


def _cap(addable: dict[str, int], growth: FleetGrowth, observation: Observation) -> None:
    """Pools that a fleet-wide limit keeps from growing may add none."""
    addable.update((name, 0) for name in addable if growth.refuses(observation.pools[name]))


def _without_room(observation: Observation, found: Demand) -> list[Pod]:
    """Pending pods for which no usable node has room, in the scheduler's order."""
    simulation = _simulate_evictions(observation)
    left: list[Pod] = []
    refused: dict[Shape, Refusal] = {}
    # the successor of an evicted pod has its reservation already: it is no demand
    waiting = [
        reservation
        for reservation in observation.reserved.values()
        if reservation.pod not in observation.pods or observation.pods[reservation.pod].deleting
    ]
    # the places that a purchase was counted on go first, as the scheduler takes them
    arrived = _list_arrived(observation)
    if arrived:
        simulation = _fork_once(simulation, observation)
        for uid, request, place in arrived:
            try:
                simulation.hold(uid, request, place)
            except PlacementError:
                continue
            found.nominations[uid] = observation.nominations[uid]
    for pod in observation.pending:
        if pod.uid in found.nominations:
            continue
        reservation = next((reservation for reservation in waiting if reservation.matches(pod)), None)
        if reservation is not None:
            waiting.remove(reservation)
            found.fits.append(pod.uid)
            continue
        key = get_shape(pod.request)
        answer = refused.get(key) or simulation.place(pod.request)
        if isinstance(answer, Refusal):
            refused[key] = found.refusals[pod.uid] = answer
            left.append(pod)
            continue
        simulation = _fork_once(
            simulation, observation
        )  # forked only now: most pending pods are so because nothing fits
        simulation.hold(pod.uid, pod.request, answer)
        found.fits.append(pod.uid)
    return left


def _fork_once(simulation: Engine, observation: Observation) -> Engine:
    """A simulation that may be changed."""
    return observation.engine.fork() if simulation is observation.engine else simulation


def _simulate_evictions(observation: Observation) -> Engine:
    """The capacity once the pods being moved have gone: no node is added for what they leave."""
    going = [uid for uid in sorted(observation.reserved) if uid in observation.pods and observation.pods[uid].deleting]
    simulation = observation.engine.fork() if going else observation.engine
    for uid in going:
        if uid in simulation.holds:
            simulation.release(uid)
    return simulation


def _list_arrived(observation: Observation) -> list[tuple[str, Request, Placement]]:
    """Pending pods whose machine has just become usable: UID, request, placement on it."""
    found = []
    for pod in observation.pending:
        nomination = observation.nominations.get(pod.uid)
        if nomination is not None and observation.is_usable(nomination.machine):
            place = nomination.place_on(observation.engine.nodes[nomination.machine], pod.request)
            if place is not None:
                found.append((pod.uid, pod.request, place))
    return found


def _fill_draining(observation: Observation, groups: list[PodGroup], found: Demand) -> None:
    """Give pods the nodes that are being drained, before any is added."""
    for name, machine in sorted(observation.machines.items()):
        node = observation.engine.nodes.get(name)
        if machine.state is not MachineState.DRAINING or node is None:
            continue
        empty = EmptyNode(replace(node, cordoned=False))
        room = Bin(node, observation.engine.room(name), [pod.request for pod in observation.on.get(name, {}).values()])
        slots = fill_node(room, groups, empty.hosts)
        if slots:
            take_pods(groups, slots)
            found.keep[name] = tuple(slot.pod for slot in slots)


def _keep_nominated(
    observation: Observation, waiting: Iterable[Pod], found: Demand
) -> tuple[list[Pod], dict[str, Bin]]:
    """
    Pods for which a machine was ordered keep their slots on it, whichever pods came meanwhile.

    Otherwise larger pods that come later would push small ones from machine to machine, and a node would be added for
    each of them again. Returns the pods without such a slot, and what the machines have left.
    """
    coming = {machine.name: machine for machine in observation.coming() if machine.pool in observation.pools}
    rooms: dict[str, Bin] = {}
    rest: list[Pod] = []
    for pod in waiting:
        nomination = observation.nominations.get(pod.uid)
        machine = None if nomination is None else coming.get(nomination.machine)
        if nomination is None or machine is None:
            rest.append(pod)
            continue
        if machine.name not in rooms:
            rooms[machine.name] = Bin(observation.pools[machine.pool].node(machine.name))
        if rooms[machine.name].take_cards(pod.request, nomination.cards):
            found.nominations[pod.uid] = nomination
        else:
            rest.append(pod)
    return rest, rooms


def _fill_coming(
    observation: Observation,
    expander: PoolExpander,
    nominated: Mapping[str, Bin],
    groups: list[PodGroup],
    found: Demand,
) -> None:
    """
    Give pods the machines that are already coming, so that none is ordered twice.

    First what nominated pods leave of theirs, then machines without nominations (after a restart): in the order in
    which the expander would add them now, so that pods find the same room again.
    """
    unassigned: dict[str, deque[PoolMachine]] = {}
    for machine in observation.coming():
        if machine.name in nominated:
            slots = fill_node(nominated[machine.name], groups, partial(expander.templates.hosts, machine.pool))
            take_pods(groups, slots)
            found.nominations |= {slot.pod.uid: Nomination(machine.name, slot.cards) for slot in slots}
        elif machine.pool in observation.pools:
            unassigned.setdefault(machine.pool, deque()).append(machine)
    for name, slots in expander.open_nodes({name: len(queue) for name, queue in unassigned.items()}, groups):
        machine = unassigned[name].popleft()
        found.nominations |= {slot.pod.uid: Nomination(machine.name, slot.cards) for slot in slots}


def _explain(expander: PoolExpander, groups: list[PodGroup], found: Demand, growth: FleetGrowth) -> None:
    """Why the pods left in the groups stay pending."""
    for group in groups:
        if not group.pods:
            continue
        never = expander.templates.explain_unplaceable(group.request)
        if never is not None:
            found.unplaceable |= {pod.uid: never for pod in group.pods}
            continue
        why = found.refusals[group.pods[0].uid]
        limits = ", ".join(
            f"{name} ({_explain_no_growth(expander, pool, growth)})"
            for name, pool in sorted(expander.pools.items())
            if expander.templates.hosts(name, group.request)
        )
        hosts = (pool for name, pool in sorted(expander.pools.items()) if expander.templates.hosts(name, group.request))
        found.refused_growth = next(filter(None, map(growth.refuses, hosts)), found.refused_growth)
        capped = Refusal(why.why, f"no pool can scale up now: {limits}; {shorten(why)}")
        found.capped |= {pod.uid: capped for pod in group.pods}


def shorten(refusal: Refusal) -> str:
    """What is missing, without the advice on what to change: the autoscaler is about to change it."""
    return refusal.reason.partition(". ")[0]


def _explain_no_growth(expander: PoolExpander, pool: Pool, growth: FleetGrowth) -> str:
    if not pool.buys:
        return "cluster-autoscaler buys its nodes"
    if not pool.known:
        return "provider state unknown"
    if pool.name in expander.in_backoff:
        return "in backoff after a failed scale-up"
    return growth.refuses(pool) or f"at its maximum of {pool.max_nodes} nodes"


def plan_scale_up(observation: Observation, demand: Demand, limits: ScalingLimits) -> Iterable[ScaleUp]:
    """The nodes that pending pods need, then those that a pool's minimum size asks for."""
    size = observation.sizes()
    growth = FleetGrowth.of(observation.machines.values(), observation.pools, limits)
    pending = (pod for planned in demand.planned_nodes for pod in planned.pods)
    fragmented = {pod.uid for pod in find_fragmented(observation, pending)}
    for planned in demand.planned_nodes:
        size[planned.pool] += 1
        growth.count(observation.pools[planned.pool])
        why = demand.refusals[planned.pods[0].uid]
        uids = tuple(pod.uid for pod in planned.pods)
        cards = tuple(slot.cards for slot in planned.slots)
        reason = f"for {list_names(planned.pods)}: {shorten(why)}"
        yield ScaleUp(planned.pool, uids, reason, cards, len(fragmented.intersection(uids)))
    for name, pool in sorted(observation.pools.items()):
        for _ in range(size[name], pool.min_nodes if pool.buys else 0):
            if growth.refuses(pool):
                break
            growth.count(pool)
            yield ScaleUp(name, (), f"pool {name} is below its minimum of {pool.min_nodes} nodes")


def cancel_orders(
    observation: Observation, demand: Demand, failed: Iterable[RemoveFailedNode]
) -> Iterable[CancelScaleUp]:
    """Orders that no provider has begun to carry out and no pod needs any more; the youngest first."""
    taken = {nomination.machine for nomination in demand.nominations.values()} | {step.node for step in failed}
    idle = [m for m in observation.coming() if m.state is MachineState.REQUESTED and m.name not in taken]
    spare = observation.spare()
    for pool, count in sorted(observation.ordered.items()):
        most = max(0, min(count, spare.get(pool, 0)))
        for machine in [machine for machine in reversed(idle) if machine.pool == pool][:most]:
            yield CancelScaleUp(machine.name, pool, "the pods that it was ordered for no longer wait")


def cancel_drains(demand: Demand) -> Iterable[CancelDrain]:
    """Nodes that are being drained and that pending pods need after all."""
    for name, pods in demand.keep.items():
        yield CancelDrain(name, f"needed again by {list_names(pods)}")
