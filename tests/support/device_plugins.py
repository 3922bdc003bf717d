# SPDX-License-Identifier: Apache-2.0
"""
The stand-in kubelet's side of device plugins: they register, are listened to, are asked, and go.

What they list goes into the state (`device_state`); one whose connection ends leaves its capacity and offers
nothing, and is forgotten after five minutes times `pace`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from support.device_state import DeviceState

FORGET_SECONDS = 300.0
CHECKPOINT = "kubelet_internal_checkpoint"


class Plugins:
    """See the module. `lock` guards the state."""

    def __init__(self, folder: Path, state: DeviceState, lock: AbstractContextManager[Any]) -> None:
        self.folder, self.state, self._lock = folder, state, lock
        self.pace = 1.0
        self.registrations: list[float] = []
        self.asked: list[tuple[str, float]] = []
        self.options: dict[str, Any] = {}
        self._endpoints: dict[str, grpc.Channel] = {}

    def clear(self) -> None:
        """The kubelet starts: it removes whatever lies in the folder, but for its own file."""
        for path in self.folder.iterdir():
            if path.name != CHECKPOINT:
                path.unlink()

    def hang_up(self) -> None:
        """The kubelet ends."""
        with self._lock:
            for channel in self._endpoints.values():
                channel.close()
            self._endpoints.clear()
            for resource in self.state.healthy:
                self.state.offer(resource, ())

    def register(self, request: Any, context: grpc.ServicerContext) -> Any:
        """See the protocol."""
        if request.version != api.PLUGIN_VERSION or "/" not in request.resource_name:
            context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version} is not supported")
        self.registrations.append(time.monotonic())
        channel = grpc.insecure_channel(f"unix:{self.folder / request.endpoint}")
        with self._lock:
            old = self._endpoints.pop(request.resource_name, None)
            self._endpoints[request.resource_name] = channel
            self.options[request.resource_name] = request.options
        if old is not None:
            old.close()
        threading.Thread(target=self._listen_to, args=(request.resource_name, channel), daemon=True).start()
        return api.Empty()

    def _listen_to(self, resource: str, channel: grpc.Channel) -> None:
        watch = channel.unary_stream(
            f"/{api.PLUGIN}/ListAndWatch", lambda m: m.SerializeToString(), api.ListAndWatchResponse.FromString
        )
        with contextlib.suppress(grpc.RpcError, ValueError):  # closed by either side
            for said in watch(api.Empty()):
                sound = {one.ID for one in said.devices if one.health == api.HEALTHY}
                with self._lock:
                    if self._endpoints.get(resource) is channel:
                        self.state.offer(resource, sound, {one.ID for one in said.devices} - sound)
        with self._lock:
            if self._endpoints.get(resource) is channel:
                del self._endpoints[resource]
                self.state.withdraw(resource)
        self.later(FORGET_SECONDS * self.pace, lambda: self._forget(resource))

    @staticmethod
    def later(seconds: float, work: Callable[[], object]) -> None:
        """Do it then; a test may put its own clock here."""
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        timer.start()

    def _forget(self, resource: str) -> None:
        with self._lock:
            if resource not in self._endpoints:
                self.state.forget(resource)

    def ask(self, resource: str, method: str, request: Any, answer: Any, seconds: float | None = None) -> Any:
        """One call to a plugin; `RuntimeError` with its words where it fails."""
        with self._lock:
            channel = self._endpoints.get(resource)
        if channel is None:
            raise RuntimeError(f"endpoint of {resource} has been stopped")
        call = channel.unary_unary(f"/{api.PLUGIN}/{method}", lambda m: m.SerializeToString(), answer.FromString)
        began = time.monotonic()
        try:
            return call(request, timeout=seconds)
        except grpc.RpcError as exc:
            raise RuntimeError(f"rpc error: code = {exc.code().name} desc = {exc.details()}") from None
        finally:
            self.asked.append((method, time.monotonic() - began))
