# SPDX-License-Identifier: Apache-2.0
"""
Our own programs with one thing taken out each: what the judges must catch.

Every variant is the real code but for one decision. A judge that has never condemned anybody proves
nothing; these are whom it has to condemn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from interleave.replica import Parts

from isolation.kube.core.errors import ClusterError
from isolation.kube.election import Fence
from isolation.kube.writes import Outcome, PodLocation, WriteResult
from isolation.node.agent import Agent
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.leader import Leadership

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.machine import Machine

    from isolation.contract.model import Pod, Refusal
    from isolation.node.world import World
    from isolation.scheduler.core.cache import AssumedPlacement


class Forgetful(SchedulerCache):
    """Takes no room before the binding is seen."""

    def assume(self, pod: Pod, node: str, now: float) -> AssumedPlacement | Refusal:
        """The answer without its effect."""
        found = super().assume(pod, node, now)
        self.forget(pod.uid)
        return found


class Hasty(SchedulerCache):
    """Takes the wish to delete for the end."""

    def set_pod(self, pod: Pod) -> None:
        """Terminating pods hold nothing."""
        if pod.deleting:
            self.remove_pod(pod.uid)
        else:
            super().set_pod(pod)


class Trustful:
    """A writer for whom no answer is a no."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    async def bind(self, *arguments: Any) -> WriteResult:
        """A time-out is a refusal."""
        try:
            return await self._writer.bind(*arguments)
        except ClusterError as exc:
            return WriteResult(Outcome.REFUSED, str(exc))

    async def placed(self, *_: Any) -> PodLocation:
        """Nobody asks."""
        return PodLocation("", {})


class Unfenced(Leadership):
    """Believes that it leads, always."""

    def fence(self) -> Fence:
        """A right that never ends."""
        return Fence(0, float("inf"))


class Blind:
    """Control groups in which nobody lives."""

    def living(self, _uid: str) -> bool:
        """Nobody."""
        return False


class Credulous(Agent):
    """Takes for free what the kubelet offers, and for its owner whoever comes."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._starting._others = _nobody  # type: ignore[method-assign]

    def _rank(self, *_: Any) -> Callable[[str], int]:
        return lambda _: 0


async def _nobody(_entry: Any) -> None:
    """Nobody else has these devices."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What is taken out, and what must be found then: one of these kinds."""

    kinds: frozenset[str]
    parts: Parts = Parts()  # noqa: RUF009 (frozen)
    make: Callable[[Any, World, Machine], Any] | None = None
    crowded: bool = False
    extra: frozenset[str] = frozenset()
    """Strokes that must happen for it to matter."""


def _blind(_net: Any, world: World, _machine: Machine) -> Agent:
    return Agent(replace(world, cgroups=Blind()))


def _credulous(_net: Any, world: World, _machine: Machine) -> Agent:
    return Credulous(world)


def _trustful(cache: SchedulerCache, writer: Any, fence: Any, **more: Any) -> Binder:
    return Binder(cache, Trustful(writer), fence, **more)


BOOKED: Final = frozenset({"double_booking", "double_allocation"})
VARIANTS: Final = {
    "no_assumption": Variant(BOOKED, Parts(cache=Forgetful)),
    "released_on_delete": Variant(BOOKED, Parts(cache=Hasty)),
    "time_out_is_no": Variant(BOOKED, Parts(binder=_trustful)),
    "no_fence": Variant(BOOKED, Parts(leadership=Unfenced), crowded=True, extra=frozenset({"two_kube_schedulers"})),
    "no_cgroup_check": Variant(frozenset({"double_allocation"}), make=_blind),
    "kubelet_trusted": Variant(frozenset({"double_allocation", "wrong_card", "torn"}), make=_credulous),
}
