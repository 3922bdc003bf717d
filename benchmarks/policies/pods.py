# SPDX-License-Identifier: Apache-2.0
"""
Pods of a real API server whose programs run on one simulated node, with the limits that the node agent wrote for them.

The label of the node says the policy, pods are bound with the record that the scheduler would write, a stand-in
kubelet has the agent deliver them. The programs are started here, with the files of the agent, and counted in the
container's control group. Knows how to run jobs, not what to think of the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.isolation.jobs import MODEL, SECOND, Record, Track, hurry
from isolation.contract import abi
from isolation.contract.names import COMPUTE_POLICY, CORE_LIMIT, FEED_ENV, LIMITS_ENV, ONLINE, REGION_ENV, WEIGHT
from isolation.host.machine import NvmlMachine
from isolation.lib import files, native
from isolation.simgpu import hardware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.isolation.jobs import Job

node_harness: Any = import_module("e2e.node_harness")
share_pod: Any = import_module("e2e.kubelets").share_pod
CORE: Final = "aliyun.com/gpu-core.percentage"
START_SECONDS: Final = 2.5
"""From starting the programs to the first launch: neighbours have been noticed by then."""
LOOK_SECONDS: Final = 0.01
LATEST: Final = 0.25
"""Seconds: an agent that writes later than this had no CPU."""
NODE: Final = "policies"


async def run(
    plane: Any,
    folder: Path,
    client: Path,
    cards: Sequence[Sequence[Job]],
    *,
    seconds: float,
    settings: Mapping[str, int],
    seed: int,
    realtime: bool,
) -> Record:
    """These jobs, by card, on a node of their own for so many seconds."""
    box = folder / "cards"
    hardware.create(box, [MODEL] * len(cards), dict(settings))
    async with node_harness.stage(plane, folder, NODE, mode="core_mem", machine=box) as stage:
        if realtime:
            hurry_all(stage.agent.process.pid)
        return await _Jobs(stage, box, client, seconds, seed, realtime=realtime).run(cards)


def hurry_all(pid: int) -> None:
    """The same for every thread of a process."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(20))


def manifest(name: str, job: Job) -> dict[str, Any]:
    """The pod of a job."""
    made: dict[str, Any] = share_pod(name, 1)
    if job.core:
        made["spec"]["containers"][0]["resources"]["limits"][CORE] = str(job.core)
    said = {
        WEIGHT: str(job.weight or ""),
        CORE_LIMIT: str(job.ceiling or ""),
        ONLINE: "true" if job.online else "false",
    }
    made["metadata"]["annotations"] = {
        key: value for key, value in said.items() if value and (key != ONLINE or job.policy == "priority")
    }
    return made


class _Jobs:
    def __init__(self, stage: Any, box: Path, client: Path, seconds: float, seed: int, *, realtime: bool) -> None:
        self.stage, self.box, self.client = stage, box, client
        self.seconds, self.seed, self.realtime = seconds, seed, realtime
        self.machine = NvmlMachine(box)
        self.begin = 0.0
        self.late = 0.0
        self.running: list[tuple[Track, subprocess.Popen[str], Path]] = []

    async def run(self, cards: Sequence[Sequence[Job]]) -> Record:
        pods = [
            (job, card, await self._bound(job, card, at))
            for card, jobs in enumerate(cards)
            for at, job in enumerate(jobs)
        ]
        self.begin = time.clock_gettime(time.CLOCK_MONOTONIC) + START_SECONDS
        try:
            for job, card, pod in pods:
                self._start(job, card, pod)
            await asyncio.to_thread(self._watch)
        finally:
            for _, program, _ in self.running:
                if program.poll() is None:
                    program.kill()
        end = self.begin + self.seconds
        return Record(int(self.begin * SECOND), int(end * SECOND), [one[0] for one in self.running], self.late)

    async def _bound(self, job: Job, card: int, at: int) -> Any:
        """A running pod, bound while the node's label says the job's policy."""
        label = {"metadata": {"labels": {COMPUTE_POLICY: job.policy}}}
        await self.stage.client.merge(self.stage.node.path, label)
        uid = await self.stage.bind(manifest(f"job-{card}-{at}", job), card)
        return await self.stage.running(uid)

    def _start(self, job: Job, card: int, pod: Any) -> None:
        folder = self.stage.agent.run_dir / "alloc" / f"{pod.uid}.main"
        limits = abi.unpack_limits((folder / "limits/limits").read_bytes()).cards[0]
        if limits.policy.name.lower() != job.policy:
            raise RuntimeError(f"the limits of {pod.name} say {limits.policy.name}, its node said {job.policy}")
        machine, library = self.machine.environment(), native.library_path()
        made = {**os.environ, **machine}
        made |= {
            LIMITS_ENV: str(folder / "limits/limits"),
            FEED_ENV: str(folder / "limits/feed"),
            REGION_ENV: str(folder / "region/region"),
            "LD_PRELOAD": ":".join(filter(None, (str(library), machine.get("LD_PRELOAD")))),
            "CUDA_VISIBLE_DEVICES": self.stage.cards[card].uuid,
        }
        number = len(self.running)
        words: list[object] = [job.pattern, self.seed * 100 + number, self.begin + job.begin, self.begin + self.seconds]
        words += [job.on, job.off] if job.on else []
        started = subprocess.Popen(
            [self.client, *map(str, words)],
            env=made,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: hurry(10)) if self.realtime else None,  # noqa: PLW1509 (hurry is one system call)
        )
        group = self.stage.kubelet.cgroups / "kubepods/besteffort" / f"pod{pod.uid}" / pod.boxes["main"].cid
        (group / "cgroup.procs").write_text(f"{started.pid}\n")
        self.running.append((Track(replace(job), card), started, folder))

    def _watch(self) -> None:
        look, end = self.begin, self.begin + self.seconds
        feeds = [folder / "limits/feed" for _, _, folder in self.running]
        with hardware.open_box(self.box) as box:
            while (now := time.clock_gettime(time.CLOCK_MONOTONIC)) < end:
                if now >= look:
                    look = max(look + LOOK_SECONDS, now)
                    self._look(box)
                    self._note_late(feeds)
                time.sleep(max(0.0005, look - time.clock_gettime(time.CLOCK_MONOTONIC)))
            self._look(box)
        for track, started, folder in self.running:
            out, _ = started.communicate(timeout=30)
            if started.returncode:
                raise RuntimeError(f"a job ended with status {started.returncode}")
            track.client = json.loads(out)
            (book,) = files.read_region(folder / "region/region").cards
            track.book = {name: getattr(book, name) for name in ("charged_ns", "launches", "throttled_ns", "rate_ppm")}

    def _look(self, box: hardware.Box) -> None:
        box.settle()
        records = box.cards()
        clients = {card: {one.pid: one for one in box.clients(card)} for card in {one[0].card for one in self.running}}
        for track, started, _ in self.running:
            client = clients[track.card].get(started.pid)
            track.at.append(records[track.card].clock_ns)
            track.own.append(client.own_ns if client else 0)
            track.slices.append(client.slices if client else 0)

    def _note_late(self, feeds: Sequence[Path]) -> None:
        """How old the host's word is at worst: an agent without a CPU is not the limiter's doing."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for feed in feeds:
            written = int.from_bytes(feed.read_bytes()[24:32], "little")
            self.late = max(self.late, (now - written) / SECOND)
