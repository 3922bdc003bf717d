# SPDX-License-Identifier: Apache-2.0
"""
A command that takes unseen what it was not promised, as the exporter shows it with its own defaults.
"""

from __future__ import annotations

import sys

import pytest
from support.exporter_served import Served
from support.run_command import begin
from support.simbox import boxes
from support.unseen_client import CLIENT
from support.waiting import until

pytest.importorskip("pynvml")


def breaches(page):
    """Those that are open."""
    found = page.get("gpushare_isolation_breaches_open", ())
    return [labels for labels, value in found if labels.get("kind") == "over_limit" and value]


def reading_after(moment, page):
    """When the page's reading ended, where that was after a moment and nothing in it was late."""
    fine = {labels["collector"] for labels, value in page["gpushare_exporter_collector_success"] if value}
    ((_, ended),) = page["gpushare_exporter_sample_timestamp_seconds"]
    return {ended} if ended > moment and {"nvml", "kernel"} <= fine else set()


def test_the_breach_is_open_with_the_next_reading(monkeypatch):
    """
    7 GiB under 5 on a path that no library sees: read every 2 s, the breach is open after the next reading at the
    latest, and the program gets nothing more.
    """
    monkeypatch.setenv("GPUSHARE_STATE_DIR", "")
    code = "begin()\nwait()\nunseen(7 << 10)\nsay(time.time())\nuntil(lambda: left() == 0)\nsay(alloc(4)[0])\nwait()"
    with boxes("v100-16g") as box, Served(box, "--interval", "2s") as served:
        read = set()

        def opened(moment):
            page = served.samples()
            return breaches(page) or read.update(reading_after(moment, page))

        run = begin(box.path, "--gpu-mem", "5", "--", sys.executable, "-c", CLIENT + code)
        try:
            until(lambda: served.get()[0] == 200)
            until(lambda: served.samples().get("gpushare_container_memory_allocated_bytes"))
            assert not breaches(served.samples())
            run.stdin.write("go\n")
            run.stdin.flush()
            taken = float(run.stdout.readline())
            until(lambda: opened(taken))
            assert "2" == run.stdout.readline().strip()
        finally:
            run.communicate("\n", timeout=300)
    assert len(read) <= 1, "one may have been under way"
