# SPDX-License-Identifier: Apache-2.0
"""
The connection between a kubelet and the agent's process: the device plugin without gRPC.

Calls take a moment, run in the agent's process, and break when it dies; what the agent refuses arrives
as an error with its words. A call may hang as long as the agent does: the kubelet gives PreStart 30 s
and the others for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from isolation.node.world import Ask, NotYetError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from interleave.loop import Process
    from interleave.wire import Net

    from isolation.node.world import Device, Granted

PRESTART_SECONDS = 30.0


class PluginAgent(Protocol):
    """What stands behind the plugin: the agent, or the classic rule."""

    async def preferred(self, asks: Sequence[Ask]) -> Sequence[Sequence[str]]:
        """GetPreferredAllocation."""

    async def allocate(self, ids: Sequence[Sequence[str]]) -> Sequence[Granted]:
        """Allocate."""

    async def prestart(self, ids: Sequence[str]) -> None:
        """PreStartContainer; NotYetError."""

    def devices(self) -> Sequence[Device]:
        """ListAndWatch."""


class Plug:
    """See the module; `slow` is how long an answer may take on top."""

    def __init__(self, net: Net, process: Process, agent: PluginAgent, broken: list[str]) -> None:
        self._net, self.process, self._agent, self._broken = net, process, agent, broken
        self.longest = 0.0
        """Seconds that the slowest GetPreferredAllocation or Allocate took."""

    def devices(self) -> list[tuple[str, bool]]:
        """What it lists."""
        return [(device.id, device.healthy) for device in self._agent.devices()]

    async def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """GetPreferredAllocation for one container."""
        answer = await self._timed(lambda: self._agent.preferred([Ask(available, must, size)]))
        return list(answer[0])

    async def allocate(self, ids: tuple[str, ...]) -> str:
        """Allocate for one container: the name of its CDI device."""
        answer = await self._timed(lambda: self._agent.allocate([ids]))
        return str(answer[0].cdi_device).rpartition("=")[2]

    async def prestart(self, ids: tuple[str, ...]) -> None:
        """PreStartContainer."""
        try:
            async with asyncio.timeout(PRESTART_SECONDS):
                await self._call(lambda: self._agent.prestart(ids))
        except TimeoutError:
            raise RuntimeError("PreStartContainer: deadline exceeded") from None

    async def _timed(self, work: Callable[[], Awaitable[Any]]) -> Any:
        began = self._net.loop.time()
        try:
            return await self._call(work)
        finally:
            self.longest = max(self.longest, self._net.loop.time() - began)

    async def _call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        if not self.process.alive:
            raise RuntimeError("connection refused")
        loop = self._net.loop
        answer: asyncio.Future[Any] = loop.create_future()
        caller_gone = answer.done

        async def serve() -> None:
            try:
                result = await work()
            except NotYetError as exc:
                said: Any = RuntimeError(str(exc))
            except Exception as exc:  # noqa: BLE001 (gRPC answers UNKNOWN; for us it is a defect)
                self._broken.append(f"the plugin raised {exc!r} at {loop.time():.2f}")
                said = RuntimeError(f"rpc error: {exc!r}")
            else:
                said = result
            loop.later(0.0002, _settle, answer, said)

        mourner = lambda: _settle(answer, RuntimeError("connection reset"))  # noqa: E731 (removed again below)
        self.process.mourners.append(mourner)
        try:
            await asyncio.sleep(0.0002 + self._net.draw.random() * 0.002)
            if not caller_gone():
                loop.spawn(self.process, serve(), f"call to {self.process.name}")
            return await answer
        finally:
            if mourner in self.process.mourners:
                self.process.mourners.remove(mourner)


def _settle(future: asyncio.Future[Any], said: Any) -> None:
    if future.done():
        return
    if isinstance(said, Exception):
        future.set_exception(said)
    else:
        future.set_result(said)
