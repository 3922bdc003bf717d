# SPDX-License-Identifier: Apache-2.0
"""
Whole node agents and containers are killed at random: no container runs without its limit, and none leaves one behind.

`gpushare node` on a simulated driver 615 that a process of root owns, with a real API server. Containers are processes
that the real guard let start; the kubelet is a stand-in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.kubelets import share_pod
from e2e.node_harness import stage
from support.backend_harness import LIBRARIES, kernel_here, owner_of, shared_mount
from support.budget import examples
from support.cdi_process import namespaces, own_loader
from support.cgroups import groups
from support.process_runtime import ProcessRuntime, root_file_system
from support.waiting import until

from isolation.contract.names import BACKEND
from isolation.host.machine import NvmlMachine
from isolation.host.memory_limits import MemoryLimitError, MemoryLimits
from isolation.simgpu.hardware import create
from isolation.simgpu.owner import ask_books

GIB, MIB = 1 << 30, 1 << 20
UNITS = {"a": 2, "b": 3, "c": 4, "d": 5}
KILLS, AGENTS = 40, 8
"""One kill in so many is of a whole agent."""
FILL = """
rc, got = begin(), 0
while rc == 0 and got < 8 * GIB and alloc(256 * MIB)[0] == 0: got += 256 * MIB
say([rc, got])
time.sleep(600)
"""
pytestmark = pytest.mark.skipif(
    not (LIBRARIES / "libcuda.so.1").is_file() or not namespaces() or not kernel_here(),
    reason="the guard runs as root, in mount namespaces and groups of cgroup version 2, beside the simulated driver",
)


class Storm:
    """Kills, and what was wrong meanwhile."""

    def __init__(self, at, machine, loader, kills, seed):
        self.at, self.runtime, self.loader = at, at.kubelet.runtime, loader
        self.limits, self.card = MemoryLimits(machine), at.cards[0].uuid
        self.promises: dict[str, int] = {}
        """Bytes, by pod UID."""
        self.left, self.agents, self.containers = kills, 0, 0
        self.wrong: list[object] = []
        self.filled = 0
        self._seed, self._lock = seed, threading.Lock()
        self.runtime.on_start = self.compare

    def compare(self, uid, group):
        """What stands for a container that the guard let start, or that runs."""
        try:
            found = self.limits.get(self.card, group)
        except MemoryLimitError as exc:
            if group.is_dir():
                self.wrong.append((uid, str(exc)))
            return
        if found.hard != self.promises[uid] or found.used > found.hard:
            self.wrong.append((uid, found))

    def take(self):
        """Whether there is a kill left, which is done now."""
        with self._lock:
            self.left -= 1
            return self.left >= 0

    def kill_containers(self, pod):
        """One after the other of a pod: while it starts, while it allocates, when it has all that it gets."""
        chance, box = random.Random(f"{self._seed} {pod.name}"), pod.boxes["main"]  # noqa: S311 (chance, no secret)
        while self.left > 0:
            until(lambda: box.state == "running", lambda: vars(box))
            process, when = self.runtime.processes[pod.uid], chance.random()
            if when < 0.3:
                self.read(process, self.promises[pod.uid])
            elif when < 0.6:
                time.sleep(chance.uniform(0, 0.15))
            self.compare(pod.uid, self.runtime._group(pod.uid, box))
            if not self.take():
                return
            with self._lock:
                self.containers += 1
            if when > 0.8:
                self.runtime.strikes[pod.uid] = chance.uniform(0, 0.12)
            if chance.random() < 0.3:
                self.runtime.loaders[pod.uid] = self.loader
            self.at.kubelet.crash(pod, "main")

    def read(self, process, promise):
        """All that a program got, unless it was killed before."""
        line = process.stdout.readline().strip()
        if not line:
            return
        rc, got = json.loads(line)
        self.filled += 1
        if rc or not promise - 700 * MIB < got <= promise - 306 * MIB:
            self.wrong.append(("filled", promise, rc, got))

    def kill_agents(self):
        """Also while they start, and with a pause before the next."""
        chance, agent, nri = random.Random(f"{self._seed} agents"), self.at.agent, self.runtime.nri  # noqa: S311 (chance, no secret)
        most = self.left // AGENTS
        while self.agents < most and self.take():
            agent.kill()
            self.agents += 1
            time.sleep(chance.choice([0, 0, 0.3]))
            agent.start()
            if chance.random() < 0.8:
                until(lambda: nri.connected(1.0, 2), agent.words)
            time.sleep(chance.uniform(0, 0.8))


def test_kills_of_whole_agents_and_of_containers_leave_no_limit_and_no_memory_behind(plane, tmp_path, record_property):
    """With `--budget 25` 1,000 of them, about five minutes."""
    machine, seed = tmp_path / "cards", int.from_bytes(os.urandom(4))
    create(machine, ["v100-16g"], {"teardown_ns": 0})
    print("seed", seed)  # noqa: T201 (pytest shows it with the failure)

    async def story(root, top):
        def runtime(folder):
            return ProcessRuntime(folder, root, top, FILL)

        labels = {BACKEND: "kernel"}
        async with stage(plane, tmp_path, "kernel", machine=machine, runtime=runtime, **labels) as at:
            nvml = NvmlMachine(machine)
            storm = Storm(at, nvml, own_loader(tmp_path), examples(KILLS), seed)
            pods = []
            for name, units in UNITS.items():
                uid = await at.bind(share_pod(name, units), 0)
                storm.promises[uid] = units * GIB
                pods.append(await at.until(lambda uid=uid: at.node.pods.get(uid)))
            # Until the end: the kernel ends an agent with the thread that started it.
            pool = stack.enter_context(ThreadPoolExecutor(len(pods) + 1))
            works = [pool.submit(storm.kill_containers, pod) for pod in pods] + [pool.submit(storm.kill_agents)]
            await asyncio.gather(*map(asyncio.wrap_future, works))
            await at.until(lambda: all(pod.boxes["main"].state == "running" for pod in pods))
            before = ask_books(machine)
            await at.remove(*UNITS)
            await at.until(lambda: not at.agent.holds() and not ask_books(machine)["holders"])
            await at.until(lambda: not list(at.kubelet.runtime.marks.iterdir()))
            nvml.close()
            return storm, before, ask_books(machine), list(top.glob("kubepods/besteffort/pod*"))

    with contextlib.ExitStack() as stack:
        top = stack.enter_context(groups(f"node-{time.monotonic_ns()}"))
        root = stack.enter_context(root_file_system(tmp_path))
        stack.enter_context(shared_mount(tmp_path / "run"))
        stack.enter_context(owner_of(machine))
        storm, before, after, left = asyncio.run(story(root, top))
    assert storm.wrong == []
    assert sorted(one["hard"] for one in before["groups"]) == sorted(storm.promises.values())
    assert (after["limits"], after["used"], left) == (0, [0], [])
    assert storm.agents + storm.containers == examples(KILLS)
    assert storm.filled
    times = sorted(storm.runtime.guard_seconds)
    kills = {"agents": storm.agents, "containers": storm.containers, "refused starts": storm.runtime.refused}
    record_property("kills", kills)
    record_property("guard_ms", [round(1000 * times[len(times) * part // 100], 1) for part in (50, 90, 99)])
