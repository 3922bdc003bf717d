# SPDX-License-Identifier: Apache-2.0
"""
The container runtime of the stand-in kubelet: what a container is made of, and who may start; no program runs.

A container's environment and mounts are the plugin's, then the tenant's, then those of the kubelet's CDI devices, then
what a plugin of NRI adjusts (`nri`), then the CDI devices that this one names, as observed with containerd 2.1. At the
start the guard's part is played: the mark of the container and its annotation must have the same nonce. Processes show
in a cgroup v2 tree by the cgroupfs driver, by numbers beyond PID_MAX_LIMIT, which are nobody's: so there is no look
into a container at its start.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.cdi_runtime import resolve
from support.nri_runtime import NriRuntime

from isolation.contract.names import START_NONCE
from isolation.contract.nri_api import NriContainerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.device_manager import ManagedPod
    from support.device_state import Box
    from support.nri_runtime import Connection, Container, Pod

_FAKE_PIDS = itertools.count(5_000_000)


class StartError(Exception):
    """A hook refused the start."""


@dataclass
class StartedBox:
    """A container and what became of it."""

    box: Box
    state: str = "waiting"
    """waiting, running or ended."""
    reason: str = ""
    message: str = ""
    starts: int = 0
    attempts: int = 0
    """To create it, so far."""
    ids: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    """Devices by name: the kubelet's, then those of the adjustment."""
    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Mount sources of ours that were not there at the start."""
    hooks: list[tuple[str, ...]] = field(default_factory=list)
    container: Container | None = field(default=None, repr=False)
    """As the runtime tells plugins of NRI; None: not created yet."""

    @property
    def cid(self) -> str:
        """The runtime's id; empty: not created yet."""
        return self.container.id if self.container else ""


class TimedRuntime(NriRuntime):
    """Notes how long plugins of NRI take, from question to answer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[tuple[str, float]] = []
        """Method and seconds."""

    def ask(self, method: str, message: Any, plugin: Connection | None = None) -> Any:
        """See `NriRuntime`."""
        with self._lock:
            began = time.monotonic()
            try:
                return super().ask(method, message, plugin)
            finally:
                self.asked.append((method, time.monotonic() - began))


class Runtime:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        self.cdi, self.cgroups, self.marks = folder / "cdi", folder / "cgroup", folder / "marks"
        self.nri = TimedRuntime(folder / "nri" / "nri.sock")
        self._sandboxes: dict[str, Pod] = {}
        self.cdi.mkdir()
        for quality in ("besteffort", "burstable"):
            (self.cgroups / "kubepods" / quality).mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu memory pids\n")

    def make(self, pod: ManagedPod, started: StartedBox, answers: Sequence[Any]) -> None:
        """Create it; UnresolvableError where a CDI name is not known, `nri_runtime.RefusedError`."""
        self.remove(started)
        names = [device.name for answer in answers for device in answer.cdi_devices]
        edits = resolve(self.cdi, names)
        env = {entry.key: entry.value for answer in answers for entry in answer.envs}
        mounts = {mount.container_path: mount.host_path for answer in answers for mount in answer.mounts}
        env, mounts = edits.over(env | started.box.env, mounts | started.box.mounts)
        if pod.uid not in self._sandboxes:
            self._sandboxes[pod.uid] = self.nri.run_pod(pod.uid, pod.name, pod.namespace, pod.annotations)
        made = self.nri.create(
            self._sandboxes[pod.uid], started.box.name, env, [hook[0] for hook in edits.hooks], edits.devices
        )
        started.hooks = list(edits.hooks)
        started.missing = tuple(edits.missing)
        if made.adjustment is not None:
            mounts |= {one.destination: one.source for one in made.adjustment.mounts}
            started.missing += tuple(m.source for m in made.adjustment.mounts if not Path(m.source).exists())
            named = [device.name for device in made.adjustment.CDI_devices]
            made.env, mounts = resolve(self.cdi, named).over(made.env, mounts)
            started.hooks += [tuple(hook.args) for hook in made.adjustment.hooks.create_runtime]
            names += named
        started.container, started.cdi, started.env, started.mounts = made, tuple(names), made.env, mounts

    def run(self, uid: str, started: StartedBox) -> None:
        """Its process starts; StartError."""
        assert started.container is not None
        for _, *marks in started.hooks:
            self._guard(started.container, *marks)
        group = self._group(uid, started)
        group.mkdir(parents=True)
        pid = next(_FAKE_PIDS)
        (group / "cgroup.procs").write_text(f"{pid}\n")
        (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        started.container.state, started.container.pid = NriContainerState.RUNNING, pid
        started.reason = started.message = ""
        started.state, started.starts = "running", started.starts + 1

    def kill(self, uid: str, started: StartedBox) -> None:
        """Its process is gone, and its group."""
        if started.container is None or started.container.state != NriContainerState.RUNNING:
            return
        group = self._group(uid, started)
        shutil.rmtree(group, ignore_errors=True)
        with contextlib.suppress(OSError):
            group.parent.rmdir()
        self.nri.exit(started.container)

    def remove(self, started: StartedBox) -> None:
        """What was created before is gone; not an error where there is nothing."""
        if started.container is not None:
            self.nri.remove(started.container)
            started.container = None

    def end(self, pod: ManagedPod) -> None:
        """The pod, with every container."""
        for started in pod.boxes.values():
            self.kill(pod.uid, started)
            self.remove(started)
        sandbox = self._sandboxes.pop(pod.uid, None)
        if sandbox is not None:
            self.nri.remove_pod(sandbox)

    def restart(self, down: float = 0.0) -> None:
        """Containers run on; plugins of NRI must come again."""
        self.nri.down()
        time.sleep(down)
        self.nri.up()

    def reboot(self) -> None:
        """Nothing of it is left: no process, no sandbox, no mark."""
        self.nri.down()
        for known in (self.nri.pods, self.nri.containers, self._sandboxes):
            known.clear()
        for group in self.cgroups.glob("kubepods/*/*"):
            shutil.rmtree(group)
        for mark in self.marks.glob("*"):
            mark.unlink()
        self.nri.up()

    @staticmethod
    def _guard(container: Container, marks: str) -> None:
        mark = Path(marks) / container.id
        if not mark.is_file():
            raise StartError("container start refused: the node agent did not prepare this container")
        nonce = mark.read_text().partition("\n")[0]
        mark.unlink()
        if container.annotations.get(START_NONCE) != nonce:
            raise StartError("container start refused: the container was created by another answer")

    def _group(self, uid: str, started: StartedBox) -> Path:
        return self.cgroups / "kubepods" / "besteffort" / f"pod{uid}" / started.cid
