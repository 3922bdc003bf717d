"""
Where the programs of a control plane are found: etcd and the three of Kubernetes.

Decides the order: the folder of $KUBEBUILDER_ASSETS, PATH, the cache that `make controlplane`
fills. Builds and downloads nothing itself; what is missing is said together with the remedy.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

VERSION = "v1.36.2"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def cache() -> Path:
    """The folder that `get_controlplane.sh` fills."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpushare" / "controlplane" / VERSION


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be found."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{', '.join(self.names)} found neither in $KUBEBUILDER_ASSETS nor on PATH nor in {cache()}: "
            "run `make controlplane`"
        )


def find() -> dict[str, Path] | Missing:
    """Each program's path, or which ones are missing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [assets, os.environ.get("PATH", os.defpath), str(cache())]
    places = os.pathsep.join(folder for folder in folders if folder)
    found = {name: shutil.which(name, path=places) for name in PROGRAMS}
    missing = tuple(name for name, path in found.items() if path is None)
    return Missing(missing) if missing else {name: Path(path) for name, path in found.items() if path}
