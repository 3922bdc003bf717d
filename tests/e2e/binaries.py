# SPDX-License-Identifier: Apache-2.0
"""
Where the programs of a control plane are found: etcd, the three of Kubernetes, kubectl, helm and others.

Decides the order: the folder of $KUBEBUILDER_ASSETS, PATH, the cache that `make controlplane` fills; of kubectl the
cache before PATH, where it may be years older than the API server. Builds and downloads nothing itself; what is
missing is said together with the remedy.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

VERSION = "v1.36.2"
HELM = "v3.22.0"
JSONNET = "v0.22.0"
OPERATORS = ("certmanager", "prometheus-operator")
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def cache() -> Path:
    """The folder that `get_controlplane.sh` fills."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpushare" / "controlplane" / VERSION


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be found."""

    names: tuple[str, ...]
    remedy: str = "make controlplane"

    def __str__(self) -> str:
        where = f"in {cache().parents[1]}: run `{self.remedy}`"
        return f"{', '.join(self.names)} found neither in $KUBEBUILDER_ASSETS nor on PATH nor {where}"


def find() -> dict[str, Path] | Missing:
    """Each program's path, or which ones are missing."""
    found = {name: _first(name, _assets(), _path(), str(cache())) for name in PROGRAMS}
    missing = tuple(name for name, path in found.items() if path is None)
    return Missing(missing) if missing else {name: path for name, path in found.items() if path}


def find_kubectl() -> Path | Missing:
    """Its path, from the root: scripts run it elsewhere."""
    found = _first("kubectl", _assets(), str(cache()), _path())
    return found.absolute() if found else Missing(("kubectl",))


def find_helm() -> Path | Missing:
    """The one that `get_helm.sh` builds, or the one on PATH."""
    return _built("helm", f"helm/{HELM}")


def find_jsonnet() -> Path | Missing:
    """The one that `get_jsonnet.sh` builds, or the one on PATH."""
    return _built("jsonnet", f"jsonnet/{JSONNET}")


def find_operator(name: str) -> Path | Missing:
    """One of OPERATORS, which `get_operators.sh` builds; the definitions of their kinds are in `kinds` beside it."""
    return _built(name, "operators/v1", "make operators")


def _built(name: str, folder: str, remedy: str = "make tools") -> Path | Missing:
    found = _first(name, str(cache().parents[1] / folder), _path())
    return found.absolute() if found else Missing((name,), remedy)


def _first(name: str, *places: str) -> Path | None:
    found = shutil.which(name, path=os.pathsep.join(place for place in places if place))
    return Path(found) if found else None


def _assets() -> str:
    return os.environ.get("KUBEBUILDER_ASSETS", "")


def _path() -> str:
    return os.environ.get("PATH", os.defpath)
