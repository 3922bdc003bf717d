"""
How much disruption is left: moves per round and hour, one move per owner at a time, protected pods.

Pure. Counts what was done, not what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.limits import Limits
    from isolation.contract.model import Pod

HOUR: Final = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be moved at one moment."""

    limits: Limits
    at: float
    moves: tuple[float, ...] = ()
    """When pods were evicted."""
    moved: Mapping[str, float] | None = None
    """When a pod of an owner was last evicted."""

    @property
    def left(self) -> int:
        """Moves that the hour still has."""
        return max(0, self.limits.moves_per_hour - sum(1 for at in self.moves if self.at - at < HOUR))

    def protected(self, pod: Pod) -> bool:
        """Too young to move, or moved not long ago (then it is the one made after its owner's last move)."""
        if not pod.evictable or self.at - pod.created < self.limits.min_pod_age_seconds:
            return True
        last = (self.moved or {}).get(pod.request.owner)
        return last is not None and pod.created >= last and self.at - last < self.limits.immune_seconds

    def evictions(self, ready: Iterable[Pod], restless: Iterable[str]) -> tuple[Pod, ...]:
        """Which of the pods with a home may go now; owners in `restless` have a pod on the move."""
        busy = set(restless)
        chosen: list[Pod] = []
        for pod in ready:
            if len(chosen) >= min(self.left, self.limits.moves_per_round):
                break
            if pod.request.owner not in busy:
                busy.add(pod.request.owner)
                chosen.append(pod)
        return tuple(chosen)
