# SPDX-License-Identifier: Apache-2.0
"""
How many nodes of which pool the waiting pods need, counted card by card, from zero too.

Pods are first given what stands and what is already coming, so that nothing is bought twice;
the rest is packed first-fit-decreasing into fresh nodes, each time of the pool that serves the
most demand for its price. Pure. It does not know when a machine will be there, nor whether the
provider has one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import Bin, PodGroup, Shape, Slot, fill_node, get_shape, group_pods, take_pods
from autoscaler.core.expander import PoolExpander
from autoscaler.core.fleet_caps import FleetGrowth
from autoscaler.core.lifecycle import MachineState
from autoscaler.core.observation import Nomination
from autoscaler.core.templates import EmptyNode, get_templates
from isolation.contract.model import Refusal
from isolation.placement.engine import PlacementError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from autoscaler.core.lifecycle import Machine
    from autoscaler.core.limits import Limits
    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool
    from isolation.contract.model import Placement, Pod, Request
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node to buy and the pods it is for."""

    pool: str
    places: tuple[Slot, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods alone."""
        return tuple(each.pod for each in self.places)


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
        served = (*(lot.pods for lot in self.planned_nodes), *self.keep.values())
        return frozenset(
            (*(pod.uid for pods in served for pod in pods), *self.nominations, *self.unplaceable, *self.capped)
        )


def compute_demand(seen: Observation, limits: Limits, closed: Collection[str] = ()) -> Demand:
    """Weigh every waiting pod; pools named in `closed` could not deliver lately and are not asked."""
    found = Demand()
    if not seen.pending:
        return found
    rest, seated = _seat(seen, _without_room(seen, found), found)
    groups = group_pods(rest)
    if not groups:
        return found
    market = PoolExpander(seen.pools, frozenset(closed), get_templates(tuple(seen.pools.values())))
    _fill_draining(seen, groups, found)
    _fill_coming(seen, market, seated, groups, found)
    size, growth = seen.sizes(), FleetGrowth.of(seen, limits)
    free = {name: pool.max_nodes - size[name] for name, pool in seen.pools.items() if pool.buys and name not in closed}
    _cap(free, growth, seen)
    for name, served in islice(market.open_nodes(free, groups), limits.max_nodes_per_scaleup):
        found.planned_nodes.append(PlannedNode(name, tuple(served)))
        growth.bought(seen.pools[name])
        _cap(free, growth, seen)
    _explain(market, groups, found, growth)
    return found


def _cap(free: dict[str, int], growth: FleetGrowth, seen: Observation) -> None:
    """Pools that a fleet-wide limit keeps from growing have nothing free."""
    free.update((name, 0) for name in free if growth.refuses(seen.pools[name]))


def _without_room(seen: Observation, found: Demand) -> list[Pod]:
    """Waiting pods for which nothing that stands has room, in the scheduler's order."""
    trial = _after_moves(seen)
    left: list[Pod] = []
    refused: dict[Shape, Refusal] = {}
    # a pod that was just evicted has its new home already: it is no demand
    kept = [home for home in seen.reserved.values() if home.pod not in seen.pods or seen.pods[home.pod].deleting]
    # the places that a purchase was counted on go first, as the scheduler takes them
    at_home = _at_home(seen)
    if at_home:
        trial = _own(trial, seen)
        for uid, request, place in at_home:
            try:
                trial.hold(uid, request, place)
            except PlacementError:
                continue
            found.nominations[uid] = seen.nominations[uid]
    for pod in seen.pending:
        if pod.uid in found.nominations:
            continue
        home = next((home for home in kept if home.matches(pod)), None)
        if home is not None:
            kept.remove(home)
            found.fits.append(pod.uid)
            continue
        key = get_shape(pod.request)
        answer = refused.get(key) or trial.place(pod.request)
        if isinstance(answer, Refusal):
            refused[key] = found.refusals[pod.uid] = answer
            left.append(pod)
            continue
        trial = _own(trial, seen)  # forked only now: most waiting pods wait because nothing fits
        trial.hold(pod.uid, pod.request, answer)
        found.fits.append(pod.uid)
    return left


def _own(trial: Engine, seen: Observation) -> Engine:
    """A trial that may be changed."""
    return seen.engine.fork() if trial is seen.engine else trial


def _after_moves(seen: Observation) -> Engine:
    """The room as it will be when the pods on the move have gone: nothing is bought for what they leave."""
    going = [uid for uid in sorted(seen.reserved) if uid in seen.pods and seen.pods[uid].deleting]
    trial = seen.engine.fork() if going else seen.engine
    for uid in going:
        if uid in trial.holds:
            trial.release(uid)
    return trial


def _at_home(seen: Observation) -> list[tuple[str, Request, Placement]]:
    """Waiting pods whose machine has just become usable, with their places on it."""
    found = []
    for pod in seen.pending:
        home = seen.nominations.get(pod.uid)
        if home is not None and seen.is_usable(home.machine):
            place = home.on(seen.engine.nodes[home.machine], pod.request)
            if place is not None:
                found.append((pod.uid, pod.request, place))
    return found


def _fill_draining(seen: Observation, groups: list[PodGroup], found: Demand) -> None:
    """Give pods what is about to be given back, before anything is bought."""
    for name, machine in sorted(seen.machines.items()):
        node = seen.engine.nodes.get(name)
        if machine.state is not MachineState.DRAINING or node is None:
            continue
        empty = EmptyNode(replace(node, cordoned=False))
        room = Bin(node, seen.engine.room(name), [pod.request for pod in seen.on.get(name, {}).values()])
        served = fill_node(room, groups, empty.hosts)
        if served:
            take_pods(groups, served)
            found.keep[name] = tuple(each.pod for each in served)


def _seat(seen: Observation, waiting: Iterable[Pod], found: Demand) -> tuple[list[Pod], dict[str, Bin]]:
    """
    Pods for which a machine was bought keep their places on it, whoever came meanwhile.

    Otherwise larger pods that come later would push small ones from machine to machine, and each
    of them would be bought for again. Returns who has no such place, and what the machines have left.
    """
    coming = {machine.name: machine for machine in seen.coming() if machine.pool in seen.pools}
    rooms: dict[str, Bin] = {}
    rest: list[Pod] = []
    for pod in waiting:
        home = seen.nominations.get(pod.uid)
        machine = None if home is None else coming.get(home.machine)
        if home is None or machine is None:
            rest.append(pod)
            continue
        if machine.name not in rooms:
            rooms[machine.name] = Bin(seen.pools[machine.pool].node(machine.name))
        if rooms[machine.name].seat(pod.request, home.cards):
            found.nominations[pod.uid] = home
        else:
            rest.append(pod)
    return rest, rooms


def _fill_coming(
    seen: Observation, market: PoolExpander, seated: Mapping[str, Bin], groups: list[PodGroup], found: Demand
) -> None:
    """
    Give pods what is already coming, so that nothing is bought twice.

    First what is left beside those who have a place there, then machines that are nobody's (after a
    restart): in the order in which the market would buy them now, so that pods find the same room again.
    """
    nobodys: dict[str, deque[Machine]] = {}
    for machine in seen.coming():
        if machine.name in seated:
            served = fill_node(seated[machine.name], groups, partial(market.templates.hosts, machine.pool))
            take_pods(groups, served)
            found.nominations |= {each.pod.uid: Nomination(machine.name, each.cards) for each in served}
        elif machine.pool in seen.pools:
            nobodys.setdefault(machine.pool, deque()).append(machine)
    for name, served in market.open_nodes({name: len(queue) for name, queue in nobodys.items()}, groups):
        machine = nobodys[name].popleft()
        found.nominations |= {each.pod.uid: Nomination(machine.name, each.cards) for each in served}


def _explain(market: PoolExpander, groups: list[PodGroup], found: Demand, growth: FleetGrowth) -> None:
    """Why those stay waiting whom neither what stands nor what was bought serves."""
    for group in groups:
        if not group.pods:
            continue
        never = market.templates.why_none(group.request)
        if never is not None:
            found.unplaceable |= {pod.uid: never for pod in group.pods}
            continue
        why = found.refusals[group.pods[0].uid]
        limits = ", ".join(
            f"{name} ({_why_closed(market, pool, growth)})"
            for name, pool in sorted(market.pools.items())
            if market.templates.hosts(name, group.request)
        )
        hosts = (pool for name, pool in sorted(market.pools.items()) if market.templates.hosts(name, group.request))
        found.refused_growth = next(filter(None, map(growth.refuses, hosts)), found.refused_growth)
        capped = Refusal(why.why, f"no pool can scale up now: {limits}; {shorten(why)}")
        found.capped |= {pod.uid: capped for pod in group.pods}


def shorten(refusal: Refusal) -> str:
    """What is missing, without the advice on what to change: the autoscaler is about to change it."""
    return refusal.reason.partition(". ")[0]


def _why_closed(market: PoolExpander, pool: Pool, growth: FleetGrowth) -> str:
    if not pool.buys:
        return "cluster-autoscaler buys its nodes"
    if not pool.known:
        return "provider state unknown"
    if pool.name in market.closed:
        return "in backoff after a failed scale-up"
    return growth.refuses(pool) or f"at its maximum of {pool.max_nodes} nodes"
