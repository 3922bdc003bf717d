# SPDX-License-Identifier: Apache-2.0
"""
The device plugin: units of shared memory for the kubelet to count, and nothing else.

Allocate answers every container with the same CDI device, which closes it until the container runtime has shown it to
us; which pod it is for, the kubelet does not say and nobody asks. PreStartContainer, which the kubelet repeats without
harm to the pod, waits while we are not connected to the runtime: a gap costs a moment and not a failed container.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from isolation.node.core.units import Device

log = logging.getLogger(__name__)
PRESTART_SECONDS: Final = 25.0
"""The kubelet hangs up after 30 s and then learns no reason."""
_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 1.0
_MOST_HEARD_BYTES: Final = 16 << 20
_LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path: sun_path of unix(7), less its end."""
_LONGEST_SAID: Final = 500


class PluginError(Exception):
    """The plugin cannot be served; the message says what to change."""


class Node(Protocol):
    """What the kubelet asks about."""

    def devices(self) -> Sequence[Device]:
        """Every unit as it is now."""

    def closed(self) -> str:
        """Why no container with shares may be created now; empty: it may."""


class Times(Protocol):
    """Where it is noted how long answers took."""

    def took(self, method: str, seconds: float, outcome: str) -> None:
        """One answer; the outcome is ok or refused."""


class Plugin:
    """Serves one resource from one socket."""

    def __init__(self, node: Node, path: Path, device: str, times: Times) -> None:
        """`device`: the CDI device of every container."""
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise PluginError(f"{path}: socket path is longer than {_LONGEST_PATH} bytes: shorten --kubelet-dir")
        self._node, self.path, self._device, self._times = node, path, device, times
        self._server: Any = None
        self._news = asyncio.Event()
        self._watchers = 0
        self._stamp: tuple[int, int] | None = None

    @property
    def watched(self) -> bool:
        """Whether the kubelet listens to our devices."""
        return self._watchers > 0

    def stands(self) -> bool:
        """Whether our socket is still where we put it: a kubelet that starts clears the folder."""
        return self._server is not None and stamp_of(self.path) == self._stamp

    def changed(self) -> None:
        """Tell the kubelet of the devices again, if they differ."""
        self._news.set()

    async def start(self) -> None:
        """Serve; a socket that is in the way is a dead agent's (whoever lives holds the lock)."""
        await self.stop()
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MOST_HEARD_BYTES),
                ("grpc.max_send_message_length", api.MOST_MESSAGE_BYTES),
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
            "PreStartContainer": (self._prestart, api.PreStartContainerRequest),
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
        self._watchers += 1
        try:
            while True:
                self._news.clear()  # before the look: what changes while a message is sent is news again
                now = tuple(self._node.devices())
                if now != told:
                    yield message_of(now)
                    told = now
                try:
                    await asyncio.wait_for(self._news.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    async def _allocate(self, request: Any, _context: Any) -> Any:
        began = time.monotonic()
        answers = [{"cdi_devices": [{"name": self._device}]} for _ in request.container_requests]
        self._times.took("Allocate", time.monotonic() - began, "ok")
        return api.AllocateResponse(container_responses=answers)

    async def _prestart(self, _request: Any, context: Any) -> Any:
        began = time.monotonic()
        while (why := self._node.closed()) and time.monotonic() - began < PRESTART_SECONDS:  # noqa: ASYNC110 (a thread says)
            await asyncio.sleep(_POLL_SECONDS)
        self._times.took("PreStartContainer", time.monotonic() - began, "refused" if why else "ok")
        if why:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why[:_LONGEST_SAID])
        return api.PreStartContainerResponse()


def options() -> Any:
    """What we want to be asked."""
    return api.DevicePluginOptions(pre_start_required=True)


def message_of(devices: Sequence[Device]) -> Any:
    """The devices as the kubelet is told; PluginError where it would not take them."""
    listed = [{"ID": one.id, "health": api.HEALTHY if one.healthy else api.UNHEALTHY} for one in devices]
    message = api.ListAndWatchResponse(devices=listed)
    size = message.ByteSize()
    if size >= api.MOST_MESSAGE_BYTES:
        raise PluginError(
            f"{len(devices)} devices need {size} bytes, the kubelet takes {api.MOST_MESSAGE_BYTES}: "
            "use a larger --memory-unit"
        )
    return message


def stamp_of(path: Path) -> tuple[int, int] | None:
    """What tells a socket from a later one of that name; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _serialize(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text
