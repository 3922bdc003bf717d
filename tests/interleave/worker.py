# SPDX-License-Identifier: Apache-2.0
"""
One pod as its kubelet acts it out: sandbox, init containers, apps, restarts, the end, and what is reported.

Every start asks the runtime to create and to start. What fails before the start is tried
again after about 12 s; a start that fails leaves an ended container, and the next one waits 10 s, twice as long each
time. A sandbox that runs no more is replaced, with the pod's annotations as they are by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from isolation.contract.nri_api import NriContainerState

if TYPE_CHECKING:
    from interleave.kubelet import Kubelet
    from interleave.machine import Container
    from interleave.objects import Plan
    from interleave.server import Thing

FIRST_RETRY, NEXT_RETRY = 0.8, 12.0
FIRST_BACK_OFF, LONGEST_BACK_OFF = 10.0, 40.0
"""The longest one of a kubelet is five minutes: longer than a run."""


class Worker:
    """See the module."""

    def __init__(self, kubelet: Kubelet, pod: Thing, plan: Plan) -> None:
        self._kubelet, self._draw, self._runtime = kubelet, kubelet.draw, kubelet.runtime
        self.pod, self.plan, self.uid = pod, plan, plan.uid
        self.told = asyncio.Event()
        """It is to end."""
        self.ended = False
        """Succeeded or Failed has been decided."""
        self._renewing = asyncio.Lock()
        self._starting = 0

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
        await self.clear()

    async def clear(self) -> None:
        """Nothing of it is left in the runtime."""
        await self._stop_all(self.plan.linger)
        for sandbox in self._sandboxes():
            await self._asked("remove_sandbox", sandbox)
        for one in self._runtime.of(self.uid):  # made while its sandbox was removed, which runtimes do not exclude
            await self._asked("remove_container", one.cid)

    async def collect(self) -> None:
        """Of each container the newest one stays, and those that run."""
        for box in self.plan.boxes:
            for one in sorted(self._runtime.of(self.uid, box), key=lambda one: one.cid)[:-1]:
                if one.state != NriContainerState.RUNNING:
                    with contextlib.suppress(RuntimeError):
                        await self._runtime.ask("remove_container", one.cid)

    # Containers.

    def _beside(self, name: str) -> None:
        self._kubelet.spawn(self._keep(name), f"{self.plan.name} {name}")

    async def _init(self, name: str) -> bool:
        """An init container until it has ended well; False: the pod ends."""
        while not self.told.is_set():
            if self._done(name):
                return True
            container = self._running(name) or await self._start(name)
            if container is None:
                return False
            await container.exited.wait()
            if self._done(name):
                await self._kubelet.report(self, self.statuses())
        return False

    async def _keep(self, name: str) -> None:
        """A container that is started again whenever it ends."""
        while not self.told.is_set() and not self.ended:
            container = self._running(name) or await self._start(name)
            if container is None:
                return
            await self._kubelet.report(self, self.statuses())
            await container.exited.wait()
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
        while not (self.told.is_set() or all(self._running(box.name) for box in self.plan.apps)):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        if self.told.is_set():
            return
        self.ended = True
        await self._stop_all(0.2)
        await asyncio.sleep(self._draw.uniform(0.1, 1.7))
        await self._kubelet.report(self, {"phase": "Succeeded"})

    def _sandboxes(self) -> list[str]:
        return [one.id for one in self._runtime.sandboxes.values() if one.uid == self.uid]

    def _current(self) -> str:
        """The sandbox that runs; empty: none."""
        return next((one for one in self._sandboxes() if one not in self._runtime.lost), "")

    def _running(self, name: str) -> Container | None:
        return next((one for one in self._runtime.of(self.uid, name) if one.state == NriContainerState.RUNNING), None)

    def _done(self, name: str) -> bool:
        """Whether an init container has ended well in this sandbox; all have, where an app was created in it."""
        here = [one for one in self._runtime.of(self.uid) if one.sandbox.id == self._current()]
        apps = {box.name for box in self.plan.apps}
        return any(one.name in apps or (one.name == name and one.well) for one in here)

    async def _start(self, name: str) -> Container | None:
        """Again and again until the pod is told to end."""
        wait, back_off = FIRST_RETRY, FIRST_BACK_OFF
        while not self.told.is_set() and not self.ended:
            self._starting += 1
            cid = ""
            try:
                cid = await self._create(name)
                box = self.plan.boxes[name]
                seconds = box.seconds if name in self.plan.init_names else None
                await self._runtime.ask("start_container", cid, seconds)
                return self._started(cid)
            except RuntimeError as exc:
                self._kubelet.say(f"{self.plan.name}/{name} does not start: {exc}")
            finally:
                self._starting -= 1
            if cid:
                pause, back_off = back_off, min(2 * back_off, LONGEST_BACK_OFF)
            else:
                pause, wait = wait, NEXT_RETRY + self._draw.uniform(-1.0, 3.0)
            try:
                async with asyncio.timeout(pause):
                    await self.told.wait()
            except TimeoutError:
                continue
        return None

    async def _create(self, name: str) -> str:
        kubelet = self._kubelet
        box = self.plan.boxes[name]
        if box.units and not kubelet.units.pods.get(self.uid, {}).get(name):
            await kubelet.allocate(self, box, set())  # lost over a restart: asked for again
        ids = kubelet.units.pods.get(self.uid, {}).get(name, ())
        sandbox = await self._sandbox()
        await asyncio.sleep(self._draw.uniform(0.0, 0.2))
        if self.told.is_set() or self.ended:
            raise RuntimeError("the pod ends")
        cid: str = await self._runtime.ask("create", sandbox, name, bool(ids))
        return cid

    def _started(self, cid: str) -> Container:
        container = self._runtime.containers[cid]
        kubelet, plan = self._kubelet, self.plan
        kubelet.say(f"{plan.name}/{container.name} starts on {sorted(container.cards)}")
        if plan.crashes is not None and container.name not in plan.init_names:
            kubelet.machine.kill(container, plan.crashes)
            plan.crashes = None
        return container

    async def _sandbox(self) -> str:
        """One that runs; where there was another its containers end first."""
        async with self._renewing:
            if now := self._current():
                return now
            old = self._sandboxes()
            for one in self._runtime.of(self.uid):
                await self._runtime.ask("stop_container", one.cid, self._draw.uniform(0.0, self.plan.linger))
            metadata = self.pod["metadata"]
            annotations = metadata.get("annotations", {})
            made: str = await self._runtime.ask(
                "run_sandbox", self.uid, metadata["namespace"], metadata["name"], annotations
            )
            for one in old:
                if self._draw.random() < 0.5:
                    await self._runtime.ask("remove_sandbox", one)
            return made

    async def _stop_all(self, most: float) -> None:
        """Every container of it is told, and ends."""
        while True:
            living = [
                one
                for one in self._runtime.of(self.uid)
                if one.state in (NriContainerState.CREATED, NriContainerState.RUNNING)
            ]
            if not living and not self._starting:
                return
            await asyncio.gather(
                *(self._asked("stop_container", one.cid, self._draw.uniform(0.0, most)) for one in living)
            )
            await asyncio.sleep(0.05)

    async def _asked(self, method: str, *arguments: Any) -> None:
        """What must be done: again where the runtime is away."""
        while True:
            try:
                await self._runtime.ask(method, *arguments)
            except RuntimeError:
                await asyncio.sleep(1.0)
            else:
                return

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
        if self._done(name):
            return {"name": name, "state": {"terminated": {"exitCode": 0}}}
        last = {"terminated": {"exitCode": 137}} if self._runtime.of(self.uid, name) else {}
        return {"name": name, "state": {"waiting": {}}, "lastState": last}
