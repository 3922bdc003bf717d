# SPDX-License-Identifier: Apache-2.0
"""The canary: on the simulated driver, with the real library, and what each of its songs would mean."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS

from isolation.contract.quantity import GIB, MIB
from isolation.doctor import canary
from isolation.doctor.canary import CanaryResult, check_result, run_canary, run_canary_inside
from isolation.doctor.canary_pod import canary_manifest
from isolation.doctor.checks.finding import FindingState
from isolation.host.machine import NvmlMachine
from isolation.lib import native

WELL = {"init": 0, "device": 0, "context": 0, "info": 0, "free": 900 * MIB, "total": GIB, "inside": 0, "over": 2}


@pytest.fixture
def library():
    """The real one; where it was not built these tests have nothing to load."""
    try:
        return native.library_path()
    except native.LibraryMissingError as exc:
        pytest.skip(str(exc))


def test_on_a_machine_whose_library_works_it_is_loaded_and_limits(library):
    """
    A real process under the real library on a simulated card, in a process of its own as on the command line.
    """
    with boxes("t4") as box:
        script = "from isolation.doctor.cli import doctor; doctor()"
        command = [sys.executable, "-c", script, "machine", "--canary", "--simgpu", str(box.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    lines = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line.split()[1:]}
    assert ("ok", "ok") == (lines.get("canary.loaded"), lines.get("canary.limited")), done.stdout + done.stderr
    assert library.is_file()


def test_a_library_that_does_nothing_is_found_out(library, monkeypatch, tmp_path):
    """
    The card itself refuses what is larger than itself: that is no proof, and is not taken for one.
    """
    source, dummy = tmp_path / "nothing.c", tmp_path / "libnothing.so"
    source.write_text("int nothing;")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(dummy), str(source)], check=True)
    monkeypatch.setattr(native, "library_path", lambda: dummy)

    with boxes("t4") as box:
        found = run_canary(NvmlMachine(box.path))

    assert [("canary.loaded", FindingState.PROBLEM)] == [(one.check, one.state) for one in found]
    assert library != dummy


@pytest.mark.parametrize(
    ("changed", "denied", "expected"),
    [
        ({}, 1, [FindingState.OK, FindingState.OK]),
        ({"total": 15 * GIB}, 1, [FindingState.PROBLEM]),
        ({"over": 0}, 1, [FindingState.OK, FindingState.PROBLEM]),
        ({}, 0, [FindingState.OK, FindingState.PROBLEM]),
        ({"inside": 2}, 1, [FindingState.OK, FindingState.UNKNOWN]),
        ({"missing": "libcuda.so.1"}, 0, [FindingState.PROBLEM]),
    ],
)
def test_each_song_has_its_meaning(changed, denied, expected):
    """
    What is not refused, and what is refused by somebody else.
    """
    assert expected == [one.state for one in check_result(CanaryResult(WELL | changed, denied), GIB)]


@pytest.mark.parametrize("said", [{}, {"init": 100}, {"init": 0, "device": 0, "context": 2}])
def test_where_cuda_does_not_start_nothing_is_claimed(said):
    """
    A full card or a missing device says nothing about the library.
    """
    assert [FindingState.UNKNOWN] == [one.state for one in check_result(CanaryResult(said, 0), GIB)]


@pytest.mark.parametrize("text", ["", "x", "9999999", "１"])  # noqa: RUF001 (a digit that is none for us)
def test_inside_a_container_without_share_nothing_is_claimed(text):
    """
    The variable must be a plain number.
    """
    assert [FindingState.UNKNOWN] == [one.state for one in run_canary_inside({"ALIYUN_COM_GPU_MEM_CONTAINER": text})]


def test_the_canary_pod_asks_for_one_unit_and_nothing_else():
    """
    It runs the check of the inside of a container, unprivileged.
    """
    pod = canary_manifest("registry/x:1", node="n1")
    [container] = pod["spec"]["containers"]

    assert {"aliyun.com/gpu-mem": "1"} == container["resources"]["limits"]
    assert ("registry/x:1", ["gpushare", "doctor", "inside"]) == (container["image"], container["command"])
    assert {"kubernetes.io/hostname": "n1"} == pod["spec"]["nodeSelector"]
    assert canary.PROMISE == GIB
