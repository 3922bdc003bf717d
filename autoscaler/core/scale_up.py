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

    from autoscaler.core.lifecycle import Machine
    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import RemoveFailedNode
    from autoscaler.core.pools import Pool
    from isolation.contract.model import Placement, Pod, Request
    from isolation.placement.engine import Engine

_NOT_PAID = frozenset({MachineState.FAILED, MachineState.GONE})


@dataclass(slots=True)
class FleetGrowth:
    """By how much all pools together may still grow (`max_nodes_total`, `max_cost_per_hour`)."""

    limits: Limits
    nodes: float = inf
    cost: float = inf
    """Per hour, in the currency of the pools' prices."""

    @classmethod
    def of(cls, machines: Iterable[Machine], pools: Mapping[str, Pool], limits: Limits) -> Self:
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
    """One node to buy and the pods it is for."""

    pool: str
    slots: tuple[Slot, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods alone."""
        return tuple(slot.pod for slot in self.slots)


@dataclass(slots=True)
class Demand:
    """The answer for every waiting pod; each stands in exactly one of these."""

    planned_nodes: list[PlannedNode] = field(default_factory=list)
    keep: dict[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Nodes being drained that serve pods after all, by name."""
    nominations: dict[str, Nomination] = field(default_factory=dict)
    """By UID, on machines that are coming or have just come."""
    fits: list[str] = field(default_factory=list)
    """By UID: there is room now, the scheduler has not been there yet."""
    unplaceable: dict[str, Refusal] = field(default_factory=dict)
    """By UID: no pool could host it, however many nodes it had."""
    capped: dict[str, Refusal] = field(default_factory=dict)
    """By UID: a pool could, but may not grow now."""
    refused_growth: str = ""
    """Which fleet-wide limit keeps pools from growing for those in `capped`; empty: none does."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By UID: why what stands has no room; for all that do not fit."""

    def answered_pods(self) -> frozenset[str]:
        """UIDs of those for whom something is bought, kept or coming, or who know why nothing is."""
        served = (*(planned_node.pods for planned_node in self.planned_nodes), *self.keep.values())
        return frozenset(
            (*(pod.uid for pods in served for pod in pods), *self.nominations, *self.unplaceable, *self.capped)
        )


def compute_demand(observation: Observation, limits: Limits, closed: Collection[str] = ()) -> Demand:
    """Weigh every waiting pod; pools named in `closed` could not deliver lately and are not asked."""
    found = Demand()
    if not observation.pending:
        return found
    rest, seated = _seat(observation, _without_room(observation, found), found)
    groups = group_pods(rest)
    if not groups:
        return found
    expander = PoolExpander(observation.pools, frozenset(closed), get_templates(tuple(observation.pools.values())))
    _fill_draining(observation, groups, found)
    _fill_coming(observation, expander, seated, groups, found)
    size, growth = observation.sizes(), FleetGrowth.of(observation.machines.values(), observation.pools, limits)
    free = {
        name: pool.max_nodes - size[name]
        for name, pool in observation.pools.items()
        if pool.buys and name not in closed
    }
    _cap(free, growth, observation)
    for name, served in islice(expander.open_nodes(free, groups), limits.max_nodes_per_scaleup):
        found.planned_nodes.append(PlannedNode(name, tuple(served)))
        growth.count(observation.pools[name])
        _cap(free, growth, observation)
    _explain(expander, groups, found, growth)
    return found


def _cap(free: dict[str, int], growth: FleetGrowth, observation: Observation) -> None:
    """Pools that a fleet-wide limit keeps from growing have nothing free."""
    free.update((name, 0) for name in free if growth.refuses(observation.pools[name]))


def _without_room(observation: Observation, found: Demand) -> list[Pod]:
    """Waiting pods for which nothing that stands has room, in the scheduler's order."""
    simulation = _after_moves(observation)
    left: list[Pod] = []
    refused: dict[Shape, Refusal] = {}
    # a pod that was just evicted has its new home already: it is no demand
    kept = [
        home
        for home in observation.reserved.values()
        if home.pod not in observation.pods or observation.pods[home.pod].deleting
    ]
    # the places that a purchase was counted on go first, as the scheduler takes them
    at_home = _at_home(observation)
    if at_home:
        simulation = _own(simulation, observation)
        for uid, request, place in at_home:
            try:
                simulation.hold(uid, request, place)
            except PlacementError:
                continue
            found.nominations[uid] = observation.nominations[uid]
    for pod in observation.pending:
        if pod.uid in found.nominations:
            continue
        home = next((home for home in kept if home.matches(pod)), None)
        if home is not None:
            kept.remove(home)
            found.fits.append(pod.uid)
            continue
        key = get_shape(pod.request)
        answer = refused.get(key) or simulation.place(pod.request)
        if isinstance(answer, Refusal):
            refused[key] = found.refusals[pod.uid] = answer
            left.append(pod)
            continue
        simulation = _own(simulation, observation)  # forked only now: most waiting pods wait because nothing fits
        simulation.hold(pod.uid, pod.request, answer)
        found.fits.append(pod.uid)
    return left


def _own(simulation: Engine, observation: Observation) -> Engine:
    """A trial that may be changed."""
    return observation.engine.fork() if simulation is observation.engine else simulation


def _after_moves(observation: Observation) -> Engine:
    """The room as it will be when the pods on the move have gone: nothing is bought for what they leave."""
    going = [uid for uid in sorted(observation.reserved) if uid in observation.pods and observation.pods[uid].deleting]
    simulation = observation.engine.fork() if going else observation.engine
    for uid in going:
        if uid in simulation.holds:
            simulation.release(uid)
    return simulation


def _at_home(observation: Observation) -> list[tuple[str, Request, Placement]]:
    """Waiting pods whose machine has just become usable, with their places on it."""
    found = []
    for pod in observation.pending:
        home = observation.nominations.get(pod.uid)
        if home is not None and observation.is_usable(home.machine):
            place = home.on(observation.engine.nodes[home.machine], pod.request)
            if place is not None:
                found.append((pod.uid, pod.request, place))
    return found


def _fill_draining(observation: Observation, groups: list[PodGroup], found: Demand) -> None:
    """Give pods what is about to be given back, before anything is bought."""
    for name, machine in sorted(observation.machines.items()):
        node = observation.engine.nodes.get(name)
        if machine.state is not MachineState.DRAINING or node is None:
            continue
        empty = EmptyNode(replace(node, cordoned=False))
        room = Bin(node, observation.engine.room(name), [pod.request for pod in observation.on.get(name, {}).values()])
        served = fill_node(room, groups, empty.hosts)
        if served:
            take_pods(groups, served)
            found.keep[name] = tuple(each.pod for each in served)


def _seat(observation: Observation, waiting: Iterable[Pod], found: Demand) -> tuple[list[Pod], dict[str, Bin]]:
    """
    Pods for which a machine was bought keep their places on it, whoever came meanwhile.

    Otherwise larger pods that come later would push small ones from machine to machine, and each
    of them would be bought for again. Returns who has no such place, and what the machines have left.
    """
    coming = {machine.name: machine for machine in observation.coming() if machine.pool in observation.pools}
    rooms: dict[str, Bin] = {}
    rest: list[Pod] = []
    for pod in waiting:
        home = observation.nominations.get(pod.uid)
        machine = None if home is None else coming.get(home.machine)
        if home is None or machine is None:
            rest.append(pod)
            continue
        if machine.name not in rooms:
            rooms[machine.name] = Bin(observation.pools[machine.pool].node(machine.name))
        if rooms[machine.name].seat(pod.request, home.cards):
            found.nominations[pod.uid] = home
        else:
            rest.append(pod)
    return rest, rooms


def _fill_coming(
    observation: Observation, expander: PoolExpander, seated: Mapping[str, Bin], groups: list[PodGroup], found: Demand
) -> None:
    """
    Give pods what is already coming, so that nothing is bought twice.

    First what is left beside those who have a place there, then machines that are nobody's (after a
    restart): in the order in which the market would buy them now, so that pods find the same room again.
    """
    nobodys: dict[str, deque[Machine]] = {}
    for machine in observation.coming():
        if machine.name in seated:
            served = fill_node(seated[machine.name], groups, partial(expander.templates.hosts, machine.pool))
            take_pods(groups, served)
            found.nominations |= {each.pod.uid: Nomination(machine.name, each.cards) for each in served}
        elif machine.pool in observation.pools:
            nobodys.setdefault(machine.pool, deque()).append(machine)
    for name, served in expander.open_nodes({name: len(queue) for name, queue in nobodys.items()}, groups):
        machine = nobodys[name].popleft()
        found.nominations |= {each.pod.uid: Nomination(machine.name, each.cards) for each in served}


def _explain(expander: PoolExpander, groups: list[PodGroup], found: Demand, growth: FleetGrowth) -> None:
    """Why those stay waiting whom neither what stands nor what was bought serves."""
    for group in groups:
        if not group.pods:
            continue
        never = expander.templates.why_none(group.request)
        if never is not None:
            found.unplaceable |= {pod.uid: never for pod in group.pods}
            continue
        why = found.refusals[group.pods[0].uid]
        limits = ", ".join(
            f"{name} ({_why_closed(expander, pool, growth)})"
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


def _why_closed(expander: PoolExpander, pool: Pool, growth: FleetGrowth) -> str:
    if not pool.buys:
        return "cluster-autoscaler buys its nodes"
    if not pool.known:
        return "provider state unknown"
    if pool.name in expander.closed:
        return "in backoff after a failed scale-up"
    return growth.refuses(pool) or f"at its maximum of {pool.max_nodes} nodes"


def plan_scale_up(observation: Observation, demand: Demand, limits: Limits) -> Iterable[ScaleUp]:
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
