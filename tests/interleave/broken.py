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
from interleave.runtime import ANSWER_SECONDS, guard
from interleave.strands import pause
from interleave.wire import Wire

from isolation.kube.core.errors import ClusterError
from isolation.kube.election import Fence
from isolation.kube.writes import Outcome, PodLocation, WriteResult
from isolation.node.containers import Containers
from isolation.node.core import container_check
from isolation.node.device_plugin.final_check import FinalCheck
from isolation.node.nri.model import NriRefusedError
from isolation.scheduler.binder import Binder
from isolation.scheduler.core.cache import SchedulerCache
from isolation.scheduler.leader import Leadership

if TYPE_CHECKING:
    from collections.abc import Callable

    from interleave.machine import Container, Machine
    from interleave.wire import Net

    from isolation.contract.model import Pod, Refusal
    from isolation.node.bound import Bound
    from isolation.node.containers import Parts as AgentParts
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


class Hoarder(SchedulerCache):
    """Never gives room back."""

    def remove_pod(self, uid: str) -> None:
        """It stays."""


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


class ByName:
    """Pods that are known by their names."""

    def __init__(self, pods: Any) -> None:
        self._pods = pods
        self._names: dict[str, Bound] = {}

    def get(self, uid: str) -> Bound | None:
        """The first one of that name that was ever seen."""
        pod = self._pods.get(uid)
        return None if pod is None else self._names.setdefault(pod.name, pod)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pods, name)


class Blind:
    """Control groups in which nobody lives."""

    def pids(self, _uid: str, _container: str) -> frozenset[int]:
        """Nobody."""
        return frozenset()

    strays = pids


class Deaf(Containers):
    """Does not hear that containers end."""

    def gone(self, container: Any, *, removed: bool) -> None:
        """Nothing of it is noted."""

    def synchronize(self, sandboxes: Any, containers: Any) -> None:
        """What the runtime does not know stays."""
        runs = {ident for one in self._allocations.all() for ident in one.runs}
        super().synchronize(sandboxes, containers)
        for one in self._allocations.all():
            back = one.ended & runs
            one.runs |= back
            one.ended -= back


class Untidy(Containers):
    """Leaves everything where it is."""

    def tidy(self) -> None:
        """Nothing."""


class Sweeping(Containers):
    """Takes every mark for a dead container's."""

    def tidy(self) -> None:
        """And those of living ones."""
        super().tidy()
        self._guard_device.sweep(tuple)


class Stubborn(Containers):
    """Heeds no changed record."""

    def _follow(self, *_: Any) -> None:
        """Limits stay as they were."""


class Eager(Containers):
    """Deletes a pod rather than let it wait."""

    def __init__(self, net: Net, parts: AgentParts) -> None:
        super().__init__(parts)
        self._net = net

    def create(self, container: Any) -> Any:
        """As the agent did before it knew its pods."""
        try:
            return super().create(container)
        except NriRefusedError:
            node = self._inventory.cards()[0].uuid.split("-")[1]
            path = f"/api/v1/namespaces/{container.sandbox.namespace}/pods/{container.sandbox.name}"
            wire = Wire(self._net, f"agent {node}")
            self._net.loop.later(0.0, lambda: self._net.loop.spawn(None, wire.send("DELETE", path, {}), "deletion"))
            raise


class Tardy(Containers):
    """Answers too late now and then: the mark stands, and the runtime waits no longer. No defect by itself."""

    def __init__(self, net: Net, parts: AgentParts) -> None:
        super().__init__(parts)
        self._draw = net.draw

    def create(self, container: Any) -> Any:
        """After some of them, a slow disk."""
        answer = super().create(container)
        if self._draw.random() < _TARDY:
            pause(2 * ANSWER_SECONDS)
        return answer


@dataclass(frozen=True, slots=True)
class Variant:
    """What is taken out, and what must be found then: one of these kinds."""

    kinds: frozenset[str]
    parts: Parts = Parts()  # noqa: RUF009 (frozen)
    make: Callable[[Net, AgentParts], Containers] | None = None
    opens: Callable[[Machine, Container], bool] = guard
    extra: frozenset[str] = frozenset()
    """Strokes that must happen for it to matter."""
    patched: tuple[Any, str, Any] | None = None
    """An object, an attribute of it, and what stands there meanwhile."""


def _blind(_net: Net, parts: AgentParts) -> Containers:
    parts.allocations._cgroups = Blind()
    return Containers(parts)


def _by_name(_net: Net, parts: AgentParts) -> Containers:
    return Containers(replace(parts, pods=ByName(parts.pods)))


def _trustful(cache: SchedulerCache, writer: Any, fence: Any, **more: Any) -> Binder:
    return Binder(cache, Trustful(writer), fence, **more)


def _open(_machine: Machine, _container: Container) -> bool:
    return True


def _mark_alone(machine: Machine, container: Container) -> bool:
    """As if the file alone let a container start."""
    return machine.marks.pop(container.cid, None) is not None


BOOKED: Final = frozenset({"double_booking", "double_allocation"})
TWICE, WRONG, BARE = (frozenset({word}) for word in ("double_allocation", "wrong_card", "without_limits"))
STORM: Final = frozenset({"agent_pause", "slow_disk", "runtime_restart"})
_TARDY: Final = 0.2
NO_FINAL_CHECK: Final = (FinalCheck, "create", lambda *_: None)
"""The guard is a wall of its own."""
VARIANTS: Final = {
    "no_assumption": Variant(BOOKED, Parts(cache=Forgetful)),
    "released_on_delete": Variant(BOOKED, Parts(cache=Hasty)),
    "time_out_is_no": Variant(BOOKED, Parts(binder=_trustful)),
    "no_fence": Variant(BOOKED, Parts(leadership=Unfenced), extra=frozenset({"two_kube_schedulers"})),
    "room_kept": Variant(frozenset({"lost"}), Parts(cache=Hoarder)),
    "no_cgroup_check": Variant(TWICE, make=_blind),
    "no_look_at_the_card": Variant(TWICE, patched=(container_check, "_fits", lambda *_: None)),
    "pods_by_name": Variant(WRONG, make=_by_name),
    "records_not_followed": Variant(WRONG, make=lambda _, parts: Stubborn(parts), extra=frozenset({"record_changed"})),
    "no_guard": Variant(BARE, opens=_open, extra=STORM, patched=NO_FINAL_CHECK),
    "mark_alone": Variant(BARE, make=Tardy, opens=_mark_alone, patched=NO_FINAL_CHECK),
    "ends_not_heard": Variant(frozenset({"wedged"}), make=lambda _, parts: Deaf(parts)),
    "nothing_tidied": Variant(frozenset({"leaked"}), make=lambda _, parts: Untidy(parts)),
    "marks_swept": Variant(frozenset({"spoilt"}), make=lambda _, parts: Sweeping(parts)),
    "pods_deleted": Variant(frozenset({"deleted"}), make=Eager),
}
