# SPDX-License-Identifier: Apache-2.0
"""
What `kubectl kustomize` makes of the committed overlays, alone and with every component.

Decides which combinations there are; builds in a folder of its own, so that nothing is written beside the manifests.
"""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.binaries import Missing, find_kubectl
from support.waiting import PATIENCE_SECONDS

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
OVERLAYS = tuple(sorted(path.name for path in (MANIFESTS / "overlays").iterdir()))
EXAMPLES = ("keda-prometheus", "prometheus-adapter")
"""For copying; no part of ours."""
OPTIONS = (
    *("metrics-api", "custom-metrics", "external-metrics", "grpc", "cluster-api", "monitoring", "views"),
    *("admission-network", "admission-client-certificate", "grpc-cert-manager", "mps", "selinux", "openshift"),
)
"""In an order in which they can be listed: what patches comes after what it patches."""
BUILDS = tuple((overlay, ()) for overlay in OVERLAYS) + tuple((overlay, OPTIONS + EXAMPLES) for overlay in OVERLAYS)
IDS = [f"{overlay}{'-with-everything' if components else ''}" for overlay, components in BUILDS]


def kubectl() -> str:
    """The tests' own; without one a skip with the remedy (which under CI is a failure, as every skip)."""
    found = find_kubectl()
    if isinstance(found, Missing):
        pytest.skip(str(found))
    return str(found)


def operator(**more: object) -> dict[str, str]:
    """The environment of somebody who types commands: that kubectl is the one on the path."""
    path = os.pathsep.join((str(Path(kubectl()).parent), os.environ.get("PATH", os.defpath)))
    return {**os.environ, "PATH": path, **{name: str(value) for name, value in more.items()}}


def text(overlay: str, components: tuple[str, ...] = ()) -> str:
    """The objects as kubectl prints them."""
    return _text(f"overlays/{overlay}", tuple(f"components/{name}" for name in components))


def objects(overlay: str, components: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The same, read."""
    return copy.deepcopy(_read(overlay, components))


@functools.cache
def _read(overlay: str, components: tuple[str, ...]) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text(overlay, components), loader) if one]


@functools.cache
def _text(root: str, components: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), root, components)
        return build(folder)


def write(folder: Path, root: str, components: tuple[str, ...]) -> None:
    """A kustomization as a user would write it: one overlay, some components."""
    made = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / root, folder.resolve())],
        "components": [os.path.relpath(MANIFESTS / name, folder.resolve()) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))


def build(folder: str) -> str:
    """What the kustomization of a folder comes to, without a complaint."""
    done = subprocess.run(
        [kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert 0 == done.returncode, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def templates(things: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod templates by the name of their workload."""
    kinds = ("Deployment", "DaemonSet", "StatefulSet", "Job")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in things if one["kind"] in kinds}


def named(things: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object."""
    [found] = [one for one in things if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found
