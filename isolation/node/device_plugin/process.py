# SPDX-License-Identifier: Apache-2.0
"""
The device plugin as a process: registered with the kubelet, last plugin of the container runtime, and little else.

It outlives the agent, whose restart then costs waiting and no pod: what the kubelet was offered stays offered, and a
container that the agent does not prepare meanwhile is refused in a way that the kubelet repeats. It talks to nobody
else: no API server, no cards. While it is not shown every create, the device that the kubelet asks for does not exist,
so that nothing with a share can be created: before the first connection, while the runtime restarts, and when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

from isolation.contract.names import ACK
from isolation.kube.background import Background
from isolation.node.device_plugin.exchange import LOCK, Exchange, Report
from isolation.node.device_plugin.final_check import PLUGIN, FinalCheck
from isolation.node.device_plugin.plugin import Plugin, PluginError
from isolation.node.device_plugin.register import Registrar
from isolation.node.guard_device import GuardDevice, GuardDeviceError
from isolation.node.lock import LockError, alone
from isolation.node.nri.session import NriSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.node.core.units import Device
    from isolation.node.paths import Paths

_log: Final = logging.getLogger(__name__)
ENDPOINT: Final = "gpushare.sock"
REPORT_SECONDS: Final = 0.2
_INSTALL_SECONDS: Final = 600.0
LEAVE_SECONDS: Final = 1.0
"""A create that has found our device just before it went is still refused, not left to the guard."""
_GRACE_SECONDS: Final = 1.0


class DevicePluginError(Exception):
    """The device plugin cannot work here; the message says what to do."""


class DevicePlugin:
    """See the module."""

    def __init__(self, paths: Paths) -> None:
        self._exchange = Exchange(paths.run_dir)
        self._guard_device = GuardDevice(paths.run_dir, paths.cdi_dir, paths.marks_dir)
        offer = self._exchange.offer
        self._plugin = Plugin(self._devices, paths.plugins / ENDPOINT, self._guard_device.device)
        self._registrar = Registrar(self._plugin, paths.plugins, ACK.memory, lambda: offer().obstacle)
        self._final_check = FinalCheck(offer, self._guard_device)
        self._session = NriSession(paths.nri_socket, self._final_check, plugin=PLUGIN, changed=self._connected)
        self._opening = threading.Lock()
        self._leaving = False
        self._gate_trouble = ""
        self._reported: Report | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop; GuardDeviceError."""
        await asyncio.to_thread(self._guard_device.install)
        await asyncio.to_thread(self._guard_device.withdraw)  # one that was killed has left it
        tasks = Background()
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            stack.callback(self._session.close)
            stack.enter_context(tasks.thread("runtime", self._session.cycle))
            stack.push_async_callback(self._plugin.stop, _GRACE_SECONDS)
            await enter(tasks.cycles("registration", self._registrar.cycle))
            await enter(tasks.cycles("report", self._report))
            await enter(tasks.cycles("install", self._install))
            await stop.wait()
            _log.info("shutting down: containers with shares cannot be created until the next start")
            await asyncio.to_thread(self._leave)
            await asyncio.sleep(LEAVE_SECONDS)

    def _devices(self) -> Sequence[Device] | None:
        offer = self._exchange.offer()
        return None if offer.obstacle else offer.devices

    def _connected(self, now: bool) -> None:  # noqa: FBT001 (called by the session)
        """In the session's thread."""
        with self._opening:
            try:
                if now and not self._leaving:
                    self._guard_device.offer()
                else:
                    self._guard_device.withdraw()
                self._gate_trouble = ""
            except GuardDeviceError as exc:
                self._gate_trouble = str(exc)
                _log.error("%s", exc)

    def _leave(self) -> None:
        with self._opening:
            self._leaving = True
            with contextlib.suppress(GuardDeviceError):
                self._guard_device.withdraw()

    async def _report(self) -> float:
        standing = self._registrar.standing
        connected = self._session.in_force and not self._gate_trouble
        trouble = standing.trouble or self._session.trouble or self._gate_trouble
        now = Report(standing.registered, standing.times, connected, trouble, self._final_check.refused)
        if now != self._reported:
            await asyncio.to_thread(self._exchange.report, now)
            self._reported = now
        return REPORT_SECONDS

    async def _install(self) -> float:
        """What somebody has removed comes again."""
        await asyncio.to_thread(self._guard_device.install)
        if self._session.in_force:
            await asyncio.to_thread(self._connected, True)
        return _INSTALL_SECONDS


async def serve(paths: Paths, stop: asyncio.Event) -> None:
    """The device plugin, until told to stop; DevicePluginError where it cannot begin."""
    try:
        async with alone(paths, LOCK, stop, "device plugin"):
            await DevicePlugin(paths).run(stop)
    except (GuardDeviceError, LockError, PluginError) as exc:
        raise DevicePluginError(str(exc)) from None
