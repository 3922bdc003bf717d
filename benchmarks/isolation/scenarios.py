# SPDX-License-Identifier: Apache-2.0
"""
What is run to judge the compute limiter, and on which simulated hardware.

Pure. A draw is one set of parameters of the simulator. NVIDIA publishes neither time slices nor the
costs around them, so the ranges are wide and no draw is sorted out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.isolation.jobs import Job, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMISES: Final = (10, 30, 50, 70)
MICRO: Final = 1000
MILLI: Final = 1_000_000
SAMPLE_MS: Final = (100.0, 166.667, 166.667, 250.0, 500.0, 1000.0)
"""NVML documents periods between 1/6 s and 1 s, by product."""
QUANTA: Final = (1, 1, 1, 2, 3)
"""NVML tells whole percents; the coarser ones are worse than any that is known."""


def draw(seed: int) -> dict[str, int]:
    """One card's habits."""
    chance = random.Random(f"gpushare fair {seed}")  # noqa: S311 (a draw, not a secret)

    def spread(low: float, high: float) -> float:
        return float(low * (high / low) ** chance.random())

    return {
        "slice_ns": round(spread(0.5, 6) * MILLI),
        "switch_ns": round(spread(10, 150) * MICRO),
        "gap_ns": round(spread(0.3, 4) * MICRO),
        "jitter_permille": chance.choice((0, 50, 200)),
        "launch_ns": round(spread(1, 6) * MICRO),
        "event_ns": round(spread(0.3, 3) * MICRO),
        "queue_depth": chance.choice((32, 128, 1024)),
        "sample_ns": round(chance.choice(SAMPLE_MS) * MILLI),
        "sample_late_ns": round(chance.uniform(10, 300) * MILLI),
        "sample_quantum": chance.choice(QUANTA),
        "sample_missing_permille": round(chance.uniform(0, 150)),
        "seed": seed + 1,
        "sample_shared": chance.choice((0, 1)),
    }


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question."""

    name: str
    cards: tuple[tuple[Job, ...], ...]
    seconds: float
    judge: str
    """Which finding of `judge` looks at it."""
    load: float
    """CPUs that it takes about, so that not more are run side by side than this machine carries."""
    every: float = 0.05

    def plan(self, seed: int, settings: Mapping[str, int], *, realtime: bool) -> Plan:
        """This question on one draw."""
        return Plan(self.cards, self.seconds, settings, seed, self.every, realtime)


def _each(pattern: str) -> tuple[tuple[Job, ...], ...]:
    """Every promise on a card of its own."""
    return tuple((Job(pattern, core),) for core in PROMISES)


def _beside(one: str, other: str) -> tuple[Job, ...]:
    return (Job(one, 30), Job(other, 70))


def _burst(pattern: str, neighbour: str) -> tuple[Job, ...]:
    return (Job(pattern, 30, "burst"), Job(neighbour, 70, "burst", begin=3, on=3, off=3))


def _weights(pattern: str) -> tuple[Job, ...]:
    return tuple(Job(pattern, core, "weight") for core in (10, 20, 40))


def _priority(pattern: str) -> tuple[Job, ...]:
    return (Job("online", 50, "priority", online=True), Job(pattern, 50, "priority", begin=6))


SCENARIOS: Final = (
    Scenario("200 us", _each("short"), 10, "windows", 0.25),
    Scenario("2 ms", _each("2ms"), 12, "windows", 0.1),
    Scenario("20 ms", _each("20ms"), 22, "windows", 0.08),
    Scenario("mixed", _each("mixed"), 22, "windows", 0.1),
    Scenario("decode", _each("decode"), 10, "windows", 0.7),
    Scenario("graphs", _each("graph"), 12, "windows", 0.1),
    Scenario("four streams", _each("streams"), 12, "windows", 0.1),
    Scenario("20-200 ms", _each("long"), 82, "long", 0.05),
    Scenario(
        "30 beside 70",
        (_beside("2ms", "2ms"), _beside("20ms", "20ms"), _beside("20ms", "short"), _beside("mixed", "mixed")),
        22,
        "beside",
        0.3,
    ),
    Scenario("unknown 200 ms", _each("slow"), 24, "cap", 0.08),
    Scenario("ever new 200 ms", _each("strange"), 24, "cap", 0.08),
    Scenario("periodic", _each("periodic"), 16, "cap", 0.3),
    Scenario("bimodal", _each("bimodal"), 16, "cap", 0.3),
    Scenario("burst", (_burst("2ms", "2ms"), _burst("20ms", "2ms"), _burst("mixed", "short")), 21, "burst", 0.3, 0.01),
    Scenario("weights", (_weights("2ms"), _weights("mixed"), _weights("20ms")), 18, "weights", 0.3),
    Scenario("priority", (_priority("2ms"), _priority("20ms"), _priority("mixed")), 14, "priority", 0.4),
)
