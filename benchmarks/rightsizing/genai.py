# SPDX-License-Identifier: Apache-2.0
"""
The GenTD26 sample: containers of one production image service, walked forward by owner and by replica.

Twelve hours are learnt, then every container gets what is recommended, and the rest is judged. With half a day of
measurements less is asked of the evidence than in a cluster: `POLICY`.

Source: traces/README.md, "genai/"; cluster-trace-v2026-GenAI of alibaba/clusterdata.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.core.rightsizing.history import ProgramHistory, UsageReading
from autoscaler.core.rightsizing.recommend import Bounds, EvidencePolicy, Recommendation, recommend_running
from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

LEARNT_SECONDS: Final = 12 * 3600.0
PROMISE: Final = 48 * GIB
POLICY: Final = EvidencePolicy(min_days=0, min_own_days=0, min_life_seconds=LEARNT_SECONDS / 2)
HOUR_DAYS: Final = 24.0
"""The trace's hours are walked as days: a peak of each hour instead of each day."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one way to group the containers."""

    judged: int
    """Containers that run in the second part."""
    advised: int
    smaller: int
    """Of those, with less than the promise."""
    new_ooms: int
    """Containers that need more than they got and no more than the promise."""
    cut: float
    """By how much the median of promise less 99th percentile of use fell."""


def load(folder: Path) -> dict[str, list[tuple[float, int]]]:
    """Samples of memory by container: second, bytes."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with gzip.open(folder / "memory_mib.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            found[row["container"]].append((float(row["second"]), int(float(row["memory_mib"]) * MIB)))
    return {name: sorted(samples) for name, samples in found.items()}


def replay(samples: dict[str, list[tuple[float, int]]], *, by_replica: bool) -> Outcome:
    """Learn and judge."""
    histories: dict[str, ProgramHistory] = defaultdict(ProgramHistory)
    for name, series in samples.items():
        key = name if by_replica else "service"
        for second, used in series:
            if second < LEARNT_SECONDS:
                # an hour of the trace stands for a day
                at, began = (second * HOUR_DAYS, series[0][0] * HOUR_DAYS)
                histories[key] = histories[key].record(UsageReading(name, at + 1, began, PROMISE, used))
    advised = smaller = ooms = 0
    before, after = [], []
    for name, series in samples.items():
        rest = [used for second, used in series if second >= LEARNT_SECONDS]
        if not rest:
            continue
        given, history = PROMISE, histories[name if by_replica else "service"]
        life = history.running.get(name)
        if life is not None:
            found = recommend_running(history, life, life.seen, POLICY, Bounds(PROMISE))
            if isinstance(found, Recommendation):
                advised, given = advised + 1, found.memory_bytes
        smaller += given < PROMISE
        ooms += given < max(rest) <= PROMISE
        high = float(np.percentile(rest, 99))
        before.append(PROMISE - high)
        after.append(max(0.0, given - high))
    return Outcome(len(before), advised, smaller, ooms, 1 - median(after) / median(before))
