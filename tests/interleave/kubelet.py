# SPDX-License-Identifier: Apache-2.0
"""
A kubelet: pods of its node by a watch, admission one by one, units that it counts, workers, restarts.

It knows nothing of cards: a container of ours gets as many IDs as it asks for, any of those that are free. IDs of an
ended init container are used again by the next ones; those of a pod that is gone by force are free at once, whatever
still runs. A plugin that is away at that moment costs the pod: it has failed for good.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from interleave.informer import Informer
from interleave.loop import Process
from interleave.worker import Worker

from isolation.contract.names import ACK
from isolation.kube.core.errors import RefusedError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Coroutine

    from interleave.objects import Box, Plan
    from interleave.plug import Plug
    from interleave.runtime import Runtime
    from interleave.server import Thing
    from interleave.wire import Net

RESOURCE = ACK.memory
COLLECT_TURNS = 10
"""20 s; a real one collects old containers once a minute."""


class RejectedError(RuntimeError):
    """There are no units for it; at its admission the pod has failed for good."""

    lacks = 0
    """Units that are missing."""


class Units:
    """Which container has which IDs."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.healthy: set[str] = set()
        self.unhealthy: set[str] = set()
        self.pods: dict[str, dict[str, tuple[str, ...]]] = {}
        """By pod UID and container; in the checkpoint."""

    def used(self) -> frozenset[str]:
        """As the checkpoint says."""
        return frozenset(one for has in self.pods.values() for ids in has.values() for one in ids)

    def keep(self, uids: Collection[str]) -> None:
        """All other pods let go of theirs."""
        self.pods = {uid: has for uid, has in self.pods.items() if uid in uids}

    def give(self, uid: str, box: Box, reusable: set[str]) -> bool:
        """Whether the container gets any now; RejectedError."""
        has = self.pods.setdefault(uid, {})
        if not self.healthy:
            raise RejectedError("no healthy devices present")
        if box.name in has:
            if not set(has[box.name]) <= self.healthy:
                raise RejectedError("previously allocated devices are no longer healthy")
            return False
        chosen = sorted(reusable)[: box.units]
        free = sorted(self.healthy - self.used())
        missing = box.units - len(chosen)
        if len(free) < missing:
            error = RejectedError(f"requested number of devices unavailable: {missing} of {len(free)}")
            error.lacks = missing - len(free)
            raise error
        has[box.name] = (*chosen, *self._draw.sample(free, missing))
        return True


class Kubelet:
    """See the module. `rejected` has the pods that it has failed, with what it said."""

    def __init__(self, net: Net, runtime: Runtime, plans: dict[str, Plan], say: Callable[[str], None]) -> None:
        self._net, self.runtime, self.machine, self._plans, self.say = net, runtime, runtime.machine, plans, say
        self.draw: random.Random = net.draw
        self.units = Units(net.draw)
        self.plug: Plug | None = None
        self.process = Process(f"kubelet {self.machine.name}")
        self.process.alive = False
        self.known: dict[str, Worker] = {}
        self.socket_made: list[Callable[[], None]] = []
        """Called at its start: the socket is another one."""
        self.rejected: list[tuple[str, str]] = []
        self.short: list[tuple[str, str]] = []
        """Of these, the ones for which there were too few units whatever it had taken back."""
        self._ready = False
        """Whether every pod that was there at the start has been looked at: nothing is collected before."""
        self._queue: list[Worker] = []
        self._work = asyncio.Event()
        self._informer: Informer | None = None

    # Its life.

    def start(self) -> None:
        """Read the checkpoint, listen, look at every pod."""
        self.process = Process(f"kubelet {self.machine.name}")
        self.known, self._queue, self._work, self._ready = {}, [], asyncio.Event(), False
        self.machine.grouped = True
        for told in tuple(self.socket_made):
            told()
        self.spawn(self._live(), self.process.name)

    def stop(self) -> None:
        """It dies; containers go on."""
        self.process.die()
        if self._informer is not None:
            self._informer.close()
            self._informer = None
        self._lost(self.plug)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """A part of this life of the kubelet."""
        self._net.loop.spawn(self.process, work, name)

    async def _live(self) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, 1.5))  # a plugin may be back before the first pod is looked at
        mine = self.machine.name
        self._informer = Informer(self._net, "pods", lambda pod: pod["spec"].get("nodeName") == mine, self._saw)
        self.spawn(self._housekeep(), f"housekeeping of {self.process.name}")
        await self._admit_all()

    # Its plugin.

    def register(self, plug: Plug) -> None:
        """A plugin is there."""
        self.plug = plug
        self.list_devices(plug)
        plug.process.mourners.append(lambda: self._lost(plug))

    def list_devices(self, plug: Plug) -> None:
        """What the plugin lists now."""
        if self.plug is plug and plug.process.alive:
            devices = plug.devices()
            self.units.healthy = {one for one, healthy in devices if healthy}
            self.units.unhealthy = {one for one, _ in devices} - self.units.healthy

    def _lost(self, plug: Plug | None) -> None:
        if self.plug is plug:
            self.plug = None
            self.units.unhealthy |= self.units.healthy
            self.units.healthy = set()

    def plugged(self) -> Plug:
        """The plugin; RuntimeError where there is none."""
        if self.plug is None:
            raise RuntimeError("endpoint has been stopped")
        return self.plug

    # What it hears.

    def _saw(self, pod: Thing | None, uid: str) -> None:
        worker = self.known.get(uid)
        if pod is None:
            if worker is not None:  # by force; its IDs are free while its processes live
                worker.told.set()
                del self.known[uid]
                self.spawn(worker.clear(), f"burial of {uid}")
            return
        if worker is None:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                # A kubelet that stopped before it had ended all of a rejected pod's containers ends them at its start.
                self.spawn(Worker(self, pod, self._plans[uid]).clear(), f"burial of {uid}")
                return
            worker = self.known[uid] = Worker(self, pod, self._plans[uid])
            self._queue.append(worker)
            self._work.set()
        worker.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            worker.told.set()

    def _active(self) -> list[str]:
        """Pods whose IDs are kept."""
        if not self._ready:
            return [*self.known, *self.units.pods]
        return [uid for uid, worker in self.known.items() if not worker.ended]

    # Admission, one by one.

    async def _admit_all(self) -> None:
        while self._informer is not None and not self._informer.synced:  # noqa: ASYNC110 (one list, then the rest)
            await asyncio.sleep(0.02)
        first = set(self._queue)
        while True:
            self._ready = self._ready or first.isdisjoint(self._queue)
            while not self._queue:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(self.draw.uniform(0.0, 0.01))
            worker = self._queue.pop(self._drawn(first))
            if worker.uid not in self.known:
                continue
            self.say(f"{self.machine.name} admits {worker.plan.name}")
            if worker.told.is_set():
                self.spawn(worker.end(), f"end of {worker.plan.name}")
            elif await self._admit(worker):
                self.spawn(worker.run(), worker.plan.name)
            else:
                self.spawn(worker.fail("UnexpectedAdmissionError"), f"failure of {worker.plan.name}")

    def _drawn(self, first: set[Worker]) -> int:
        """Which of the queue comes next: those of the first list before all others."""
        before = [at for at, worker in enumerate(self._queue) if worker in first]
        return self.draw.choice(before or range(len(self._queue)))

    async def _admit(self, worker: Worker) -> bool:
        running = {one.name for one in self.machine.living(worker.uid)}
        plan, reusable = worker.plan, set[str]()
        try:
            for box in (*plan.inits, *plan.apps):
                if box.units and box.name not in running:
                    await self.allocate(worker, box, reusable)
                mine = self.units.pods.get(worker.uid, {}).get(box.name, ())
                if box.name in plan.init_names:
                    reusable.update(mine)
                else:
                    reusable.difference_update(mine)
        except RuntimeError as exc:
            self.units.pods.pop(worker.uid, None)
            self.say(f"{plan.name} is rejected by {self.machine.name}: {exc}")
            self.rejected.append((worker.uid, str(exc)))
            if isinstance(exc, RejectedError) and exc.lacks > self._stale():
                self.short.append((worker.uid, str(exc)))
            return False
        return True

    def _stale(self) -> int:
        """Units of pods that are gone, which it has not taken back yet."""
        pods = self._net.server.things["pods"].values()
        alive = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")}
        return sum(len(ids) for uid, has in self.units.pods.items() if uid not in alive for ids in has.values())

    async def allocate(self, worker: Worker, box: Box, reusable: set[str]) -> None:
        """Units for a container that has none; RejectedError, RuntimeError."""
        self.units.keep([*self._active(), worker.uid])
        if self.units.give(worker.uid, box, reusable):
            await self.plugged().allocate()

    # What it writes.

    async def report(self, worker: Worker, status: dict[str, Any]) -> None:
        """A pod's status."""
        body = {"metadata": {"uid": worker.uid}, "status": status}
        final = status["phase"] in ("Succeeded", "Failed")
        await self._write("PATCH", worker.plan.path, body, lambda: final or not worker.ended)

    async def remove(self, worker: Worker) -> None:
        """A pod that has ended."""
        await self._write("DELETE", worker.plan.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": worker.uid}})

    async def _write(
        self, method: str, path: str, body: dict[str, Any], still: Callable[[], bool] = lambda: True
    ) -> None:
        await asyncio.sleep(self.draw.uniform(0.002, 0.3))
        while self._net.weather.down:  # noqa: ASYNC110 (it retries, as kubelets do)
            await asyncio.sleep(0.5)
        if not still():
            return
        try:
            self._net.server.handle("kubelet", method, path, body, "merge-patch")
        except RefusedError:
            return

    async def _housekeep(self) -> None:
        """Containers and sandboxes of pods that nobody knows are cleared away, and the node's status is stated."""
        for turn in itertools.count():
            await asyncio.sleep(2.0)
            if turn % COLLECT_TURNS == 0:
                for worker in tuple(self.known.values()):
                    self.spawn(worker.collect(), f"old containers of {worker.plan.name}")
            if self._informer is not None and self._informer.synced and self.runtime.process.alive:
                there = {one.uid for one in self.runtime.sandboxes.values()}
                there |= {one.sandbox.uid for one in self.runtime.containers.values()}
                left = there - self.known.keys()
                for uid in sorted(left):
                    plan = self._plans[uid]
                    pod = self._net.server.things["pods"].get(plan.key)
                    if pod is None or pod["metadata"]["uid"] != uid:
                        self.spawn(Worker(self, {}, plan).clear(), f"orphan {plan.name}")
            await self._state()

    async def _state(self) -> None:
        node = self._net.server.things["nodes"]["", self.machine.name]
        sound = len(self.units.healthy)
        said = {
            "capacity": {RESOURCE: str(sound + len(self.units.unhealthy))},
            "allocatable": {RESOURCE: str(sound)},
        }
        now = {kind: {RESOURCE: node["status"][kind].get(RESOURCE)} for kind in said}
        if said != now:
            await self._write("PATCH", f"/api/v1/nodes/{self.machine.name}/status", {"status": said})
