# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet with a plugin that says what the test wants."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import grpc
from support.device_manager import Box, ManagedPod
from support.device_plugins import CHECKPOINT
from support.waiting import PATIENCE_SECONDS

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.device_manager import DeviceManager

RESOURCE = "test.dev/part"


class Scripted:
    """A plugin that says what the test wants; nothing of the code under test."""

    def __init__(self, kubelet: DeviceManager, units: int = 16) -> None:
        self.kubelet = kubelet
        self.ids = [f"1GiB-{i}" for i in range(units)]
        self.allocate_error = self.prestart_error = ""
        self.may_allocate = threading.Event()
        """Allocate answers while this is set."""
        self.may_allocate.set()
        self.allocated: list[list[str]] = []
        self.prestarted: list[list[str]] = []
        self.over = threading.Event()
        self.server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def serve(self) -> None:
        """Serve and register."""
        unary: dict[str, tuple[Any, Any]] = {
            "Allocate": (self._allocate, api.AllocateRequest),
            "PreStartContainer": (self._prestart, api.PreStartContainerRequest),
        }
        write = lambda message: message.SerializeToString()  # noqa: E731
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(answer, asked.FromString, write)
            for name, (answer, asked) in unary.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._watch, api.Empty.FromString, write)
        self.over.clear()
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(api.PLUGIN, handlers),))
        self.server.add_insecure_port(f"unix:{self.kubelet.plugins}/scripted.sock")
        self.server.start()
        options = {"pre_start_required": True}
        with grpc.insecure_channel(f"unix:{self.kubelet.plugins}/kubelet.sock") as channel:
            register = channel.unary_unary(api.REGISTER, write, api.Empty.FromString)
            register(
                api.RegisterRequest(
                    version="v1beta1", endpoint="scripted.sock", resource_name=RESOURCE, options=options
                )
            )

    def leave(self) -> None:
        """End the connection."""
        self.over.set()
        self.may_allocate.set()
        if self.server is not None:
            self.server.stop(None).wait()

    def _watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield api.ListAndWatchResponse(devices=[{"ID": one, "health": "Healthy"} for one in self.ids])
        while context.is_active() and not self.over.wait(0.02):
            pass

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert self.may_allocate.wait(PATIENCE_SECONDS)
        if self.allocate_error:
            context.abort(grpc.StatusCode.INTERNAL, self.allocate_error)
        ids = list(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        answer: dict[str, Any] = {"envs": [{"key": "FROM", "value": "plugin"}, {"key": "ONLY", "value": "plugin"}]}
        answer["mounts"] = [{"container_path": "/ours", "host_path": "/plugin"}]
        return api.AllocateResponse(container_responses=[answer])

    def _prestart(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.prestarted.append(list(request.devices_ids))
        if self.prestart_error:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.prestart_error)
        return api.PreStartContainerResponse()


def pod(name: str, units: int = 4, **more: Any) -> ManagedPod:
    """A pod of one container, or of those given."""
    apps = more.pop("apps", None) or [Box("main", {RESOURCE: units})]
    return ManagedPod("ns", name, f"uid-{name}", apps, **more)


def given(kubelet: DeviceManager) -> dict[tuple[str, str], list[str]]:
    """Device IDs by pod name and container, as the kubelet's own file has it."""
    entries = json.loads((kubelet.plugins / CHECKPOINT).read_text())["Data"]["PodDeviceEntries"]
    return {(one["PodUID"].removeprefix("uid-"), one["ContainerName"]): one["DeviceIDs"]["-1"] for one in entries}


def running(kubelet: DeviceManager, *pods: ManagedPod) -> None:
    """Bind them and wait for them."""
    for one in pods:
        kubelet.bind(one)
    kubelet.until(lambda: all(one.phase == "Running" for one in pods))
