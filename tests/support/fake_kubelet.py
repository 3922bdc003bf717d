# SPDX-License-Identifier: Apache-2.0
"""
A stand-in kubelet: pod-resources and the Pods API over real gRPC on Unix sockets, with its manners and its faults.

    with FakeKubelet() as kubelet:
        kubelet.add("ml", "train-0", {"main": {"nvidia.com/gpu": ["GPU-1"]}}, uid="...", ids={"main": "<64 hex>"})
        ... connect to kubelet.socket (and kubelet.pods_socket) ...
        kubelet.end("ml", "train-0")

Manners: List tells every pod, Get only pods that have not ended (else an error with the code `not_found`:
kubelets leave it UNKNOWN and say so in words), both share one limit of 100 calls a second with a burst of
10 (RESOURCE_EXHAUSTED), the Pods API has its own.
Faults, settable at any time: `delay` (seconds before each answer), `refuse` (calls that are still to be
refused as too many; -1: all), `initializing` (FAILED_PRECONDITION from the Pods API), `lists_ended` (List
tells ended pods too, as kubelets before 1.34 do), `gone()` and `back()` (the sockets vanish and return),
`get_disabled` (the feature gate is off, as by default before 1.34). `calls` counts what was asked, by method.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from collections.abc import Mapping

QPS, BURST = 100, 10
"""What a kubelet grants to all callers together (k8s.io/kubernetes/pkg/kubelet/apis/podresources)."""


@dataclass
class StandInPod:
    """One pod as the kubelet knows it."""

    namespace: str
    name: str
    containers: dict[str, dict[str, list[str]]]
    """Device IDs by container and resource."""
    uid: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    """Container IDs by container name, with or without `containerd://`; for the Pods API."""
    init: frozenset[str] = frozenset()
    """Which names in `ids` are init containers."""
    ephemeral: frozenset[str] = frozenset()
    claims: dict[str, list[tuple[str, str, str, str]]] = field(default_factory=dict)
    """By container: (claim, driver, pool, device) of dynamic resources."""
    ended: bool = False


class Bucket:
    """Tokens, as golang.org/x/time/rate hands them out."""

    def __init__(self, qps: float, burst: int) -> None:
        self.qps, self.burst = qps, burst
        self.left, self.at = float(burst), time.monotonic()
        self.lock = threading.Lock()

    def take(self) -> bool:
        """Whether there is one."""
        with self.lock:
            now = time.monotonic()
            self.left = min(self.burst, self.left + (now - self.at) * self.qps)
            self.at = now
            if self.left < 1:
                return False
            self.left -= 1
            return True


Method = Callable[[Any, grpc.ServicerContext], Any]
"""Request and context to answer."""


class FakeKubelet:
    """See the module. Also usable without `with`: `start()`, `stop()`."""

    def __init__(self, *, pods_api: bool = False, qps: float = QPS, burst: int = BURST) -> None:
        # Short: a Unix socket's path ends at 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="kubelet-", dir="/tmp"))
        self.socket = self.folder / "pod-resources" / "kubelet.sock"
        self.pods_socket = self.folder / "pods-api" / "pods-api.sock"
        self.pods_api = pods_api
        self.pods: dict[tuple[str, str, str], StandInPod] = {}
        self.calls: Counter[str] = Counter()
        self.delay = 0.0
        self.refuse = 0
        self.initializing = False
        self.lists_ended = False
        self.get_disabled = False
        self.not_found = grpc.StatusCode.UNKNOWN
        self.allocatable: dict[str, list[str]] = {}
        self._limits = {service: Bucket(qps, burst) for service in (api.POD_RESOURCES, api.PODS)}
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen on both sockets (on the second one with `pods_api` only)."""
        resources = {
            "List": (self._list, api.ListPodResourcesRequest),
            "Get": (self._get, api.GetPodResourcesRequest),
            "GetAllocatableResources": (self._allocatable, api.AllocatableResourcesRequest),
        }
        self._listen(self.socket, api.POD_RESOURCES, resources)
        if self.pods_api:
            self._listen(self.pods_socket, api.PODS, {"ListPods": (self._list_pods, api.ListPodsRequest)})

    def stop(self) -> None:
        """Listen no more, for good."""
        self.gone()
        shutil.rmtree(self.folder, ignore_errors=True)

    def gone(self) -> None:
        """The kubelet stops: connections break, the sockets vanish."""
        for server in self._servers:
            server.stop(None).wait()
        self._servers.clear()
        for path in (self.socket, self.pods_socket):
            path.unlink(missing_ok=True)

    def back(self) -> None:
        """The kubelet is there again, with what it knew."""
        self.start()

    def add(self, namespace: str, name: str, containers: dict[str, dict[str, list[str]]], **more: Any) -> StandInPod:
        """A pod was admitted; further fields of `StandInPod` by name."""
        pod = StandInPod(namespace, name, containers, **more)
        self.pods[namespace, name, pod.uid] = pod
        return pod

    def end(self, namespace: str, name: str, uid: str = "") -> None:
        """It succeeded or failed; its object is still there."""
        self.pods[namespace, name, uid].ended = True

    def remove(self, namespace: str, name: str, uid: str = "") -> None:
        """It is gone altogether."""
        del self.pods[namespace, name, uid]

    def _listen(self, path: Path, service: str, methods: Mapping[str, tuple[Method, Any]]) -> None:
        path.parent.mkdir(exist_ok=True)
        handlers = {}
        for name, (answer, request) in methods.items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._guarded(name, answer, self._limits[service]),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="kubelet"))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _guarded(self, name: str, answer: Method, limit: Bucket) -> Method:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls[name] += 1
            if self.refuse or not limit.take():
                self.refuse -= self.refuse > 0
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            end = time.monotonic() + self.delay
            while time.monotonic() < end and context.is_active():
                time.sleep(0.005)
            return answer(request, context)

        return call

    def _list(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        listed = [pod for pod in self.pods.values() if self.lists_ended or not pod.ended]
        return api.ListPodResourcesResponse(pod_resources=[_resources(pod) for pod in listed])

    def _get(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.get_disabled:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        for pod in self.pods.values():
            if (pod.name, pod.namespace, pod.ended) == (request.pod_name, request.pod_namespace, False):
                return api.GetPodResourcesResponse(pod_resources=_resources(pod))
        where = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return context.abort(self.not_found, where)

    def _allocatable(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        devices = [
            {"resource_name": name, "device_ids": [one]} for name, ids in self.allocatable.items() for one in ids
        ]
        return api.AllocatableResourcesResponse(devices=devices)

    def _list_pods(self, _request: Any, context: grpc.ServicerContext) -> Any:
        if self.initializing:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Kubelet is initializing")
        return api.ListPodsResponse(pods=[_object(pod).SerializeToString() for pod in self.pods.values()])


def _resources(pod: StandInPod) -> Any:
    """As kubelet 1.36 tells it: one entry of devices per resource and NUMA node, here per ID."""
    made = api.PodResources(name=pod.name, namespace=pod.namespace)
    for name, resources in pod.containers.items():
        container = made.containers.add(name=name)
        for resource, ids in resources.items():
            for one in ids:
                container.devices.add(resource_name=resource, device_ids=[one])
        for claim, driver, pool, device in pod.claims.get(name, ()):
            dynamic = container.dynamic_resources.add(claim_name=claim, claim_namespace=pod.namespace)
            dynamic.claim_resources.add(driver_name=driver, pool_name=pool, device_name=device)
    return made


def _object(pod: StandInPod) -> Any:
    """The pod's object with its status, as far as `kubelet_api` knows it."""
    made = api.Pod()
    made.metadata.name, made.metadata.namespace, made.metadata.uid = pod.name, pod.namespace, pod.uid
    made.status.phase = "Succeeded" if pod.ended else "Running"
    for name, ident in pod.ids.items():
        kind = "initContainerStatuses" if name in pod.init else "containerStatuses"
        kind = "ephemeralContainerStatuses" if name in pod.ephemeral else kind
        whole = ident if not ident or "://" in ident else f"containerd://{ident}"
        getattr(made.status, kind).add(name=name, containerID=whole)
    return made
