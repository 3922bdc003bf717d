# SPDX-License-Identifier: Apache-2.0
"""
No part of a process of ours ends unnoticed: every task and thread of a running node agent, scheduler and autoscaler
is walked over, as they are found, so that none can be delete_reservation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.device_manager import DeviceManager
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS, soon, until

from autoscaler.kube.app import Autoscaler
from autoscaler.kube.options import Options
from isolation.contract.names import ACK
from isolation.kube.core.errors import RefusedError
from isolation.kube.options import Address
from isolation.node import app as node_app
from isolation.node.app import NodeAgent
from isolation.node.settings import Settings as NodeSettings
from isolation.scheduler.app import Scheduler
from isolation.scheduler.settings import SchedulerSettings

OURS = tuple(str(Path(__file__).resolve().parents[2] / name) for name in ("isolation", "autoscaler", "exporter"))
THREADS = {"card-events", "gpu-time", "memory-limits", "runtime"}
POOLS = ("asyncio_", "Thread-", "Dummy-", "kubelet_", "nri_")
NODE = {
    "metadata": {"name": "n", "uid": "n", "labels": {ACK.mode_label: "share"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


class ApiServer:
    """One node, no pods, Leases; fulfils what is asked of `Access`."""

    def __init__(self):
        self._kept = {}
        self._version = 0

    async def page(self, path, _query):
        """See `Access`."""
        items = [NODE] if path == "/api/v1/nodes" else []
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    async def lines(self, _path, _query, _idle):
        """Nothing ever happens."""
        yield b""
        await asyncio.Event().wait()

    async def send(self, method, path, body=None, *_, **__):
        """Whatever is written is kept."""
        if method == "GET":
            if path not in self._kept:
                raise RefusedError(404, "NotFound")
            return json.dumps(self._kept[path]).encode()
        name = (body or {}).get("metadata", {}).get("name")
        self._version += 1
        made = {**(body or {}), "metadata": {"name": name, "resourceVersion": str(self._version)}}
        self._kept[f"{path}/{name}" if method == "POST" else path] = made
        return json.dumps(made).encode()


@contextlib.contextmanager
def agent(folder):
    """A node agent on two simulated cards, which has said what it offers."""
    with boxes("t4", "t4") as box, DeviceManager() as kubelet:
        settings = NodeSettings(
            node="n",
            kubelet_dir=kubelet.folder,
            run_dir=folder / "run",
            cdi_dir=kubelet.cdi,
            cgroup=kubelet.cgroups,
            marks_dir=kubelet.runtime.marks,
            nri_socket=kubelet.runtime.nri.path,
            simgpu=box.path,
            host="127.0.0.1",
            port=0,
        )
        settings.run_dir.mkdir()
        agents = []

        def make():
            agents.append(NodeAgent(settings, ApiServer()))
            return agents[-1]

        yield make, lambda made: made._exchange.offer().devices
        # What ends with the agent's process does not end with this one, and other tests have other cards.
        until(lambda: not THREADS & {thread.name for thread in threading.enumerate()})
        for made in agents:
            for nvml in (made._health._events, made.inventory._machine, made._feeding._machine):
                nvml.close()


@contextlib.contextmanager
def scheduler(_folder):
    """A scheduler that leads, beside a kube-scheduler that does."""
    server = ApiServer()
    spec = {"holderIdentity": "h_1", "leaseDurationSeconds": 1, "leaseTransitions": 1}
    namespace = "/apis/coordination.k8s.io/v1/namespaces/gpushare-system/leases"
    asyncio.run(server.send("POST", namespace, {"metadata": {"name": "beside"}, "spec": spec}))
    settings = SchedulerSettings(metrics=Address("127.0.0.1", 0), pod="me", host="h", kube_scheduler_lease="beside")
    yield lambda: Scheduler(settings, server), lambda made: made.leadership.fence() is not None


@contextlib.contextmanager
def autoscaler(_folder):
    """An autoscaler with every port that needs no certificate."""
    options = Options(metrics=Address("127.0.0.1", 0))
    yield (
        lambda: Autoscaler(options, ApiServer()),
        lambda made: made.reconciler.last is not None and made.reconciler.last.observation is not None,
    )


PROCESSES = {"agent": agent, "scheduler": scheduler, "autoscaler": autoscaler}


def lasting(but):
    """Tasks of our own code that wait for something, by what they run."""
    found = [task for task in asyncio.all_tasks() - but if task.get_coro().cr_code.co_filename.startswith(OURS)]
    return {task: task.get_coro().__qualname__ for task in found}


def failures(made):
    """Of all tasks, as the metrics have it."""
    page = (made.metrics if hasattr(made, "metrics") else made.telemetry).page().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if "_task_failures_total{" in line)


@contextlib.asynccontextmanager
async def running(make, begun):
    """The process while it runs, and the tasks that are the test's."""
    stop, before, made = asyncio.Event(), asyncio.all_tasks(), make()
    life = asyncio.create_task(made.run(stop))
    try:
        await soon(lambda: begun(made) or life.done())
        yield made, before | {life}
        assert not life.done(), "the process has ended"
    finally:
        stop.set()
        await asyncio.wait_for(life, PATIENCE_SECONDS)


@pytest.fixture
def process(request, tmp_path):
    """One of the three."""
    with PROCESSES[request.param](tmp_path) as made:
        yield made


@pytest.mark.parametrize("process", PROCESSES, indirect=True)
def test_a_task_that_meets_an_oserror_wherever_it_stands_goes_on(process, monkeypatch):
    """
    Every task in turn, at the very place where it waits; it is counted, and the process lives.
    """
    monkeypatch.setattr(node_app, "LEAVE_SECONDS", 0.0)

    async def story():
        async with running(*process) as (made, but):
            walked = Counter()
            await asyncio.sleep(1.0)
            for task, name in lasting(but).items():
                waits = task._fut_waiter
                if task.done() or waits is None or waits.done() or isinstance(waits, asyncio.Task):
                    continue
                there, so_far = Counter(lasting(but).values()), failures(made)
                waits.set_exception(OSError(5, "injected"))
                await soon(lambda was=so_far: failures(made) > was, lambda what=name: f"{what} is not counted")
                await soon(
                    lambda all_of=there: all_of <= Counter(lasting(but).values()),
                    lambda all_of=there: all_of - Counter(lasting(but).values()),
                )
                walked[name] += 1
            return walked, made.background.problems()

    walked, unwell = asyncio.run(story())
    assert ("", True) == (unwell, walked.total() >= 7), walked


@pytest.mark.parametrize("process", PROCESSES, indirect=True)
def test_a_task_that_is_gone_is_named_by_healthz(process, monkeypatch):
    """
    One after the other, however it ended.
    """
    monkeypatch.setattr(node_app, "LEAVE_SECONDS", 0.0)

    async def story():
        async with running(*process) as (made, but):
            for task in lasting(but):
                if task.get_coro().__qualname__.endswith("forever"):
                    task.cancel()
                    await soon(task.done)
            return made.background.problems(), set(names(made))

    unwell, known = asyncio.run(story())
    assert known == {part.split()[1] for part in unwell.split("; ")}
    assert len(known) >= 7


def names(made):
    """Of the process's tasks; threads cannot be ended from outside."""
    threads = {thread.name for thread in threading.enumerate()}
    tasks = made.background.rows("failures", "healthy")["healthy"]
    return [name for (name,) in tasks if name not in threads]


@pytest.mark.parametrize("process", ["agent"], indirect=True)
def test_every_thread_is_looked_after(process, monkeypatch):
    """
    Apart from those of pools, which end with their work, and the stand-in kubelet's.
    """
    monkeypatch.setattr(node_app, "LEAVE_SECONDS", 0.0)
    before = set(threading.enumerate())

    async def story():
        async with running(*process) as (made, _):
            ours = {thread.name for thread in set(threading.enumerate()) - before}
            tasks = made.background.rows("failures", "healthy")["healthy"]
            return {name for name in ours if not name.startswith(POOLS)}, set(tasks)

    threads, tasks = asyncio.run(story())
    assert threads == THREADS
    assert {(name,) for name in threads} <= tasks
