# SPDX-License-Identifier: Apache-2.0
"""
A kubelet: sees, admits and hands over pods, with a device manager's manners and faults.

Decides nothing about cards: IDs are the business of `device_books` (the books that the gRPC stand-in uses
too), who may start is the plugin's. Manners kept, as the project's notes observed them: admission is serial
and in an order of its own; an error of Allocate ends the pod for good; a force-deleted pod's IDs are free at
once while its processes live; a restart admits every pod anew, asks nothing for what is allocated, and
rejects what finds no plugin; a foreign List at any moment may make the books forget IDs in flight.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from interleave.informer import Informer
from interleave.loop import Process
from interleave.worker import Worker
from support.device_books import Allocate, DeviceBooks, Prefer, Rejected

from isolation.contract.names import ACK
from isolation.kube.core.errors import RefusedError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from interleave.machine import Machine
    from interleave.objects import Plan
    from interleave.plug import Plug
    from interleave.server import Thing
    from interleave.wire import Net

RESOURCE = ACK.memory


class Kubelet:
    """See the module. `rejected` has the pods that it has failed, with what it said."""

    def __init__(self, net: Net, machine: Machine, plans: dict[str, Plan], say: Callable[[str], None]) -> None:
        self._net, self.machine, self._plans, self.say = net, machine, plans, say
        self.draw: random.Random = net.draw
        self.books = DeviceBooks(net.draw)
        self.plug: Plug | None = None
        self.process = Process(f"kubelet {machine.name}")
        self.process.alive = False
        self.known: dict[str, Worker] = {}
        self.socket = 0
        """Which life of the kubelet this is: its socket is made anew in each."""
        self.socket_made: list[Callable[[], None]] = []
        """Called when it is."""
        self.rejected: list[tuple[str, str]] = []
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
        self.books._regenerate()
        self.socket += 1
        for told in tuple(self.socket_made):
            told()
        self.spawn(self._live(), self.process.name)

    def stop(self) -> None:
        """It dies; containers go on."""
        self.process.die()
        if self._informer is not None:
            self._informer.close()
            self._informer = None
        self.plug = None
        self.books.withdraw(RESOURCE)

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
            sound = {one for one, healthy in devices if healthy}
            self.books.offer(RESOURCE, sound, {one for one, _ in devices} - sound)

    def _lost(self, plug: Plug) -> None:
        if self.plug is plug:
            self.plug = None
            self.books.withdraw(RESOURCE)

    # What it hears.

    def _saw(self, pod: Thing | None, uid: str) -> None:
        worker = self.known.get(uid)
        if pod is None:
            if worker is not None:
                worker.gone = True
                worker.told.set()
                # R6: forced; its IDs are free while its processes live.
                del self.known[uid]
                self.spawn(worker.bury(), f"burial of {uid}")
            return
        if worker is None:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                return
            worker = self.known[uid] = Worker(self, pod, self._plans[uid])
            self._queue.append(worker)
            self._work.set()
        worker.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            worker.told.set()

    def active(self) -> list[str]:
        """Pods whose IDs the device manager keeps."""
        if not self._ready:
            return [*self.known, *self.books.pods]
        return [uid for uid, worker in self.known.items() if not worker.ended]

    def shown(self, name: str) -> dict[str, frozenset[str]] | None:
        """pod-resources Get: None for a pod that is queued, rejected or unknown."""
        for worker in self.known.values():
            if worker.plan.name == name and not worker.ended and worker not in self._queue:
                has = self.books.pods.get(worker.uid, {})
                boxes = [*(box for box in worker.plan.inits if box.sidecar), *worker.plan.apps]
                return {box.name: frozenset(has.get(box.name, {}).get(RESOURCE, ())) for box in boxes}
        return None

    def listed(self) -> None:
        """Somebody foreign calls List: the fault R1."""
        if self.process.alive:
            self.books.collect(self.active())

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
        calls = self.books.admit(worker.uid, worker.plan.inits, worker.plan.apps, self.active, running)
        try:
            step = next(calls)
            while True:
                try:
                    answer = await self._ask(step)
                except RuntimeError as exc:
                    step = calls.throw(exc)
                else:
                    step = calls.send(answer)
        except StopIteration:
            return True
        except Rejected as exc:
            self.say(f"{worker.plan.name} is rejected by {self.machine.name}: {exc}")
            self.rejected.append((worker.uid, str(exc)))
            return False

    def plugged(self) -> Plug:
        """The plugin; RuntimeError where there is none."""
        if self.plug is None:
            raise RuntimeError("endpoint has been stopped")
        return self.plug

    async def _ask(self, step: Prefer | Allocate) -> Any:
        plug = self.plugged()
        if isinstance(step, Prefer):
            wish = await plug.preferred(step.available, step.must, step.size)
            self.say(f"{self.machine.name} prefers {wish} of {len(step.available)}, must {len(step.must)}")
            return wish
        self.say(f"{self.machine.name} allocates {step.ids}")
        return await plug.allocate(step.ids)

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
        """Containers of pods that nobody knows are ended, and the node's status is stated."""
        while True:
            await asyncio.sleep(2.0)
            if self._informer is not None and self._informer.synced:
                for container in list(self.machine.containers):
                    pod = self._net.server.things["pods"].get(self._plans[container.uid].key)
                    if container.uid not in self.known and (pod is None or pod["metadata"]["uid"] != container.uid):
                        self.machine.kill(container, self.draw.uniform(0.0, 2.0))
            await self._state()

    async def _state(self) -> None:
        node = self._net.server.things["nodes"]["", self.machine.name]
        capacity, allocatable = self.books.capacity(RESOURCE)
        said = {"capacity": {RESOURCE: str(capacity)}, "allocatable": {RESOURCE: str(allocatable)}}
        now = {kind: {RESOURCE: node["status"][kind].get(RESOURCE)} for kind in said}
        if said != now:
            await self._write("PATCH", f"/api/v1/nodes/{self.machine.name}/status", {"status": said})
