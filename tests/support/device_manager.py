# SPDX-License-Identifier: Apache-2.0
"""
A stand-in kubelet with a device manager: plugins register, pods are admitted, started, ended; over real gRPC.

    with DeviceManager(pace=0.02) as kubelet:
        ... an agent serves a plugin in kubelet.plugins, registers at kubelet.sock, and is a plugin of NRI
            at kubelet.runtime.nri.path ...
        pod = kubelet.bind(ManagedPod("ml", "a", "uid-a", apps=[Box("main", {kubelet.resource: 4})]))
        kubelet.until(lambda: pod.phase == "Running")
        pod.boxes["main"].env, .mounts, .cdi, .ids

Manners as in `device_state`, and: one loop admits and deletes, so that a slow Allocate holds up everything;
containers are started beside it, PreStart before each start (30 s, then after 0.8 s and about every 12 s
again with the same IDs, `CreateContainerConfigError`), then the runtime creates (`CreateContainerError`) and
starts the container (`RunContainerError`); each is tried again as late. A plugin whose connection ends leaves
capacity, allocatable 0, and is forgotten after 5 minutes. The kubelet clears the plugins' folder when it starts,
but for its checkpoint, which says after each admission what it gave.

Settable at any time: `pace` (all the kubelet's waits times this), `linger` (seconds that processes live on
after they were told to end, or until `let_go` is set), `on_change` (called with a pod). Processes show in
`runtime.cgroups`, a cgroup v2 tree. Faults: `restart()`, `reboot()`, `lose_checkpoint()`, `force_delete()`.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc
from support.cdi_runtime import UnresolvableError
from support.device_plugins import CHECKPOINT, Plugins
from support.device_runtime import Runtime, StartedBox, StartError
from support.device_state import UNAVAILABLE, Box, DeviceState, Rejected
from support.nri_runtime import RefusedError
from support.waiting import PATIENCE_SECONDS, until

from isolation.contract import kubelet_api as api
from isolation.contract.names import ACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.device_state import Allocate

__all__ = ["Box", "DeviceManager", "ManagedPod", "StartedBox"]
PRESTART_SECONDS, FIRST_RETRY, NEXT_RETRY = 30.0, 0.8, 11.5


@dataclass(eq=False)
class ManagedPod:
    """One pod bound to this node."""

    namespace: str
    name: str
    uid: str
    apps: list[Box]
    inits: list[Box] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    """At the binding."""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    admitted: bool = False
    ending: threading.Event = field(default_factory=threading.Event)
    worker: threading.Lock = field(default_factory=threading.Lock)
    """Whoever creates, starts or ends containers of it has this."""
    boxes: dict[str, StartedBox] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boxes = {box.name: StartedBox(box) for box in (*self.inits, *self.apps)}

    @property
    def ended(self) -> bool:
        """Succeeded or Failed."""
        return self.phase in ("Succeeded", "Failed")


class DeviceManager:
    """See the module."""

    def __init__(
        self,
        *,
        resource: str = ACK.memory,
        seed: int = 0,
        pace: float = 1.0,
        runtime: Callable[[Path], Runtime] = Runtime,
    ) -> None:
        # Short: a Unix socket's path ends at 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="kubelet-", dir="/tmp"))
        self.resource, self.linger = resource, 0.0
        self.on_change: Callable[[ManagedPod], object] = lambda _: None
        self.plugins = self.folder / "device-plugins"
        self.plugins.mkdir()
        self.runtime = runtime(self.folder)
        self.cdi, self.cgroups = self.runtime.cdi, self.runtime.cgroups
        self.state = DeviceState(random.Random(seed))  # noqa: S311 (chance, no secret)
        self.known: dict[str, ManagedPod] = {}
        """Pods that the kubelet knows, by UID, in the order of their admission."""
        self._lock = threading.RLock()
        self._plugins = Plugins(self.plugins, self.state, self._lock)
        self.pace = pace
        self.let_go = threading.Event()
        self._up = threading.Event()
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._loop: threading.Thread | None = None
        self._server: grpc.Server | None = None
        self._over = False

    def __enter__(self) -> Self:
        self.runtime.nri.up()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pace(self) -> float:
        """All the kubelet's waits are multiplied by this."""
        return self._plugins.pace

    @pace.setter
    def pace(self, value: float) -> None:
        self._plugins.pace = value

    @property
    def registrations(self) -> list[float]:
        """When plugins registered, on the monotonic clock."""
        return self._plugins.registrations

    @property
    def asked(self) -> list[tuple[str, float]]:
        """What plugins were asked, and how many seconds each took."""
        return self._plugins.asked

    # Life of the kubelet.

    def start(self) -> None:
        """Clear the plugins' folder, listen, work."""
        self._plugins.clear()
        write = lambda message: message.SerializeToString()  # noqa: E731
        register = grpc.unary_unary_rpc_method_handler(self._plugins.register, api.RegisterRequest.FromString, write)
        handlers = grpc.method_handlers_generic_handler(api.REGISTRATION, {"Register": register})
        self._server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="kubelet"))
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix:{self.plugins / api.REGISTRATION_SOCKET}")
        self._server.start()
        self._up.set()
        if self._loop is None:
            self._loop = threading.Thread(target=self._serve, daemon=True)
            self._loop.start()

    def gone(self) -> None:
        """The kubelet stops; containers run on."""
        self._up.clear()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self._plugins.hang_up()

    def back(self) -> None:
        """The kubelet is there again, with what it knew."""
        self.start()

    def stop(self) -> None:
        """For good, with every process."""
        self._over = True
        self.let_go.set()
        self._work.put(lambda: None)
        for pod in list(self.known.values()):
            pod.ending.set()
        self.runtime.nri.down()
        self.gone()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, down: float = 0.1, grace: float | None = 0.5) -> None:
        """The kubelet is away for so long; after `grace` more, or at `look_again`, it looks at its pods again."""
        self.gone()
        time.sleep(down)
        self.back()
        if grace is not None:
            threading.Timer(grace, lambda: self._work.put(self._look_again)).start()

    def look_again(self) -> None:
        """What a kubelet does after its start; when it has."""
        done = threading.Event()
        self._work.put(self._look_again)
        self._work.put(done.set)
        assert done.wait(PATIENCE_SECONDS)

    def reboot(self, down: float = 0.1, grace: float | None = 0.5) -> None:
        """Every process is gone, the disk is as it was."""
        self.gone()
        self.runtime.reboot()
        for started in (started for pod in self.known.values() for started in pod.boxes.values()):
            started.container = None
            started.state = "waiting" if started.state == "running" else started.state
        self.restart(down, grace)

    def lose_checkpoint(self) -> None:
        """Somebody deleted it: what was allocated is forgotten, pods run on."""
        with self._lock:
            self.state.pods.clear()
            self.state.in_use.clear()
            self.keep()

    def keep(self) -> None:
        """What was given to whom, as the kubelet writes it down (kubelet_internal_checkpoint)."""
        with self._lock:
            entries = [
                {"PodUID": uid, "ContainerName": name, "ResourceName": one, "DeviceIDs": {"-1": ids}, "AllocResp": ""}
                for uid, boxes in self.state.pods.items()
                for name, held in boxes.items()
                for one, ids in held.items()
            ]
            data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
            draft = self.folder / CHECKPOINT
            draft.write_text(json.dumps({"Data": data, "Checksum": 0}))
            draft.replace(self.plugins / CHECKPOINT)

    # What a test tells it.

    def bind(self, pod: ManagedPod) -> ManagedPod:
        """The pod is bound to this node: it queues for admission."""
        self._work.put(lambda: self._admit(pod))
        return pod

    def delete(self, pod: ManagedPod) -> None:
        """With grace: its IDs are free 0.1 s after its last process has ended."""
        self._work.put(lambda: self._beside(self._end, pod))

    def force_delete(self, pod: ManagedPod) -> None:
        """Its IDs are free at once, while its processes live on for `linger` seconds."""
        self._work.put(lambda: self._forced(pod))

    def crash(self, pod: ManagedPod, name: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """A container ends by itself and is started again; `meanwhile` is called in between."""
        self.runtime.kill(pod.uid, pod.boxes[name])
        meanwhile()
        pod.boxes[name].state = "waiting"
        self._beside(self._start, pod, pod.boxes[name])

    def until(self, claim: Callable[[], Any]) -> Any:
        """Wait for a claim; AssertionError when it does not come true."""
        return until(claim, lambda: [vars(pod) for pod in self.known.values()], 0.005)

    def status(self) -> tuple[int, int]:
        """Capacity and allocatable of the resource."""
        with self._lock:
            return self.state.capacity(self.resource)

    # The loop.

    def _serve(self) -> None:
        while not self._over:
            job = self._work.get()
            self._up.wait()
            job()

    def _beside(self, work: Callable[..., object], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _active(self) -> list[str]:
        return [uid for uid, pod in self.known.items() if not pod.ended]

    def _admit(self, pod: ManagedPod) -> None:
        with self._lock:
            self.known[pod.uid] = pod
        if self._allocated(pod):
            pod.admitted = True
            self._beside(self._run, pod)

    def _allocated(self, pod: ManagedPod) -> bool:
        running = {name for name, started in pod.boxes.items() if started.state == "running"}
        calls = self.state.admit(pod.uid, pod.inits, pod.apps, self._active, running)
        try:
            with self._lock:
                step = next(calls)
            while True:
                try:
                    answer = self._answered(step)
                except RuntimeError as exc:
                    with self._lock:
                        step = calls.throw(exc)
                else:
                    with self._lock:
                        step = calls.send(answer)
        except StopIteration:
            return True
        except Rejected as exc:
            pod.phase, pod.reason, pod.message = "Failed", UNAVAILABLE, str(exc)
            self.on_change(pod)
            return False
        finally:
            self.keep()

    def _answered(self, step: Allocate) -> Any:
        request = api.AllocateRequest(container_requests=[{"devices_ids": step.ids}])
        said = self._plugins.ask(step.resource, "Allocate", request, api.AllocateResponse)
        if not said.container_responses:
            raise RuntimeError("no containers return in allocation response")
        return said.container_responses[0]

    def _look_again(self) -> None:
        """After its start the kubelet admits every pod again: running containers keep what they have."""
        pods = [pod for pod in self.known.values() if not pod.ended and not pod.ending.is_set()]
        for pod in pods:
            if self._allocated(pod) and any(started.state == "waiting" for started in pod.boxes.values()):
                self._beside(self._run, pod)

    # Containers.

    def _run(self, pod: ManagedPod) -> None:
        for box in (*pod.inits, *pod.apps):
            started = pod.boxes[box.name]
            if started.state == "waiting" and not self._start(pod, started):
                return
            plain = box in pod.inits and not box.sidecar
            if plain and started.state == "running":
                time.sleep(box.seconds or 0.0)
                self.runtime.kill(pod.uid, started)
                started.state = "ended"
                self.on_change(pod)
        if pod.ending.is_set():
            return
        pod.phase = "Running"
        self.on_change(pod)
        seconds = [box.seconds for box in pod.apps if box.seconds is not None]
        if len(seconds) == len(pod.apps):
            pod.ending.wait(max(seconds))
            if not pod.ending.is_set():
                self._finished(pod)

    def _finished(self, pod: ManagedPod) -> None:
        for started in pod.boxes.values():
            self.runtime.kill(pod.uid, started)
            started.state = "ended"
        pod.phase = "Succeeded"
        self.on_change(pod)

    def _start(self, pod: ManagedPod, started: StartedBox) -> bool:
        """Until it runs (True) or the pod ends (False)."""
        for attempt in itertools.count():
            self._up.wait()
            try:
                answers = self._prepared(pod, started)
                with pod.worker:
                    if started.state == "waiting" and not pod.ending.is_set():
                        self.runtime.make(pod, started, answers)
                        self.runtime.run(pod.uid, started)
            except RuntimeError as exc:
                started.reason, started.message = "CreateContainerConfigError", str(exc)
            except (UnresolvableError, RefusedError) as exc:
                started.reason, started.message = "CreateContainerError", str(exc)
            except StartError as exc:
                started.reason, started.message = "RunContainerError", str(exc)
            else:
                return started.state == "running"
            self.on_change(pod)
            if pod.ending.wait((NEXT_RETRY if attempt else FIRST_RETRY) * self.pace) or self._over:
                break
        return False

    def _prepared(self, pod: ManagedPod, started: StartedBox) -> list[object]:
        """What plugins answered for this container, once each of them lets it start; RuntimeError."""
        answers = []
        for resource, units in started.box.units.items():
            if units <= 0 or resource not in self._plugins.options:
                continue
            with self._lock:
                ids = self.state.pods.get(pod.uid, {}).get(started.box.name, {}).get(resource)
                answers.append(self.state.answers.get((pod.uid, started.box.name, resource)))
            if ids is None:
                raise RuntimeError("no devices found allocated in local cache for the container")
            started.ids, started.attempts = ids, started.attempts + 1
            if self._plugins.options[resource].pre_start_required:
                request = api.PreStartContainerRequest(devices_ids=ids)
                limit = PRESTART_SECONDS * max(self.pace, 1.0)
                self._plugins.ask(resource, "PreStartContainer", request, api.PreStartContainerResponse, limit)
        return answers

    def _end(self, pod: ManagedPod) -> None:
        pod.ending.set()
        self.let_go.wait(self.linger)
        with pod.worker:
            self.runtime.end(pod)
            for started in pod.boxes.values():
                started.state = "ended"
        time.sleep(0.1 * min(1.0, self.pace))
        with self._lock:
            self.known.pop(pod.uid, None)
        pod.phase = "Gone"
        self.on_change(pod)

    def _forced(self, pod: ManagedPod) -> None:
        with self._lock:
            self.known.pop(pod.uid, None)
        self._beside(self._end, pod)
