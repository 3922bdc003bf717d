# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run` against itself and against SIGKILL, with real processes on simulated cards.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")
STORM = Path(__file__).resolve().parents[1] / "support" / "run_storm.py"


def storm(mode, folder, count, seed=0):
    """What the storm saw on four V100 of 16 GB."""
    create(folder / "box", ["v100-16g"] * 4)
    (folder / "notes").mkdir()
    words = [sys.executable, str(STORM), mode, str(folder / "box"), str(folder / "notes"), str(count), str(seed)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=280, cwd=STORM.parents[1])
    assert ("", 0) == (done.stderr, done.returncode)
    return json.loads(done.stdout)


def test_fifty_at_one_moment_never_oversell_a_card(tmp_path):
    """
    Of fifty who ask for 5 GiB at once, four cards of 15 GiB take exactly twelve; the others are refused,
    and when the twelve have gone nothing is held.
    """
    seen = storm("race", tmp_path, 50)
    assert (True, [15] * 4) == (seen["settled"], list(seen["sold"].values()))
    assert ({"0": 12, "75": 38}, []) == (seen["codes"], seen["left"])


def test_waiting_crowds_take_turns_within_the_room(tmp_path):
    """
    Thirty of all sizes wait for each other; at no moment do commands together hold more than a card
    offers, and everybody gets through.
    """
    seen = storm("churn", tmp_path, 30, seed=7)
    assert ([], [0], 30, []) == (seen["said"], seen["codes"], seen["ran"], seen["left"])
    assert seen["most"] <= 15


@pytest.mark.parametrize("mode", ["kill", "kill-ungrouped"])
def test_a_killed_runner_leaves_a_true_store(tmp_path, mode):
    """
    Runner, keeper or both are killed at a random moment: as long as anything of the command runs it is
    counted, and when nothing does its room is free, with and without a control group.
    """
    seen = storm(mode, tmp_path, 12, seed=11)
    assert ([], 0, []) == (seen["wrong"], seen["unsettled"], seen["left"])
    assert seen["survived"] > 0
