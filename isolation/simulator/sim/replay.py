# SPDX-License-Identifier: Apache-2.0
"""
One trace under one policy and one seed: what was placed, what was not, what it cost.

Decides how a pod list becomes a queue (shuffled, then filled up or cut to the demand) and what a
run is judged by. Every figure is counted here from the placements, never taken from the engine
that made them, and a placement that does not fit is an error. Knows nothing of files or screens.
The loading follows the published protocol: pods arrive one by one, nothing leaves.

    ReplayError      the trace cannot be replayed as asked
    RunError         a run broke: a worker process died, or a placement took what is not there
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.model import Placement, Refusal
from isolation.placement.engine import Engine
from isolation.placement.policy import POLICIES
from isolation.simulator.sim.audit import Audit, AuditError
from isolation.simulator.traces.openb import CARD_BYTES, MILLI_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.contract.model import Node, Request

KINDS: Final = ("cpu_only", "shared", "whole", "multi_card")
MAX_PODS: Final = 5_000_000
"""Pods in one queue: about 2 GiB of Python objects."""
CURVE_POINTS: Final = 200
PlaceResult = Placement | Refusal


class ReplayError(ValueError):
    """The trace cannot be replayed as asked."""


class RunError(RuntimeError):
    """A worker process died, or a placement took what is not there."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A fleet and the requests of one pod list, in the list's order; requests alike are one object."""

    nodes: tuple[Node, ...]
    requests: tuple[Request, ...]

    @property
    def total_milli(self) -> int:
        """All cards of the fleet."""
        return sum(card.allocatable_bytes for node in self.nodes for card in node.cards) // MILLI_BYTES


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One run to do; `demand` is asked GPU over all cards."""

    policy: str
    seed: int
    demand: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to; milli is thousandths of one card."""

    job: ReplayJob
    total_milli: int
    allocated_milli: int
    fragment_ratio: float | None
    """Part of the idle GPU that the mix cannot use; None when nothing is idle."""
    arrived: tuple[int, ...]
    """Pods by kind, in the order of `KINDS`."""
    accepted: tuple[int, ...]
    failed_by: tuple[tuple[str, int], ...]
    """Refused pods by `Why`, sorted by name."""
    seconds: float
    """Placing only: the engine is built and the queue is loaded before the clock starts."""
    curve: tuple[tuple[float, float], ...]
    """Arrived demand and allocated ratio, both over all cards."""

    @property
    def allocated_ratio(self) -> float:
        """Allocated part of all cards."""
        return self.allocated_milli / self.total_milli

    @property
    def placed(self) -> int:
        """Pods that got a place."""
        return sum(self.accepted)

    @property
    def failed(self) -> int:
        """Pods that got none."""
        return sum(self.arrived) - self.placed


def classify(request: Request) -> str:
    """Which of `KINDS` a request is."""
    if not request.cards:
        return "cpu_only"
    if request.cards > 1:
        return "multi_card"
    return "shared" if request.card_bytes < CARD_BYTES else "whole"


def draw_queue(trace: Trace, demand: float, seed: int) -> tuple[Request, ...]:
    """
    The queue of one run: numpy's PCG64 seeded with `seed` shuffles, draws and drops.

    The list is shuffled; pods drawn with replacement follow until the demand is reached; of a list
    that asks for more, pods are dropped from the shuffled end until it no longer does.
    """
    milli = np.array([gpu_milli(request) for request in trace.requests], dtype=np.int64)
    total, target = int(milli.sum()), demand * trace.total_milli
    if not trace.total_milli or not total:
        raise ReplayError("nothing to place: the nodes have no cards, or no pod requests any; check both files")
    if len(milli) * max(1.0, target / total) > MAX_PODS:
        raise ReplayError(f"demand {demand:g} means more than {MAX_PODS} pods; lower the demand")
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(len(milli))
    if total > target:
        order = order[: np.searchsorted(np.cumsum(milli[order]), target, side="right")]
    while total < target:
        # A little more than the mean says is enough, so that one draw nearly always does.
        drawn = random.integers(len(milli), size=int((target - total) / milli.mean() * 1.1) + 16)
        asked = total + np.cumsum(milli[drawn])
        drawn = drawn[: np.searchsorted(asked, target) + 1]
        total += int(milli[drawn].sum())
        order = np.concatenate((order, drawn))
    if not milli[order].any():
        raise ReplayError(f"demand {demand:g} is less than the first pod requests; raise the demand")
    return tuple(trace.requests[i] for i in order.tolist())


def gpu_milli(request: Request) -> int:
    """GPU that a request asks for over all its cards."""
    return request.cards * request.card_bytes // MILLI_BYTES


def replay(trace: Trace, job: ReplayJob, clock: Callable[[], float] = time.perf_counter) -> Run:
    """Let the queue arrive one by one; whatever fits somewhere is placed."""
    queue = draw_queue(trace, job.demand, job.seed)
    engine = Engine(trace.nodes, policy=job.policy, seed=job.seed)
    if not POLICIES[job.policy].online:
        # The published baselines know the trace's mix beforehand.
        engine.teach(trace.requests)
    uids = [str(i) for i in range(len(queue))]
    started = clock()
    outcomes = _place_all(engine, uids, queue)
    seconds = clock() - started
    return measure_run(trace, job, queue, outcomes, seconds)


def _place_all(engine: Engine, uids: Sequence[str], queue: Sequence[Request]) -> list[PlaceResult]:
    """The timed part: nothing but the engine."""
    arrive, place, hold = engine.arrive, engine.place, engine.hold
    outcomes: list[PlaceResult] = []
    for uid, request in zip(uids, queue, strict=True):
        arrive(request)
        outcome = place(request)
        if isinstance(outcome, Placement):
            hold(uid, request, outcome)
        outcomes.append(outcome)
    return outcomes


def measure_run(
    trace: Trace, job: ReplayJob, queue: Sequence[Request], outcomes: Sequence[PlaceResult], seconds: float
) -> Run:
    """The figures of a run, counted from its outcomes on a second book."""
    audit = Audit(trace.nodes)
    arrived, accepted, failed = Counter[str](), Counter[str](), Counter[str]()
    taken: list[int] = []
    for request, outcome in zip(queue, outcomes, strict=True):
        arrived[classify(request)] += 1
        if isinstance(outcome, Refusal):
            failed[outcome.why.value] += 1
            taken.append(0)
            continue
        try:
            audit.take(request, outcome)
        except AuditError as exc:
            raise RunError(f"policy {job.policy}, seed {job.seed}: {exc}") from exc
        accepted[classify(request)] += 1
        taken.append(gpu_milli(request))
    return Run(
        job=job,
        total_milli=trace.total_milli,
        allocated_milli=sum(taken),
        fragment_ratio=audit.fragment_ratio(Counter(trace.requests)),
        arrived=tuple(arrived[k] for k in KINDS),
        accepted=tuple(accepted[k] for k in KINDS),
        failed_by=tuple(sorted(failed.items())),
        seconds=seconds,
        curve=_curve([gpu_milli(request) for request in queue], taken, trace.total_milli),
    )


def _curve(asked: Sequence[int], taken: Sequence[int], total: int) -> tuple[tuple[float, float], ...]:
    """Allocated against arrived, at even steps of arrived demand."""
    demand, allocated = np.cumsum(asked), np.cumsum(taken)
    steps = np.linspace(0, demand[-1], CURVE_POINTS + 1)[1:]
    at = np.unique(np.minimum(np.searchsorted(demand, steps), len(demand) - 1))
    points = zip((demand[at] / total).tolist(), (allocated[at] / total).tolist(), strict=True)
    return ((0.0, 0.0), *((round(x, 6), round(y, 6)) for x, y in points))
