# SPDX-License-Identifier: Apache-2.0
"""
A real node: containerd, runc and a kubelet in a machine of their own, joined to the test's control plane.

Decides the order of things, and what "ready" is. All paths inside are those of a real node (/var/lib/kubelet,
/run/containerd, /var/run/cdi); on the host they lie below one folder. Pods have no network but a loopback.
"""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

from e2e.plane import NotReadyError
from realkubelet.configuration import configure, images
from realkubelet.machine import Machine, MachineError
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from e2e.plane import ControlPlane

_LOG = 2
_ATTEMPTS = 5


class RealNode:
    """One node by name; `start` joins it, `stop` takes it away with everything on it."""

    runtime = "containerd"
    """Its process, by the name for `kill` and `log`."""
    needs: tuple[str, ...] = ()
    """Programs besides those of every node."""
    kubelet_flags: tuple[str, ...] = ()
    """Besides those of every node."""

    def __init__(self, plane: ControlPlane, programs: Mapping[str, Path], root: Path, name: str = "real-1") -> None:
        self.name = name
        self.root = root
        self.machine = Machine(root)
        self._plane = plane
        self._programs = programs
        self._pids: dict[str, int] = {}
        self._labelled: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        """From nothing to a kubelet that answers; nothing stays behind if it does not."""
        self.configure()
        self.machine.start()
        try:
            self.start_runtime()
            self.import_images()
            self.start_kubelet()
        except BaseException:
            self.stop()
            raise

    def configure(self) -> None:
        """The files of its programs."""
        configure(self.root, self._programs, self._plane.ca, self.machine.cgroup)

    def stop(self) -> None:
        """All of it."""
        self.machine.stop()
        self._pids.clear()

    def reboot(self) -> None:
        """Every process and everything below /run is gone, the disk stays; the kubelet runs again."""
        self.machine.stop()
        self._pids.clear()
        self.machine.start()
        self.start_runtime()
        self.start_kubelet()

    # Programs.

    def start_runtime(self) -> None:
        """Containerd; its shims and containers outlive it."""
        bin_folder = str(self.root / "bin")
        env = {"PATH": f"{bin_folder}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._run("containerd", [self._bin("containerd"), "--config", self.root / "containerd.toml"], env)
        self._until("containerd", lambda: self.ctr("version"))

    def import_images(self) -> None:
        """The test's images."""
        for name, content in images(self._programs).items():
            (self.root / name).write_bytes(content)
            self.ctr("images", "import", "--local", self.root / name)

    def start_kubelet(self) -> None:
        """The kubelet, until it answers."""
        config = self._plane.kubeconfig_for(f"system:node:{self.name}", ("system:nodes",))
        flags = [f"--kubeconfig={config}", f"--config={self.root / 'kubelet.json'}", f"--hostname-override={self.name}"]
        flags += ["--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", f"--v={_LOG}", *self.kubelet_flags]
        socket = self.machine.path("/var/lib/kubelet/device-plugins/kubelet.sock")
        before = _stamp(socket)
        env = {"PATH": f"{self.root / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"}
        for attempt in range(_ATTEMPTS):
            self._run("kubelet", [self._bin("kubelet"), *flags], env)
            try:
                return self._until("kubelet", lambda: _stamp(socket) not in {None, before})
            except NotReadyError as exc:
                # it ends where the runtime does not serve yet, and an init system starts it again
                if attempt == _ATTEMPTS - 1 or "not initialized yet" not in str(exc):
                    raise
        return None

    def start_agent(self, words: Sequence[str | Path], env: Mapping[str, str], name: str = "agent") -> None:
        """Any program of the node's own."""
        self._run(name, words, env)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one program and wait for its end; what it started stays."""
        pid = self._pids.pop(name)
        self.machine.kill(pid, how)
        self.machine.wait(pid, PATIENCE_SECONDS)

    def send(self, name: str, how: signal.Signals) -> None:
        """A signal to one program."""
        self.machine.kill(self._pids[name], how)

    def alive(self, name: str) -> bool:
        """Whether the program still runs."""
        return name in self._pids and self.machine.code(self._pids[name]) is None

    def log(self, name: str) -> str:
        """What a program has written so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")

    def has_log(self, name: str) -> bool:
        """Whether the program was ever started."""
        return (self.root / f"{name}.log").exists()

    def ctr(self, *words: str | Path) -> str:
        """One command of containerd's client, in the kubelet's namespace."""
        return self.machine.call([self._bin("ctr"), "-n", "k8s.io", *words])

    def _run(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str]) -> None:
        self._pids[name] = self.machine.run(argv, f"{name}.log", env)

    def _until(self, name: str, ready) -> None:
        end, last = time.monotonic() + PATIENCE_SECONDS, ""
        while time.monotonic() < end:
            if not self.alive(name):
                raise NotReadyError(f"{name} ended: {self.log(name)[-3000:]}")
            try:
                if ready():
                    return
            except (MachineError, OSError) as exc:
                last = str(exc)
            time.sleep(0.05)
        log = self.log(name)[-3000:]
        raise NotReadyError(f"{name} was not ready after {PATIENCE_SECONDS:.0f} s: {last}\n{log}")

    def _bin(self, name: str) -> Path:
        return self.root / "bin" / name

    # Containers, as the node sees them.

    def containers(self, uid: str) -> dict[str, str]:
        """Ids of a pod's running containers by name."""
        found = {}
        for line in self.ctr("tasks", "ls", "-q").split():
            labels = self._labels(line)
            if labels.get("io.kubernetes.pod.uid") == uid and "io.kubernetes.container.name" in labels:
                found[labels["io.kubernetes.container.name"]] = line
        return found

    def running(self, uid: str, other: str) -> list[str]:
        """Of two pods, one by uid and one by name, those that have a running container: `old`, `new`, in one look."""
        found = set()
        states = [line.split() for line in self.ctr("tasks", "ls").splitlines()[1:]]
        for ident in [words[0] for words in states if words[-1] == "RUNNING"]:
            labels = self._labels(ident)
            if "io.kubernetes.container.name" in labels:
                if labels.get("io.kubernetes.pod.uid") == uid:
                    found.add("old")
                elif labels.get("io.kubernetes.pod.name") == other:
                    found.add("new")
        return sorted(found)

    def _labels(self, ident: str) -> dict[str, str]:
        if ident not in self._labelled:
            try:
                told = json.loads(self.ctr("containers", "info", ident))
            except MachineError:
                return {}
            self._labelled[ident] = told.get("Labels") or {}
        return self._labelled[ident]

    def execute(self, container: str, *words: str) -> str:
        """
        Run a command in a container, one that may be run again; what it wrote.

        Containerd's client stops reading when the command has ended, and so may lose all that a short one wrote.
        """
        for _ in range(_ATTEMPTS):
            said = self.ctr("tasks", "exec", "--exec-id", f"x{time.monotonic_ns()}", container, *words)
            if said:
                break
        return said

    def said(self, namespace: str, pod: str, uid: str, container: str, restarts: int = 0) -> list[str]:
        """The lines that a container wrote, all its lives after one another; from that many restarts on."""
        folder = self.machine.path(f"/var/log/pods/{namespace}_{pod}_{uid}/{container}")
        logs = sorted((int(path.stem), path) for path in folder.glob("*.log"))
        return [
            line.split(" ", 3)[3]
            for number, path in logs
            if number >= restarts
            for line in path.read_text(errors="replace").splitlines()
        ]


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a socket from a later one of that name; None: there is none. Numbers of inodes are used again."""
    if not path.exists():
        return None
    about = path.stat()
    return about.st_ino, about.st_ctime_ns
