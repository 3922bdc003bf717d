# SPDX-License-Identifier: Apache-2.0
"""
The first process of a machine within the machine: how each program ended is known, whoever is started meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
FOLDER = Path(__file__).resolve().parents[2] / "realkubelet"
SCRIPT = """
import os, time
from machine_init import Children
children, codes = Children(), {}
for number in range(40):
    pid = children.start(["sh", "-c", f"exit {number}"], "/dev/null", {})
    codes[pid] = number
    time.sleep(0.01 if number % 2 else 0)
end = time.monotonic() + 30
while None in map(children.code, codes) and time.monotonic() < end:
    children.reap()
    time.sleep(0.01)
assert codes == {pid: children.code(pid) for pid in codes}
"""


def test_the_end_of_every_program_is_known():
    """Also of those that end before the next one is started, which Python's Popen would collect for itself."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300
    )
    assert 0 == done.returncode, done.stderr
