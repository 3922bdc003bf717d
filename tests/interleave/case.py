# SPDX-License-Identifier: Apache-2.0
"""
What a run is given, and what comes of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from interleave.replica import Parts
from interleave.runtime import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.machine import Container, Machine
    from interleave.wire import Net

    from isolation.node.containers import Containers
    from isolation.node.containers import Parts as AgentParts

CALM_SECONDS: Final = 90.0
"""Longer than any pod may be wedged or wait in vain."""
SOUND: Final = Parts()


@dataclass(frozen=True, slots=True)
class Setup:
    """What makes a run what it is."""

    seed: int
    parts: Parts = SOUND
    make: Callable[[Net, AgentParts], Containers] | None = None
    """Another agent in the place of the real one."""
    opens: Callable[[Machine, Container], bool] = guard
    """What the guard does."""
    extra: frozenset[str] = frozenset()
    """Strokes that happen besides."""
    calm: float = CALM_SECONDS
    bought: bool = False
    """The nodes are of a pool, and an autoscaler keeps places on the next of them for some pods."""
    resizes: int = 0
    """So many times somebody asks for another amount of a running pod."""
    trace: bool = False


@dataclass(slots=True)
class Result:
    """What became of it."""

    seed: int
    findings: list[tuple[float, str, str]]
    count: Counter[str]
    """Strokes and other events by name."""
    steps: int
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds that something took at most."""
    trace: list[str] = field(default_factory=list)

    def kinds(self) -> Counter[str]:
        """Findings by kind."""
        return Counter(kind for _, kind, _ in self.findings)


def setup_of(rule: str, seed: int, *, trace: bool = False) -> Setup:
    """A run of a rule of the benchmark: as it is, or with purchases."""
    return Setup(seed, bought=rule == "bought", trace=trace)
