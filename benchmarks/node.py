# SPDX-License-Identifier: Apache-2.0
"""
How long kubelet and container runtime wait for the node agent: with 100 pods on the node, and with the API server away.

A real API server, a stand-in kubelet over real gRPC, a stand-in container runtime that speaks NRI, `gpushare node` as
a process on 16 simulated cards. The clock of whoever asks decides, from question to answer: Allocate
of the kubelet, CreateContainer of the runtime. Pods are admitted one after another, as a kubelet
does, and started beside each other. Prints a table, or with --json one object. Needs the control plane of the tests:
`make controlplane`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BARS_MS = {"median": 20.0, "p99": 200.0}
PODS = 100
CARDS = 16
LONGEST_SECONDS = 60.0
QUESTIONS = ("Allocate", "CreateContainer")


def figures(asked: list[tuple[str, float]]) -> dict[str, dict[str, float]]:
    """Median, 99th percentile and longest of each question that was asked, in milliseconds."""
    found = {}
    for question in QUESTIONS:
        took = sorted(seconds * 1000 for method, seconds in asked if method == question)
        if not took:
            continue
        found[question] = {
            "count": len(took),
            "median": round(took[len(took) // 2], 2),
            "p99": round(took[math.ceil(len(took) * 0.99) - 1], 2),
            "longest": round(took[-1], 2),
        }
    return found


class Bench:
    """One node, its kubelet and its agent."""

    def __init__(self, stage: Any) -> None:
        self.stage, self.kubelet = stage, stage.kubelet
        self._share_pod = import_module("e2e.kubelets").share_pod
        self._pod_of = import_module("e2e.managed_node").pod_of

    async def bound(self, prefix: str, count: int) -> list[Any]:
        """Pods with records, bound over all cards in turn, not yet admitted."""
        names = [f"{prefix}-{i}" for i in range(count)]
        for i, name in enumerate(names):
            await self.stage.bind(self._share_pod(name, 1), i % CARDS)
        await asyncio.sleep(0.5)  # the watch has told the agent: what it knows is what a kubelet knows
        found = []
        for name in names:
            thing = await self.stage.client.get(f"/api/v1/namespaces/default/pods/{name}")
            found.append(self._pod_of(thing, self.kubelet.resource))
        return found

    async def timed(self, pods: list[Any], tell: Callable[[Any], None], *, at_once: bool = True) -> dict[str, Any]:
        """The kubelet is told of each; how long it and the runtime waited until all run, and with which card."""
        kubelets, runtimes = self.kubelet.asked, self.kubelet.runtime.nri.asked
        kubelets.clear()
        runtimes.clear()
        began = time.monotonic()
        for pod in pods:
            tell(pod)
            if not at_once:
                await self.until(pod)
        await self.until(*pods)
        seconds = time.monotonic() - began
        times: dict[str, Any] = figures([*kubelets, *runtimes])
        cards = {card.index: card.uuid for card in self.stage.cards}
        got = [pod.boxes["main"].env.get("NVIDIA_VISIBLE_DEVICES") for pod in pods]
        print(".", end="", file=sys.stderr, flush=True)
        return times | {
            "seconds": round(seconds, 2),
            "failed": sum(pod.phase == "Failed" for pod in pods),
            "wrong_cards": sum(got[i] != cards[i % CARDS] for i in range(len(pods))),
        }

    async def until(self, *pods: Any) -> None:
        """Started, or failed."""
        end = time.monotonic() + LONGEST_SECONDS
        for pod in pods:
            while pod.boxes["main"].state != "running" and pod.phase != "Failed":
                if time.monotonic() > end:
                    sys.exit(f"{pod.name} does not start: {pod.boxes['main']}\n{self.stage.agent.words()}")
                await asyncio.sleep(0.005)


async def measure(plane: Any, folder: Path) -> dict[str, Any]:
    """Every scene."""
    node_harness = import_module("e2e.node_harness")
    results: dict[str, Any] = {}
    async with node_harness.stage(plane, folder, "bench", number=CARDS, model="a10", watching=False) as stage:
        bench = Bench(stage)
        admit = bench.kubelet.bind
        burst = await bench.bound("burst", PODS)
        results[f"{PODS} pods, all bound before the first is admitted"] = await bench.timed(burst, admit)
        more = await bench.bound("more", PODS // 2)
        results[f"one by one, beside {PODS}"] = await bench.timed(more, admit, at_once=False)
        down = await bench.bound("down", PODS)
        plane.freeze("kube-apiserver")
        try:
            results["API server frozen, all bound before"] = await bench.timed(down, admit)
            stage.agent.kill()
            stage.agent.start()
            await stage.until(lambda: stage.kubelet.runtime.nri.connected(count=2))
            crash = functools.partial(bench.kubelet.crash, name="main")
            results["API server frozen, agent new, containers start again"] = await bench.timed(down, crash)
        finally:
            plane.thaw("kube-apiserver")
    return results


def show(results: dict[str, Any]) -> None:
    """As a table."""
    for scene, times in results.items():
        rest = ", ".join(f"{key} {value}" for key, value in times.items() if key not in QUESTIONS)
        print(f"{scene}{': ' + rest if rest else ''}")
        for question in QUESTIONS:
            row = times.get(question)
            if row is None:
                continue
            within = all(row[key] <= bar for key, bar in BARS_MS.items())
            print(
                f"  {question:<24} n {row['count']:>4}  median {row['median']:>8.2f} ms  p99 {row['p99']:>8.2f} ms  "
                f"longest {row['longest']:>8.2f} ms  {'within' if within else 'OUTSIDE'} the bars"
            )


def main(*, as_data: bool) -> None:
    """Start what is needed, measure, print."""
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            results = asyncio.run(measure(plane, Path(folder)))
        finally:
            plane.stop()
    if as_data:
        print(json.dumps({"bars_ms": BARS_MS, "pods": PODS, "scenes": results}))
    else:
        show(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", dest="as_data", help="One object for programs.")
    main(as_data=parser.parse_args().as_data)
