# SPDX-License-Identifier: Apache-2.0
"""
How long one full decision pass takes on a large fleet, and what the process weighs.

A pass is what the loop does every ten seconds between reading and acting: demand card by card,
room by moves, drains, defragmenting, hot cards. Fleets and pods are drawn from published marginals
(`isolation.simulator.traces.synthetic`); every card's use is given, one in twenty is hot. Each size runs in a
process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import observe_cluster
from autoscaler.core.plan import Plan
from autoscaler.core.pools import Pool
from autoscaler.core.state import AutoscalerState
from autoscaler.demo.embedded.node_pools import build_fleet
from isolation.contract.model import Cluster, Node, Phase, Pod, Refusal, Request, Rules
from isolation.placement.engine import Engine
from isolation.simulator.traces import synthetic
from isolation.simulator.traces.openb import CARD_BYTES, make_node

if TYPE_CHECKING:
    from pathlib import Path

    from autoscaler.core.observation import Observation

LARGEST_MIB: Final = 600
NOW: Final = 1e6
PASSES: Final = 5
HOT_ONE_IN: Final = 20
SCALE: Final = 3.0
"""Pods drawn over pods that run: some wait, and small ones fit where large ones do not."""
NEWER: Final = "G3X"
KEPT: Final = 0.5
SMALL: Final = CARD_BYTES // 2


@dataclass(frozen=True, slots=True)
class Size:
    """One fleet and its bar."""

    name: str
    nodes: int
    """Nodes of eight cards; 0: the trace's own 1,213 nodes."""
    pods: int
    pending: int
    seconds: float


SIZES: Final = (Size("trace", 0, 8000, 500, 1.0), Size("large", 5000, 40000, 500, 5.0))


def fleet(size: Size) -> tuple[Node, ...]:
    """The nodes."""
    if not size.nodes:
        return tuple(synthetic.nodes(1.0))
    return tuple(make_node(f"n{i:05}", 128_000, 1_048_576, 8, "G2") for i in range(size.nodes))


def observed(size: Size, *, churned: bool) -> Observation:
    """A full fleet and pods that wait for room; churned: every second pod has left, and nobody waits."""
    nodes = fleet(size)
    fleet_pools = [supply.pool for supply in build_fleet(nodes).supplies]
    pools = tuple(replace(pool, max_nodes=2 * len(nodes)) for pool in fleet_pools)
    kinds = {_kind(pool.template): pool.name for pool in pools}
    nodes = tuple(replace(node, pool=kinds[_kind(node)]) for node in nodes)
    engine, pods = Engine(nodes), list[Pod]()
    asking = _asking(size)
    waiting: list[Request] = []
    for number, request in enumerate(asking):
        owned = replace(request, owner=f"ReplicaSet/default/r{number // 4}")
        found = engine.place(owned)
        if isinstance(found, Refusal):
            waiting.append(owned)
        elif len(pods) < size.pods:
            engine.arrive(owned)
            engine.hold(f"u{number}", owned, found)
            pods.append(Pod(f"u{number}", f"p{number}", request=owned, placement=found, phase=Phase.RUNNING))
        if len(pods) == size.pods and len(waiting) >= size.pending:
            break
    waiting = waiting[-size.pending :]
    # where everything fits, the rest wait for a card model of which no node stands yet
    newer = Rules(models=frozenset({NEWER}))
    asks = [request for request in asking if request.cards]
    waiting += [replace(asks[i], rules=newer, owner=f"Job/default/j{i}") for i in range(size.pending - len(waiting))]
    pools += (Pool("newer", make_node("newer", 128_000, 1_048_576, 8, NEWER)),)
    pods += [Pod(f"w{i}", f"w{i}", request=request, created=NOW) for i, request in enumerate(waiting)]
    if churned:
        left = Random(1)  # noqa: S311 (a workload, no secret)
        pods = [pod for pod in pods if pod.placement is not None and left.random() < KEPT]
    seen = observe_cluster(Cluster(nodes, tuple(pods)), pools, at=NOW)
    cards = [card.uuid for node in nodes for card in node.cards]
    heat = {uuid: 0.97 if at % HOT_ONE_IN == 0 else 0.3 for at, uuid in enumerate(cards)}
    busy = {pod.uid: 0.3 for pod in pods if pod.placement is not None and pod.placement.slices}
    return replace(seen, card_utilization=heat, pod_utilization=busy)


def _kind(node: Node) -> tuple[object, ...]:
    return (len(node.cards), node.cpu_milli, node.memory_bytes, node.cards[0].model if node.cards else "")


def _asking(size: Size) -> list[Request]:
    """Pods from the published marginals; on the large fleet the larger half, or its cards would not be full."""
    drawn = [pod.request for pod in synthetic.pods(SCALE * size.pods / 8152, seed=1)]
    large = (request.cards > 0 and (request.card_bytes > SMALL or at % 5 == 0) for at, request in enumerate(drawn))
    return [request for request, keep in zip(drawn, large, strict=True) if size.nodes == 0 or keep]


def passes(seen: Observation, kind: str) -> tuple[list[float], Plan]:
    """
    Seconds of each pass, and the last plan.

    busy: pods wait; drain: half of them have left and nodes can go; still: no node goes, and single moves are
    sought. Seconds of this process's one thread: what the rest of the machine does is not in them.
    """
    since = dict.fromkeys(seen.engine.nodes, 0.0)
    memory = AutoscalerState(unneeded=since, hot=dict.fromkeys(seen.card_utilization, 0.0), defragmenting=True)
    limits, taken, plan = (
        ScalingLimits(max_scale_down_parallelism=0) if kind == "still" else ScalingLimits(),
        [],
        Plan(0.0),
    )
    for _ in range(PASSES):
        began = time.process_time()
        plan, _memory = decide(seen, limits, memory)
        plan = plan.still_valid(seen)
        taken.append(time.process_time() - began)
    return taken, plan


def measure(name: str) -> None:
    """One size in this process; its figures as one line of JSON."""
    size = next(each for each in SIZES if each.name == name)
    full = observed(size, churned=False)
    after = observed(size, churned=True)
    found = {}
    for kind, seen in (("busy", full), ("drain", after), ("still", after)):
        taken, plan = passes(seen, kind)
        kinds = [type(step).__name__ for step in plan.steps]
        steps = {step: kinds.count(step) for step in sorted(set(kinds))}
        found[kind] = {"median": median(taken), "worst": max(taken), "steps": steps}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    running = sum(pod.placement is not None for pod in full.pods.values())
    print(
        json.dumps(
            {
                "nodes": len(full.engine.nodes),
                "pods": running,
                "pending": len(full.pending),
                "peak_mib": peak,
                "passes": found,
            }
        )
    )


def figures_of(part: str, size: Size) -> dict[str, Any]:
    """One size in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.autoscaler", "--part", part, "--one", size.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compared(json_out: Path | None) -> bool:
    """Seconds of a decision pass, and memory, beside their bars; whether all were met."""
    met, document = True, {}
    for size in SIZES:
        found = document[size.name] = figures_of("pass", size)
        print(f"{size.name}: {found['nodes']} nodes, {found['pods']} pods, {found['pending']} pending")
        for kind, figures in found["passes"].items():
            good = figures["worst"] <= size.seconds
            met &= good
            print(
                f"  {kind} pass: median {figures['median']:.3f} s, worst {figures['worst']:.3f} s"
                f" (bar {size.seconds:g} s: {'met' if good else 'MISSED'}); {figures['steps']}"
            )
        light = found["peak_mib"] <= LARGEST_MIB
        met &= light
        print(f"  peak memory {found['peak_mib']} MiB (bar {LARGEST_MIB} MiB: {'met' if light else 'MISSED'})")
    if json_out:
        json_out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return met
