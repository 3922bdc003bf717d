# SPDX-License-Identifier: Apache-2.0
"""
Machines of the configured pools: what a provider says of each, joined with what its node says of itself.

Decides which state of `lifecycle` that makes, and since when. A node is usable when its cards are registered. One that
was usable and is not (silent, cordoned by somebody else, being removed by somebody else) is *lost*: neither bought for
twice nor given back, but left to whoever looks after it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.core.lifecycle import COMING, STANDING, MachineState, PoolMachine
from autoscaler.kube.annotations import NodeNote, find_removal_taint, ours
from autoscaler.providers.base import InstanceState
from isolation.contract.model import SHARED_MODES, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.providers.base import PoolState, ProviderInstance
    from isolation.contract.model import Node

SHARED = SHARED_MODES | {Mode.EXCLUSIVE}
_NOT_UP = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
    }
)
"""Taints by which others say that no pod can start there yet, or any more."""


@dataclass(slots=True)
class ObservedMachines:
    """Every machine, and what is known of it besides."""

    machines: dict[str, PoolMachine] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """Nodes that were usable and are not, with the reason; they stand among the machines as on their way out."""
    slots: set[str] = field(default_factory=set)
    """Names that we gave to machines of which their provider shows no trace yet."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Names of machines as of the last turn, where they have another now."""
    trouble: dict[str, str] = field(default_factory=dict)
    """What the provider says of machines that do not come."""
    count: dict[str, int] = field(default_factory=dict)
    """Machines by pool that its provider counts and `sizes` does not."""


@dataclass(frozen=True, slots=True)
class MachineInputs:
    """What is joined."""

    at: float
    nodes: Mapping[str, Node]
    notes: Mapping[str, NodeNote]
    before: Mapping[str, PoolMachine]
    busy: frozenset[str] = frozenset()
    """Nodes with pods on them that do not go with the node."""
    young_seconds: float = 900.0
    """A node that is not up, and no older, may still be on its way there."""

    def note(self, name: str) -> NodeNote:
        """Of one node."""
        return self.notes.get(name) or NodeNote()

    def put(self, fleet: ObservedMachines, machine: PoolMachine) -> None:
        """With the time since when it has been so: as remembered, else its own where it was never seen before."""
        before, since = self.before.get(machine.name), machine.since
        if machine.state is not MachineState.DRAINING:
            if before is None:
                since = since if since > 0 else self.at
            else:
                since = before.since if before.state is machine.state else self.at
        fleet.machines[machine.name] = replace(machine, since=min(since, self.at))


def join_machines(
    now: MachineInputs, states: Mapping[str, PoolState], failed: Iterable[str], shapes: Mapping[str, Mode | None]
) -> ObservedMachines:
    """Every machine of every pool; `shapes`: what nodes of each pool serve, None where nobody knows yet."""
    fleet = ObservedMachines()
    by_id = {note.provider_id: name for name, note in now.notes.items() if note.provider_id}
    for pool, state in states.items():
        _pool(fleet, now, state, by_id, shapes.get(pool))
    for pool in failed:
        _unknown(fleet, now, pool, shapes.get(pool))
    known = fleet.machines.keys() | {name for name in now.notes if name in fleet.lost}
    for name, node in now.nodes.items():
        # nodes of nobody's pool take pods and are never given back
        if name not in known and node.cards and not _why_lost(node, now.note(name)):
            fleet.machines[name] = PoolMachine(name, "", MachineState.READY, now.note(name).created)
    return fleet


def _pool(
    fleet: ObservedMachines, now: MachineInputs, state: PoolState, by_id: Mapping[str, str], shape: Mode | None
) -> None:
    before = sorted((m for m in now.before.values() if m.pool == state.name), key=lambda m: (m.since, m.name))
    asked = [m.name for m in before if m.state is MachineState.REQUESTED]
    gone = {m.name for m in before if m.state is MachineState.BOOTING}
    fresh: list[str] = []
    for one in state.nodes:
        name = one.node or by_id.get(one.id, "") or one.id
        gone -= {name, one.id}
        if one.id != name and one.id in now.before:
            fleet.renamed[one.id] = name
        elif name not in now.before and one.state is not InstanceState.LEAVING:
            fresh.append(name)
        _instance(fleet, now, state, (one, name), shape)
    # what was asked for and had no name yet has one now, the longest awaited first; a machine that boots may
    # change its name too, from its object's to its provider's
    stay = asked[max(0, len(asked) - state.missing) :] if state.missing else []
    found = [m.name for m in before if m.name in gone] + [name for name in asked if name not in stay]
    fleet.renamed |= dict(zip(found, sorted(fresh), strict=False))
    for number in range(state.missing - len(stay)):
        stay.append(_slot(state.name, {*now.before, *fleet.machines, *stay}, number))
    fleet.slots.update(stay)
    for name in stay:
        kind = MachineState.FAILED if state.short else MachineState.REQUESTED
        if state.short:
            fleet.trouble[name] = state.short
        now.put(fleet, PoolMachine(name, state.name, kind, now.at))


def _slot(pool: str, taken: set[str], number: int) -> str:
    """A name that no machine has: no node's has a slash."""
    while f"{pool}/{number}" in taken:
        number += 1
    return f"{pool}/{number}"


def _instance(
    fleet: ObservedMachines,
    now: MachineInputs,
    state: PoolState,
    named: tuple[ProviderInstance, str],
    shape: Mode | None,
) -> None:
    one, name = named
    node = now.nodes.get(name)
    if one.state is InstanceState.LEAVING:
        now.put(fleet, PoolMachine(name, state.name, MachineState.DELETING, now.at))
    elif one.state is InstanceState.FAILED and (node is None or not _marked(node, now)):
        fleet.trouble[name] = one.note
        now.put(fleet, PoolMachine(name, state.name, MachineState.FAILED, now.at))
    elif node is None:
        dry = bool(state.short) and one.note == state.short and one.state is InstanceState.COMING
        if dry:
            fleet.trouble[name] = state.short
        now.put(fleet, PoolMachine(name, state.name, MachineState.FAILED if dry else MachineState.BOOTING, now.at))
    else:
        _node(fleet, now, node, state.name, shape)


def _node(fleet: ObservedMachines, now: MachineInputs, node: Node, pool: str, shape: Mode | None) -> None:
    note = now.note(node.name)
    if _marked(node, now):
        # half a mark, left by a crash or edited by hand, is an overdue drain: it is called off
        now.put(
            fleet,
            PoolMachine(node.name, pool, MachineState.DRAINING, note.drain.since if note.drain is not None else 0.0),
        )
        return
    registered = _registered(node, shape)
    why = _why_lost(node, note) if registered else "its cards are no longer registered"
    if why and _rising(now, node, note, registered=registered):
        # Not since its creation: an older node may have joined the pool a moment ago
        now.put(fleet, PoolMachine(node.name, pool, MachineState.NO_DEVICES, now.at))
    elif why:
        fleet.lost[node.name] = why
        fleet.count[pool] = fleet.count.get(pool, 0) + 1
        now.put(fleet, PoolMachine(node.name, pool, MachineState.DELETING, now.at))
    else:
        now.put(fleet, PoolMachine(node.name, pool, MachineState.READY, note.created))


def _marked(node: Node, now: MachineInputs) -> bool:
    """Whether it is being drained."""
    return now.note(node.name).drain is not None or any(ours(taint.key) for taint in node.taints)


def _registered(node: Node, shape: Mode | None) -> bool:
    """Whether it is what its pool says: with cards, where its nodes have any."""
    if shape in SHARED or node.mode in SHARED:
        return bool(node.cards)
    return node.ready


def _rising(now: MachineInputs, node: Node, note: NodeNote, *, registered: bool) -> bool:
    """Whether a node that is not usable has not been so yet, as far as anybody knows: it is still coming."""
    before = now.before.get(node.name)
    if node.name in now.busy or node.cordoned or find_removal_taint(node.taints):
        return False
    if before is not None:
        return before.state in COMING
    return not registered or now.at - note.created < now.young_seconds


def _why_lost(node: Node, note: NodeNote) -> str:
    other = find_removal_taint(node.taints)
    if other:
        return f"another client is removing it (taint {other})"
    if node.cordoned and note.drain is None:
        return "another client cordoned it"
    if not node.ready or any(taint.key in _NOT_UP for taint in node.taints):
        return "it is not ready"
    return "" if node.serving else "its node agent has stopped serving"


def _unknown(fleet: ObservedMachines, now: MachineInputs, pool: str, shape: Mode | None) -> None:
    """A pool whose provider cannot tell: its machines are what they were, as far as their nodes agree."""
    for machine in now.before.values():
        if machine.pool == pool:
            node = now.nodes.get(machine.name)
            if node is not None:
                _node(fleet, now, node, pool, shape)
            elif machine.state in STANDING and machine.state not in (MachineState.READY, MachineState.DRAINING):
                fleet.machines[machine.name] = machine
    for name, node in now.nodes.items():
        if node.pool == pool and name not in fleet.machines:
            _node(fleet, now, node, pool, shape)
