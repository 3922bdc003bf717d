# SPDX-License-Identifier: Apache-2.0
"""The source distribution: every file of the repository, and nothing that was built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
WRITTEN = {"PKG-INFO", "setup.cfg"}
"""What setuptools adds, besides the folder *.egg-info."""


def test_the_sdist_has_every_file_of_the_repository_and_nothing_built(tmp_path):
    """
    Docs, manifests, chart and tests too: whoever has only the sdist can read, install, test and package it again.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout: files of ours cannot be told from others")
    files = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    source = tmp_path / "source"
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in ("isolation/lib/libgpushare.so", "isolation/simgpu/lib/libcuda.so.1", "isolation/__pycache__/x.pyc"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"built here")
    (source / "isolation/node/guard/gpushare-guard").write_bytes(b"built here")

    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert 0 == done.returncode, done.stderr
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {one.name.partition("/")[2] for one in opened if one.isfile()}
    added = {name for name in packed if name in WRITTEN or name.partition("/")[0].endswith(".egg-info")}

    assert files == packed - added
