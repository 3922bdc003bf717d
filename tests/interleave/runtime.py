# SPDX-License-Identifier: Apache-2.0
"""
A container runtime as containerd is with NRI: sandboxes, containers, and plugins that it asks and does not wait for.

Kept of the real one: a sandbox's annotations are those of its making; one event at a time over all pods; plugins are
asked in their order, and each sees what those before it have changed; an answer that is an error refuses, and the
plugin is told that the container is gone; a plugin that is away, slow (2 s), dead amid the call or not yet synchronised
is not missed, and the slow one is thrown out. A device that is not there cannot be had. A start runs the guard first,
then asks the plugin a second time. Containers survive the runtime, who learns of the
ended ones when it comes back. The guard is the rule of `guard.c`: it takes the mark away and compares the nonces.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from interleave.calls import AwayError, SaidError, call
from interleave.loop import Process
from interleave.machine import Container

from isolation.contract.names import START_NONCE
from isolation.contract.nri_api import NriContainerState, NriEvent
from isolation.node.nri import model

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.machine import Machine
    from interleave.plug import Link
    from interleave.wire import Net

GUARD: Final = "/opt/gpushare/guard"
ANSWER_SECONDS: Final = 2.0
CARD: Final = "gpushare.dev/card="


def guard(machine: Machine, container: Container) -> bool:
    """Whether a guarded container may start, once."""
    nonce = machine.marks.pop(container.cid, None)
    return nonce is not None and nonce == container.annotations.get(START_NONCE)


class Runtime:
    """See the module. Methods that may be called by the kubelet raise SaidError."""

    def __init__(
        self,
        net: Net,
        machine: Machine,
        say: Callable[[str], None],
        opens: Callable[[Machine, Container], bool] = guard,
    ) -> None:
        self._net, self.machine, self._say, self._opens = net, machine, say, opens
        self.process = Process(f"runtime {machine.name}")
        self.process.alive = False
        self.plugins: dict[str, tuple[Link, int]] = {}
        """By index, in which order they are asked; and which of its connections this is."""
        self.sandboxes: dict[str, model.Sandbox] = {}
        self.lost: set[str] = set()
        """Sandboxes that run no more."""
        self.containers: dict[str, Container] = {}
        self.unadjusted = self.refused = 0
        """Guarded containers that were created as they are; starts that the guard refused."""
        self._turn = asyncio.Lock()
        machine.ended = self._ended

    def start(self) -> None:
        """Containers that have ended meanwhile are known as ended; no plugin is there yet."""
        self.process = Process(f"runtime {self.machine.name}")
        self.process.mourners.append(self._drop)
        self._turn = asyncio.Lock()
        for container in self.containers.values():
            if container.state == NriContainerState.RUNNING and container not in self.machine.containers:
                container.state = NriContainerState.STOPPED
                container.exited.set()

    def stop(self) -> None:
        """It dies; containers go on."""
        self.process.die()

    def reboot(self) -> None:
        """After the machine's: no sandbox runs any more."""
        self.stop()
        self.lost |= self.sandboxes.keys()
        for container in self.containers.values():
            container.state = NriContainerState.STOPPED
            container.exited.set()

    # What a kubelet asks.

    async def ask(self, method: str, *arguments: Any) -> Any:
        """As a client; SaidError, AwayError."""
        return await call(self._net, self.process, lambda: getattr(self, method)(*arguments), method)

    def of(self, uid: str, name: str = "") -> list[Container]:
        """Containers of a pod that are not removed."""
        return [one for one in self.containers.values() if one.sandbox.uid == uid and name in ("", one.name)]

    async def run_sandbox(self, uid: str, namespace: str, name: str, annotations: dict[str, str]) -> str:
        """A new one."""
        await self._moment()
        made = model.Sandbox(f"s{self.machine.number()}", uid, namespace, name, dict(annotations))
        self.sandboxes[made.id] = made
        return made.id

    async def create(self, sandbox: str, name: str, guarded: bool) -> str:  # noqa: FBT001 (asked by `ask`)
        """A container's id."""
        if sandbox not in self.sandboxes or sandbox in self.lost:
            raise SaidError("sandbox is not running")
        number = self.machine.number()
        made = Container(f"{number:064x}", name, self.sandboxes[sandbox], guarded, 100_000 + number)
        try:
            async with self._turn:
                await self._adjust(made)
        except SaidError as exc:
            self._say(f"{made.sandbox.name}/{name} is refused: {exc}")
            await self._tell(made, removed=True)
            raise
        await self._moment()
        self.unadjusted += guarded and START_NONCE not in made.annotations
        there = sandbox in self.sandboxes and sandbox not in self.lost
        if self._net.draw.random() < self._net.weather.spoilt or not there:
            await self._tell(made, removed=True)
            raise SaidError("failed to create containerd container")
        self.containers[made.cid] = made
        return made.cid

    async def _adjust(self, made: Container) -> None:
        """Each plugin sees what those before it have changed; SaidError."""
        if made.guarded and not self.machine.gate:
            raise SaidError("unresolvable CDI devices gpushare.dev/gate=closed")
        for link in self._subscribed(NriEvent.CREATE_CONTAINER):
            _, adjustment = await self._asked(link, "create", _told(made, NriContainerState.UNKNOWN))
            if adjustment is not None:
                made.annotations |= adjustment.annotations
                made.cards |= {one.removeprefix(CARD) for one in adjustment.cdi_devices}
                made.promise = next((one.host for one in adjustment.mounts), made.promise)

    async def start_container(self, cid: str, seconds: float | None) -> None:
        """It runs; where it does not, it has ended."""
        await self._moment()
        container = self.containers.get(cid)
        if container is None or container.state != NriContainerState.CREATED:
            raise SaidError("container is not in created state")
        try:
            await self._prepare(container)
        except SaidError as exc:
            self._say(f"{container.sandbox.name}/{container.name} does not start: {exc}")
            self._stopped(container)
            await self._tell(container)
            raise
        container.state = NriContainerState.RUNNING
        self.machine.begin(container, seconds)

    async def _prepare(self, container: Container) -> None:
        """The hook, then the plugin's second look."""
        boots = self.machine.boots
        if container.guarded and not self._opens(self.machine, container):
            self.refused += 1
            if START_NONCE in container.annotations:
                self.machine.spoilt(self.machine, container)
            raise SaidError("hook createRuntime failed: not prepared by the node agent")
        async with self._turn:
            for link in self._subscribed(NriEvent.START_CONTAINER):
                await self._asked(link, "start", replace(_told(container), pid=container.pid))
        if boots != self.machine.boots or container.state != NriContainerState.CREATED:
            raise SaidError("the task is gone")

    async def stop_container(self, cid: str, linger: float) -> None:
        """It is told to end."""
        container = self.containers.get(cid)
        if container is None:
            return
        if container.state == NriContainerState.RUNNING:
            self.machine.kill(container, linger)
            await container.exited.wait()
        elif container.state == NriContainerState.CREATED:
            self._stopped(container)
            await self._tell(container)

    async def remove_container(self, cid: str) -> None:
        """A container that has no processes is forgotten."""
        container = self.containers.get(cid)
        if container is not None:
            if container.state == NriContainerState.RUNNING or container in self.machine.containers:
                raise SaidError("cannot delete a running task")
            await self._tell(container, removed=True)
            self.containers.pop(cid, None)

    async def remove_sandbox(self, sandbox: str) -> None:
        """With whatever is left in it."""
        for cid in [one.cid for one in self.containers.values() if one.sandbox.id == sandbox]:
            await self.remove_container(cid)
        self.sandboxes.pop(sandbox, None)
        self.lost.discard(sandbox)

    # The plugin.

    async def register(self, link: Link, line: int) -> None:
        """It is told all there is, and asked from then on; `line`: which of its connections this is."""
        async with self._turn:
            self.plugins[link.plugin.index] = link, line
            found = [_told(one) for one in self.containers.values()]
            answered, _ = await self._asked(link, "synchronize", tuple(self.sandboxes.values()), found)
        if not answered:
            raise SaidError("the plugin did not answer")

    def _subscribed(self, event: NriEvent) -> list[Link]:
        return [link for _, (link, _) in sorted(self.plugins.items()) if event in link.plugin.events]

    async def _asked(self, link: Link, what: str, *about: Any) -> tuple[bool, Any]:
        """Whether the plugin answered, and what; SaidError where that is an error."""
        known, line = self.plugins.get(link.plugin.index, (None, 0))
        if known is not link:
            return False, None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return True, await call(self._net, link.process, lambda: link.answer(line, what, *about), what)
        except (TimeoutError, AwayError):
            self._say(f"{self.machine.name}: no answer to {what}: the plugin is thrown out")
            link.close()
            if self.plugins.get(link.plugin.index) == (link, line):
                del self.plugins[link.plugin.index]
            return False, None

    async def _tell(self, container: Container, *, removed: bool = False) -> None:
        """An error of the plugin's is only logged."""
        async with self._turn:
            for link in self._subscribed(NriEvent.REMOVE_CONTAINER):
                try:
                    await self._asked(link, "gone", _told(container), removed)
                except SaidError as exc:
                    self._say(str(exc))

    def _drop(self) -> None:
        for link, _ in self.plugins.values():
            link.close()
        self.plugins.clear()

    # What happens to containers.

    def _ended(self, container: Container) -> None:
        if self.process.alive and container.state == NriContainerState.RUNNING:
            self._stopped(container)
            self._net.loop.spawn(self.process, self._tell(container), f"exit of {container.name}")

    def _stopped(self, container: Container) -> None:
        container.state = NriContainerState.STOPPED
        container.exited.set()

    async def _moment(self) -> None:
        await asyncio.sleep(self._net.draw.random() * 0.05)


def _told(container: Container, state: int | None = None) -> model.Container:
    """As the plugin sees it."""
    return replace(
        model.Container(container.cid, container.name, container.sandbox),
        state=container.state if state is None else state,
        hooks=(GUARD,) if container.guarded else (),
        annotations=dict(container.annotations),
        pid=container.pid if container.state == NriContainerState.RUNNING else 0,
    )
