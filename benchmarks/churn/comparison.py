# SPDX-License-Identifier: Apache-2.0
"""
Two autoscalers on the same pods: ours, and one that adds up nodes; what each costs and who waits.

Decides the input (a trace's pods in its order, arrivals spread over a span with a daily wave, lifetimes
stretched so that many run at once) and what is counted. The cluster, the scheduler and the loop are the
same for both; only the decider differs.
What a flap is, `flaps` says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import cos, pi
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.core.decide import decide
from autoscaler.core.flapping import FlapDetector
from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.lifecycle import STANDING
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import CancelDrain, Drain, Evict, Move, ScaleUp
from autoscaler.core.pools import Pool
from autoscaler.core.templates import get_templates
from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import PoolSupply, SimulatedFleet
from autoscaler.demo.embedded.workload import PodArrival
from benchmarks.churn.first_fit_count import needed_nodes, served_by_coming
from benchmarks.churn.node_sums import decide_by_sums

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan
    from autoscaler.core.reconcile import Decider
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Node
    from isolation.simulator.traces.openb import TracePod

HOUR: Final = 3600.0
SAMPLE_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 60.0
"""A fragmented pod pod has waited longer than this with nothing coming for it: no turn of the loop is still out."""
LIMITS: Final = ScalingLimits(min_replicas=1)
"""The defaults, but that a pod of the trace, which names no controllers, stands for a replica that may move."""
DECIDERS: Final[dict[str, tuple[Decider, ScalingLimits]]] = {
    "per card": (decide, LIMITS),
    "per card, 10 %/h": (decide, replace(LIMITS, max_moves_per_hour_ratio=0.1)),
    "node sums": (decide_by_sums, LIMITS),
}
"""The second moves up to a tenth of the pods in an hour, where the default is a fiftieth."""


@dataclass(frozen=True, slots=True)
class DaySetup:
    """How the trace is stretched."""

    hours: float = 24.0
    pods: int = 3000
    stretch: float = 8.0
    """Lifetimes times this: as dated, hardly any pods of the trace overlap."""
    wave: float = 0.7
    """Arrivals vary by this part of their mean over a day."""


@dataclass(slots=True)
class Score:
    """What one autoscaler came to."""

    name: str
    node_hours: float = 0.0
    pending_pod_hours: float = 0.0
    """Of all pods, until they were placed; those that a move made again included."""
    longest_wait: float = 0.0
    """Seconds, of a pod that was placed or still waits."""
    waiting: int = 0
    """Pods that wait at the end."""
    fragmented: int = 0
    """Pods that waited, placeable by the sums of a node and by none of its cards, with nothing coming for them."""
    fragmented_pod_hours: float = 0.0
    bought: int = 0
    short: int = 0
    """Nodes that per-card first-fit-decreasing would have bought in that turn, and that were not."""
    over: int = 0
    drained: int = 0
    moves: int = 0
    flaps: int = 0
    placed: int = 0
    line: list[tuple[float, int, int]] = field(default_factory=list)
    """Hours, nodes that stand, pods that wait."""


def compare_autoscalers(
    nodes: Sequence[Node], pods: Sequence[TracePod], course: DaySetup, seed: int, names: Iterable[str] = DECIDERS
) -> list[Score]:
    """Both autoscalers on the same input."""
    pool = choose_pool(nodes)
    arrivals = tuple(build_workload(pool, pods, course, seed))
    return [_Run(name, pool, arrivals, course, seed).score for name in names]


def choose_pool(nodes: Sequence[Node]) -> Pool:
    """The kind of node of which the list has most cards, as a pool without end."""
    kinds = Counter[tuple[int, int, int, str]]()
    first: dict[tuple[int, int, int, str], Node] = {}
    for node in nodes:
        key = (len(node.cards), node.cpu_milli, node.memory_bytes, node.cards[0].model if node.cards else "")
        kinds[key] += max(1, len(node.cards))
        first.setdefault(key, node)
    kind = max(kinds, key=lambda key: (kinds[key], key))
    name = f"{kind[3] or 'cpu'}x{kind[0]}".lower()
    return Pool(name, replace(first[kind], name=name, pool=name), 0, 10**6)


def build_workload(pool: Pool, pods: Sequence[TracePod], course: DaySetup, seed: int) -> Iterable[PodArrival]:
    """Pods that a node of the pool can host, drawn from the list, over the span."""
    draw = np.random.Generator(np.random.PCG64([seed, 2]))
    hosts = get_templates((pool,)).hosts
    usable = [
        pod for pod in pods if pod.created is not None and pod.deleted is not None and hosts(pool.name, pod.request)
    ]
    chosen = np.sort(draw.permutation(len(usable))[: course.pods]).tolist() if usable else []
    times = np.sort(_times(draw, len(chosen), course))
    for number, (at, which) in enumerate(zip(times.tolist(), chosen, strict=True)):
        pod = usable[which]
        seconds = max(1.0, ((pod.deleted or 0.0) - (pod.created or 0.0)) * course.stretch)
        owned = replace(pod.request, owner=f"ReplicaSet/default/r{number}")
        yield PodArrival(round(at, 3), f"{pod.name}-{number}", owned, seconds)


def _times(draw: np.random.Generator, count: int, course: DaySetup) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Moments at which pods come: more at noon than at midnight."""
    span = course.hours * HOUR
    grid = np.linspace(0.0, span, 2001)
    rate = np.array([1 - course.wave * cos(2 * pi * at / (24 * HOUR)) for at in grid.tolist()])
    reach = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    return np.interp(draw.uniform(0.0, reach[-1], count), reach, grid)


class _Run:
    """One autoscaler's day; counts from what is seen and done, not from what the decider says of itself."""

    def __init__(self, name: str, pool: Pool, arrivals: Sequence[PodArrival], course: DaySetup, seed: int) -> None:
        self.score = Score(name)
        self._fragmented: set[str] = set()
        self._flaps = FlapDetector()
        self._pool = pool
        fleet = SimulatedFleet((PoolSupply(pool, boot_seconds=120.0),))
        decider, limits_of = DECIDERS[name]

        def watched(seen: Observation, limits: ScalingLimits, memory: AutoscalerState) -> tuple[Plan, AutoscalerState]:
            plan, after = decider(seen, limits, memory)
            self._count(seen, plan)
            self._flaps.observe(seen, plan, HOUR)
            return plan, after

        self._cluster = EmbeddedCluster(fleet, arrivals, seed=seed, limits=limits_of, decider=watched, done=self._done)
        for _ in range(round(course.hours * HOUR / SAMPLE_SECONDS)):
            self._cluster.advance(SAMPLE_SECONDS)
            self._sample()
        self._end()

    def _count(self, seen: Observation, plan: Plan) -> None:
        """What a plan buys beside what it should."""
        bought = sum(isinstance(step, ScaleUp) for step in plan.steps)
        needed = needed_nodes(seen, self._pool) if seen.pending else 0
        # a node called back from its drain, or room made by moves, stands for one that is not bought
        instead = sum(isinstance(step, CancelDrain) for step in plan.steps)
        instead += len({uid for step in plan.steps if isinstance(step, Move) for uid in step.pods})
        self.score.short += max(0, needed - bought - instead)
        self.score.over += max(0, bought - needed)

    def _done(self, plan: Plan) -> None:
        """What was carried out, and what of it was undone."""
        score = self.score
        for step in plan.steps:
            score.bought += isinstance(step, ScaleUp)
            score.drained += isinstance(step, Drain)
            score.moves += isinstance(step, Evict | Move)
            score.flaps += self._flaps.record(step, plan.at) is not None

    def _sample(self) -> None:
        cluster, score = self._cluster, self.score
        seen = cluster.cluster.snapshot()
        standing = sum(machine.state in STANDING for machine in seen.machines.values())
        hours = SAMPLE_SECONDS / HOUR
        score.node_hours += standing * hours
        score.pending_pod_hours += len(seen.pending) * hours
        score.longest_wait = max([score.longest_wait, *(seen.at - pod.created for pod in seen.pending)])
        lost = [pod for pod in find_fragmented(seen, seen.pending) if seen.at - pod.created > PATIENCE_SECONDS]
        if lost:
            coming = served_by_coming(seen, self._pool)
            lost = [pod for pod in lost if pod.uid not in coming]
        self._fragmented.update(pod.uid for pod in lost)
        score.fragmented_pod_hours += len(lost) * hours
        score.line.append((seen.at / HOUR, standing, len(seen.pending)))

    def _end(self) -> None:
        counts = dict(self._cluster.cluster.accounting.counts)
        self.score.fragmented = len(self._fragmented)
        self.score.placed = counts["pods_placed"]
        self.score.waiting = len(self._cluster.cluster.scheduler.pending)
