# SPDX-License-Identifier: Apache-2.0
"""
Our plugin in a thread of its own, over whatever mind a test gives it, at a stand-in kubelet.

    with PluginHost(kubelet, mind) as host:
        kubelet.until(lambda: host.registrar.standing.registered)
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from support.waiting import PATIENCE_SECONDS

from isolation.kube.background import Background
from isolation.node.plugin import Plugin
from isolation.node.register import Registrar
from isolation.node.world import Device, Granted


class PlainMind:
    """Says yes to everything; what it is asked stands in `heard`. `hold` seconds before it prefers or allocates."""

    def __init__(self, cards=2, units=8):
        self.all = tuple(Device(f"GPU-{card}-_-{i}", healthy=True) for card in range(cards) for i in range(units))
        self.heard = []
        self.hold = 0.0
        self.fault = None
        """Raised instead of an answer."""

    def devices(self):
        """All of them."""
        return self.all

    async def _answer(self, what, value):
        self.heard.append(what)
        await asyncio.sleep(self.hold)
        if self.fault is not None:
            raise self.fault
        return value

    async def preferred(self, asks):
        """The first ones in order."""
        return await self._answer(asks, [sorted(ask.available)[: ask.size] for ask in asks])

    async def allocate(self, sets):
        """A device with a name of its own for each."""
        return await self._answer(sets, [Granted(f"test.dev/any={len(ids)}") for ids in sets])

    async def prestart(self, ids):
        """Nothing to do; not held up."""
        self.heard.append(ids)
        if self.fault is not None:
            raise self.fault


class Noted:
    """Keeps what took how long."""

    def __init__(self):
        self.all = []

    def took(self, method, seconds, outcome):
        """Note it."""
        self.all.append((method, seconds, outcome))


class PluginHost:
    """See the module."""

    def __init__(self, kubelet, mind, resource=None) -> None:
        self.kubelet, self.mind, self.times = kubelet, mind, Noted()
        self._resource = resource or kubelet.resource
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE_SECONDS)

    def call(self, work, *arguments):
        """Something to be done in the plugin's own thread."""
        self._loop.call_soon_threadsafe(work, *arguments)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._over = asyncio.Event()
        self.plugin = Plugin(self.mind, self.kubelet.plugins / "gpushare.sock", self.times)
        self.registrar = Registrar(self.plugin, self.kubelet.plugins, self._resource)
        async with Background().cycles("registration", self.registrar.cycle):
            self._ready.set()
            await self._over.wait()
        await self.plugin.stop(0.5)
