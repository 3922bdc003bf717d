# SPDX-License-Identifier: Apache-2.0
"""
One simulated pod's life: where it came from, how it behaves, how much of its work is left.

What a cluster does not store and a simulation must know. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.demo.embedded.usage import Habit, habit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autoscaler.demo.embedded.node_pools import Arrival
    from isolation.contract.model import Ask, Pod, Slice


@dataclass(frozen=True, slots=True)
class Life:
    """What the world knows of a pod beyond what a cluster stores."""

    arrival: Arrival
    left_seconds: float | None
    habits: tuple[Habit, ...]
    """One per container, in the order of the request's asks."""
    born: float = 0.0
    """When it was placed."""

    @classmethod
    def of(cls, arrival: Arrival, seed: int) -> Life:
        """A life that begins."""
        key = f"{arrival.namespace}/{arrival.name}"
        habits = (habit_of(seed, f"{key}/{ask.container}", arrival.excess) for ask in arrival.request.asks)
        return cls(arrival, arrival.lifetime, tuple(habits))


def promises(pod: Pod, life: Life) -> Iterator[tuple[Ask, Habit, Slice, int]]:
    """What each running container was promised of each card; init containers have ended."""
    if pod.placement is None:
        return
    share = max(1, len(pod.placement.slices))
    for ask, habit in zip(pod.request.asks, life.habits, strict=True):
        if not ask.init:
            for part in pod.placement.slices:
                yield ask, habit, part, part.bytes if ask.whole else ask.bytes // share


def used_byte_seconds(pod: Pod, life: Life, now: float) -> float:
    """What a pod has used of card memory since it was placed."""
    age = now - life.born
    return sum(promised * habit.memory_seconds(age) for _, habit, _, promised in promises(pod, life))
