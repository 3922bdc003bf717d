# SPDX-License-Identifier: Apache-2.0
"""A simulated pod while it lives, and what its containers use of what they were promised. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from autoscaler.demo.embedded.usage import UsageProfile, draw_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autoscaler.demo.embedded.workload import PodArrival
    from isolation.contract.model import Ask, Pod, Slice


@dataclass(frozen=True, slots=True)
class PodLife:
    """What the simulation knows of a pod beyond what a cluster stores."""

    arrival: PodArrival
    remaining_seconds: float | None
    profiles: tuple[UsageProfile, ...]
    """One per container, in the order of the request's asks."""
    placed_at: float = 0.0
    """When it was placed."""

    @classmethod
    def of(cls, arrival: PodArrival, seed: int) -> PodLife:
        """A life that begins."""
        key = f"{arrival.namespace}/{arrival.name}"
        profiles = (
            arrival.profile or draw_profile(seed, f"{key}/{ask.container}", arrival.excess)
            for ask in arrival.request.asks
        )
        return cls(arrival, arrival.lifetime, tuple(profiles))


class Promised(NamedTuple):
    """One running container on one card."""

    ask: Ask
    profile: UsageProfile
    part: Slice
    asked: int
    """Bytes of the card; what it uses follows from that."""
    promised: int
    """Since it was resized."""


def iterate_promises(pod: Pod, life: PodLife) -> Iterator[Promised]:
    """What each running container was promised of each card; init containers have ended."""
    if pod.placement is None:
        return
    share = max(1, len(pod.placement.slices))
    now = {(hold.container, hold.uuid): hold.bytes for hold in pod.holds} if pod.resize is not None else {}
    for ask, profile in zip(pod.request.asks, life.profiles, strict=True):
        if not ask.init:
            for part in pod.placement.slices:
                asked = part.bytes if ask.whole else ask.bytes // share
                yield Promised(ask, profile, part, asked, now.get((ask.container, part.uuid), asked))


def used_byte_seconds(pod: Pod, life: PodLife, now: float) -> float:
    """What a pod has used of card memory since it was placed."""
    age = now - life.placed_at
    return sum(use.asked * use.profile.memory_seconds(age) for use in iterate_promises(pod, life))
