# SPDX-License-Identifier: Apache-2.0
"""
One observation for the deciders out of one consistent copy of everything that was read.

Decides what of the cluster the deciders see: usable nodes with cards and the pods on them, machines by their state,
pools with what a fresh node of theirs looks like, reservations as held room. Built from nothing in each cycle, so the
same snapshot gives the same observation, also after a restart. Pure: it may run in a thread, since nothing in a
snapshot changes any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autoscaler.core.drain_rules import DrainRules
from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import Observation
from autoscaler.core.rightsizing.live import LiveReading, find_live, find_successors
from autoscaler.core.rightsizing.programs import life_of
from autoscaler.kube.core.conditions import find_conditions, find_unready
from autoscaler.kube.observe.capacity import build_engine, drainable, find_usable, sealed
from autoscaler.kube.observe.machines import MachineInputs, ObservedMachines, join_machines
from autoscaler.kube.observe.nominations import (
    find_gang_nodes,
    find_in_vain,
    find_nominated,
    find_reserved,
    used_by,
)
from autoscaler.kube.observe.pods import index_pods, waiting
from autoscaler.kube.observe.pools import find_bounds, find_mode, kind_of, make_pool
from autoscaler.kube.usage import spots_of
from autoscaler.providers.core.profile import learn
from isolation.contract.model import Cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.rightsizing.containers import LivePod
    from autoscaler.core.rightsizing.live import PodWish
    from autoscaler.kube.annotations import NodeNote
    from autoscaler.kube.core.conditions import Condition
    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.observe.snapshot import ClusterSnapshot
    from autoscaler.kube.state import ControllerState
    from isolation.contract.model import Pod


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The observation, and what an actor and a reader need besides."""

    observation: Observation
    conditions: tuple[Condition, ...]
    unanswered: Mapping[str, str]
    state: ControllerState
    fleet: ObservedMachines
    targets: Mapping[str, int]
    """Machines that each pool's provider was asked for; a pool is absent while its provider does not answer."""
    silent: Mapping[str, str]
    """Why a pool's provider does not answer, by pool."""
    names: Mapping[str, str]
    """Of the reservation that is each moving pod's home, by UID."""
    over: tuple[str, ...]
    """Names of our own reservations that have had their day."""
    uids: Mapping[str, str]
    """Of nodes, by name."""


def observe(
    now: ClusterSnapshot, configs: Sequence[PoolConfig], limits: ScalingLimits, state: ControllerState
) -> ObservedCluster:
    """What the deciders see, and what the executor and the reports need besides."""
    index = index_pods(now.view.cluster.pods, now.pod_notes, now.schedulers)
    nodes = {node.name: node for node in now.view.cluster.nodes}
    fleet = _join_machines(now, configs, limits, state, index.nodes_in_use())
    index.leave_out(fleet.machines.keys() | {name for name, node in nodes.items() if node.cards})
    pods, by_node = index.pods, index.by_node
    shown = (
        kind_of(nodes[name], machine.pool, by_node.get(name, {}).values())
        for name, machine in fleet.machines.items()
        if name in nodes and machine.pool and machine.state is MachineState.READY
    )
    profiles = learn(state.profiles, shown)
    shaped = {config.name: config.shaped(profiles.get(config.name)) for config in configs}
    bounds = {config.name: find_bounds(config, now.states.get(config.name), fleet, by_node) for config in configs}
    made = (
        make_pool(config, shaped[config.name], bounds[config.name], known=config.name in now.states)
        for config in configs
    )
    pools = {pool.name: pool for pool in made if pool is not None}
    homes, missed = find_nominated(fleet, state, pods, now.at)
    vain = find_in_vain(missed, limits, now.at)
    queue = Cluster(pods=tuple(pod for uid, pod in index.queue.items() if uid not in vain)).pending
    usable = find_usable(fleet.machines, nodes, now.node_notes)
    found = waiting(queue, pods.values(), now.pod_notes, usable, tuple(pools.values()))
    engine, load = build_engine(usable, by_node)
    draining = {name for name, machine in fleet.machines.items() if machine.state is MachineState.DRAINING}
    left = _left(configs, fleet, now.node_notes)
    used = used_by(now.reservations, (pod for pod in pods.values() if pod.reservation))
    reserved, names, over = find_reserved(now.reservations, used, pods, engine, draining=draining, at=now.at)
    unanswered = vain | dict(found.unanswered)
    wishes = {uid: note.wish for uid, note in now.pod_notes.items() if note.wish is not None}
    return ObservedCluster(
        observation=Observation(
            at=now.at,
            engine=engine,
            pods=pods,
            on=by_node,
            load=load,
            kept=frozenset(node.name for node in usable if not drainable(node))
            | find_gang_nodes(now.reservations, used, now.at),
            machines=fleet.machines,
            pools=pools,
            pending=found.pods,
            reserved=reserved,
            nominations=homes,
            guarded=index.find_guarded(now.budgets, now.held_still),
            deletion_cost=index.deletion_cost,
            card_utilization=now.measured.heat,
            pod_utilization=index.measure(now.measured),
            blocked=_theirs(left, by_node) | index.find_blocked(_rules(configs, fleet)),
            long_terminating=index.find_long_terminating(now.at),
            ordered={name: state.ordered for name, state in now.states.items() if state.ordered},
            with_node=frozenset(name for name in fleet.machines if name in nodes),
            live=_live(now, pods, wishes),
            successors=find_successors(pods, wishes, now.recommended, now.policy.unit_bytes),
            irremovable={**now.irremovable, **{name: why for name, why in left.items() if name in draining}},
        ),
        conditions=(
            *find_unready(now, nodes, limits),
            *find_conditions(now, fleet, [name for name, kind in shaped.items() if kind is None], unanswered),
        ),
        unanswered=unanswered,
        state=replace(state, machines=dict(fleet.machines), profiles=profiles, homes=homes, missed=missed),
        fleet=fleet,
        targets={name: state.target for name, state in now.states.items()},
        silent={name: str(error) for name, error in now.failed.items()},
        over=over,
        names=names,
        uids={name: note.uid for name, note in now.node_notes.items()},
    )


def _live(now: ClusterSnapshot, pods: Mapping[str, Pod], wishes: Mapping[str, PodWish]) -> dict[str, LivePod]:
    if not wishes:
        return {}
    spots = {
        life_of(uid, spot.container, spot.uuid): now.measured.uses.get(spot)
        for uid in wishes.keys() & pods.keys()
        for spot in spots_of(pods[uid])
    }
    denied = {life: use.denied for life, use in spots.items() if use is not None}
    return find_live(pods, wishes, LiveReading(now.histories, denied, now.at, now.policy))


def _join_machines(
    now: ClusterSnapshot,
    configs: Sequence[PoolConfig],
    limits: ScalingLimits,
    state: ControllerState,
    in_use: frozenset[str],
) -> ObservedMachines:
    nodes = {node.name: node for node in now.view.cluster.nodes}
    standing = MachineInputs(now.at, nodes, now.node_notes, state.machines, in_use, limits.max_node_provision_seconds)
    unknown = [config.name for config in configs if config.name not in now.states]
    modes = {config.name: find_mode(config, state.profiles) for config in configs}
    fleet = join_machines(standing, now.states, unknown, modes)
    for name, error in now.dry.items():
        # a machine that failed at once: the plan gives it up, and with it the pool for a while
        fleet.machines[f"{name}/dry"] = PoolMachine(f"{name}/dry", name, MachineState.FAILED, now.at)
        fleet.trouble[f"{name}/dry"] = error
    return fleet


def _rules(configs: Sequence[PoolConfig], fleet: ObservedMachines) -> dict[str, DrainRules]:
    """By node, the drain rules of pools that have others than the default ones."""
    own = {one.name: one.drain_rules for one in configs if one.drain_rules != DrainRules()}
    return {name: own[machine.pool] for name, machine in fleet.machines.items() if machine.pool in own}


def _left(configs: Sequence[PoolConfig], fleet: ObservedMachines, notes: Mapping[str, NodeNote]) -> dict[str, str]:
    """By node that cluster-autoscaler alone drains, why we leave it alone; an ordered removal is carried out."""
    theirs = {one.name: f"cluster-autoscaler drains pool {one.name}" for one in configs if not one.ours.drains}
    return {
        name: theirs[machine.pool]
        for name, machine in fleet.machines.items()
        if machine.pool in theirs and not sealed(notes.get(name))
    }


def _theirs(left: Mapping[str, str], by_node: Mapping[str, Mapping[str, Pod]]) -> dict[str, str]:
    return {uid: f"{why}, and moves its pods" for name, why in left.items() for uid in by_node.get(name, {})}
