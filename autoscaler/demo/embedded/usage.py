# SPDX-License-Identifier: Apache-2.0
"""
How much of its promise a simulated pod uses, as a function of its age.

Memory ramps up and then varies a little; compute comes in bursts; some containers take more than they were promised.
Pure and closed-form, so usage over any span is exact and does not depend on how often it is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from zlib import crc32

TICK_SECONDS = 5.0
"""A new compute load is drawn this often."""
IDLE_RATIO = 0.02
"""Compute of a container that does nothing."""


@dataclass(frozen=True, slots=True)
class UsageProfile:
    """One container's way of using what it was promised."""

    level: float
    """Share of the promised memory it settles at."""
    ramp_seconds: float
    wobble: float
    """Amplitude, as a share of the level."""
    period_seconds: float
    busy: float
    """Share of the promised compute in a burst."""
    duty: float
    """Share of time in bursts."""
    excess: float | None = None
    """Share of the promise taken on top, from the onset on; None: never."""
    onset_seconds: float = math.inf

    def memory_ratio(self, age: float) -> float:
        """Memory used over memory promised."""
        if self.excess is not None and age >= self.onset_seconds:
            return 1.0 + self.excess
        if age < self.ramp_seconds:
            return self.level * age / self.ramp_seconds
        turn = 2 * math.pi * (age - self.ramp_seconds) / self.period_seconds
        return self.level * (1 + self.wobble * math.sin(turn))

    def memory_seconds(self, age: float) -> float:
        """The integral of `memory_ratio` from the start."""
        calm = min(age, self.onset_seconds if self.excess is not None else math.inf)
        ramp = min(calm, self.ramp_seconds)
        total = self.level * ramp * ramp / (2 * self.ramp_seconds)
        if calm > self.ramp_seconds:
            span, turn = calm - self.ramp_seconds, self.period_seconds / (2 * math.pi)
            total += self.level * (span + self.wobble * turn * (1 - math.cos(span / turn)))
        return total + (age - calm) * (1.0 + (self.excess or 0.0))

    def compute_ratio(self, age: float, key: str) -> float:
        """Compute used over compute promised; `key` tells containers with the same profile apart."""
        noise = (crc32(f"{key}/{int(age // TICK_SECONDS)}".encode()) & 0xFFFF) / 0xFFFF
        if (age / self.period_seconds) % 1.0 >= self.duty:
            return IDLE_RATIO * noise
        return self.busy * (0.8 + 0.2 * noise)

    def over_seconds(self, age: float) -> float:
        """How long it has used more memory than promised."""
        return max(0.0, age - self.onset_seconds) if self.excess is not None else 0.0


def draw_profile(seed: int, key: str, excess: float | None = None) -> UsageProfile:
    """The profile of one container: the same seed and key, the same profile."""
    draw = Random(f"{seed}/{key}")  # noqa: S311 (a simulated tenant, no secret)
    ramp = draw.uniform(5, 40)
    return UsageProfile(
        level=draw.uniform(0.45, 0.96),
        ramp_seconds=ramp,
        wobble=draw.uniform(0.0, 0.04),
        period_seconds=draw.uniform(40, 300),
        busy=draw.uniform(0.3, 1.0),
        duty=draw.choice((0.05, 0.4, 0.7, 0.95)),
        excess=excess,
        onset_seconds=ramp + draw.uniform(5, 30) if excess is not None else math.inf,
    )


def share_memory(room: int, promised: list[int], wanted: list[int]) -> list[int]:
    """
    What containers on one card really get when together they want more than it has.

    A promise is kept; what goes beyond promises is cut in proportion.
    """
    spare = room - sum(min(want, has) for want, has in zip(wanted, promised, strict=True))
    beyond = [max(0, want - has) for want, has in zip(wanted, promised, strict=True)]
    asked = sum(beyond)
    if asked <= max(0, spare):
        return wanted
    given = max(0, spare)
    return [min(want, has) + more * given // asked for want, has, more in zip(wanted, promised, beyond, strict=True)]
