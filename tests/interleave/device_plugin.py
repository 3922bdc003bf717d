# SPDX-License-Identifier: Apache-2.0
"""
The device plugin of a machine of the simulator: its real final check, over the agent's last offer.

A process of its own, which outlives the agent and may die too. While it is not shown every create, the gate's device is
not on the machine, unless it was killed: then nobody takes it away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from interleave.agent import GuardDevice
from interleave.loop import Process, touch_world
from interleave.plug import Link, Plug

from isolation.node.device_plugin.final_check import PLUGIN, FinalCheck
from isolation.node.device_plugin.plugin import LOOK_SECONDS

if TYPE_CHECKING:
    from interleave.kubelet import Kubelet
    from interleave.wire import Net


class DevicePlugin:
    """One machine's, through all its lives."""

    def __init__(self, net: Net, kubelet: Kubelet) -> None:
        self._net, self._kubelet, self._machine = net, kubelet, kubelet.machine
        self.process = Process(f"device plugin {self._machine.name}")
        self.process.alive = False
        self.refused = 0
        """Containers, in all its lives."""

    def start(self) -> None:
        """A new life."""
        self.process = Process(f"device plugin {self._machine.name}")
        self._machine.gate = False
        self._net.loop.spawn(self.process, self._live(), self.process.name)

    def stop(self) -> None:
        """It is told to end: the gate first."""
        self._machine.gate = False
        self.process.die()

    async def _live(self) -> None:
        net, machine = self._net, self._machine
        last = FinalCheck(lambda: machine.offer, GuardDevice(machine))  # type: ignore[arg-type]
        link = Link(net, self.process, self._kubelet.runtime, last, PLUGIN, changed=self._connected)
        net.loop.create_task(link.run())
        plug = Plug(net, self.process, lambda: machine.offer.devices)
        net.loop.create_task(self._keep_registered(plug))
        before = 0
        while True:
            self._kubelet.list_devices(plug)
            self.refused += last.refused - before
            before = last.refused
            await asyncio.sleep(LOOK_SECONDS * net.draw.uniform(0.5, 2.0))

    def _connected(self, now: bool) -> None:  # noqa: FBT001 (as the session calls it)
        self._machine.gate = now

    async def _keep_registered(self, plug: Plug) -> None:
        """At the start, and within 0.3 s of another socket of the kubelet's, once there is an offer."""
        kubelet, draw = self._kubelet, self._net.draw
        news = asyncio.Event()
        kubelet.socket_made.append(news.set)
        self.process.mourners.append(lambda: kubelet.socket_made.remove(news.set))
        while True:
            await asyncio.sleep(0.02 + draw.random() * 0.28)
            touch_world()
            if self._machine.offer.obstacle:
                continue
            if kubelet.process.alive:
                kubelet.register(plug)
            await news.wait()
            news.clear()
