# SPDX-License-Identifier: Apache-2.0
"""
One pod as its kubelet acts it out: init containers, apps, restarts, the end, and what is reported.

Every container start asks the plugin's PreStart and then the runtime, which must find the CDI device;
either may fail, and is tried again after about 12 s with the same IDs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from interleave.machine import Container

from isolation.contract.names import ACK

if TYPE_CHECKING:
    from interleave.kubelet import Kubelet
    from interleave.objects import Plan
    from interleave.server import Thing

    from isolation.contract.model import Slice

FIRST_RETRY, NEXT_RETRY = 0.8, 12.0


class Worker:
    """See the module."""

    def __init__(self, kubelet: Kubelet, pod: Thing, plan: Plan) -> None:
        self._kubelet, self._draw, self._machine = kubelet, kubelet.draw, kubelet.machine
        self.pod, self.plan, self.uid = pod, plan, plan.uid
        self.told = asyncio.Event()
        """It is to end."""
        self.gone = False
        """The API server has it no more."""
        self.ended = False
        """Succeeded or Failed has been decided."""
        self.tries = 0
        """PreStart calls and runtime errors that failed."""

    async def run(self) -> None:
        """Every container of the pod, in order, until it ends or is told to."""
        for box in self.plan.inits:
            if box.sidecar:
                self._beside(box.name)
            elif not await self._init(box.name):
                await self.end()
                return
        for box in self.plan.apps:
            self._beside(box.name)
        await self._settle()

    async def fail(self, reason: str) -> None:
        """Rejected: whatever runs of it is ended."""
        self.ended = True
        await self._kubelet.report(self, {"phase": "Failed", "reason": reason})
        await self._stop_all(self.plan.linger)
        await self.told.wait()
        await self.end()

    async def end(self) -> None:
        """It was told to end."""
        await self._stop_all(self.plan.linger)
        await asyncio.sleep(0.1)
        if self._kubelet.known.get(self.uid) is self:
            del self._kubelet.known[self.uid]
            await self._kubelet.remove(self)

    async def bury(self) -> None:
        """It was force-deleted."""
        await self._stop_all(self.plan.linger)

    # Containers.

    def _beside(self, name: str) -> None:
        self._kubelet.spawn(self._keep(name), f"{self.plan.name} {name}")

    async def _init(self, name: str) -> bool:
        """An init container until it has ended well; False: the pod ends."""
        while not self.told.is_set():
            if (self.uid, name) in self._machine.done:
                return True
            container = self._running(name) or await self._start(name)
            if container is None:
                return False
            await container.over.wait()
            if (self.uid, name) in self._machine.done:
                await self._kubelet.report(self, self.statuses())
        return False

    async def _keep(self, name: str) -> None:
        """A container that is started again whenever it ends."""
        while not self.told.is_set() and not self.ended:
            container = self._running(name) or await self._start(name)
            if container is None:
                return
            await self._kubelet.report(self, self.statuses())
            await container.over.wait()
            await self._kubelet.report(self, self.statuses())
            await asyncio.sleep(self._draw.uniform(0.1, 2.0))

    async def _settle(self) -> None:
        """Until the apps have succeeded or the pod is told to end."""
        if self.plan.lives is not None:
            try:
                async with asyncio.timeout(self.plan.lives):
                    await self.told.wait()
            except TimeoutError:
                await self._succeed()
        await self.told.wait()
        await self.end()

    async def _succeed(self) -> None:
        """The apps end by themselves; one that never came up is waited for."""
        while not (self.told.is_set() or self._all_run()):  # noqa: ASYNC110 (looks, as kubelets do)
            await asyncio.sleep(1.0)
        if self.told.is_set():
            return
        self.ended = True
        await self._stop_all(0.2)
        await asyncio.sleep(self._draw.uniform(0.1, 1.7))
        await self._kubelet.report(self, {"phase": "Succeeded"})

    def _all_run(self) -> bool:
        return all(self._running(box.name) for box in self.plan.apps)

    def _running(self, name: str) -> Container | None:
        return next((one for one in self._machine.living(self.uid) if one.name == name), None)

    async def _start(self, name: str) -> Container | None:
        """Ask the plugin, resolve, start; again and again until the pod is told to end."""
        wait = FIRST_RETRY
        while not self.told.is_set() and not self.ended:
            container = await self._try(name)
            if container is not None:
                return container
            self.tries += 1
            try:
                async with asyncio.timeout(wait):
                    await self.told.wait()
            except TimeoutError:
                wait = NEXT_RETRY + self._draw.uniform(-1.0, 3.0)
        return None

    async def _try(self, name: str) -> Container | None:
        kubelet, plan = self._kubelet, self.plan
        ids = kubelet.books.pods.get(self.uid, {}).get(name, {}).get(ACK.memory, ())
        found = None
        if plan.boxes[name].units and not ids:
            kubelet.say(f"{plan.name}/{name} does not start: no devices found allocated in local cache")
            return None
        if ids:
            try:
                await kubelet.plugged().prestart(ids)
            except RuntimeError as exc:
                kubelet.say(f"{plan.name}/{name} does not start: {exc}")
                return None
            await asyncio.sleep(self._draw.uniform(0.0, 0.2))
            found = self._machine.delivered.get(str(kubelet.books.answers.get((self.uid, name, ACK.memory), "")))
            if found is None or not found.spec:
                kubelet.say(f"{plan.name}/{name} does not start: unresolvable CDI device")
                return None
        if self.told.is_set() or self.ended:
            return None
        slices, promise = (found.slices, found.promise) if found is not None else ((), "")
        container = Container(self.uid, name, self._machine.new_cid(), ids, slices, promise)
        kubelet.say(f"{plan.name}/{name} starts as {promise} on {cards_in(slices)}")
        self._machine.start(container, plan.boxes[name].seconds if name in plan.init_names else None)
        if plan.crashes is not None and name not in plan.init_names:
            self._machine.kill(container, plan.crashes)
            plan.crashes = None
        return container

    async def _stop_all(self, most: float) -> None:
        """Every process of it is told, and ends."""
        while living := self._machine.living(self.uid):
            for container in living:
                self._machine.kill(container, self._draw.uniform(0.0, most))
            for container in living:
                await container.over.wait()

    # Reports.

    def statuses(self) -> dict[str, Any]:
        """As they stand in the pod's status."""
        inits = [self._status(box.name) for box in self.plan.inits]
        apps = [self._status(box.name) for box in self.plan.apps]
        phase = "Running" if all("running" in one["state"] for one in apps) else "Pending"
        return {"phase": phase, "initContainerStatuses": inits, "containerStatuses": apps}

    def _status(self, name: str) -> dict[str, Any]:
        container = self._running(name)
        if container is not None:
            return {"name": name, "containerID": f"containerd://{container.cid}", "state": {"running": {}}}
        if (self.uid, name) in self._machine.done:
            return {"name": name, "state": {"terminated": {"exitCode": 0}}}
        last = {"terminated": {"exitCode": 137}} if (self.uid, name) in self._machine.ran else {}
        return {"name": name, "state": {"waiting": {}}, "lastState": last}


def cards_in(slices: tuple[Slice, ...]) -> str:
    """Cards, for people."""
    return ", ".join(f"{part.uuid}: {part.bytes >> 30}" for part in slices) or "no card"
