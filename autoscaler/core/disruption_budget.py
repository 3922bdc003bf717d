# SPDX-License-Identifier: Apache-2.0
"""
Which pods may be evicted now: moves per cycle and hour, one move per owner at a time, protected pods.

How many removals the hour still allows is decided here too. Counts what was done, not what was planned. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.request import goes_with_its_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.limits import ScalingLimits
    from isolation.contract.model import Pod

HOUR: Final = 3600.0
"""Seconds."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def belongs_to_node(pod: Pod) -> bool:
    """Whether the pod ends with its node (a DaemonSet's, or a static pod)."""
    return pod.static or goes_with_its_node(pod.request.owner)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be moved in one cycle."""

    limits: ScalingLimits
    at: float
    moves: tuple[float, ...] = ()
    """When pods were evicted."""
    moved: Mapping[str, float] | None = None
    """When a pod of an owner was last evicted."""
    pods: int | None = None
    """Running pods; None: unknown, and only the limits that need no number of them hold."""
    replicas: Mapping[str, int] | None = None
    """Running pods by owner; None: unknown, and no pod is protected for being the only replica."""
    guarded: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """By UID: why a pod may not be evicted now."""
    blocked: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """By UID: why a pod may not be evicted by the rules of its pool."""
    in_backoff: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """Owners in backoff after a refused eviction, and until when."""

    promised: int = 0
    """Pods that have a reservation and wait for their eviction."""

    @property
    def free(self) -> int:
        """Moves that may still be planned: what the hour has left, less those promised already."""
        return max(0, self.left - self.promised)

    @property
    def left(self) -> int:
        """Moves that the hour has left."""
        return max(0, self.hourly - sum(1 for at in self.moves if self.at - at < HOUR))

    @property
    def hourly(self) -> int:
        """Maximum number of moves in any hour."""
        most = self.limits.max_moves_per_hour
        if self.pods is None:
            return most
        return min(most, max(int(self.pods * self.limits.max_moves_per_hour_ratio), self.limits.min_moves_per_hour))

    def is_protected(self, pod: Pod) -> bool:
        """Whether it may not move now: one of the reasons below, too young, or the successor of a pod moved lately."""
        if self.explain_protection(pod) or self.at - pod.created < self.limits.min_pod_age_seconds:
            return True
        last = (self.moved or {}).get(pod.request.owner)
        return last is not None and pod.created >= last and self.at - last < self.limits.move_cooldown_seconds

    def explain_protection(self, pod: Pod) -> str:
        """Why the pod must stay, whatever a move would save; empty: it may move."""
        if not pod.evictable:
            return "it has no controller that recreates it, or it must not be moved"
        if self.replicas is not None and self.replicas.get(pod.request.owner, 0) < self.limits.min_replicas:
            return f"its owner has fewer than {self.limits.min_replicas} running replicas"
        if self.in_backoff.get(pod.request.owner, self.at) > self.at:
            return "an eviction for its owner was refused recently"
        return self.blocked.get(pod.uid, "") or self.guarded.get(pod.uid, "")

    def choose_evictions(self, ready: Iterable[Pod], busy: Iterable[str], moving: int = 0) -> tuple[Pod, ...]:
        """Which pods with a reservation are evicted now, in addition to `moving` others; owners in `busy` wait."""
        owners = set(busy)
        chosen: list[Pod] = []
        most = min(self.left, self.limits.max_moves_per_cycle) - moving
        for pod in ready:
            if len(chosen) >= most:
                break
            if pod.request.owner not in owners and not self.explain_protection(pod):
                owners.add(pod.request.owner)
                chosen.append(pod)
        return tuple(chosen)


def count_removals_left(removed: Iterable[float], limits: ScalingLimits, now: float) -> float:
    """Machines that may still be removed this hour; `removed`: when others were, in seconds since the epoch."""
    most = limits.max_node_removals_per_hour
    return max(0, most - sum(now - at < HOUR for at in removed)) if most else inf
