# SPDX-License-Identifier: Apache-2.0
"""`make gpu` on simulated cards: the command itself, before a real card is at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isolation.simgpu.hardware import install

PROGRAM = Path(__file__).resolve().parents[1] / "gpu" / "first_hour.py"
MIB = 1 << 20


def ask(*words, **env):
    """Its exit status, and what it says."""
    kept = {name: value for name, value in os.environ.items() if name != "GPUSHARE_SIMGPU"} | env
    done = subprocess.run(
        [sys.executable, PROGRAM, *words], env=kept, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.processes
def test_every_question_gets_an_answer_or_a_reason(make_box, tmp_path):
    """
    What the box was made with comes out as measured; what it cannot decide says why, and hides nothing else.
    """
    box, out = make_box("a10", context_bytes=300 * MIB, teardown_ns=20_000_000), tmp_path / "answers.json"
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho a driver that is gone >&2\nexit 9\n")
    fake.chmod(0o755)
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "hardware").symlink_to(box.path)
    install(driver)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    status, said = ask("--simgpu", str(driver / "hardware"), "--seconds", "5", "--out", str(out), PATH=path)

    found = {one["name"]: one for one in json.loads(out.read_text())["answers"]}
    assert 10 == len(found), said
    assert all(f"{name}: {one['result']}" in said for name, one in found.items())
    assert all(one["why"] for one in found.values() if one["result"] == "could not tell")
    assert status == any(one["result"] == "no" for one in found.values())
    costs = found["memory-costs"]["figures"]
    assert 300 * MIB == costs["context_bytes"]
    assert 64 * MIB <= costs["module_bytes"] <= 70 * MIB
    assert "yes" == found["driver-limit"]["result"] == found["managed-in-nvml"]["result"]
    shares = found["compute-shares"]["figures"]
    assert shares["percent_of_30"] < shares["percent_of_70"]
    assert all(found["overheads"]["figures"].values())
    assert "a driver that is gone" == found["nvidia-smi"]["why"]
    assert "not installed" in found["mps"]["why"]


def test_without_a_card_it_says_so_and_asks_nothing(tmp_path):
    """
    With a status of its own, as for a skip.
    """
    status, said = ask("--out", str(tmp_path / "answers.json"))
    if status != 77:
        pytest.skip("here is a real card")

    assert "no NVIDIA card" in said
    assert not (tmp_path / "answers.json").exists()
