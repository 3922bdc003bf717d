"""
How many nodes of which pool the waiting pods need, counted card by card, from zero too.

Pods are first given what stands and what is already coming, so that nothing is bought twice;
the rest is packed first-fit-decreasing into fresh nodes, each time of the pool that serves the
most demand for its price. Pure. It does not know when a machine will be there, nor whether the
provider has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.bins import Bin, Group, Served, Shape, fill, groups_of, serve, shape_of
from autoscaler.lifecycle import State
from autoscaler.templates import Empty, Templates, templates_of
from isolation.contract.model import FULL_CORE, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from autoscaler.limits import Limits
    from autoscaler.observation import Observation
    from autoscaler.pools import Pool
    from isolation.contract.model import Pod, Request


@dataclass(frozen=True, slots=True)
class Home:
    """Where a waiting pod will go once its machine is usable: positions of cards on a node to come."""

    machine: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lot:
    """One node to buy and the pods it is for."""

    pool: str
    serves: tuple[Pod, ...]


@dataclass(slots=True)
class Demand:
    """The answer for every waiting pod; each stands in exactly one of these."""

    lots: list[Lot] = field(default_factory=list)
    keep: dict[str, tuple[Pod, ...]] = field(default_factory=dict)
    """Nodes being drained that serve pods after all, by name."""
    homes: dict[str, Home] = field(default_factory=dict)
    """By UID, on machines that are coming."""
    fits: list[str] = field(default_factory=list)
    """By UID: there is room now, the scheduler has not been there yet."""
    hopeless: dict[str, Refusal] = field(default_factory=dict)
    """By UID: no pool could host it, however many nodes it had."""
    capped: dict[str, Refusal] = field(default_factory=dict)
    """By UID: a pool could, but may not grow now."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By UID: why what stands has no room; for all that do not fit."""


def demand(seen: Observation, limits: Limits, closed: Collection[str] = ()) -> Demand:
    """Weigh every waiting pod; pools named in `closed` could not deliver lately and are not asked."""
    found = Demand()
    if not seen.pending:
        return found
    groups = groups_of(_without_room(seen, found))
    if not groups:
        return found
    templates = templates_of(tuple(seen.pools.values()))
    _fill_draining(seen, groups, found)
    # oldest machine first and largest pod first, as when they were bought: the same pods find the same room
    for machine in seen.coming():
        pool = seen.pools.get(machine.pool)
        if pool is not None:
            served = fill(Bin(pool.node(machine.name)), groups, partial(templates.hosts, pool.name))
            serve(groups, served)
            found.homes |= {each.pod.uid: Home(machine.name, each.cards) for each in served}
    market = _Market(seen.pools, frozenset(closed), templates)
    _buy(market, seen.sizes(), limits.buys_per_round, groups, found)
    _explain(market, groups, found)
    return found


def _without_room(seen: Observation, found: Demand) -> list[Pod]:
    """Waiting pods for which nothing that stands has room, in the scheduler's order."""
    trial = seen.engine
    left: list[Pod] = []
    refused: dict[Shape, Refusal] = {}
    # a pod that was just evicted has its new home already: it is no demand
    kept = [home for home in seen.reserved.values() if home.pod not in seen.pods]
    for pod in seen.pending:
        home = next((home for home in kept if home.meant_for(pod)), None)
        if home is not None:
            kept.remove(home)
            found.fits.append(pod.uid)
            continue
        key = shape_of(pod.request)
        answer = refused.get(key) or trial.place(pod.request)
        if isinstance(answer, Refusal):
            refused[key] = found.refusals[pod.uid] = answer
            left.append(pod)
            continue
        if trial is seen.engine:  # forked only now: most waiting pods wait because nothing fits
            trial = seen.engine.fork()
        trial.hold(pod.uid, pod.request, answer)
        found.fits.append(pod.uid)
    return left


def _fill_draining(seen: Observation, groups: list[Group], found: Demand) -> None:
    """Give pods what is about to be given back, before anything is bought."""
    for name, machine in sorted(seen.machines.items()):
        node = seen.engine.nodes.get(name)
        if machine.state is not State.DRAINING or node is None:
            continue
        empty = Empty(replace(node, cordoned=False))
        room = Bin(node, seen.engine.room(name), [pod.request for pod in seen.on.get(name, {}).values()])
        served = fill(room, groups, empty.hosts)
        if served:
            serve(groups, served)
            found.keep[name] = tuple(each.pod for each in served)


@dataclass(frozen=True, slots=True)
class _Market:
    """Pools, and which of them may not be asked now."""

    pools: Mapping[str, Pool]
    closed: frozenset[str]
    templates: Templates

    def offers(self, size: Mapping[str, int], groups: list[Group]) -> Iterable[tuple[float, str, list[Served]]]:
        """For each pool that may grow: price for demand served by one more node, name, who would be served."""
        for name, pool in sorted(self.pools.items()):
            if name in self.closed or size[name] >= pool.largest:
                continue
            served = fill(Bin(self.templates.blank(name)), groups, partial(self.templates.hosts, name))
            if served:
                yield pool.price / sum(self.weigh(each.pod.request) for each in served), name, served

    def weigh(self, request: Request) -> float:
        """Demand as a share of the largest that any pool's node has: the largest of its three shares."""
        largest = self.templates.largest
        part = 1.0 if request.whole else max(request.card_bytes / largest.card_bytes, request.card_core / FULL_CORE)
        # a pod that asks for nothing still counts for something, or its price would be infinite
        return max(
            request.cards * part / largest.cards,
            request.cpu_milli / largest.cpu_milli,
            request.memory_bytes / largest.memory_bytes,
            1e-6,
        )


def _buy(market: _Market, size: dict[str, int], most: int, groups: list[Group], found: Demand) -> None:
    """Open node after node, each of the pool with the lowest price for what that node would serve."""
    while len(found.lots) < most:
        best = min(market.offers(size, groups), key=lambda offer: offer[:2], default=None)
        if best is None:
            return
        _, name, served = best
        serve(groups, served)
        size[name] += 1
        found.lots.append(Lot(name, tuple(each.pod for each in served)))


def _explain(market: _Market, groups: list[Group], found: Demand) -> None:
    """Why those stay waiting whom neither what stands nor what was bought serves."""
    for group in groups:
        if not group.pods:
            continue
        never = market.templates.why_none(group.request)
        if never is not None:
            found.hopeless |= {pod.uid: never for pod in group.pods}
            continue
        why = found.refusals[group.pods[0].uid]
        limits = ", ".join(
            f"{name} (could not deliver lately)" if name in market.closed else f"{name} (at most {pool.largest} nodes)"
            for name, pool in sorted(market.pools.items())
            if market.templates.hosts(name, group.request)
        )
        capped = Refusal(why.why, f"{gist(why)}; no pool may grow now: {limits}")
        found.capped |= {pod.uid: capped for pod in group.pods}


def gist(refusal: Refusal) -> str:
    """What is missing, without the advice on what to change: the autoscaler is about to change it."""
    return refusal.reason.partition(". ")[0]
