# SPDX-License-Identifier: Apache-2.0
"""A plain, non-editable install into a fresh environment, as a user has it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isolation.distribution import DISTRIBUTION

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 1000
"""850 MB, beside other tests."""
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers: [{name: m, resources: {limits: {aliyun.com/gpu-mem: 2}}}]
"""


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run and return, with what it printed in the failure."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=cwd, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked sources by the project's own build."""
    work = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.so", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, work / "gpushare", ignore=ignored)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", work, work / "gpushare", cwd=work)
    (found,) = work.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bin_dir(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with everything installed from the wheel."""
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", home / "venv", cwd=home)
    pip = (home / "venv/bin/python", "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt")
    run(*pip, f"{DISTRIBUTION}[all] @ {wheel.as_uri()}", cwd=home)
    return home / "venv" / "bin"


def test_the_wheel_serves_any_python_3_of_the_platform_and_carries_the_native_code(wheel):
    """
    No Python ABI in the tag; the shared object and every room inside; no tests.
    """
    names = run(sys.executable, "-m", "zipfile", "-l", wheel, cwd=wheel.parent).stdout
    assert "-py3-none-linux_" in wheel.name
    assert all(f"{room}/__init__.py" in names for room in ("isolation", "exporter", "autoscaler", "dashboards"))
    assert "isolation/placement/_native.so" in names
    assert "tests/" not in names


def test_every_command_works_from_a_plain_install(bin_dir, tmp_path):
    """
    The same commands as in a checkout, from a folder that is not one.
    """
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    gpushare = bin_dir / "gpushare"

    place = run(gpushare, "place", "-f", "pod.yaml", "--node", "name=n,cards=1,gib=15", "--json", cwd=tmp_path)
    sim = run(gpushare, "sim", "--synthetic", "--fleet-scale", "0.02", "--seeds", "1", "--json", "-", cwd=tmp_path)
    up = run(gpushare, "up", "--for", "2", "--port", "0", "--json", cwd=tmp_path)

    assert [{"index": 0, "memory_gib": 2, "core_percent": 0}] == json.loads(place.stdout)["placements"][0]["cards"]
    assert 0.5 < json.loads(sim.stdout)["summary"][0]["allocated_ratio_mean"] <= 1
    assert json.loads(up.stdout)


def test_without_extras_the_front_door_opens_and_names_what_is_missing(wheel, tmp_path):
    """
    Help needs nothing; a command without its extra says which one to install.
    """
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    assert "place" in run(python, "-m", "gpushare", "--help", cwd=tmp_path).stdout
    refused = subprocess.run(
        [str(python), "-m", "gpushare", "sim"], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert 1 == refused.returncode
    assert "pip install 'gpushare-k8s[sim]'" in refused.stderr
