# SPDX-License-Identifier: Apache-2.0
"""
The stand-in kubelet's container runtime with real processes: each in a control group and mount namespace of its own, on
a root file system of its own, and started only where the real guard lets it.

    with root_file_system(folder) as root, groups("x") as top:
        with DeviceManager(runtime=lambda at: ProcessRuntime(at, root, top, code)) as kubelet: ...

`on_start(uid, group)` is called between the guard and the program's first instruction. `strikes[uid]`: after so many
seconds of its next start, a container's process is killed. `loaders[uid]`: its program brings this dynamic loader.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.cdi_process import namespaces
from support.cgroups import remove, unified
from support.device_runtime import Runtime, StartError
from support.simcontainers import CLIENT
from support.waiting import PATIENCE_SECONDS

from isolation.contract.nri_api import NriContainerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.device_runtime import StartedBox
    from support.nri_runtime import Container

_WAITING = "import sys\nsys.stdin.readline()\n"


@contextlib.contextmanager
def root_file_system(folder: Path) -> Iterator[Path]:
    """This machine's files as containers' root, what they write apart from it; needs root."""
    top = folder / "root"
    top.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", top], check=True)
    try:
        for name in ("upper", "work", "root"):
            (top / name).mkdir()
        layers = f"lowerdir=/,upperdir={top}/upper,workdir={top}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, top / "root"], check=True)
        yield top / "root"
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", top], check=True)


class ProcessRuntime(Runtime):
    """See the module."""

    def __init__(self, folder: Path, root: Path, top: Path, code: str) -> None:
        """`root`: of containers; `top`: the group that has those of the pods; `code`: every container's program."""
        super().__init__(folder)
        mount = unified()
        assert mount is not None
        self.cgroups, self._root, self._top, self._code = mount, root, top, code
        self._bundles = folder / "bundles"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        """By pod UID: each has one container."""
        self.on_start: Callable[[str, Path], object] = lambda *_: None
        self.strikes: dict[str, float] = {}
        self.loaders: dict[str, Path] = {}
        self.guard_seconds: list[float] = []
        """Of guards that let a container start."""
        self.refused = 0
        """Starts by the guard, also of containers that were killed meanwhile."""

    def run(self, uid: str, started: StartedBox) -> None:
        """Its process starts; StartError."""
        assert started.container is not None
        process = self._create(uid, started, started.container)
        assert process.stdin is not None
        assert process.stdout is not None
        group = self._group(uid, started)
        try:
            group.mkdir(parents=True)
            (group / "cgroup.procs").write_text(str(process.pid))
            if uid in self.strikes:
                threading.Timer(self.strikes.pop(uid), process.kill).start()
            process.stdout.readline()  # its mounts are made
            for hook in started.hooks:
                self._call_guard(started.container, process.pid, hook)
            self.on_start(uid, group)
            with contextlib.suppress(OSError):  # killed meanwhile
                process.stdin.write("go\n")
                process.stdin.flush()
        except (StartError, ProcessLookupError) as exc:
            self._clear(process, group)
            raise StartError(str(exc)) from None
        self.processes[uid] = process
        started.container.state, started.container.pid = NriContainerState.RUNNING, process.pid
        started.reason = started.message = ""
        started.state, started.starts = "running", started.starts + 1

    def kill(self, uid: str, started: StartedBox) -> None:
        """SIGKILL; its group is gone."""
        if started.container is None or started.container.state != NriContainerState.RUNNING:
            return
        self._clear(self.processes.pop(uid), self._group(uid, started))
        self.nri.exit(started.container)

    def _create(self, uid: str, started: StartedBox, made: Container) -> subprocess.Popen[str]:
        mounts = made.adjustment.mounts if made.adjustment is not None else ()
        lines = [f"mount --rbind /{name} {self._root}/{name}" for name in ("dev", "proc", "tmp")]
        for one in mounts:
            target = shlex.quote(f"{self._root}{one.destination}")
            kind = "mkdir -p" if Path(one.source).is_dir() else f"mkdir -p $(dirname {target}) && touch"
            lines += [f"{kind} {target}", f"mount --bind {shlex.quote(one.source)} {target}"]
            if "rw" not in one.options:
                lines.append(f"mount -o remount,bind,ro {target}")
        env = " ".join(shlex.quote(f"{key}={value}") for key, value in started.env.items())
        lines += ["echo", f'exec chroot {self._root} env -i {env} "$@"']
        loader = self.loaders.pop(uid, None)
        program = [*((str(loader),) if loader else ()), str(Path(sys.executable).resolve())]
        command = [*namespaces(), "sh", "-ec", "\n".join(lines), "sh", *program, "-S", "-c"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, _WAITING + CLIENT + self._code], text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )

    def _call_guard(self, made: Container, pid: int, hook: tuple[str, ...]) -> None:
        bundle = self._bundles / made.id
        bundle.mkdir(parents=True)
        spec = {"ociVersion": "1.2.0", "root": {"path": str(self._root)}, "annotations": made.annotations}
        (bundle / "config.json").write_text(json.dumps(spec))
        state = {"ociVersion": "1.2.0", "id": made.id, "status": "creating", "pid": pid, "bundle": str(bundle)}
        began = time.monotonic()
        done = subprocess.run(
            hook, input=json.dumps(state), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        if done.returncode:
            self.refused += 1
            raise StartError(done.stderr)
        self.guard_seconds.append(time.monotonic() - began)

    def _clear(self, process: subprocess.Popen[str], group: Path) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # a word that nobody read
                if pipe is not None:
                    pipe.close()
        if group.is_dir():
            remove(group)
        with contextlib.suppress(OSError):
            group.parent.rmdir()

    def _group(self, uid: str, started: StartedBox) -> Path:
        return self._top / "kubepods" / "besteffort" / f"pod{uid}" / started.cid
