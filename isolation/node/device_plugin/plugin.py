# SPDX-License-Identifier: Apache-2.0
"""
The device plugin's service: units of shared memory for the kubelet to count, and nothing else.

Allocate answers every container with the same CDI device, which closes it until the container runtime has shown it to
the agent; which pod it is for, the kubelet does not say and nobody asks. It is not asked before a start
(PreStartContainer): a container that cannot start now is refused by the runtime's plugins, and the kubelet would
refuse for ever to start one of a pod that it admitted before a plugin was there.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.contract import kubelet_api as api
from isolation.node.device_plugin.exchange import stamp_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from isolation.node.core.units import Device

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.1
"""Between two looks whether the devices have changed."""
_MAX_HEARD_BYTES: Final = 16 << 20
_LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path: sun_path of unix(7), less its end."""


class PluginError(Exception):
    """The plugin cannot be served; the message says what to change."""


class Plugin:
    """Serves one resource from one socket."""

    def __init__(self, devices: Callable[[], Sequence[Device] | None], path: Path, device: str) -> None:
        """`devices`: every unit as it is now, None: as it was; `device`: the CDI device of every container."""
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise PluginError(f"{path}: socket path is longer than {_LONGEST_PATH} bytes: shorten --kubelet-dir")
        self._devices, self.path, self._device = devices, path, device
        self._server: Any = None
        self._stamp: tuple[int, int] | None = None

    def stands(self) -> bool:
        """Whether our socket is still where we put it: a kubelet that starts clears the folder."""
        return self._server is not None and stamp_of(self.path) == self._stamp

    async def start(self) -> None:
        """Serve; a socket that is in the way is a dead one's (whoever lives holds the lock)."""
        await self.stop()
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_HEARD_BYTES),
                ("grpc.max_send_message_length", api.MAX_MESSAGE_BYTES),
            ]
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.PLUGIN, self._handlers()),))
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
            self.path.chmod(0o600)
        except (OSError, RuntimeError) as exc:
            await server.stop(None)
            raise PluginError(f"cannot listen on {self.path}: {exc}") from None
        self._server, self._stamp = server, stamp_of(self.path)

    async def stop(self, grace: float | None = None) -> None:
        """Calls that are under way have `grace` seconds to end; then the kubelet offers nothing of ours."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace)

    def _handlers(self) -> dict[str, Any]:
        unary: Mapping[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]] = {
            "GetDevicePluginOptions": (self._options, api.Empty),
            "Allocate": (self._allocate, api.AllocateRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, asked.FromString, _serialize)
            for name, (answer, asked) in unary.items()
        }
        return handlers | {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._watch, api.Empty.FromString, _serialize)
        }

    async def _options(self, _request: Any, _context: Any) -> Any:
        return options()

    async def _watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """The devices at once, and again whenever they differ."""
        told: Any = None
        while True:
            now = self._devices()
            if now is not None and now != told:
                yield message_of(now)
                told = now
            await asyncio.sleep(LOOK_SECONDS)

    async def _allocate(self, request: Any, _context: Any) -> Any:
        answers = [{"cdi_devices": [{"name": self._device}]} for _ in request.container_requests]
        return api.AllocateResponse(container_responses=answers)


def options() -> Any:
    """What we want to be asked."""
    return api.DevicePluginOptions()


def message_of(devices: Sequence[Device]) -> Any:
    """The devices as the kubelet is told; PluginError where it would not take them."""
    listed = [{"ID": one.id, "health": api.HEALTHY if one.healthy else api.UNHEALTHY} for one in devices]
    message = api.ListAndWatchResponse(devices=listed)
    size = message.ByteSize()
    if size >= api.MAX_MESSAGE_BYTES:
        raise PluginError(
            f"{len(devices)} devices need {size} bytes, the kubelet takes {api.MAX_MESSAGE_BYTES}: "
            "use a larger --memory-unit"
        )
    return message


def _serialize(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text
