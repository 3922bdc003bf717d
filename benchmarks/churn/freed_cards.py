# SPDX-License-Identifier: Apache-2.0
"""
What rebalancing frees after churn: a fleet is filled, most pods leave, and a few of the others move.

Decides how the scene is set and what counts: a card is freed when its node becomes empty *by moves*; a node
on which nobody was left counts for nothing. Who moves is the autoscaler's own decision
(`autoscaler.core.scale_down`), under its own limits but for the budget, and is counted on a second book.

    ChurnError      the scene cannot be set, or a plan moved a pod to where it has no room
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.core.disruption_budget import Budget
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import observe_cluster
from autoscaler.core.rebalance.cost import DisruptionCost
from autoscaler.core.scale_down import find_removals, find_unneeded
from autoscaler.demo.embedded.node_pools import build_fleet
from isolation.contract.model import Cluster, Phase, Placement, Pod
from isolation.placement.engine import Engine
from isolation.simulator.sim.audit import Audit, AuditError
from isolation.simulator.sim.replay import draw_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autoscaler.core.observation import Observation
    from autoscaler.core.pools import Pool
    from autoscaler.core.scale_down import Removal
    from isolation.contract.model import Node
    from isolation.simulator.sim.replay import Trace

BUDGETS: Final = (0.02, 0.05, 0.1, 0.2)
"""Moved pods, as parts of those that run after the churn."""
NOW: Final = 1e6
"""Seconds: everything has been as it is for long."""
OPEN: Final = ScalingLimits(
    min_replicas=1,
    max_scale_down_parallelism=10**6,
    scale_down_non_empty_candidates_count=10**6,
    max_moves_per_hour=10**9,
    min_moves_per_hour=0,
)
"""The limits, less those that spread moves over hours: a plan here is what many turns would do."""


class ChurnError(ValueError):
    """The scene cannot be set, or a plan is wrong."""


@dataclass(frozen=True, slots=True)
class ChurnSetup:
    """How full the fleet gets, and how many leave."""

    policy: str = "best-fit"
    filled: float = 0.95
    """Pods arrive until they ask for this part of all cards (best fit never gives out 95 % of the trace's)."""
    left: float = 0.7
    """Part of the pods that leave, drawn at random."""


@dataclass(frozen=True, slots=True)
class Freed:
    """One budget on one seed."""

    seed: int
    budget: float
    pods: int
    """That run after the churn."""
    moves: int
    cards: int
    """Of nodes that became empty by moves."""
    nodes: int
    empty_cards: int
    """Of nodes that were empty before anybody moved: not counted as freed."""

    @property
    def per_move(self) -> float | None:
        """Cards freed for each pod moved; None where none was."""
        return self.cards / self.moves if self.moves else None


def churn(trace: Trace, scene: ChurnSetup, seed: int, budgets: Sequence[float] = BUDGETS) -> list[Freed]:
    """Set the scene once, and plan under each budget."""
    seen = after_churn(trace, scene, seed)
    return [_freed(seen, seed, budget) for budget in budgets]


def after_churn(trace: Trace, scene: ChurnSetup, seed: int) -> Observation:
    """The fleet when most have left."""
    pools, nodes = pooled(trace.nodes)
    pods = _fill(nodes, trace, scene, seed)
    draw = np.random.Generator(np.random.PCG64([seed, 1]))
    kept = np.sort(draw.permutation(len(pods))[: round(len(pods) * (1 - scene.left))]).tolist()
    return observe_cluster(Cluster(nodes, tuple(pods[at] for at in kept)), pools, at=NOW)


def pooled(nodes: Iterable[Node]) -> tuple[tuple[Pool, ...], tuple[Node, ...]]:
    """The kinds of node as pools, and the nodes as members of them."""
    nodes = tuple(nodes)
    pools = tuple(supply.pool for supply in build_fleet(nodes).supplies)
    names = {_kind(pool.template): pool.name for pool in pools}
    return pools, tuple(replace(node, pool=names[_kind(node)]) for node in nodes)


def _kind(node: Node) -> tuple[object, ...]:
    model = node.cards[0].model if node.cards else ""
    return (len(node.cards), model, node.cpu_milli, node.memory_bytes, node.mode, node.choice)


def _fill(nodes: Sequence[Node], trace: Trace, scene: ChurnSetup, seed: int) -> list[Pod]:
    """Pods arrive one by one; whoever fits somewhere is placed."""
    engine, pods = Engine(nodes, policy=scene.policy, seed=seed), list[Pod]()
    for number, request in enumerate(draw_queue(trace, scene.filled, seed)):
        engine.arrive(request)
        place = engine.place(request)
        if isinstance(place, Placement):
            # the list names no controllers: each pod stands for one replica of somebody's
            owned = replace(request, owner=f"ReplicaSet/default/r{number}")
            engine.hold(str(number), owned, place)
            pods.append(Pod(str(number), f"p{number}", request=owned, placement=place, phase=Phase.RUNNING))
    return pods


def _freed(seen: Observation, seed: int, part: float) -> Freed:
    """Plan once, and count on a second book."""
    limits = replace(OPEN, max_moves_per_hour_ratio=part)
    since = dict.fromkeys(find_unneeded(seen, limits), 0.0)
    weights = DisruptionCost.of(seen, limits)
    budget = Budget(limits, seen.at, pods=len(seen.pods), replicas=weights.replicas)
    found = find_removals(seen, limits, since, budget, weights)
    _check(seen, found)
    moved = [each for each in found if each.reservations]
    cards = {name: len(node.cards) for name, node in seen.engine.nodes.items()}
    return Freed(
        seed=seed,
        budget=part,
        pods=len(seen.pods),
        moves=sum(len(each.reservations) for each in moved),
        cards=sum(cards[each.node] for each in moved),
        nodes=len(moved),
        empty_cards=sum(cards[name] for name, pods in seen.on.items() if not pods),
    )


def _check(seen: Observation, found: Iterable[Removal]) -> None:
    """Every pod has room where the plan has it, on the nodes that stay, by a count that is not the engine's."""
    gone = {each.node for each in found}
    homes = {home.pod: home.placement for each in found for home in each.reservations}
    audit = Audit(node for name, node in seen.engine.nodes.items() if name not in gone)
    try:
        for uid, pod in seen.pods.items():
            place = homes.get(uid, pod.placement)
            if place is not None:
                audit.take(pod.request, place)
    except AuditError as exc:
        raise ChurnError(f"the plan places a pod where it does not fit: {exc}") from exc
