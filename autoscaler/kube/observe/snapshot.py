# SPDX-License-Identifier: Apache-2.0
"""
One observation from everything that was read, and what could not be told of it.

Decides what of the cluster the deciders see: usable nodes with cards and the pods on them, machines by their state,
pools with what a fresh node of theirs looks like, reservations as held room. Pure: the same reading gives the same
observation, also after a restart; what is kept between readings (`Books`) makes it come sooner, never differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from autoscaler.core.lifecycle import Machine, State
from autoscaler.core.scale_down_rules import DrainRules
from autoscaler.core.snapshot import Observation
from autoscaler.kube.nominations import used_by
from autoscaler.kube.observe.cache import Books
from autoscaler.kube.observe.capacity import Usable
from autoscaler.kube.observe.conditions import doubts_of, unready
from autoscaler.kube.observe.machines import Fleet, Standing, fleet_of
from autoscaler.kube.observe.nominations import expected_of, in_vain, reserved_of
from autoscaler.kube.observe.pods import waiting
from autoscaler.kube.observe.pools import bounds_of, mode_of, pool_of
from autoscaler.providers.core.profile import learn_kinds
from isolation.contract.model import Cluster
from isolation.contract.names import SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from autoscaler.core.limits import Limits
    from autoscaler.kube.annotations import NodeNote, Notes
    from autoscaler.kube.core.conditions import Doubt
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.persisted import Kept
    from autoscaler.kube.usage import Measured
    from autoscaler.kube.watches import Budget, Stored
    from autoscaler.providers.base import PoolState, ProviderError
    from isolation.contract.model import Node, Pod
    from isolation.kube.store import StoreView

_EMPTY: Final[Mapping[str, Pod]] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything of one moment."""

    at: float
    view: StoreView
    notes: Notes
    reservations: Mapping[str, Stored]
    budgets: Sequence[Budget]
    states: Mapping[str, PoolState]
    failed: Mapping[str, ProviderError]
    measured: Measured
    dry: Mapping[str, str] = field(default_factory=dict)
    """Pools whose provider would not sell when it was last asked, and what it said."""
    irremovable: Mapping[str, str] = field(default_factory=dict)
    """Drained nodes that were not removed, and what the API server said against it."""
    held_still: str = ""
    """Why nothing may be moved now; empty: it may."""
    schedulers: frozenset[str] = frozenset({SCHEDULER})
    """Those that honour reservations."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The observation, and what an actor and a reader need besides."""

    observation: Observation
    doubts: tuple[Doubt, ...]
    unanswered: Mapping[str, str]
    kept: Kept
    fleet: Fleet
    targets: Mapping[str, int]
    """Machines that each pool's provider was asked for; a pool that cannot be told is absent."""
    silent: Mapping[str, str]
    """By pool that cannot be told, why."""
    stored: Mapping[str, Stored]
    """Reservations by name, of anybody."""
    names: Mapping[str, str]
    """Of the reservation that is each moving pod's home, by UID."""
    over: tuple[str, ...]
    """Names of our own reservations that have had their day."""
    uids: Mapping[str, str]
    """Of nodes, by name."""


def observed(
    now: Snapshot, configs: Sequence[PoolConfig], limits: Limits, kept: Kept, books: Books | None = None
) -> Seen:
    """The whole reading; with `books` of earlier ones the same one, sooner."""
    steps = observing(now, configs, limits, kept, books or Books(now.schedulers))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Seen", end.value)


def observing(
    now: Snapshot, configs: Sequence[PoolConfig], limits: Limits, kept: Kept, books: Books
) -> Generator[None, None, Seen]:
    """The same, step by step: others may have their turn at each; what is begun may be left, the books stay good."""
    yield from books.follow(now)
    nodes = {node.name: node for node in now.view.cluster.nodes}
    standing = Standing(
        now.at, nodes, now.notes.of_node, kept.machines, books.lived(), limits.max_node_provision_seconds
    )
    failed = [one.name for one in configs if one.name not in now.states]
    fleet = fleet_of(standing, now.states, failed, {one.name: mode_of(one, kept.profiles) for one in configs})
    _will_not_sell(fleet, now)
    yield
    where = fleet.machines.keys() | {name for name, node in nodes.items() if node.cards}
    pods, on = books.pods(where), books.on(where)
    yield
    profiles = learn_kinds(kept.profiles, books.kinds.standing(_standing(fleet, nodes, on)))
    shaped = {one.name: one.shaped(profiles.get(one.name)) for one in configs}
    bounds = {one.name: bounds_of(one, now.states.get(one.name), fleet, on) for one in configs}
    made = (pool_of(one, shaped[one.name], bounds[one.name], told=one.name in now.states) for one in configs)
    pools = {pool.name: pool for pool in made if pool is not None}
    homes, missed = expected_of(fleet, kept, pods, now.at)
    vain = in_vain(missed, limits, now.at)
    queue = Cluster(pods=tuple(pod for uid, pod in books.queue.items() if uid not in vain)).pending
    yield
    yield from books.room.follow(_usable(fleet, nodes, now.notes), on)
    found = waiting(queue, pods.values(), now.notes.of_pod, books.room.nodes, tuple(pools.values()))
    yield
    engine = books.room.engine()
    draining = {name for name, machine in fleet.machines.items() if machine.state is State.DRAINING}
    left = _left(configs, fleet, now.notes)
    used = used_by(now.reservations, (pod for uid, pod in books.arrived.items() if uid in pods))
    reserved, names, over = reserved_of(now.reservations, used, pods, engine, draining=draining, at=now.at)
    unanswered = vain | dict(found.unanswered)
    return Seen(
        observation=Observation(
            at=now.at,
            engine=engine,
            pods=pods,
            on=on,
            load=books.room.load(),
            kept=books.room.kept(),
            machines=fleet.machines,
            pools=pools,
            pending=found.pods,
            reserved=reserved,
            homes=homes,
            guarded=books.guarded(pods, now.held_still),
            deletion_cost=dict(books.cost),
            heat=now.measured.heat,
            busy=books.busy(pods),
            blocked=_theirs(left, on) | books.blocked(_rules(configs, fleet)),
            long_terminating=books.long_terminating(now.at),
            ordered={name: state.ordered for name, state in now.states.items() if state.ordered},
            with_node=frozenset(name for name in fleet.machines if name in nodes),
            irremovable={**now.irremovable, **{name: why for name, why in left.items() if name in draining}},
        ),
        doubts=(
            *unready(now, nodes, limits),
            *doubts_of(now, fleet, [name for name, kind in shaped.items() if kind is None], unanswered),
        ),
        unanswered=unanswered,
        kept=replace(kept, machines=dict(fleet.machines), profiles=profiles, homes=homes, missed=missed),
        fleet=fleet,
        targets={name: state.target for name, state in now.states.items()},
        silent={name: str(error) for name, error in now.failed.items()},
        stored=now.reservations,
        over=over,
        names=names,
        uids={name: note.uid for name, note in now.notes.of_node.items()},
    )


def _will_not_sell(fleet: Fleet, now: Snapshot) -> None:
    """A machine that failed at once: the plan gives it up, and with it the pool for a while."""
    for name, said in now.dry.items():
        fleet.machines[f"{name}/dry"] = Machine(f"{name}/dry", name, State.FAILED, now.at)
        fleet.trouble[f"{name}/dry"] = said


def _standing(
    fleet: Fleet, nodes: Mapping[str, Node], on: Mapping[str, Mapping[str, Pod]]
) -> Iterator[tuple[str, Node, Mapping[str, Pod]]]:
    """Nodes that show what fresh ones of their pools are like."""
    for name, machine in fleet.machines.items():
        node = nodes.get(name)
        if node is not None and machine.pool and machine.state is State.READY:
            yield machine.pool, node, on.get(name, _EMPTY)


def _usable(fleet: Fleet, nodes: Mapping[str, Node], notes: Notes) -> dict[str, Usable]:
    """Nodes whose room is room: usable ones, and those being drained, unless their removal may have been ordered."""
    return {
        name: Usable(nodes[name], machine.pool, machine.state is State.DRAINING)
        for name, machine in sorted(fleet.machines.items())
        if name in nodes and machine.state in (State.READY, State.DRAINING) and not _sealed(notes.of_node.get(name))
    }


def _rules(configs: Sequence[PoolConfig], fleet: Fleet) -> dict[str, DrainRules]:
    """By node, the drain rules of pools that have others than the default ones."""
    own = {one.name: one.drain_rules for one in configs if one.drain_rules != DrainRules()}
    return {name: own[machine.pool] for name, machine in fleet.machines.items() if machine.pool in own}


def _left(configs: Sequence[PoolConfig], fleet: Fleet, notes: Notes) -> dict[str, str]:
    """By node that cluster-autoscaler alone drains, why we leave it alone; an ordered removal is carried out."""
    theirs = {one.name: f"cluster-autoscaler drains pool {one.name}" for one in configs if not one.ours.drains}
    return {
        name: theirs[machine.pool]
        for name, machine in fleet.machines.items()
        if machine.pool in theirs and not _sealed(notes.of_node.get(name))
    }


def _theirs(left: Mapping[str, str], on: Mapping[str, Mapping[str, Pod]]) -> dict[str, str]:
    return {uid: f"{why}, and moves its pods" for name, why in left.items() for uid in on.get(name, _EMPTY)}


def _sealed(note: NodeNote | None) -> bool:
    return note is not None and note.drain is not None and note.drain.removing > 0
