# SPDX-License-Identifier: Apache-2.0
"""A history of use for right-sizing, as an earlier leader of the autoscaler left it."""

from __future__ import annotations

from e2e.autoscaler_process import MAPS

from autoscaler.core.rightsizing.history import ProgramHistory, UsageReading
from isolation.contract.quantity import GIB

WHERE = f"{MAPS}/gpushare-right-sizing"
"""The ConfigMap that has it."""
DAY = 86_400.0


def known(now: float) -> ProgramHistory:
    """Six earlier runs of the same program with a promise of 8 GiB, each with a peak of 3 GiB."""
    history = ProgramHistory()
    for run in range(6):
        start = now - (10 - run) * DAY
        for step in range(1, 20):
            used = 3 * GIB if step == 9 else 2 * GIB
            history = history.record(UsageReading(f"r{run}", start + step * 900, start, 8 * GIB, used, finite=True))
        history = history.end(f"r{run}")
    return history
