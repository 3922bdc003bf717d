# SPDX-License-Identifier: Apache-2.0
"""
The smallest device plugin that a real kubelet takes, for questions about kubelet and container runtime.

Offers a few devices of a resource of its own and answers Allocate with one CDI device or mount; what happens in
PreStartContainer is the test's. Has nothing of the node agent in it.
"""

from __future__ import annotations

from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from realkubelet.machine import Machine

RESOURCE = "test.dev/thing"
_SOCKET = "thing.sock"


class Plugin:
    """Serves until `stop`; what is asked is noted by method."""

    def __init__(self, machine: Machine, devices: int = 8) -> None:
        self._folder = machine.path("/var/lib/kubelet/device-plugins")
        self._ids = [f"thing-{i}" for i in range(devices)]
        self._server: Any = None
        self.asked: list[str] = []
        self.cdi = ""
        """The CDI device that Allocate answers, if any."""
        self.mounts: dict[str, str] = {}
        """Host paths by container path that Allocate answers."""
        self.prestart: Callable[[], None] = _nothing

    def forget(self) -> None:
        """As it was at first."""
        self.asked, self.cdi, self.mounts, self.prestart = [], "", {}, _nothing

    def start(self) -> None:
        """Serve and register."""
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        calls = {
            "GetDevicePluginOptions": (self._options, api.Empty),
            "Allocate": (self._allocate, api.AllocateRequest),
            "PreStartContainer": (self._prestart, api.PreStartContainerRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, asked.FromString, _serialize)
            for name, (answer, asked) in calls.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._list, api.Empty.FromString, _serialize)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.PLUGIN, handlers),))
        self._server.add_insecure_port(f"unix:{self._folder / _SOCKET}")
        self._server.start()
        request = api.RegisterRequest(
            version=api.PLUGIN_VERSION, endpoint=_SOCKET, resource_name=RESOURCE, options={"pre_start_required": True}
        )
        with grpc.insecure_channel(f"unix:{self._folder / api.REGISTRATION_SOCKET}") as channel:
            channel.unary_unary(api.REGISTER, _serialize, api.Empty.FromString)(request, timeout=60)

    def stop(self) -> None:
        """And the kubelet hears it."""
        self._server.stop(1).wait()

    def _options(self, _request: Any, _context: Any) -> Any:
        return api.DevicePluginOptions(pre_start_required=True)

    def _list(self, _request: Any, context: Any) -> Iterator[Any]:
        devices = [{"ID": one, "health": api.HEALTHY} for one in self._ids]
        yield api.ListAndWatchResponse(devices=devices)
        ended = futures.Future()
        context.add_callback(lambda: ended.set_result(None))
        ended.result()

    def _allocate(self, request: Any, _context: Any) -> Any:
        self.asked.append("Allocate")
        one = {"cdi_devices": [{"name": self.cdi}]} if self.cdi else {}
        one["mounts"] = [{"container_path": inside, "host_path": host} for inside, host in self.mounts.items()]
        return api.AllocateResponse(container_responses=[one for _ in request.container_requests])

    def _prestart(self, _request: Any, context: Any) -> Any:
        self.asked.append("PreStartContainer")
        try:
            self.prestart()
        except OSError as exc:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(exc))
        return api.PreStartContainerResponse()


def _nothing() -> None:
    """Nobody minds."""


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()
