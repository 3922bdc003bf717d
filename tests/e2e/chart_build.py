# SPDX-License-Identifier: Apache-2.0
"""
What helm makes of the committed chart, and what kustomize makes of the overlays and components that values stand for.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.binaries import VERSION, Missing, find_helm
from e2e.manifest_build import MANIFESTS, OPTIONS, build
from support.waiting import PATIENCE_SECONDS

from charts.values import ADDED, SWITCHES
from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable

CHART = MANIFESTS.parent / "charts" / "gpushare"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ORDER = (*OPTIONS, "prometheus-adapter")
Objects = dict[tuple[str, str, str], dict[str, Any]]


def helm() -> str:
    """The tests' own; without one a skip with the remedy (which under CI is a failure, as every skip)."""
    found = find_helm()
    if isinstance(found, Missing):
        pytest.skip(str(found))
    return str(found)


def run_helm(*words: str, **environment: object) -> subprocess.CompletedProcess[str]:
    """A command of helm, which finds no settings of whoever runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        own = {"HELM_CACHE_HOME": folder, "HELM_CONFIG_HOME": folder, "HELM_DATA_HOME": folder}
        return subprocess.run(
            [helm(), *words],
            env=kept | own | {name: str(value) for name, value in environment.items()},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


def sets_of(*names: str) -> dict[str, Any]:
    """The values of switches, and the Namespace, which kustomize has."""
    found: dict[str, Any] = {"namespace.create": True}
    for name in names:
        found |= SWITCHES[name].sets
    return found


def values_of(sets: dict[str, Any]) -> str:
    """A document of values from paths with dots."""
    root: dict[str, Any] = {}
    for path, value in sets.items():
        *parents, key = path.split(".")
        at = root
        for parent in parents:
            at = at.setdefault(parent, {})
        at[key] = value
    return json.dumps(root)


def render(sets: dict[str, Any], *more: str, version: str = VERSION, namespace: str = SYSTEM_NAMESPACE) -> str:
    """The text of all templates."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values_of(sets))
        file.flush()
        words = ("template", "gpushare", str(CHART), "-n", namespace, "-f", file.name, "--kube-version", version)
        done = run_helm(*words, *more)
    assert 0 == done.returncode, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def rendered(sets: dict[str, Any], **more: str) -> Objects:
    """The same, read."""
    return keyed(yaml.load_all(render(sets, **more), LOADER))


def keyed(things: Iterable[dict[str, Any] | None]) -> Objects:
    """By kind, namespace and name; with YAML in place of text that is YAML."""
    found: Objects = {}
    for thing in things:
        if thing is None:
            continue
        key = (thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        assert key not in found, key
        if key[2] == "gpushare-autoscaler-config" and isinstance(thing["data"]["config.yaml"], str):
            thing["data"]["config.yaml"] = yaml.load(thing["data"]["config.yaml"], LOADER)  # noqa: S506 (a safe one)
        found[key] = thing
    return found


def combined(*names: str) -> Objects:
    """
    What kustomize makes of these switches together.

    Overlays cannot be stacked: their kustomizations are made components, in a copy.
    """
    overlays = [SWITCHES[name].overlay for name in names if SWITCHES[name].overlay != "self-signed"]
    wanted = {one for name in names for one in SWITCHES[name].components}
    wanted |= {one for one in ADDED if {"grpc", "cert-manager"} <= set(names)}
    return _combined(tuple(overlays), tuple(one for one in ORDER if one in wanted))


@functools.cache
def _kustomized(overlays: tuple[str, ...], components: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text).resolve()
        tree = os.path.relpath(MANIFESTS, folder)
        used = [f"{tree}/components/{name}" for name in components]
        base = f"{tree}/overlays/{overlays[0]}" if len(overlays) == 1 else f"{tree}/base"
        if len(overlays) > 1:
            base, used = "manifests/base", [f"manifests/components/{name}" for name in components]
            _stackable(folder / "manifests", overlays)
            used = [*(f"manifests/overlays/{name}" for name in overlays), *used]
        made = {"kind": "Kustomization", "resources": [base], "components": used}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))
        return build(text)


def _combined(overlays: tuple[str, ...], components: tuple[str, ...]) -> Objects:
    return keyed(yaml.load_all(_kustomized(overlays, components), LOADER))


def _stackable(folder: Path, overlays: tuple[str, ...]) -> None:
    copied = subprocess.run(["cp", "-r", str(MANIFESTS), str(folder)], timeout=PATIENCE_SECONDS, check=True)
    assert 0 == copied.returncode
    subprocess.run(
        ["cp", "-r", str(MANIFESTS.parent / "dashboards"), str(folder.parent)], timeout=PATIENCE_SECONDS, check=True
    )
    for name in overlays:
        path = folder / "overlays" / name / "kustomization.yaml"
        text = path.read_text().replace("kustomize.config.k8s.io/v1beta1", "kustomize.config.k8s.io/v1alpha1")
        text = text.replace("kind: Kustomization", "kind: Component").replace("  - ../../base\n", "")
        path.write_text(re.sub(r"resources:\n(?!  )", "", text))
