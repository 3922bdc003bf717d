# SPDX-License-Identifier: Apache-2.0
"""
Pools as the deciders have them: what a fresh node is like, how many there may be, and how many are kept ready.

Decides what of a standing node shows its pool's kind, and that a pool whose provider cannot tell stays as it is. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.disruption_budget import belongs_to_node
from autoscaler.core.lifecycle import STANDING
from autoscaler.core.pools import Pool
from isolation.contract.codec.template import NodeTemplate
from isolation.contract.names import CARD_COUNT, CARD_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.kube.core.config import PoolConfig
    from autoscaler.kube.observe.machines import ObservedMachines
    from autoscaler.providers.base import PoolState
    from isolation.contract.model import Mode, Node, Pod


def find_mode(one: PoolConfig, profiles: Mapping[str, NodeTemplate]) -> Mode | None:
    """What its nodes serve; None where nobody knows."""
    shaped = one.shaped(profiles.get(one.name))
    return None if shaped is None else shaped.mode


def kind_of(node: Node, pool: str, here: Iterable[Pod]) -> Node:
    """A node that shows its pool's kind: less what goes with every node of it (agents, exporters)."""
    own = [pod.request for pod in here if belongs_to_node(pod)]
    return replace(
        node,
        pool=pool,
        cpu_milli=max(0, node.cpu_milli - sum(request.cpu_milli for request in own)),
        memory_bytes=max(0, node.memory_bytes - sum(request.memory_bytes for request in own)),
        pods=max(0, node.pods - len(own)),
    )


def find_bounds(
    one: PoolConfig, state: PoolState | None, fleet: ObservedMachines, on: Mapping[str, Mapping[str, Pod]]
) -> tuple[int, int]:
    """Fewest and most nodes, as far as our own machines go."""
    mine = [machine for machine in fleet.machines.values() if machine.pool == one.name]
    if state is None:
        # its provider cannot tell: it neither grows nor shrinks
        size = sum(machine.state in STANDING for machine in mine)
        return size, size
    min_nodes = max(one.min_nodes, state.min_nodes or 0)
    if one.spare_nodes:
        used = sum(any(not belongs_to_node(pod) for pod in on.get(machine.name, {}).values()) for machine in mine)
        min_nodes = max(min_nodes, used + one.spare_nodes)
    most = one.max_nodes if state.max_nodes is None else min(one.max_nodes, state.max_nodes)
    max_nodes = max(0, most - fleet.count.get(one.name, 0))
    return min(min_nodes, max_nodes), max_nodes


def make_pool(one: PoolConfig, shaped: NodeTemplate | None, bounds: tuple[int, int], *, known: bool) -> Pool | None:
    """None where nobody knows what its nodes look like and it need not have any."""
    min_nodes, max_nodes = bounds
    if shaped is None and not min_nodes:
        return None
    template = _labelled((shaped or NodeTemplate()).node(one.name))
    return Pool(
        one.name, template, min_nodes, max_nodes, one.price, buys=one.ours.buys, drains=one.ours.drains, known=known
    )


def _labelled(node: Node) -> Node:
    """With the labels that our agent will give it: admission has made pods ask for them."""
    if not node.cards:
        return node
    units = max(card.allocatable_bytes // card.unit_bytes for card in node.cards)
    own = {CARD_UNITS: str(units), CARD_COUNT: str(len(node.cards))}
    return replace(node, labels={**own, **node.labels})
