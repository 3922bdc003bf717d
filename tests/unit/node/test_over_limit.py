# SPDX-License-Identifier: Apache-2.0
"""
What the node does with a container that has more memory than it was promised: when, and to whom.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Slice
from isolation.node.overlimit import KILL, REPORT, OverLimit, OverLimitWatch

GIB, MIB = 1 << 30, 1 << 20
HOLD = HostAllocation(
    "id", "ml/one", "boot", 1.0, 0, Process(1, 1), (), (Slice("GPU-a", 0, GIB), Slice("GPU-b", 1, GIB)), "fixed"
)


def judged(action, used):
    """At which of these samples (of the second card) somebody would be killed."""
    watch, kills = OverLimitWatch(OverLimit(action, 3, 100 * MIB)), []
    for at, size in enumerate(used):
        watch.judge(HOLD, [GIB, size], lambda at=at: kills.append(at) or frozenset())
    return sorted(set(kills))


def test_only_so_many_samples_in_a_row_over_by_more_than_the_tolerance_count():
    """
    Three in a row, then three more; what is within the tolerance, or is unknown, begins the row again.
    """
    over, within = GIB + 101 * MIB, GIB + 100 * MIB
    assert [2, 5] == judged(KILL, [over] * 7)
    assert [] == judged(KILL, [over, over, within, over, over, None, over, over])
    assert [] == judged(REPORT, [over] * 9)


def test_a_report_is_written_once(caplog):
    """
    With the container, the card and both figures.
    """
    judged(REPORT, [2 * GIB] * 9)
    (record,) = caplog.records
    assert all(word in record.message for word in ("ml/one", "GPU-b", "used=2 GiB", "promised=1 GiB", "report"))


def test_processes_that_still_belong_to_the_container_are_ended_and_no_others():
    """
    A pid that left the container between two looks is somebody else's.
    """
    mine, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    answers = iter([frozenset({mine.pid, other.pid}), frozenset({mine.pid})])
    try:
        OverLimitWatch(OverLimit(KILL, 1, 0)).judge(HOLD, [2 * GIB, None], lambda: next(answers))
        assert -signal.SIGKILL == mine.wait(30)
        time.sleep(0.05)
        assert other.poll() is None
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait(30)
