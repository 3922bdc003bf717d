# SPDX-License-Identifier: Apache-2.0
"""
How long the scheduler's verbs take, from the bytes of kube-scheduler's request to the bytes of the answer.

    python -m benchmarks.scheduler                          # both fleets
    python -m benchmarks.scheduler --nodes 5000 --json out.json

Part `handlers`: filter, prioritize and bind of one pod after another on a busy fleet, with changing shapes,
every bind followed by another pod's end as the watch tells it, and now and then by a node that changes. The
API server answers at once: its write is not measured here (`cluster` does). The verbs wait for
nothing, so their own CPU is what a machine with nothing else to do would show. Never a test: speed depends
on the machine. Exit status 1: a bar was missed, by the wall clock.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any, Final, cast

import click

from isolation.contract.model import Card, CardChoice, Mode, Node, Placement, Pod
from isolation.contract.names import ACK, SHARED
from isolation.contract.quantity import GIB
from isolation.kube.election import Fence
from isolation.kube.store import Store
from isolation.kube.writes import Outcome, WriteResult
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.core.unschedulable import UnschedulableQueue
from isolation.scheduler.extender import Extender, SchedulerContext

CARDS: Final = 8
SIZES: Final = (16, 16, 24, 40)
PODS_PER_NODE: Final = 8
SHAPES: Final = 400
"""More than the engine remembers answers for: shapes keep changing."""
BARS_MS: Final = {1000: 5.0, 5000: 20.0}
VERBS: Final = ("filter", "prioritize", "bind")
CHANGE_EVERY: Final = 50
"""Pods between two changes of a node."""


class Instant:
    """An API server that has done everything before it is asked."""

    def __init__(self) -> None:
        self.bound = 0

    async def bind(self, *_: Any) -> WriteResult:
        """At once."""
        self.bound += 1
        return WriteResult(Outcome.DONE)

    async def placed(self, *_: Any) -> None:
        """Never asked here."""
        raise AssertionError


class Fleet:
    """A scheduler that leads, its fleet, and a kube-scheduler that asks it."""

    def __init__(self, nodes: int, pods: int, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 (a workload, no secret)
        self.cache, self.store, self.server = SchedulerCache(), Store(), Instant()
        self.names = [f"gpu-node-{i:05d}.cluster.example" for i in range(nodes)]
        self.nodes = {name: self._node(name, i) for i, name in enumerate(self.names)}
        for node in self.nodes.values():
            self.store.nodes[node.name] = node
            self.cache.set_node(node)
        self.running: list[str] = []
        self.shapes = [self._shape() for _ in range(SHAPES)]
        self.extender = Extender(self._world())
        self.sized: list[int] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self._fill(pods)

    def _world(self) -> SchedulerContext:
        def fence() -> Fence:
            return Fence(1, time.monotonic() + 6)

        async def checked(*_: Any) -> None:
            """The server's own word on each node is asked once per Lease."""

        binder = Binder(self.cache, self.server, fence, clock=time.monotonic)
        return SchedulerContext(
            informers=cast("Any", SimpleNamespace(cache=self.cache, store=self.store, missing=lambda: "")),
            leadership=cast("Any", SimpleNamespace(fence=fence)),
            binder=binder,
            live_read=cast("Any", SimpleNamespace(check=checked)),
            unschedulable=UnschedulableQueue(),
            unit_bytes=GIB,
        )

    def _node(self, name: str, i: int) -> Node:
        size = SIZES[i % len(SIZES)] * GIB
        cards = tuple(Card(f"GPU-{i:08x}-{at}", at, size, model=f"M{size // GIB}") for at in range(CARDS))
        return Node(name, cards, Mode.CGPU, (CardChoice.BINPACK, CardChoice.SPREAD)[i // 4 % 2])

    def _shape(self) -> tuple[int, int, str]:
        cards = self.random.choice((1, 1, 1, 1, 1, 2, 4))
        return self.random.randint(1, 14), cards, f"app-{self.random.randrange(200)}"

    def wire(self, number: int, shape: tuple[int, int, str]) -> dict[str, Any]:
        """A pod as kube-scheduler sends it."""
        size, cards, app = shape
        amounts = {ACK.memory: str(size * cards), "cpu": "2", "memory": "8Gi"}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
        labels = {SHARED: "true", "app": app} | ({ACK.card_count: str(cards)} if cards > 1 else {})
        meta = {"name": f"pod-{number}", "namespace": "ml", "uid": f"00000000-0000-4000-9000-{number:012d}"}
        meta |= {"labels": labels, "ownerReferences": [owner], "creationTimestamp": "2026-01-31T12:00:00Z"}  # type: ignore[dict-item]
        container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
        spec = {"containers": [container], "schedulerName": "gpushare-scheduler", "priority": 0}
        return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _fill(self, pods: int) -> None:
        """Pods that run already, as a new leader reads them."""
        for number in range(pods):
            pod = self._arrives(self.wire(number, self.random.choice(self.shapes)))
            node = self.nodes[self.names[number % len(self.names)]]
            found = self.cache.assume(pod, node.name, 0.0)
            if not hasattr(found, "placement"):
                self._ends(pod.uid)
                continue
            self._bound(pod, found.placement)

    def _arrives(self, wire: dict[str, Any]) -> Pod:
        self.store.pod_is(cast("Any", json.dumps(wire).encode()))
        pod = self.store.pods[wire["metadata"]["uid"]]
        self.cache.set_pod(pod)
        return pod

    def _bound(self, pod: Pod, placement: Placement) -> None:
        self.store.pods[pod.uid] = pod.placed(placement)
        self.cache.set_pod(pod.placed(placement))
        self.running.append(pod.uid)

    def _ends(self, uid: str) -> None:
        self.store.pods.pop(uid, None)
        self.cache.remove_pod(uid)

    async def schedule(self, number: int) -> bool:
        """One pod from created to bound, and its verbs timed; False: it fits nowhere."""
        wire = self.wire(number, self.random.choice(self.shapes))
        uid = wire["metadata"]["uid"]
        pod = self._arrives(wire)
        filtered = await self._timed("filter", {"Pod": wire, "Nodes": None, "NodeNames": self.names})
        names = filtered["NodeNames"]
        self.sized.append(len(names))
        if not names:
            self._ends(uid)
            return False
        scores = await self._timed("prioritize", {"Pod": wire, "Nodes": None, "NodeNames": names})
        best = max(row["Score"] for row in scores)
        node = self.random.choice([row["Host"] for row in scores if row["Score"] == best])
        meta = wire["metadata"]
        said = await self._timed(
            "bind", {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": uid, "Node": node}
        )
        if said["Error"]:
            raise AssertionError(said["Error"])
        self._bound(pod, self.cache.assumed_pods()[uid].assumed.placement)
        end = self.random.randrange(len(self.running))
        self.running[end], self.running[-1] = self.running[-1], self.running[end]
        self._ends(self.running.pop())
        if number % CHANGE_EVERY == 0:
            self._change(self.random.choice(self.names))
        return True

    def _change(self, name: str) -> None:
        """A card falls ill or recovers."""
        node = self.nodes[name]
        first = replace(node.cards[0], healthy=not node.cards[0].healthy)
        self.nodes[name] = replace(node, cards=(first, *node.cards[1:]))
        self.cache.set_node(self.nodes[name])

    async def _timed(self, verb: str, ask: dict[str, Any]) -> Any:
        body = json.dumps(ask).encode()
        used, began = time.thread_time(), time.perf_counter()
        reply = await getattr(self.extender, verb)(body)
        self.seconds[verb].append(time.perf_counter() - began)
        self.cpu[verb].append(time.thread_time() - used)
        return json.loads(reply.body)


def handlers(nodes: int, pods: int, rounds: int, seed: int = 7) -> dict[str, Any]:
    """The figures of one fleet."""
    began, before = time.perf_counter(), memory()
    fleet = Fleet(nodes, pods, seed)
    filled, holding = time.perf_counter() - began, memory()
    first = 1_000_000

    async def run() -> int:
        return sum([await fleet.schedule(first + i) for i in range(rounds)])

    placed = asyncio.run(run())
    found: dict[str, Any] = {"nodes": nodes, "pods": len(fleet.running), "asked": rounds, "placed": placed}
    found |= {"fill_seconds": filled, "held_mib": holding - before, "peak_mib": memory()}
    found["fitting_nodes_median"] = median(fleet.sized)
    for key, kept in (("wall", fleet.seconds), ("cpu", fleet.cpu)):
        sums = [sum(parts) for parts in zip(*(kept[verb][-placed:] for verb in VERBS), strict=True)]
        found[key] = {verb: _cuts(took) for verb, took in (*kept.items(), ("together", sums))}
    over = fleet.cache.find_overcommitted()
    if over:
        raise AssertionError(over)
    return found


def _cuts(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles([1000 * s for s in seconds], n=1000)
    return {"p50_ms": cuts[499], "p99_ms": cuts[989], "worst_ms": 1000 * max(seconds)}


def memory() -> float:
    """Most MiB that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@click.command()
@click.option("--nodes", "sizes", multiple=True, type=int, help="Fleets; by default those of the bars.")
@click.option("--rounds", default=3000, show_default=True, help="Pods scheduled on each fleet.")
@click.option("--json", "json_out", metavar="OUT", help="All figures as JSON.")
def main(sizes: tuple[int, ...], rounds: int, json_out: str | None) -> None:
    """Filter, prioritize and bind on fleets of eight cards a node."""
    rows, missed = [], False
    for nodes in sizes or tuple(BARS_MS):
        found = handlers(nodes, nodes * PODS_PER_NODE, rounds)
        rows.append(found)
        print(
            f"{nodes:,} nodes x {CARDS} cards, {found['pods']:,} pods: filled in {found['fill_seconds']:.1f} s, "
            f"{found['placed']} of {rounds} placed, {found['fitting_nodes_median']:.0f} nodes fit (median), "
            f"cache {found['held_mib']:.0f} MiB"
        )
        for verb in (*VERBS, "together"):
            wall, cpu = (" ".join(f"{n} {v:7.2f}" for n, v in found[key][verb].items()) for key in ("wall", "cpu"))
            print(f"  {verb:<11}{wall}   of its own CPU: {cpu}")
        bar = BARS_MS.get(nodes)
        if bar is not None:
            p99 = found["wall"]["together"]["p99_ms"]
            missed |= p99 > bar
            alone = found["cpu"]["together"]["p99_ms"]
            print(f"  bar: p99 <= {bar:.0f} ms, ratio {p99 / bar:.2f}, of its own CPU {alone / bar:.2f}", flush=True)
    if json_out:
        Path(json_out).write_text(json.dumps({"handlers": rows}, indent=1) + "\n", encoding="utf-8")
    sys.exit(missed)


if __name__ == "__main__":
    main()
