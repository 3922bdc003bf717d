# SPDX-License-Identifier: Apache-2.0
"""
The node agent as it runs on a machine of the simulator: the real `isolation.node.agent` and the real watch.

In memory stand what is no decision: the disk, control groups, pod-resources. Every write to the disk is a
point at which the process may die, and a delivery has several. A life begins with the book on the disk and
ends by `stop`, by a crash, or with the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from interleave.loop import Process, touch_world
from interleave.machine import Delivered
from interleave.plug import Plug
from interleave.server import EPOCH
from interleave.wire import Wire

from isolation.contract.model import Mode
from isolation.kube.background import Background
from isolation.kube.writes import Writer
from isolation.node.agent import Agent
from isolation.node.watch import NodePods
from isolation.node.world import Moment, UnreachableError, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from interleave.kubelet import Kubelet
    from interleave.machine import Machine
    from interleave.wire import Net

    from isolation.contract.model import Card
    from isolation.node.world import Promise

TICK_SECONDS = 1.0


class Shelf:
    """Where the book lies."""

    def __init__(self, net: Net, machine: Machine) -> None:
        self._net, self._machine = net, machine

    def load(self) -> str | None:
        """The text."""
        touch_world()
        return self._machine.book

    async def save(self, text: str) -> None:
        """Durable when it returns; a crash leaves the old one or the new one."""
        touch_world()
        await asyncio.sleep(self._net.draw.random() * 0.003)
        touch_world()
        self._machine.book = text


class Delivery:
    """Files of containers, each step a point at which the process may die."""

    def __init__(self, net: Net, machine: Machine) -> None:
        self._net, self._machine = net, machine

    async def deliver(self, promise: Promise) -> None:
        """The claim, the limits, the hold, the spec."""
        await self._pause()
        found = self._machine.delivered.setdefault(promise.hash, Delivered())
        found.claim = promise.claim
        await self._pause()
        found.slices, found.promise = promise.slices, promise.id
        await self._pause()
        found.hold = True
        await self._pause()
        found.spec = True

    async def uncount(self, hash_: str) -> None:
        """Its hold goes."""
        await self._pause()
        if hash_ in self._machine.delivered:
            self._machine.delivered[hash_].hold = False

    async def retire(self, hash_: str) -> None:
        """Spec first, so that nothing starts with half of it."""
        await self._pause()
        if hash_ in self._machine.delivered:
            self._machine.delivered[hash_].spec = False
            await self._pause()
            self._machine.delivered.pop(hash_, None)

    def standing(self) -> Iterable[str]:
        """Hashes of which anything stands."""
        return tuple(self._machine.delivered)

    def claims(self) -> Iterable[str]:
        """As they were written."""
        return tuple(found.claim for found in self._machine.delivered.values() if found.claim)

    async def _pause(self) -> None:
        touch_world()
        await asyncio.sleep(self._net.draw.random() * 0.002)
        touch_world()


class Resources:
    """pod-resources: Get, and never List."""

    def __init__(self, net: Net, kubelet: Kubelet) -> None:
        self._net, self._kubelet = net, kubelet

    async def get(self, _namespace: str, name: str, seconds: float) -> Mapping[str, frozenset[str]] | None:
        """The kubelet's own word; sometimes it is too busy."""
        touch_world()
        wait = self._net.draw.random() * 0.02
        if wait > seconds or self._net.draw.random() < 0.01:
            await asyncio.sleep(seconds)
            raise UnreachableError("deadline exceeded")
        await asyncio.sleep(wait)
        touch_world()
        if not self._kubelet.process.alive:
            raise UnreachableError("connection refused")
        return self._kubelet.shown(name)


class Cgroups:
    """Processes of pods."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def living(self, uid: str) -> bool | None:
        """Whether one lives."""
        return bool(self._machine.living(uid))


class Inventory:
    """Cards and mode; they do not change here."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cards(self) -> Sequence[Card]:
        """All of them."""
        return self._machine.cards

    def mode(self) -> Mode:
        """Memory is enforced."""
        return Mode.CGPU

    def whole(self) -> bool:
        """Nobody does."""
        return False


class Clock:
    """The run's time, since the machine was booted."""

    def __init__(self, net: Net, machine: Machine) -> None:
        self._net, self._machine = net, machine

    def now(self) -> float:
        """Seconds that only grow."""
        return self._net.loop.time() - self._machine.booted + 20.0

    def moment(self) -> Moment:
        """Seconds begin anew with each boot."""
        return Moment(self.now(), EPOCH + self._net.loop.time(), f"boot {self._machine.boots}")

    async def sleep(self, seconds: float) -> None:
        """Let others work."""
        await asyncio.sleep(seconds)
        touch_world()


class NodeAgent:
    """One machine's agent through all its lives; `make` puts another in the place of the real one."""

    def __init__(
        self, net: Net, kubelet: Kubelet, broken: list[str], make: Callable[[Net, World, Machine], Any] | None = None
    ) -> None:
        self._net, self._kubelet, self._machine, self._broken = net, kubelet, kubelet.machine, broken
        self._make = make or (lambda _net, world, _machine: Agent(world))
        self.agent: Any = None
        self.plug: Plug | None = None
        self.process = Process(f"agent {self._machine.name}")
        self.process.alive = False
        self.slowest = 0.0
        """Seconds that the slowest answer in the way of the kubelet took."""

    def start(self) -> None:
        """A new life."""
        self.process = Process(f"agent {self._machine.name}")
        self._net.loop.spawn(self.process, self._live(), self.process.name)

    def stop(self) -> None:
        """It is gone, at once: an upgrade or a crash."""
        self.process.die()

    async def _live(self) -> None:
        net, machine = self._net, self._machine
        wire = Wire(net, f"agent {machine.name}")
        pods = NodePods(wire, Writer(wire, machine.name), machine.name)  # type: ignore[arg-type]
        world = World(
            pods,
            Resources(net, self._kubelet),
            Cgroups(machine),
            Inventory(machine),
            Shelf(net, machine),
            Delivery(net, machine),
            Clock(net, machine),
        )
        self.agent = self._make(net, world, machine)
        async with contextlib.AsyncExitStack() as stack:
            background = Background()
            for name, follower in pods.followers.items():
                await stack.enter_async_context(background.keep(name, follower.run))
            await self.agent.start()
            plug = self.plug = Plug(net, self.process, self.agent, self._broken)
            net.loop.create_task(self._keep_registered(plug))
            while True:
                await self.agent.tick()
                self._kubelet.list_devices(plug)
                self.slowest = max(self.slowest, plug.longest)
                await asyncio.sleep(TICK_SECONDS)

    async def _keep_registered(self, plug: Plug) -> None:
        """At the start, and within 0.3 s of another socket of the kubelet's."""
        kubelet, draw = self._kubelet, self._net.draw
        news = asyncio.Event()
        kubelet.socket_made.append(news.set)
        self.process.mourners.append(lambda: kubelet.socket_made.remove(news.set))
        while True:
            await asyncio.sleep(0.02 + draw.random() * 0.28)
            touch_world()
            if kubelet.process.alive:
                kubelet.register(plug)
            await news.wait()
            news.clear()
