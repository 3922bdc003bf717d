# SPDX-License-Identifier: Apache-2.0
"""
A container runtime as a plugin of NRI sees it: one socket, pods and containers in memory, and no container at all.

It does what containerd 2.1 was seen to do. Plugins are shown every container in the order of their index, a later one
what earlier ones have changed; one that answers with an error refuses it; one that is late, dies, or sends a frame of
more than 4,096 bytes is dropped, and the container is created as the others want it, or as it was: `adjustment` is None
then. Two that set the same variable or annotation make the create fail. An adjustment is applied to what the container
is said to be later, as in its OCI specification. Whoever wants hooks to run, or processes, brings them.

    with NriRuntime(folder / "nri.sock") as runtime:
        assert runtime.connected(5)
        pod = runtime.run_pod("0b6e...", annotations={...})
        container = runtime.create(pod, "main", hooks=[guard])      # RefusedError
        runtime.start(container, pid)                               # RefusedError
        runtime.exit(container)
        runtime.remove(container)
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Self

from isolation.contract import nri_api as api

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_FRAME = 4096
"""Bytes that the runtime reads at once; what is longer ends the plugin."""
KNOWN_EVENTS = (1 << 11) - 1
"""Bits of events that NRI 0.8 knows."""
_CALLS_PLUGIN, _CALLED_BY_PLUGIN = 1, 2
_REQUEST, _RESPONSE = 1, 2
_MUX = struct.Struct(">II")
_TTRPC = struct.Struct(">IIBB")


class RefusedError(Exception):
    """The plugin answered with an error: `code` of google.rpc.Code, and the text for people."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class DroppedError(Exception):
    """There is no plugin, or there is none any more."""


@dataclass
class Pod:
    """A sandbox; annotations as at its creation."""

    id: str
    uid: str
    name: str
    namespace: str
    annotations: Mapping[str, str]

    def fields(self) -> dict[str, Any]:
        """As NRI's PodSandbox."""
        return {
            "id": self.id,
            "uid": self.uid,
            "name": self.name,
            "namespace": self.namespace,
            "annotations": self.annotations,
        }


@dataclass
class Container:
    """What a container is by its specification, after what a plugin has changed."""

    id: str
    name: str
    pod: Pod
    env: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    """Paths of device nodes."""
    hooks: list[str] = field(default_factory=list)
    """Programs at createRuntime."""
    annotations: dict[str, str] = field(default_factory=dict)
    state: int = api.NriContainerState.UNKNOWN
    pid: int = 0
    adjustment: Any = None
    """NRI's ContainerAdjustment, maybe empty; None: no plugin has answered."""

    def fields(self) -> dict[str, Any]:
        """As NRI's Container."""
        return {
            "id": self.id,
            "pod_sandbox_id": self.pod.id,
            "name": self.name,
            "state": self.state,
            "annotations": self.annotations,
            "env": [f"{key}={value}" for key, value in self.env.items()],
            "hooks": {"create_runtime": [{"path": path, "args": [path]} for path in self.hooks]},
            "linux": {"devices": [{"path": path} for path in self.devices]},
            "pid": self.pid,
        }

    def adjust(self, adjustment: Any) -> None:
        """Apply what a plugin wants; RefusedError."""
        before = self.adjustment or api.ContainerAdjustment()
        if {one.key for one in adjustment.env} & {one.key for one in before.env} or (
            adjustment.annotations.keys() & before.annotations.keys()
        ):
            raise RefusedError(2, "two plugins both tried to set the same")
        before.MergeFrom(adjustment)
        self.adjustment = before
        self.env |= {one.key: one.value for one in adjustment.env}
        self.annotations |= dict(adjustment.annotations)
        self.hooks += [hook.path for hook in adjustment.hooks.create_runtime]


class Connection:
    """One plugin's connection: calls to it, and what it asks. Any thread may call."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._numbers = itertools.count(1, 2)
        self._boxes: dict[int, Queue[Any]] = {}
        self._writing = threading.Lock()
        self.asked: Queue[tuple[int, Any]] = Queue()
        """Stream number and ttrpc request of each call of the plugin's."""
        self.largest = 0
        """Bytes of the largest frame that came, without its head."""
        self.open = True
        self.index = ""
        self.events = 0
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, method: str, message: Any, seconds: float, grace: float = 0.0) -> bytes:
        """The answer, for which a plugin is told to have `seconds`. RefusedError; TimeoutError; DroppedError."""
        number = next(self._numbers)
        box = self._boxes[number] = Queue()
        request = api.Request(
            service=api.PLUGIN, method=method, payload=message.SerializeToString(), timeout_nano=int(seconds * 1e9)
        )
        self._send(_CALLS_PLUGIN, number, _REQUEST, request)
        try:
            answer = box.get(timeout=seconds + grace)
        except Empty:
            raise TimeoutError(method) from None
        finally:
            del self._boxes[number]
        if answer is None:
            raise DroppedError
        if answer.status.code:
            raise RefusedError(answer.status.code, answer.status.message)
        payload: bytes = answer.payload
        return payload

    def answer(self, number: int, code: int = 0, text: str = "") -> None:
        """The answer to what the plugin asked."""
        status = {"code": code, "message": text} if code else None
        self._send(_CALLED_BY_PLUGIN, number, _RESPONSE, api.Response(status=status))

    def close(self) -> None:
        """As often as asked."""
        self.open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, stream: int, number: int, kind: int, message: Any) -> None:
        payload = message.SerializeToString()
        data = _TTRPC.pack(len(payload), number, kind, 0) + payload
        try:
            with self._writing:
                for at in range(0, len(data), MAX_FRAME):
                    part = data[at : at + MAX_FRAME]
                    self._socket.sendall(_MUX.pack(stream, len(part)) + part)
        except OSError:
            self.close()
            raise DroppedError from None

    def _read(self) -> None:
        streams = {_CALLS_PLUGIN: bytearray(), _CALLED_BY_PLUGIN: bytearray()}
        with contextlib.suppress(OSError, EOFError, KeyError), self._socket.makefile("rb") as file:
            while True:
                stream, length = _MUX.unpack(_exactly(file, _MUX.size))
                self.largest = max(self.largest, length)
                if length > MAX_FRAME:
                    break
                data = streams[stream]
                data += _exactly(file, length)
                while len(data) >= _TTRPC.size:
                    size, number, kind, _ = _TTRPC.unpack_from(data)
                    if len(data) < _TTRPC.size + size:
                        break
                    payload = bytes(data[_TTRPC.size : _TTRPC.size + size])
                    del data[: _TTRPC.size + size]
                    self._take(number, kind, payload)
        self.close()
        for box in tuple(self._boxes.values()):
            box.put(None)

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        if kind == _REQUEST:
            self.asked.put((number, api.Request.FromString(payload)))
        elif number in self._boxes:  # else it is too late
            self._boxes[number].put(api.Response.FromString(payload))


class NriRuntime:
    """See the module. Attributes may be set before a plugin connects, and change what the next one finds."""

    def __init__(self, path: Path, request_seconds: float = 2.0) -> None:
        self.path, self.request_seconds = path, request_seconds
        self.grace = 0.0
        """Seconds for which it waits beyond what it has announced."""
        self.refuses = ""
        """Why no plugin is taken; its connection stays open and silent."""
        self.configures_first = True
        """Whether Configure comes before the answer to RegisterPlugin; both were seen."""
        self.methods = False
        """Whether events have methods of their own, as from NRI 0.12 on."""
        self.part = 0
        """Most pods and containers in one message of Synchronize; 0: all in one."""
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.plugins: list[Connection] = []
        """Every connection that was made."""
        self.registered: list[tuple[str, str]] = []
        """Name and index of each registration."""
        self.events = 0
        """Subscribed to by the last plugin."""
        self.failure_policy: Any = None
        self._ids = itertools.count(1)
        self._lock = threading.RLock()  # one at a time, over all plugins and events, as NRI does
        self._change = threading.Condition()
        self._serving: list[Connection] = []
        """Those that are shown containers, in their order."""
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Listen; the socket is recreated."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """As a runtime that ends; pods and containers stay."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.drop()

    def drop(self) -> None:
        """Close every plugin."""
        for one in self.plugins:
            one.close()

    def connected(self, seconds: float = 0.0, count: int = 1) -> bool:
        """Whether so many plugins are shown containers, within that time."""
        with self._change:
            return self._change.wait_for(lambda: len(self._open()) >= count, seconds)

    def _open(self) -> list[Connection]:
        return [one for one in self._serving if one.open]

    # What the kubelet asks for.

    def run_pod(
        self,
        uid: str,
        name: str = "pod",
        namespace: str = "default",
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """A new sandbox."""
        pod = Pod(self._new_id(), uid, name, namespace, dict(annotations or {}))
        self.pods[pod.id] = pod
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """It and its containers are gone."""
        for one in [one for one in self.containers.values() if one.pod is pod]:
            self.remove(one)
        self.pods.pop(pod.id, None)

    def create(
        self,
        pod: Pod,
        name: str,
        env: Mapping[str, str] | None = None,
        hooks: Iterable[str] = (),
        devices: Iterable[str] = (),
    ) -> Container:
        """A container as the plugin wants it, or as it is where none answers; RefusedError."""
        with self._lock:
            made = Container(self._new_id(), name, pod, dict(env or {}), list(devices), list(hooks))
            for plugin in self._subscribed(api.NriEvent.CREATE_CONTAINER):
                message = api.ContainerRequest(pod=pod.fields(), container=made.fields())
                try:
                    payload = self.ask("CreateContainer", message, plugin)
                    made.adjust(api.CreateContainerResponse.FromString(payload).adjust)
                except DroppedError:
                    pass
                except RefusedError:
                    self._gone(made)
                    raise
            made.state = api.NriContainerState.CREATED
            self.containers[made.id] = made
            return made

    def start(self, container: Container, pid: int) -> None:
        """Its first process waits; RefusedError: it has ended."""
        with self._lock:
            container.pid = pid
            try:
                self._event(api.NriEvent.START_CONTAINER, container)
            except RefusedError:
                self.exit(container)
                raise
            container.state = api.NriContainerState.RUNNING

    def exit(self, container: Container) -> None:
        """Its first process has ended."""
        with self._lock:
            container.state, container.pid = api.NriContainerState.STOPPED, 0
            self._event(api.NriEvent.STOP_CONTAINER, container, quiet=True)

    def remove(self, container: Container) -> None:
        """It is gone; stopped before if need be."""
        with self._lock:
            self.containers.pop(container.id, None)
            if container.state != api.NriContainerState.STOPPED:
                self._gone(container)
            else:
                self._event(api.NriEvent.REMOVE_CONTAINER, container, quiet=True)

    def ask(self, method: str, message: Any, plugin: Connection | None = None) -> bytes:
        """
        Call a plugin, the first one unless it is named: its answer.

        RefusedError; DroppedError: there is none, or it was late and was closed.
        """
        with self._lock:
            plugin = plugin or next(iter(self._open()), None)
            if plugin is None or not plugin.open:
                raise DroppedError
            try:
                return plugin.call(method, message, self.request_seconds, self.grace)
            except TimeoutError:
                plugin.close()
                raise DroppedError from None

    def _gone(self, container: Container) -> None:
        container.state = api.NriContainerState.STOPPED
        for event in (api.NriEvent.STOP_CONTAINER, api.NriEvent.REMOVE_CONTAINER):
            self._event(event, container, quiet=True)

    def _event(self, event: api.NriEvent, container: Container, *, quiet: bool = False) -> None:
        """Tell; `quiet`: errors are only logged by a runtime."""
        both = {"pod": container.pod.fields(), "container": container.fields()}
        method = next(name for name, number in api.METHODS.items() if number == event)
        for plugin in self._subscribed(event):
            with contextlib.suppress(DroppedError, *([RefusedError] if quiet else [])):
                if self.methods or event == api.NriEvent.STOP_CONTAINER:
                    self.ask(method, api.ContainerRequest(**both), plugin)
                else:
                    self.ask("StateChange", api.StateChangeEvent(event=event, **both), plugin)

    def _subscribed(self, event: api.NriEvent) -> list[Connection]:
        return [one for one in self._open() if one.events >> (event - 1) & 1]

    def _new_id(self) -> str:
        return f"{next(self._ids):064x}"

    # A plugin comes.

    def _accept(self, listener: socket.socket) -> None:
        """One after the other: who says nothing makes the others wait."""
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            plugin = Connection(connected)
            self.plugins.append(plugin)
            try:
                self._welcome(plugin)
            except (DroppedError, RefusedError, TimeoutError, Empty):
                plugin.close()

    def _welcome(self, plugin: Connection) -> None:
        number, request = plugin.asked.get(timeout=5)
        asked = api.RegisterPluginRequest.FromString(request.payload)
        self.registered.append((asked.plugin_name, asked.plugin_idx))
        plugin.index = asked.plugin_idx
        if self.refuses:
            plugin.answer(number, 2, self.refuses)
            return
        if not self.configures_first:
            plugin.answer(number)
        self._configure(plugin)
        if self.configures_first:
            plugin.answer(number)
        with self._lock:
            self._synchronize(plugin)
            with self._change:
                self._serving = sorted([*self._open(), plugin], key=lambda one: one.index)
                self._change.notify_all()

    def _configure(self, plugin: Connection) -> None:
        request = api.ConfigureRequest(
            runtime_name="containerd",
            runtime_version="v2.1.9",
            registration_timeout=5000,
            request_timeout=int(self.request_seconds * 1000),
        )
        payload = plugin.call("Configure", request, self.request_seconds)
        answer = api.ConfigureResponse.FromString(payload)
        self.events = plugin.events = answer.events
        self.failure_policy = answer.failure_policy
        if self.events & ~KNOWN_EVENTS:
            raise DroppedError

    def _synchronize(self, plugin: Connection) -> None:
        pods = [one.fields() for one in self.pods.values()]
        containers = [one.fields() for one in self.containers.values()]
        size = self.part or max(1, len(pods), len(containers))
        starts = range(0, max(1, len(pods), len(containers)), size)
        for at in starts:
            more = at != starts[-1]
            request = api.SynchronizeRequest(
                pods=pods[at : at + size], containers=containers[at : at + size], more=more
            )
            payload = plugin.call("Synchronize", request, self.request_seconds)
            if api.SynchronizeResponse.FromString(payload).more != more:
                raise DroppedError


def _exactly(file: Any, size: int) -> bytes:
    data: bytes = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
