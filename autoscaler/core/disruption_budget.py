# SPDX-License-Identifier: Apache-2.0
"""
How much disruption is left: moves per round and hour, one move per owner at a time, protected pods.

Pure. Counts what was done, not what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.codec.request import goes_with_its_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.core.limits import Limits
    from isolation.contract.model import Pod

HOUR: Final = 3600.0
"""Seconds."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def belongs_to_node(pod: Pod) -> bool:
    """Whether the pod belongs to its node and goes with it (a DaemonSet's, or the kubelet's own)."""
    return pod.static or goes_with_its_node(pod.request.owner)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be moved at one moment."""

    limits: Limits
    at: float
    moves: tuple[float, ...] = ()
    """When pods were evicted."""
    moved: Mapping[str, float] | None = None
    """When a pod of an owner was last evicted."""
    pods: int | None = None
    """Pods that run; None: the part of them that may move is not known, and the other limits hold."""
    replicas: Mapping[str, int] | None = None
    """Running pods by owner; None: not known, nobody is protected for being the only one."""
    guarded: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """By UID: why a pod may not be evicted now."""
    blocked: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """By UID: why a pod may not be evicted as long as it is what it is."""
    resting: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """Owners whose pod the cluster would not let go, and until when they are left alone."""

    promised: int = 0
    """Pods that have a home reserved and wait for their eviction."""

    @property
    def free(self) -> int:
        """Moves that may still be planned: what the hour has, less what is promised already."""
        return max(0, self.left - self.promised)

    @property
    def left(self) -> int:
        """Moves that the hour still has."""
        return max(0, self.hourly - sum(1 for at in self.moves if self.at - at < HOUR))

    @property
    def hourly(self) -> int:
        """Moves in any hour."""
        most = self.limits.max_moves_per_hour
        if self.pods is None:
            return most
        return min(most, max(int(self.pods * self.limits.max_moves_per_hour_ratio), self.limits.min_moves_per_hour))

    def is_protected(self, pod: Pod) -> bool:
        """Too young to move, or moved not long ago (then it is the one made after its owner's last move)."""
        if self.explain_protection(pod) or self.at - pod.created < self.limits.min_pod_age_seconds:
            return True
        last = (self.moved or {}).get(pod.request.owner)
        return last is not None and pod.created >= last and self.at - last < self.limits.move_cooldown_seconds

    def explain_protection(self, pod: Pod) -> str:
        """Why the pod must stay whatever is to be won; empty where nothing says so."""
        if not pod.evictable:
            return "it has no controller that recreates it, or it must not be moved"
        if self.replicas is not None and self.replicas.get(pod.request.owner, 0) < self.limits.min_replicas:
            return f"its owner has fewer than {self.limits.min_replicas} running replicas"
        if self.resting.get(pod.request.owner, self.at) > self.at:
            return "an eviction for its owner was refused recently"
        return self.blocked.get(pod.uid, "") or self.guarded.get(pod.uid, "")

    def choose_evictions(self, ready: Iterable[Pod], restless: Iterable[str], moving: int = 0) -> tuple[Pod, ...]:
        """Which of the pods with a home may go now, beside `moving`; owners in `restless` have one on the move."""
        busy = set(restless)
        chosen: list[Pod] = []
        most = min(self.left, self.limits.max_moves_per_cycle) - moving
        for pod in ready:
            if len(chosen) >= most:
                break
            if pod.request.owner not in busy and not self.explain_protection(pod):
                busy.add(pod.request.owner)
                chosen.append(pod)
        return tuple(chosen)


def count_removals_left(removed: Iterable[float], limits: Limits, now: float) -> float:
    """Machines that may still be removed this hour; `removed`: when others were, in seconds since the epoch."""
    most = limits.max_node_removals_per_hour
    return max(0, most - sum(now - at < HOUR for at in removed)) if most else inf
