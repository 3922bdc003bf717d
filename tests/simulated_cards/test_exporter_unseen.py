# SPDX-License-Identifier: Apache-2.0
"""
A command that takes unseen what it was not promised, as the exporter shows it with its own defaults.
"""

from __future__ import annotations

import sys
import time

import pytest
from support.exporter_served import Served
from support.run_command import begin
from support.simbox import boxes
from support.unseen_client import CLIENT
from support.waiting import until

pytest.importorskip("pynvml")


def test_the_breach_is_open_with_the_next_reading(monkeypatch):
    """
    7 GiB under 5 on a path that no library sees: read every 2 s, the breach is open after the next reading at the
    latest, and the program gets nothing more.
    """
    monkeypatch.setenv("GPUSHARE_STATE_DIR", "")
    code = "begin()\nwait()\nunseen(7 << 10)\nsay(time.time())\nuntil(lambda: left() == 0)\nsay(alloc(4)[0])\nwait()"
    with boxes("v100-16g") as box, Served(box, "--interval", "2s") as served:

        def breaches():
            found = served.samples().get("gpushare_isolation_breaches_open", ())
            return [labels for labels, value in found if labels.get("kind") == "over_limit" and value]

        run = begin(box.path, "--gpu-mem", "5", "--", sys.executable, "-c", CLIENT + code)
        try:
            until(lambda: served.get()[0] == 200)
            until(lambda: served.samples().get("gpushare_container_memory_allocated_bytes"))
            assert not breaches()
            run.stdin.write("go\n")
            run.stdin.flush()
            taken = float(run.stdout.readline())
            until(breaches)
            took = time.time() - taken
            assert "2" == run.stdout.readline().strip()
        finally:
            run.communicate("\n", timeout=300)
    assert took < 2 + 1.5  # the rest is this machine's: a reading under way, and who waits for it
