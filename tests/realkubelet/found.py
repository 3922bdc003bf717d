# SPDX-License-Identifier: Apache-2.0
"""
Where the programs of a real node are found: kubelet, containerd, its shim, ctr, runc and busybox.

Decides the one place, the cache that `get.sh` fills, and what else a machine must be for them to run.
Builds and downloads nothing itself; what is missing is said together with the remedy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox", "pause", "client")
_HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids")


def cache() -> Path:
    """The folder that `get.sh` fills."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpushare" / "realkubelet"


def find(more: Sequence[str] = ()) -> dict[str, Path] | str:
    """Each program's path, `more` among them, or why a real kubelet cannot run here."""
    if os.geteuid() != 0:
        return "a real kubelet needs root"
    missing = [name for name in _HIERARCHIES if not Path(f"/sys/fs/cgroup/{name}/cgroup.procs").exists()]
    if missing:
        return f"a real kubelet was tried with cgroup v1 only; not mounted here: {', '.join(missing)}"
    paths = {name: cache() / name for name in (*PROGRAMS, *more)}
    missing = [name for name, path in paths.items() if not os.access(path, os.X_OK)]
    if missing:
        return f"{', '.join(missing)} not found in {cache()}: run `bash tests/realkubelet/get.sh`"
    return paths
