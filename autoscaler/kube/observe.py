"""
One observation from everything that was read, and what could not be told of it.

Decides what of the cluster the deciders see: usable nodes with cards and the pods on them, machines by their state,
pools with what a fresh node of theirs looks like, reservations as held room. Pure: the same reading gives the same
observation, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.budget import resident
from autoscaler.kube.notes import PodNote, ours
from autoscaler.kube.observe_doubts import doubts_of, unready
from autoscaler.kube.observe_homes import expected_of, in_vain, reserved_of
from autoscaler.kube.observe_machines import Fleet, Standing, fleet_of
from autoscaler.kube.observe_pods import guarded, movable, waiting
from autoscaler.kube.observe_pools import bounds_of, kinds_of, mode_of, pool_of
from autoscaler.lifecycle import Machine, State
from autoscaler.observation import Observation
from autoscaler.pools import load_of
from autoscaler.providers.profile import learn
from isolation.contract.model import Cluster, Phase
from isolation.contract.names import SCHEDULER
from isolation.placement.place import engine_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from autoscaler.kube.config import PoolConfig
    from autoscaler.kube.doubt import Doubt
    from autoscaler.kube.figures import Measured
    from autoscaler.kube.kept import Kept
    from autoscaler.kube.notes import Notes
    from autoscaler.kube.sources import Budget, Stored
    from autoscaler.limits import Limits
    from autoscaler.providers.base import PoolState, ProviderError
    from isolation.cluster.store import View
    from isolation.contract.model import Node, Pod

_NOBODY: Final = PodNote()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything of one moment."""

    at: float
    view: View
    notes: Notes
    reservations: Mapping[str, Stored]
    budgets: Sequence[Budget]
    states: Mapping[str, PoolState]
    failed: Mapping[str, ProviderError]
    measured: Measured
    dry: Mapping[str, str] = field(default_factory=dict)
    """Pools whose provider would not sell when it was last asked, and what it said."""
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
    stored: Mapping[str, Stored]
    """Reservations by name, of anybody."""
    names: Mapping[str, str]
    """Of the reservation that is each moving pod's home, by UID."""
    over: tuple[str, ...]
    """Names of our own reservations that have had their day."""
    uids: Mapping[str, str]
    """Of nodes, by name."""


def observed(now: Snapshot, configs: Sequence[PoolConfig], limits: Limits, kept: Kept) -> Seen:
    """The whole reading."""
    nodes = {node.name: node for node in now.view.cluster.nodes}
    busy = _busy(now.view.cluster.pods)
    standing = Standing(now.at, nodes, now.notes.of_node, kept.machines, busy, limits.provision_seconds)
    failed = [one.name for one in configs if one.name not in now.states]
    fleet = fleet_of(standing, now.states, failed, {one.name: mode_of(one, kept.profiles) for one in configs})
    _will_not_sell(fleet, now)
    pods = _that_matter(now, {name for name, node in nodes.items() if node.cards or name in fleet.machines})
    on = _by_node(pods)
    profiles = learn(kept.profiles, kinds_of(fleet, nodes, on))
    shaped = {one.name: one.shaped(profiles.get(one.name)) for one in configs}
    bounds = {one.name: bounds_of(one, now.states.get(one.name), fleet, on) for one in configs}
    pools = {
        one.name: pool for one in configs if (pool := pool_of(one, shaped[one.name], bounds[one.name])) is not None
    }
    homes, missed = expected_of(fleet, kept, pods, now.at)
    vain = in_vain(missed, limits, now.at)
    queue = [pod for pod in now.view.cluster.pending if pod.request.cards and pod.uid not in vain]
    usable = [_seen_node(nodes[name], fleet) for name in sorted(fleet.machines) if _counts(fleet, nodes, name)]
    found = waiting(queue, pods.values(), now.notes.of_pod, usable, tuple(pools.values()))
    engine = engine_of(Cluster(tuple(usable), tuple(p for node in usable for p in on.get(node.name, {}).values())))
    draining = {name for name, machine in fleet.machines.items() if machine.state is State.DRAINING}
    reserved, names, over = reserved_of(now.reservations, pods, engine, draining, now.at)
    unanswered = vain | dict(found.unanswered)
    return Seen(
        observation=Observation(
            at=now.at,
            engine=engine,
            pods=pods,
            on=on,
            load=_load(usable, on),
            machines=fleet.machines,
            pools=pools,
            pending=found.pods,
            reserved=reserved,
            homes=homes,
            guarded=_guarded(now, pods),
            deletion_cost={uid: note.deletion_cost for uid, note in now.notes.of_pod.items() if note.deletion_cost},
            heat=now.measured.heat,
            busy=now.measured.busy(pods.values()),
        ),
        doubts=(
            *unready(now, nodes, limits),
            *doubts_of(now, fleet, [name for name, kind in shaped.items() if kind is None], unanswered),
        ),
        unanswered=unanswered,
        kept=replace(kept, machines=dict(fleet.machines), profiles=profiles, homes=homes, missed=missed),
        fleet=fleet,
        targets={name: state.target for name, state in now.states.items()},
        stored=now.reservations,
        over=over,
        names=names,
        uids={name: note.uid for name, note in now.notes.of_node.items()},
    )


def _that_matter(now: Snapshot, where: Collection[str]) -> dict[str, Pod]:
    """Pods that ask for cards, and whoever else is on these nodes; as to who may be moved, what is known here."""
    notes, schedulers = now.notes.of_pod, now.schedulers
    found: dict[str, Pod] = {}
    for pod in now.view.cluster.pods:
        if pod.phase is Phase.DONE:
            continue
        if pod.request.cards or (pod.placement is not None and pod.placement.node in where):
            stays = pod.evictable and pod.placement is not None
            if stays and not movable(pod, notes.get(pod.uid, _NOBODY), schedulers):
                found[pod.uid] = replace(pod, evictable=False)
            else:
                found[pod.uid] = pod
    return found


def _by_node(pods: Mapping[str, Pod]) -> dict[str, dict[str, Pod]]:
    on: dict[str, dict[str, Pod]] = {}
    for pod in pods.values():
        if pod.placement is not None:
            on.setdefault(pod.placement.node, {})[pod.uid] = pod
    return on


def _busy(pods: Iterable[Pod]) -> frozenset[str]:
    """Nodes with pods that do not go with the node."""
    return frozenset(
        pod.placement.node
        for pod in pods
        if pod.placement is not None and pod.phase is not Phase.DONE and not resident(pod)
    )


def _will_not_sell(fleet: Fleet, now: Snapshot) -> None:
    """A machine that failed at once: the plan gives it up, and with it the pool for a while."""
    for name, said in now.dry.items():
        fleet.machines[f"{name}/dry"] = Machine(f"{name}/dry", name, State.FAILED, now.at)
        fleet.trouble[f"{name}/dry"] = said


def _load(usable: Iterable[Node], on: Mapping[str, Mapping[str, Pod]]) -> dict[str, float]:
    return {
        node.name: load_of(node, [(p.request, p.placement) for p in on.get(node.name, {}).values() if p.placement])
        for node in usable
    }


def _counts(fleet: Fleet, nodes: Mapping[str, Node], name: str) -> bool:
    """Whether a node's room is room: usable ones, and those being drained, which may be kept after all."""
    return name in nodes and fleet.machines[name].state in (State.READY, State.DRAINING)


def _seen_node(node: Node, fleet: Fleet) -> Node:
    """A drained node is a cordoned one to the deciders: our own taint must not bar it from being kept."""
    machine = fleet.machines[node.name]
    if machine.state is State.DRAINING:
        taints = tuple(taint for taint in node.taints if not ours(taint.key))
        return replace(node, pool=machine.pool, cordoned=True, taints=taints)
    return node if node.pool == machine.pool else replace(node, pool=machine.pool)


def _guarded(now: Snapshot, pods: Mapping[str, Pod]) -> dict[str, str]:
    placed = [pod for pod in pods.values() if pod.placement is not None and pod.evictable]
    if now.held_still:
        return {pod.uid: now.held_still for pod in placed}
    return guarded(placed, now.budgets)
