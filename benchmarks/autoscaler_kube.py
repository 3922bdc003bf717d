# SPDX-License-Identifier: Apache-2.0
"""
How long a turn of the autoscaler takes on Kubernetes, and for how long at a stretch nothing else of the process runs.

A turn is a reading of the watched cluster, the decision, a second reading and the recheck; nothing is applied. The
fleets are those of `autoscaler_pass`; every container's use of its card is told anew at each turn. `cold` is the first
turn of a process, `still` one on an unchanged fleet, `churn` one after one pod in a hundred has ended and another was
bound in its place. Seconds of this process's threads: what the rest of the machine does is not in them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

from autoscaler_pass import LARGEST_MIB, NOW, SIZES, Size, figures_of, observed

from autoscaler.apis.metrics.core.readings import Board, Sample, Spot
from autoscaler.core.decide import decide
from autoscaler.core.limits import Limits
from autoscaler.core.state import Memory
from autoscaler.kube.annotations import NodeNote, PodNote
from autoscaler.kube.app import YOUNG_OBJECTS
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.usage import Measured
from autoscaler.kube.watches import Sources
from autoscaler.providers.base import Instance, PoolState
from autoscaler.providers.registry import PoolSource, Providers
from isolation.contract.codec.cursor import At
from isolation.contract.model import Ask, Request
from isolation.contract.names import SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autoscaler.core.snapshot import Observation
    from autoscaler.providers.base import Provider

TURNS: Final = 5
CHURN: Final = 100
"""One pod in so many comes and goes between two turns."""
BLOCK_SECONDS: Final = 1.0
"""A probe waits a second for its answer."""
_TICK_SECONDS: Final = 0.001
_LIMITS: Final = Limits(action_validation_delay_seconds=1.0)
_NOBODY: Final = cast("Any", None)
"""Who is not asked for anything here: the API server, whose objects are put into the store directly."""


class Machines:
    """Every node of the fleet, by its pool."""

    name = "memory"

    def __init__(self, seen: Observation) -> None:
        by_pool: dict[str, list[Instance]] = {name: [] for name in seen.pools}
        for node in seen.engine.nodes.values():
            by_pool[node.pool].append(Instance(f"id-{node.name}", node.name))
        self._states = tuple(PoolState(name, len(nodes), tuple(nodes)) for name, nodes in by_pool.items())

    async def pools(self) -> tuple[PoolState, ...]:
        """All of them."""
        return self._states

    async def template(self, _: str) -> None:
        """It is learnt from the nodes."""


class Exporters:
    """Everybody's use, as of the latest measurement."""

    def __init__(self) -> None:
        self.latest = Measured()

    async def read(self, _: Mapping[str, str]) -> Measured:
        """As measured."""
        return self.latest


class Stand:
    """A world over a synthetic fleet."""

    def __init__(self, size: Size) -> None:
        seen = observed(size, churned=False)
        self.sources, self.figures, self._round = Sources(_NOBODY), Exporters(), 0
        notes, asked = self.sources.notes, dict[int, Request]()
        for node in seen.engine.nodes.values():
            notes.nodes[node.name] = node
            notes.of_node[node.name] = NodeNote(f"uid-{node.name}", 1.0, f"id-{node.name}", "10.0.0.1")
        for pod in seen.pods.values():
            labels, owner = {"app": pod.request.owner}, f"uid-{pod.request.owner}"
            request = asked.setdefault(id(pod.request), _with_container(pod.request))
            notes.pods[pod.uid] = replace(pod, request=request, owner_uid=owner, labels=labels)
            notes.of_pod[pod.uid] = PodNote(SCHEDULER)
        for one in self.sources.followers.values():
            one.synced.set()
            one.heard = time.monotonic()
        machines = cast("Provider", Machines(seen))
        configs = [
            PoolConfig(pool.name, PoolSource(pool.name, "memory", At({})), max_nodes=pool.max_nodes, price=pool.price)
            for pool in seen.pools.values()
        ]
        parts = ClusterParts(
            access=_NOBODY,
            sources=self.sources,
            providers=Providers({one.name: machines for one in configs}),
            usage=self.figures,
            events=_NOBODY,
            fence=lambda: "",
            now=lambda: NOW,
            steady=lambda: float(self._round),
            sleep=self._settled,
            board=Board(),
        )
        self.world = KubeCluster(parts, configs, _LIMITS)

    async def _settled(self, _: float) -> None:
        """No time needs to pass."""

    def measure(self) -> None:
        """Exporters tell anew, and watches have been heard."""
        self._round += 1
        used = 0.3 + self._round % 10 / 100
        samples, heat = {}, {}
        for pod in self.sources.notes.pods.values():
            for hold in pod.holds:
                samples[Spot(hold.pod.split("/")[0], pod.name, hold.container, hold.uuid)] = Sample(hold.bytes, used)
                heat[hold.uuid] = used
        self.figures.latest = Measured(samples, dict.fromkeys(self.sources.notes.nodes, float(self._round)), heat)
        for one in self.sources.followers.values():
            one.heard = time.monotonic()

    def churn(self) -> None:
        """Some pods end, and others are bound in their place."""
        notes = self.sources.notes
        for pod in [pod for pod in notes.pods.values() if pod.placement is not None][self._round :: CHURN]:
            name = f"{pod.uid.split('+')[0]}+{self._round}"
            notes.pods[name] = replace(pod, uid=name, name=name)
            notes.of_pod[name] = PodNote(SCHEDULER)
            notes.pod_gone(pod.uid)

    async def turn(self) -> dict[str, float]:
        """One turn in which nothing is done: seconds of each part."""
        began = time.process_time()
        seen = await self.world.observe()
        read = time.process_time()
        plan, _ = await asyncio.to_thread(decide, seen, _LIMITS, Memory())
        decided = time.process_time()
        await self.world.settle(_LIMITS.action_validation_delay_seconds)
        plan.still_valid(await self.world.observe())
        done = time.process_time()
        return {"observe": read - began, "decide": decided - read, "recheck": done - decided, "turn": done - began}


def _with_container(request: Request) -> Request:
    """One container asks for all of it."""
    if request.whole or not request.cards:
        return request
    ask = Ask("main", request.cards * request.card_bytes, request.cards * request.card_core)
    return replace(request, asks=(ask,))


@dataclass(slots=True)
class Pulse:
    """Somebody else of the process, who wants to run every millisecond."""

    longest: float = 0.0
    """Seconds of the main thread between two turns of his."""

    async def beat(self) -> None:
        """Until cancelled."""
        last = time.thread_time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now


async def _watched(stand: Stand) -> dict[str, float]:
    """One turn's figures."""
    pulse = Pulse()
    task = asyncio.create_task(pulse.beat())
    await asyncio.sleep(2 * _TICK_SECONDS)
    pulse.longest = 0.0
    try:
        taken = await stand.turn()
        await asyncio.sleep(2 * _TICK_SECONDS)
        return taken | {"block": pulse.longest}
    finally:
        task.cancel()


def measure(name: str) -> None:
    """One size in this process; its figures as one line of JSON."""
    size = next(each for each in SIZES if each.name == name)
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])  # as the process does
    print(json.dumps(asyncio.run(_measured(Stand(size)))))


async def _measured(stand: Stand) -> dict[str, Any]:
    found: dict[str, Any] = {}
    stand.measure()
    found["cold"] = _middle([await _watched(stand)])
    for kind in ("still", "churn"):
        taken = []
        for _ in range(TURNS):
            stand.measure()
            if kind == "churn":
                stand.churn()
            taken.append(await _watched(stand))
        found[kind] = _middle(taken)
    return {
        "nodes": len(stand.sources.notes.nodes),
        "pods": len(stand.sources.notes.pods),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "turns": found,
    }


def _middle(taken: list[dict[str, float]]) -> dict[str, float]:
    return {part: median(one[part] for one in taken) for part in taken[0]} | {
        "worst": max(one["turn"] for one in taken),
        "worst_block": max(one["block"] for one in taken),
    }


def compared(json_out: Path | None) -> bool:
    """Every figure beside its bar; whether all were met."""
    met, document = True, {}
    for size in SIZES:
        found = document[size.name] = figures_of("kube", size)
        print(f"{size.name}: {found['nodes']} nodes, {found['pods']} pods")
        for kind, told in found["turns"].items():
            good = told["worst"] <= size.seconds and told["worst_block"] <= BLOCK_SECONDS
            met &= good
            parts = ", ".join(f"{part} {told[part]:.3f}" for part in ("observe", "decide", "recheck"))
            took = f"median {told['turn']:.3f} s ({parts}), worst {told['worst']:.3f} s (bar {size.seconds:g} s)"
            block = f"longest block {told['worst_block']:.3f} s (bar {BLOCK_SECONDS:g} s)"
            print(f"  {kind} turn: {took}; {block}: {'met' if good else 'MISSED'}")
        light = found["peak_mib"] <= LARGEST_MIB
        met &= light
        print(f"  peak memory {found['peak_mib']} MiB (bar {LARGEST_MIB} MiB: {'met' if light else 'MISSED'})")
    if json_out:
        json_out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return met
