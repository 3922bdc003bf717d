# SPDX-License-Identifier: Apache-2.0
"""
Why nothing, or not everything, may be done now: what the autoscaler does not know, or may not touch.

Decides which conditions a snapshot shows. One that blocks stops the whole cycle; any other stops what rests on it and
nothing else. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.kube.observe.machines import ObservedMachines
    from autoscaler.kube.observe.snapshot import ClusterSnapshot
    from isolation.contract.model import Node

UNREADY_RATIO: Final = 1 / 3
"""More nodes not ready than this part: the fault is the network's or the API server's."""
_SHOWN: Final = 3


class ConditionKind(StrEnum):
    """A closed set: it is a metric's label."""

    NOT_READ = "not_synced"
    """The cluster has not been read yet, or its last word is too old."""
    UNREADY = "unready_nodes"
    """More than a third of the nodes are not well: the fault is not theirs."""
    PROVIDER = "provider"
    """A pool's provider cannot tell, or would not do what was asked."""
    FIGURES = "metrics"
    """Exporters that cannot be reached, or whose figures are old: no hot card is relieved there."""
    CLOCK = "clock"
    """The wall clock was set: times written into objects would be wrong, so nothing is moved."""
    CONFLICT = "conflict"
    """Somebody else changed what was to be changed."""
    EVICTION = "eviction"
    """The API server failed at an eviction (such as two budgets on one pod): nothing is evicted for a while."""
    LOST = "lost"
    """Nodes that were usable and are not, or that somebody else takes out of service: left alone."""
    UNMODELLED = "unsupported"
    """Pods with constraints that are not understood: not bought for, not moved."""
    TEMPLATE = "unknown_template"
    """A pool of which nobody knows what a fresh node looks like: it cannot grow."""
    LIMITS = "limits"
    """A fleet-wide limit is reached: no more nodes are bought, or removed, than it allows."""
    UNREADABLE = "unreadable"
    """Objects that cannot be read."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason."""

    kind: ConditionKind
    text: str
    """For people: what it is, and what it keeps from being done."""
    blocks: bool = False
    """Whether nothing at all may be done."""
    pool: str = ""
    node: str = ""


class ConditionError(Exception):
    """There is no reading that one may act on; `conditions` says why."""

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        self.conditions = conditions
        super().__init__("; ".join(condition.text for condition in conditions if condition.blocks))


def find_conditions(
    now: ClusterSnapshot, fleet: ObservedMachines, unknown: Iterable[str], unanswered: Mapping[str, str]
) -> list[Condition]:
    """Conditions for what is unknown; `unknown` are pools without a template."""
    found = [
        Condition(ConditionKind.PROVIDER, f"pool {pool}: {error}; the pool is not scaled", pool=pool)
        for pool, error in sorted(now.failed.items())
    ]
    for name, why in sorted(fleet.lost.items()):
        text = f"node {name}: {why}; the autoscaler does not change this node"
        found.append(Condition(ConditionKind.LOST, text, pool=fleet.machines[name].pool, node=name))
    for pool in unknown:
        text = f"pool {pool}: node template unknown; set its profile, or add one node to learn from"
        found.append(Condition(ConditionKind.TEMPLATE, text, pool=pool))
    if now.held_still:
        found.append(Condition(ConditionKind.CLOCK, now.held_still))
    for node, why in sorted(now.measured.failed.items()):
        found.append(Condition(ConditionKind.FIGURES, f"node {node}: {why}", node=node))
    if unanswered:
        few = "; ".join(list(dict.fromkeys(unanswered.values()))[:_SHOWN])
        found.append(Condition(ConditionKind.UNMODELLED, f"{len(unanswered)} pending pods: {few}"))
    if now.view.unreadable:
        few = ", ".join(sorted(now.view.unreadable)[:_SHOWN])
        found.append(Condition(ConditionKind.UNREADABLE, f"cannot read {len(now.view.unreadable)} objects: {few}"))
    return found


def find_unready(now: ClusterSnapshot, nodes: Mapping[str, Node], limits: ScalingLimits) -> list[Condition]:
    """A node on its way up is not unwell; one that has its cards, or has had its time, is."""
    notes = now.node_notes
    old = [
        node
        for name, node in nodes.items()
        if node.ready
        or node.cards
        or (name in notes and now.at - notes[name].created > limits.max_node_provision_seconds)
    ]
    bad = [node.name for node in old if not node.ready]
    if not bad or len(bad) <= len(old) * UNREADY_RATIO:
        return []
    few = ", ".join(sorted(bad)[:_SHOWN])
    text = f"{len(bad)} of {len(old)} nodes are not ready ({few}); no actions are taken"
    return [Condition(ConditionKind.UNREADY, text, blocks=True)]
