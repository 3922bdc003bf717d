# SPDX-License-Identifier: Apache-2.0
"""Under CI=true a skip is a failure, unless it names something that CI cannot have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.ci_skips import failure
from support.waiting import PATIENCE_SECONDS

TESTS = Path(__file__).resolve().parents[2]
STORY = """
import pytest

@pytest.mark.skipif(True, reason="the tool is not installed")
def test_by_mark(): pass

@pytest.fixture
def part(): pytest.skip("the part is not built")

def test_by_fixture(part): pass

def test_by_import(): pytest.importorskip("no_such_module")

def test_without_a_card(): pytest.skip("no NVIDIA card: NVML finds none")

@pytest.mark.xfail
def test_expected(): assert False
"""
MODULE = "import pytest; pytest.importorskip('no_such_module')"


def outcomes(folder, ci, *files):
    """What pytest says at the end, under the rules of this project's own conftest."""
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]")
    env = {**os.environ, "PYTHONPATH": str(TESTS), "CI": ci, "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ci", "status", "counted"),
    [("true", 1, "1 failed, 1 skipped, 1 xfailed, 2 errors"), ("", 0, "4 skipped, 1 xfailed")],
    ids=["ci", "own-machine"],
)
def test_a_skip_is_a_failure_under_ci(tmp_path, ci, status, counted):
    """
    By a mark, in a fixture, for an import; what a CI machine cannot have stays skipped, an expected failure expected.
    """
    (tmp_path / "test_story.py").write_text(STORY)

    code, said = outcomes(tmp_path, ci, "test_story.py")

    assert status == code, said
    assert counted in said


@pytest.mark.processes
@pytest.mark.parametrize(("ci", "status"), [("true", 2), ("", 5)], ids=["ci", "own-machine"])
def test_a_module_that_skips_itself_is_no_exception(tmp_path, ci, status):
    """
    Pytest's own status: 2 is interrupted by an error, 5 is that nothing was run.
    """
    (tmp_path / "test_module.py").write_text(MODULE)

    code, said = outcomes(tmp_path, ci, "test_module.py")

    assert status == code, said
    assert ("skipped under CI=true" in said) == bool(ci)


@pytest.mark.parametrize(
    ("reason", "allowed"),
    [
        ("Skipped: no NVIDIA card: NVML finds none", True),
        ("Skipped: card 0 (NVIDIA H200) is in use: these tests measure, and want it for themselves", True),
        ("the recorded payloads (../shared/samples) are not here", True),
        ("Skipped: /src/shared/samples/node.json is not here", True),
        ("the traces are not beside the checkout", True),
        ("the recorded payloads are not beside this repository", True),
        ("Skipped: no glibc 2.17 in /x: python tests/old_glibc.py fetches it where it can be had", True),
        ("Skipped: no glibc 2.31 in /x: python tests/old_glibc.py fetches it where it can be had", False),
        ("reads the registers of one machine", True),
        ("Skipped: java is not installed", True),
        ("musl-gcc is not installed (apt-get install musl-tools)", False),
        ("Skipped: kubectl found neither in $KUBEBUILDER_ASSETS nor on PATH nor in /x: run `make controlplane`", False),
        ("Skipped: port 9446 is in use on this machine", False),
        ("only root can give a file to another user", True),
        ("Skipped: no control group may be made here", True),
    ],
)
def test_only_what_ci_cannot_have_may_be_skipped(reason, allowed):
    """
    A GPU, the folder beside the checkout, a foreign processor, an archive, rights over the machine; never a program.
    """
    assert allowed == (failure(reason) is None)


def test_a_failure_says_what_is_missing():
    """
    In the words of the skip.
    """
    outcomes = failure("Skipped: ip (iproute2) is not installed")

    assert "skipped under CI=true, which must have what this needs: ip (iproute2) is not installed" == outcomes
