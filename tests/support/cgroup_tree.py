# SPDX-License-Identifier: Apache-2.0
"""
Writes what a node's kernel and kubelet would show: /proc, /sys/fs/cgroup and the log links, in a folder.

    tree = CgroupTree(tmp_path, runtime="crio", driver="cgroupfs", version=1)
    tree.pod("1140914f-bf25-4cf5-a28a-2853bcd66768", qos="burstable")
    tree.process(4242, container=("1140914f-...", "<64 hex>"), uid=1000, name="python", start=777)
    tree.log("ml", "train-0", "1140914f-...", "main", "<64 hex>")
    KernelSource(tree.proc, tree.cgroup).read(0.0, [4242])

`runtime` is containerd, containerd-old, crio, docker or kind; `driver` systemd or cgroupfs; `version` 1 or 2.
`exporter` (a pod and container) puts the reader itself into that container, with a cgroup namespace of its
own if `private`. A process may instead be given `path`, the control group as it stands, or `group`, a real
folder below the unified hierarchy.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

CONTROLLERS = ("cpu,cpuacct", "devices", "memory", "systemd")
KERNEL_THREAD = 0x00200000
QOS = {"guaranteed": "", "burstable": "burstable", "besteffort": "besteffort"}
_STAT = (
    "{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 {flags} 100 0 0 0 5 3 0 0 20 0 {threads} 0 {start} 1000000 200 "
    "18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


class CgroupTree:
    """See the module."""

    def __init__(
        self,
        root: Path,
        *,
        runtime: str = "containerd",
        driver: str = "systemd",
        version: int = 2,
        exporter: tuple[str, str] | None = None,
        private: bool = False,
    ) -> None:
        self.root = root
        self.proc, self.cgroup = root / "proc", root / "sys/fs/cgroup"
        self.links, self.pod_logs = root / "var/log/containers", root / "var/log/pods"
        self.runtime, self.driver, self.version = runtime, driver, version
        self.qos: dict[str, str] = {}
        for folder in (self.proc, self.cgroup, self.links, self.pod_logs):
            folder.mkdir(parents=True)
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("boot-of-the-tree\n")
        if version == 2:
            (self.cgroup / "cgroup.controllers").write_text("cpu memory pids\n")
        (self.proc / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
        self._base = ""
        self.process(1, path="/init.scope", name="systemd", parent=0)
        self.process(2, path="/", name="kthreadd", parent=0, flags=KERNEL_THREAD)
        own = self.path_of(*exporter) if exporter else "/system.slice/exporter.service"
        if exporter:
            self.pod(exporter[0])
        self._base = own if private else ""
        self.process(900, path=own, name="exporter", start=50)
        (self.proc / "self").symlink_to("900")

    def pod(self, uid: str, qos: str = "burstable") -> Path:
        """A pod's control group; in version 1 the folder is that of the memory controller."""
        self.qos[uid] = qos
        made = [root / self._pod_path(uid).lstrip("/") for root in self._roots()]
        for folder in made:
            folder.mkdir(parents=True, exist_ok=True)
        return made[-1]

    def end_pod(self, uid: str) -> None:
        """Its control groups are gone."""
        for root in self._roots():
            shutil.rmtree(root / self._pod_path(uid).lstrip("/"))

    def path_of(self, uid: str, container: str) -> str:
        """The control group of a container, seen from the root."""
        pod, driver = self._pod_path(uid), self.driver
        if self.runtime == "containerd-old":  # by the systemd driver, with a containerd that does not know of it
            for root in self._roots():
                (root / "system.slice/containerd.service").mkdir(parents=True, exist_ok=True)
            return f"/system.slice/containerd.service/{Path(pod).name}:cri-containerd:{container}"
        prefix = {"crio": "crio-", "docker": "docker-", "kind": "cri-containerd-"}.get(self.runtime, "cri-containerd-")
        if driver == "systemd":
            return f"{pod}/{prefix}{container}.scope"
        return f"{pod}/{'crio-' if self.runtime == 'crio' else ''}{container}"

    def process(
        self,
        pid: int,
        *,
        container: tuple[str, str] | None = None,
        path: str | None = None,
        group: str | None = None,
        uid: int = 0,
        name: str = "python",
        start: int = 1000,
        parent: int = 1,
        **more: Any,
    ) -> None:
        """A process; `more`: state, flags, threads, namespace_pids, environ."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        state, flags = more.get("state", "S"), more.get("flags", 0)
        stat = _STAT.format(
            pid=pid, name=name, state=state, parent=parent, start=start, flags=flags, threads=more.get("threads", 1)
        )
        (folder / "stat").write_bytes(os.fsencode(stat))
        (folder / "comm").write_bytes(os.fsencode(f"{name}\n"))
        path = group or path or (self.path_of(*container) if container else "/user.slice")
        (folder / "cgroup").write_text(self._lines(path))
        inner = more.get("namespace_pids", (pid, 7) if container else (pid,))
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
        status = f"Name:\t{escaped}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\n"
        status += f"TracerPid:\t0\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t0 \n"
        status += "NStgid:\t{0}\nNSpid:\t{0}\nVmSize:\t1 kB\n".format("\t".join(map(str, inner)))
        (folder / "status").write_bytes(os.fsencode(status))
        environ = more.get("environ", {})
        (folder / "environ").write_bytes(
            b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in environ.items())
        )

    def exit(self, pid: int) -> None:
        """It is gone."""
        shutil.rmtree(self.proc / str(pid))

    def log(self, namespace: str, pod: str, uid: str, container: str, ident: str, *, restart: int = 0) -> Path:
        """The kubelet's link to a container's log."""
        folder = self.pod_logs / f"{namespace}_{pod}_{uid}" / container
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{restart}.log").write_text("what a container says is nobody's business\n")
        link = self.links / (f"{pod}_{namespace}_{container}-{ident}"[:251] + ".log")
        link.symlink_to(folder / f"{restart}.log")
        return link

    def _roots(self) -> list[Path]:
        return [self.cgroup] if self.version == 2 else [self.cgroup / name for name in CONTROLLERS]

    def _pod_path(self, uid: str) -> str:
        qos, outer = QOS[self.qos.get(uid, "burstable")], ""
        if self.runtime == "kind":
            outer = f"/docker/{'e' * 64}" if self.driver == "cgroupfs" else f"/system.slice/docker-{'e' * 64}.scope"
        if self.driver == "cgroupfs":
            outer += "/kubelet" if self.runtime == "kind" else ""
            return "/".join(part for part in (f"{outer}/kubepods", qos, f"pod{uid}") if part)
        outer, name = (f"{outer}/kubelet.slice", "kubelet-kubepods") if self.runtime == "kind" else (outer, "kubepods")
        deepest = f"{name}-{qos}" if qos else name
        parts = [
            f"{outer}/{name}.slice",
            *([f"{deepest}.slice"] if qos else []),
            f"{deepest}-pod{uid.replace('-', '_')}.slice",
        ]
        return "/".join(parts)

    def _lines(self, path: str) -> str:
        shown = self._seen(path)
        if self.version == 2:
            return f"0::{shown}\n"
        lines = [f"{at}:{'name=' if name == 'systemd' else ''}{name}:{shown}" for at, name in enumerate(CONTROLLERS, 2)]
        return "\n".join([*reversed(lines), "0::/"]) + "\n"

    def _seen(self, path: str) -> str:
        if not self._base:
            return path
        relative = os.path.relpath(path, self._base)
        return "/" if relative == "." else f"/{relative}"
