# SPDX-License-Identifier: Apache-2.0
"""
Connections of our processes without their wire formats: to the container runtime (NRI) and to the kubelet.

`Link` answers as `nri.session` does: one message at a time, in a thread, an error in the place of what is not there in
time; when it is thrown out it connects again after a moment. `Plug` answers the kubelet as the device plugin does.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from interleave.calls import AwayError, SaidError, call
from interleave.runtime import ANSWER_SECONDS

from isolation.node.nri.model import NriRefusedError
from isolation.node.nri.session import ANSWER_PART, CONNECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interleave.loop import Process
    from interleave.runtime import Runtime
    from interleave.wire import Net

    from isolation.node.core.units import Device
    from isolation.node.nri.model import Handler
    from isolation.node.nri.session import Subscription


class Link:
    """One process's connection to its runtime, over and over."""

    def __init__(
        self,
        net: Net,
        process: Process,
        runtime: Runtime,
        handler: Handler,
        plugin: Subscription,
        *,
        changed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`changed` is told whether we are in force now."""
        self._net, self.process, self._runtime, self._handler = net, process, runtime, handler
        self.plugin, self._changed = plugin, changed
        self._busy = asyncio.Lock()
        self._closed = asyncio.Event()
        self._line = 0
        self.in_force = False

    async def run(self) -> None:
        """Connect, be asked, be thrown out."""
        while True:
            self._closed.clear()
            self._line += 1
            try:
                await call(self._net, self._runtime.process, self._registered, "register")
                await self._closed.wait()
            except (SaidError, AwayError):
                pass
            self._now(in_force=False)
            await asyncio.sleep(CONNECT_SECONDS * self._net.draw.uniform(1.0, 2.0))

    async def _registered(self) -> None:
        await self._runtime.register(self, self._line)

    def close(self) -> None:
        """By the runtime, or with it."""
        self._closed.set()

    async def answer(self, line: int, what: str, *about: Any) -> Any:
        """One message; SaidError."""
        async with self._busy:
            if line != self._line:
                raise SaidError("the connection was closed before this was read")
            if what == "gone":
                work = functools.partial(self._handler.gone, about[0], removed=about[1])
            else:
                work = functools.partial(getattr(self._handler, what), *about)
            result = asyncio.get_running_loop().run_in_executor(None, work)
            in_time = what in ("create", "start")
            done, _ = await asyncio.wait({result}, timeout=ANSWER_SECONDS * ANSWER_PART if in_time else None)
            if not done:
                raise SaidError("the node agent had no answer in time: the kubelet will retry")
            try:
                said = result.result()
            except NriRefusedError as exc:
                raise SaidError(str(exc)) from None
            if what == "synchronize" and not self._closed.is_set():
                self._now(in_force=True)
            return said

    def _now(self, *, in_force: bool) -> None:
        if in_force != self.in_force:
            self.in_force = in_force
            self._changed(in_force)


class Plug:
    """What the kubelet is connected to."""

    def __init__(self, net: Net, process: Process, devices: Callable[[], Sequence[Device]]) -> None:
        self._net, self.process, self._devices = net, process, devices

    def devices(self) -> list[tuple[str, bool]]:
        """ListAndWatch."""
        return [(device.id, device.healthy) for device in self._devices()]

    async def allocate(self) -> None:
        """Whatever the IDs are, the answer is the same."""
        await call(self._net, self.process, self._answered, "Allocate")

    async def _answered(self) -> None:
        return
