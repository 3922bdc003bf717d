# SPDX-License-Identifier: Apache-2.0
"""
Being known to the kubelet: registered at its start, and within a moment again whenever it starts anew.

Decides when to register: the kubelet's socket is another one, or ours is gone from the folder, which a
kubelet clears at its start. A plugin that comes late costs pods whose containers do not run at that moment:
they are rejected for good. So two files are looked at ten times a second, which takes microseconds; what
the devices are is not known here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from isolation.contract import kubelet_api as api
from isolation.node.device_plugin.exchange import stamp_of
from isolation.node.device_plugin.plugin import PluginError, options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isolation.node.device_plugin.plugin import Plugin

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.1
_REGISTER_SECONDS: Final = 2.0
_LONGEST_PAUSE: Final = 2.0


@dataclass(slots=True)
class Standing:
    """How we stand with the kubelet."""

    registered: bool = False
    times: int = 0
    """How often we have registered."""
    trouble: str = ""
    """Why we are not registered, for people."""


class Registrar:
    """Keeps a plugin registered."""

    def __init__(self, plugin: Plugin, folder: Path, resource: str, obstacle: Callable[[], str]) -> None:
        """`obstacle`: why the kubelet must not be offered units as it is now; empty: it may."""
        self._obstacle = obstacle
        self._plugin, self._kubelet, self._resource = plugin, folder / api.REGISTRATION_SOCKET, resource
        self._known: tuple[int, int] | None = None
        self._failures = 0
        self.standing = Standing()

    async def cycle(self) -> float:
        """Look, register; seconds until the next look."""
        return LOOK_SECONDS if await self.turn() else self._pause()

    async def turn(self) -> bool:
        """One look; whether all is well, or there is no kubelet to register with."""
        there = stamp_of(self._kubelet)
        if there is None:
            self._lost("the kubelet socket does not exist")
            return True
        if why := self._obstacle():
            self._known = None
            await self._plugin.stop()
            self._told(why)
            return True
        if there == self._known and self._plugin.stands():
            return True
        if self._known is not None:
            self._lost("the kubelet has restarted")
        try:
            if not self._plugin.stands():
                await self._plugin.start()
            await self._register()
        except PluginError as exc:
            self._failures += 1
            self._told(str(exc))
            return False
        self._known, self._failures = there, 0
        self.standing = Standing(registered=True, times=self.standing.times + 1)
        log.info("registered %s with the kubelet", self._resource)
        return True

    async def _register(self) -> None:
        request = api.RegisterRequest(
            version=api.PLUGIN_VERSION,
            endpoint=self._plugin.path.name,
            resource_name=self._resource,
            options=options(),
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            call = channel.unary_unary(api.REGISTER, lambda m: m.SerializeToString(), api.Empty.FromString)
            try:
                await call(request, timeout=_REGISTER_SECONDS)
            except grpc.aio.AioRpcError as exc:
                why = f"{exc.code().name}: {exc.details()}"
                raise PluginError(f"registering {self._resource} failed: {why}") from None

    def _pause(self) -> float:
        # No random part: there is one of us for one kubelet.
        return min(_LONGEST_PAUSE, LOOK_SECONDS * 2.0 ** min(self._failures - 1, 10))

    def _lost(self, why: str) -> None:
        if self._known is not None or not self.standing.trouble:
            self._known = None
            self._told(why)

    def _told(self, why: str) -> None:
        if why != self.standing.trouble:
            log.warning("not registered with the kubelet: %s", why)
        self.standing = Standing(registered=False, times=self.standing.times, trouble=why)
