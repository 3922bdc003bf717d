# SPDX-License-Identifier: Apache-2.0
"""
What a pass over 40,000 pods costs that tells cluster-autoscaler of them, and for how long nothing else runs.

The fleet is the large one of `decision`, in as many pools as some clusters have. `all` is a pass after a change
of the settings, when every pod has something to be written (250 of them are, to an API server that answers at once);
`still` one with nothing to do; `waiting` one where every pod waits, so that each pool is asked whether it could host
it. Seconds of this process's threads.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from autoscaler.kube.handover import Handover
from benchmarks.autoscaler.decision import SIZES, figures_of
from benchmarks.autoscaler.reconcile import Stand
from isolation.contract.cluster_autoscaler_annotations import Ours, changes

if TYPE_CHECKING:
    from pathlib import Path

    from autoscaler.core.observation import Observation

SIZE: Final = SIZES[-1]
POOLS: Final = 20
RUNS: Final = 5
PASS_SECONDS: Final = 1.0
BLOCK_SECONDS: Final = 0.5
_TICKS_SECONDS: Final = 0.003
_OURS: Final = Ours(buys=True, drains=True)


class Server:
    """An API server that answers at once."""

    async def send(self, *_: object) -> bytes:
        """Written."""
        await asyncio.sleep(0)
        return b"{}"


def measure(_name: str) -> None:
    """All of it in this process; the figures as one line of JSON."""
    print(json.dumps(asyncio.run(_measured())))


async def _measured() -> dict[str, Any]:
    stand = Stand(SIZE)
    stand.measure()
    seen = await stand.world.observe()
    one = next(iter(seen.pools.values()))
    names = [f"{one.name}-{number}" for number in range(POOLS)]
    machines = {
        name: replace(machine, pool=names[at % POOLS]) for at, (name, machine) in enumerate(seen.machines.items())
    }
    seen = replace(seen, pools={name: replace(one, name=name) for name in names}, machines=machines)
    waiting = replace(seen, pods={uid: replace(pod, placement=None) for uid, pod in seen.pods.items()})
    notes = stand.sources.notes.of_pod
    written = {key: value or "" for key, value in changes({}, _OURS).items()}
    silent = {uid: replace(note, handover={}) for uid, note in notes.items()}
    annotated = {uid: replace(note, handover=written) for uid, note in notes.items()}
    ours = dict.fromkeys(names, _OURS)
    return {
        "pods": len(seen.pods),
        "all": await _passes(seen, silent, ours),
        "still": await _passes(seen, annotated, ours),
        "waiting": await _passes(waiting, annotated, ours),
    }


@dataclass(slots=True)
class Pulse:
    """A task that wants to run every millisecond."""

    longest: float = 0.0
    """Seconds of the main thread between two of its beats."""

    async def beat(self) -> None:
        """Until cancelled."""
        last = time.thread_time()
        while True:
            await asyncio.sleep(_TICKS_SECONDS / 2)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now


async def _passes(seen: Observation, notes: Any, ours: dict[str, Ours]) -> dict[str, float]:
    server: Any = Server()
    handover, taken, pulse = Handover(server, lambda: True), [], Pulse()
    task = asyncio.create_task(pulse.beat())
    await asyncio.sleep(_TICKS_SECONDS)
    pulse.longest = 0.0
    for _ in range(RUNS):
        began = time.thread_time()
        await handover.carry(seen, notes, ours)
        taken.append(time.thread_time() - began)
        await asyncio.sleep(_TICKS_SECONDS)
    task.cancel()
    return {"median": median(taken), "worst": max(taken), "block": pulse.longest, "left": float(handover.left or 0)}


def compared(json_out: Path | None) -> bool:
    """Every figure beside its bar; whether all were met."""
    met, document = True, figures_of("handover", SIZE)
    print(f"{document['pods']} pods in {POOLS} pools")
    for kind in ("all", "still", "waiting"):
        times = document[kind]
        good = times["worst"] <= PASS_SECONDS and times["block"] <= BLOCK_SECONDS
        met &= good
        print(
            f"  {kind}: median {times['median']:.3f} s, worst {times['worst']:.3f} s (bar {PASS_SECONDS:g} s), "
            f"at a stretch {times['block']:.3f} s (bar {BLOCK_SECONDS:g} s): {'met' if good else 'MISSED'}; "
            f"{times['left']:.0f} left to write"
        )
    if json_out:
        json_out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return met
