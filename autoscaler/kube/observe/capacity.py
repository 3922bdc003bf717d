# SPDX-License-Identifier: Apache-2.0
"""
The usable nodes as the placement engine has them: their pods' shares taken off, and how full each is.

Decides which nodes' memory counts, and that what pods ask for as a mixture is learnt from those that hold memory now
and from nothing else: the same pods give the same answers, in whatever order they came. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import MachineState
from autoscaler.core.pools import compute_load
from autoscaler.kube.annotations import ours
from isolation.contract.names import ACK, CONTROL_PLANE
from isolation.placement.engine import Engine
from isolation.placement.node_rules import whole_cards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.kube.annotations import NodeNote
    from isolation.contract.model import Node, Pod

_NO_PODS: Final[Mapping[str, Pod]] = {}


def drainable(node: Node) -> bool:
    """Whether our admission policy lets us mark the node: one that says what it serves, of no control plane."""
    return ACK.mode_label in node.labels and CONTROL_PLANE.isdisjoint(node.labels)


def sealed(note: NodeNote | None) -> bool:
    """Whether the node's removal may have been ordered already."""
    return note is not None and note.drain is not None and note.drain.removing > 0


def find_usable(
    machines: Mapping[str, PoolMachine], nodes: Mapping[str, Node], notes: Mapping[str, NodeNote]
) -> list[Node]:
    """Ready nodes and those being drained, unless their removal may have been ordered; by name."""
    return [
        _present(nodes[name], machine)
        for name, machine in sorted(machines.items())
        if name in nodes
        and machine.state in (MachineState.READY, MachineState.DRAINING)
        and not sealed(notes.get(name))
    ]


def _present(node: Node, machine: PoolMachine) -> Node:
    """A drained node is a cordoned one to the deciders: our own taint must not bar it from being kept."""
    if machine.state is MachineState.DRAINING:
        taints = tuple(taint for taint in node.taints if not ours(taint.key))
        return replace(node, pool=machine.pool, cordoned=True, taints=taints)
    return node if node.pool == machine.pool else replace(node, pool=machine.pool)


def build_engine(nodes: list[Node], by_node: Mapping[str, Mapping[str, Pod]]) -> tuple[Engine, dict[str, float]]:
    """The room of these nodes, and how full each is, by name."""
    engine, load = Engine(), {}
    for node in nodes:
        engine.put_node(node)
        held, taken = [], set[str]()
        for pod in by_node.get(node.name, _NO_PODS).values():
            placement = pod.placement
            if placement is None:
                continue
            if pod.request.whole and not placement.slices:
                placement = whole_cards(pod.request, node, taken)
                taken.update(part.uuid for part in placement.slices)
            # held even where it over-commits a card: reality is not refused
            engine.hold(pod.uid, pod.request, placement, force=True)
            held.append((pod.request, placement))
        load[node.name] = compute_load(node, held)
    engine.relearn(request for request, _ in engine.holds.values())
    return engine, load
