# SPDX-License-Identifier: Apache-2.0
"""
What could not be told, or must not be touched, as sentences for people.

Decides which of it stops everything. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoscaler.kube.core.conditions import Condition, ConditionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.limits import Limits
    from autoscaler.kube.observe.machines import Fleet
    from autoscaler.kube.observe.snapshot import Snapshot
    from isolation.contract.model import Node

UNREADY_RATIO: Final = 1 / 3
"""More nodes unwell than this part: the fault is the network's or the API server's."""
_SHOWN: Final = 3


def find_conditions(
    now: Snapshot, fleet: Fleet, unknown: Iterable[str], unanswered: Mapping[str, str]
) -> list[Condition]:
    """What rests on something that cannot be told; `unknown` are pools without a template."""
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


def find_unready(now: Snapshot, nodes: Mapping[str, Node], limits: Limits) -> list[Condition]:
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
