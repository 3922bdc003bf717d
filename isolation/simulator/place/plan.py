# SPDX-License-Identifier: Apache-2.0
"""
Pods one after another onto nodes, each seeing the ones before it.

Pure: manifests and nodes come in as values, outcomes go out; the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isolation.contract.model import FULL_CORE, Cluster, Part, Placement, Refusal, Request, parts_of
from isolation.placement.place import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.codec.workloads import Planned
    from isolation.contract.model import Node, Pod
    from isolation.placement.engine import Engine


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What became of one pod."""

    pod: Planned
    result: Placement | Refusal

    @property
    def landed(self) -> tuple[Part, ...]:
        """Containers that got cards; in a pod that asks for none, every app container."""
        if isinstance(self.result, Refusal) or isinstance(self.pod.request, Refusal):
            return ()
        parts = parts_of(self.pod.request, self.result)
        return parts or tuple(Part(name, ()) for name in self.pod.containers)


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """One card after everything is placed."""

    index: int
    allocatable_bytes: int
    used_bytes: int
    used_core: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Every pod's outcome in order, and what the nodes look like then."""

    outcomes: tuple[PodOutcome, ...]
    nodes: tuple[tuple[Node, tuple[PlannedCard, ...]], ...]

    @property
    def refused(self) -> bool:
        """Whether any pod found no place."""
        return any(isinstance(outcome.result, Refusal) for outcome in self.outcomes)


def build_plan(nodes: Iterable[Node], running: Iterable[Pod], pods: Iterable[Planned], policy: str) -> PlacementPlan:
    """Place the pods in order beside those that are running."""
    # A file written by hand may leave UIDs out or repeat them.
    held = tuple(replace(pod, uid=f"running/{number}") for number, pod in enumerate(running))
    engine = engine_of(Cluster(tuple(nodes), held), policy)
    outcomes: list[PodOutcome] = []
    refused: dict[int, Refusal] = {}  # by identity of the request, which replicas share; true until a pod lands
    for number, pod in enumerate(pods):
        known = pod.request if isinstance(pod.request, Refusal) else refused.get(id(pod.request))
        if known is not None:
            outcomes.append(PodOutcome(pod, known))
        elif isinstance(pod.request, Request):
            result = _place(engine, f"plan/{number}", pod.request)
            outcomes.append(PodOutcome(pod, result))
            if isinstance(result, Refusal):
                refused[id(pod.request)] = result
            else:
                refused.clear()
    return PlacementPlan(
        tuple(outcomes),
        tuple((node, _card_allocations(node, engine.room(name))) for name, node in engine.nodes.items()),
    )


def _place(engine: Engine, uid: str, request: Request) -> Placement | Refusal:
    engine.arrive(request)
    result = engine.place(request)
    if isinstance(result, Placement):
        engine.hold(uid, request, result)
    return result


def _card_allocations(node: Node, room: tuple[tuple[int, int], ...]) -> tuple[PlannedCard, ...]:
    return tuple(
        PlannedCard(
            card.index,
            offered := card.allocatable_bytes if card.healthy else 0,
            offered - free,
            FULL_CORE - core,
            card.healthy,
        )
        for card, (free, core) in zip(node.cards, room, strict=True)
    )
