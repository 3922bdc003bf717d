# SPDX-License-Identifier: Apache-2.0
"""
How long a kubelet waits for the node agent: with 100 pods on the node, all at once, and with the API server away.

A real API server, a stand-in kubelet over real gRPC, `gpushare node` as a process on 16 simulated cards. The
kubelet's own clock decides: from question to answer, GetPreferredAllocation and Allocate. Pods are admitted
one after another, as a kubelet does; `burst`: all of them are bound before the first is admitted.
Prints a table, or with --json one object. Needs the control plane of the tests: `make controlplane`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

BARS_MS = {"median": 20.0, "p99": 200.0}
PODS = 100
CARDS = 16
NOBODY = "nobody"
LONGEST_SECONDS = 60.0
QUESTIONS = ("GetPreferredAllocation", "Allocate")


def figures(asked: list[tuple[str, float]]) -> dict[str, dict[str, float]]:
    """Median, 99th percentile and longest of each question, in milliseconds."""
    found = {}
    for question in QUESTIONS:
        took = sorted(seconds * 1000 for method, seconds in asked if method == question)
        found[question] = {
            "count": len(took),
            "median": round(took[len(took) // 2], 2),
            "p99": round(took[math.ceil(len(took) * 0.99) - 1], 2),
            "longest": round(took[-1], 2),
        }
    return found


class Bench:
    """One node, its kubelet and its agent."""

    def __init__(self, plane: Any, stage: Any) -> None:
        self.plane, self.stage = plane, stage
        self.kubelet = stage.kubelet
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

    async def admitted(self, pods: list[Any], *, at_once: bool = True, starts: bool = True) -> dict[str, Any]:
        """The kubelet admits them; how long it waited, and what became of them."""
        self.kubelet.asked.clear()
        began = time.monotonic()
        for pod in pods:
            self.kubelet.bind(pod)
            if not at_once:
                await self.until(pod, starts=starts)
        await self.until(*pods, starts=starts)
        took = time.monotonic() - began
        told: dict[str, Any] = figures(list(self.kubelet.asked))
        cards = {card.index: card.uuid for card in self.stage.cards}
        got = [{one.split("-_-")[0] for one in pod.boxes["main"].ids} for pod in pods]
        print(".", end="", file=sys.stderr, flush=True)
        known = [i for i, pod in enumerate(pods) if not pod.name.startswith(NOBODY)]
        return told | {
            "seconds": round(took, 2),
            "failed": sum(pod.phase == "Failed" for pod in pods),
            "wrong_cards": sum(bool(got[i]) and got[i] != {cards[i % CARDS]} for i in known),
        }

    async def until(self, *pods: Any, starts: bool = True) -> None:
        """Started, or only admitted; or failed."""
        end = time.monotonic() + LONGEST_SECONDS
        for pod in pods:
            while not (pod.phase in ("Running", "Failed") or (pod.admitted and not starts)):
                if time.monotonic() > end:
                    sys.exit(f"{pod.name} does not start: {pod.boxes['main']}\n{self.stage.agent.words()}")
                await asyncio.sleep(0.005)


async def measure(plane: Any, folder: Path) -> dict[str, Any]:
    """Every scene."""
    node_stage, manager = import_module("e2e.node_stage"), import_module("support.device_manager")
    results: dict[str, Any] = {}
    async with node_stage.stage(plane, folder, "bench", number=CARDS, model="a10", watching=False) as stage:
        bench = Bench(plane, stage)
        results[f"{PODS} pods, all bound before the first is admitted"] = await bench.admitted(
            await bench.bound("burst", PODS)
        )
        more = await bench.bound("more", PODS // 2)
        results[f"one by one, beside {PODS}"] = await bench.admitted(more, at_once=False)
        down = await bench.bound("down", PODS)
        plane.freeze("kube-apiserver")
        try:
            results["API server frozen, all bound before"] = await bench.admitted(down, starts=False)
            box = [manager.Box("main", {bench.kubelet.resource: 1})]
            nobody = [
                manager.ManagedPod("default", f"{NOBODY}-{i}", f"00000000-0000-4000-8000-{i:012d}", box)
                for i in range(10)
            ]
            results["API server frozen, and pods that nobody knows"] = await bench.admitted(nobody, starts=False)
        finally:
            plane.thaw("kube-apiserver")
        await bench.until(*down)
    return results


def show(results: dict[str, Any]) -> None:
    """As a table."""
    for scene, told in results.items():
        rest = ", ".join(f"{key} {value}" for key, value in told.items() if key not in QUESTIONS)
        print(f"{scene}{': ' + rest if rest else ''}")
        for question in QUESTIONS:
            row = told[question]
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
