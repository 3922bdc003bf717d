# SPDX-License-Identifier: Apache-2.0
"""
The container runtime of the stand-in kubelet: makes containers, shows their processes as control groups, ends them.

A container's environment and mounts are the plugin's, then the tenant's, then CDI's, each over the ones
before, as observed with containerd 2.1. Processes show in a cgroup v2 tree by the cgroupfs driver; where
`launch` gives a real process its number stands there, else one beyond PID_MAX_LIMIT, which is nobody's.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.cdi_runtime import resolve

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from support.device_books import Box

_FAKE_PIDS = itertools.count(5_000_000)


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
    """PreStart calls so far."""
    ids: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    read_only: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Mount sources that were not there at the start."""
    cid: str = ""
    process: subprocess.Popen | None = None


class Runtime:
    """See the module."""

    def __init__(self, cdi: Path, cgroups: Path) -> None:
        self.cdi, self.cgroups = cdi, cgroups
        self.launch = lambda _: None
        cdi.mkdir()
        for quality in ("besteffort", "burstable"):
            (cgroups / "kubepods" / quality).mkdir(parents=True)
        (cgroups / "cgroup.controllers").write_text("cpu memory pids\n")

    def make(self, started: StartedBox, answers) -> None:
        """Its environment, mounts and devices; UnresolvableError where a CDI name is not known."""
        names = [device.name for answer in answers for device in answer.cdi_devices]
        edits = resolve(self.cdi, names)
        env = {entry.key: entry.value for answer in answers for entry in answer.envs}
        mounts = {mount.container_path: mount.host_path for answer in answers for mount in answer.mounts}
        started.cdi = tuple(names)
        started.env, started.mounts = edits.over(env | started.box.env, mounts | started.box.mounts)
        started.read_only, started.devices = frozenset(edits.read_only), tuple(edits.devices)
        started.missing = tuple(edits.missing)

    def run(self, uid: str, started: StartedBox) -> None:
        """Its process starts."""
        started.cid = f"{random.getrandbits(256):064x}"
        started.process = self.launch(started)
        group = self._group(uid, started)
        group.mkdir(parents=True)
        pid = started.process.pid if started.process else next(_FAKE_PIDS)
        (group / "cgroup.procs").write_text(f"{pid}\n")
        (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        started.reason = started.message = ""
        started.state, started.starts = "running", started.starts + 1

    def kill(self, uid: str, started: StartedBox) -> None:
        """Its process is gone, and its group."""
        if started.process is not None:
            started.process.kill()
            started.process.wait()
            started.process = None
        group = self._group(uid, started)
        shutil.rmtree(group, ignore_errors=True)
        with contextlib.suppress(OSError):
            group.parent.rmdir()

    def _group(self, uid: str, started: StartedBox) -> Path:
        return self.cgroups / "kubepods" / "besteffort" / f"pod{uid}" / (started.cid or "none")
