# SPDX-License-Identifier: Apache-2.0
"""What is kept of a container from sample to sample: its counters, and whether it is over its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class OverLimitState(NamedTuple):
    """Whether a container is over its limit, and for how long it was."""

    over: bool = False
    measured: float | None = None
    """When its memory was last measured."""
    seconds: float = 0.0
    episodes: int = 0
    spike_bytes: int = 0
    """Peak of a living process, from the driver's accounting, that was counted already."""
    spiked: bool = False
    """Such a peak was new in this sample."""


class Growth(NamedTuple):
    """What counters of a container have grown by in one sample; None: unknown."""

    joules: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ContainerHistory:
    """State of one allocation from cycle to cycle."""

    seen: float
    excess: OverLimitState = field(default_factory=OverLimitState)
    peak_bytes: int | None = None
    peak_source: str = ""
    grown: Growth = field(default_factory=Growth)
    joules: float = 0.0
    compute_seconds: float = 0.0
    denied: int | None = None
    denied_at: float | None = None
    fresh_denied: int = 0
    slotted: bool = False
    """A process of the container was seen in its region."""
