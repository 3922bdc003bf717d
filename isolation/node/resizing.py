# SPDX-License-Identifier: Apache-2.0
"""
Live resize on the node: from a record that was changed to limits that are in force, and back to the schedulers.

The record is the scheduler's word; here is the order in which it comes true. A pod that grows gets its larger limits
after the kubelet has been seen to offer as many units fewer and no pod was admitted against them. A pod that shrinks
gets its smaller limits at once unless it uses more; only then the kubelet is offered the difference, and the schedulers
are told after it was seen to offer it. All of it follows from records, limits and the kubelet's own count, so a restart
of anybody loses nothing. One thread at a time.

When a pod that had grown ends, the kubelet takes back what its spec requests, and the rest only when it hears of it
from here. Until then its entry stays in what the node says, and the schedulers give nothing of the node away; so units
are withdrawn for a pod only after the node has said its name.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.model import Applied
from isolation.contract.quantity import show_bytes
from isolation.node.status import Resized

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from isolation.contract.model import Slice
    from isolation.node.allocations import Allocations, TenantAllocation
    from isolation.node.bound import Bound
    from isolation.node.core.container_check import Given
    from isolation.node.core.units import Device

GONE_SECONDS: Final = 60.0
"""So long at most the entry of a pod that is gone stays: where the kubelet counts otherwise, it does so for good."""
SEEN_SECONDS: Final = 1.0
"""The device plugin tells the kubelet of an offer within 0.1 s; a count that is seen later is of this offer."""


class ResizedPods(Protocol):
    """Pods of this node whose record was changed."""

    def resized(self) -> tuple[Bound, ...]:
        """As the API server's watch has them."""


class Resizing:
    """See the module; `units`: how many the kubelet says that it may give out; `used`: bytes by card of a container."""

    def __init__(
        self,
        pods: ResizedPods,
        allocations: Allocations,
        units: Callable[[], int | None],
        used: Callable[[str], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods, self._allocations, self._units, self._clock = pods, allocations, units, clock
        self._used = used
        self._offered: frozenset[str] | None = None
        self._since = clock()
        self._messages: dict[str, str] = {}
        self._before: dict[str, Given] = {}
        """By promise id, what a container had before its limits were lowered a moment ago."""
        self._applied: dict[str, Applied] = {}
        self._named: frozenset[str] = frozenset()
        """Pods that the node's object names."""
        self._gone: dict[str, float] = {}
        """Since when pods are gone that it still names."""

    # What is offered.

    def extra(self) -> tuple[int, int]:
        """Bytes and percent of compute that resized pods hold less than they request; below 0: more."""
        total, total_core = 0, 0
        for pod in self._pods.resized():
            extra, core = pod.extra(smaller=self._is_lowered(pod))
            total += extra if pod.uid in self._named else max(0, extra)
            total_core += core if pod.uid in self._named else max(0, core)
        return total, total_core

    def offered(self, devices: Sequence[Device], expected: int | None) -> None:
        """The kubelet is offered these from now on; `expected`: how many they should be, None: no shares."""
        # More than they should be: containers without a record have some, and nothing may grow against those.
        now = frozenset(one.id for one in devices if one.healthy) if len(devices) == expected else None
        if now != self._offered:
            self._offered, self._since = now, self._clock()

    def is_counted(self) -> bool:
        """Whether the kubelet counts by the present offer, and gives no more than that."""
        if self._offered is None or self._clock() - self._since < SEEN_SECONDS:
            return False
        return self._units() == len(self._offered)

    # What containers get.

    def may_grow(self, pod: Bound) -> bool:
        """Whether larger limits of this pod may be in force now."""
        return pod.resize is None or (pod.uid in self._named and self.is_counted())

    def in_use(self, allocation: TenantAllocation, part: Sequence[Slice]) -> bool:
        """Whether a container uses more of a card than these limits; what it uses cannot be taken away."""
        used = self._used(allocation.id)
        for one in part:
            if used.get(one.uuid, 0) > one.bytes:
                self._messages[allocation.id] = (
                    f"container {allocation.tenant.container} uses {show_bytes(used[one.uuid])} of card {one.uuid}; "
                    f"the limit becomes {show_bytes(one.bytes)} once it uses no more than that"
                )
                return True
        self._messages.pop(allocation.id, None)
        return False

    def lowered(self, allocation: TenantAllocation, before: Given) -> None:
        """Smaller limits are in force. The library may have granted more before it read them: looked at once more."""
        self._before[allocation.id] = before

    def second_look(self, allocation: TenantAllocation, part: Sequence[Slice]) -> Given | None:
        """What a container must have back, whose limits were lowered at the last turn: it uses more by now."""
        before = self._before.pop(allocation.id, None)
        return before if before is not None and self.in_use(allocation, part) else None

    def hinders(self, allocation: TenantAllocation, why: str) -> None:
        """The limits of a container could not be changed."""
        self._messages[allocation.id] = why

    # What the schedulers are told.

    def seed(self, applied: Mapping[str, Applied]) -> None:
        """What the node's object says, perhaps by an agent before us."""
        self._named = frozenset(applied)
        self._applied = dict(applied) | self._applied

    def report(self) -> Resized:
        """What is in force now."""
        known = {one.id for one in self._allocations.all()}
        for gone in (self._messages.keys() | self._before.keys()) - known:
            self._messages.pop(gone, None)
            self._before.pop(gone, None)
        counted, applied = self.is_counted(), {}
        for pod in self._pods.resized():
            before = self._applied.get(pod.uid, Applied(0))
            latest = pod.resize.generation if pod.resize is not None else 0
            message = next((m for i, m in sorted(self._messages.items()) if i.startswith(f"{pod.uid}.")), "")
            if before.generation == latest or (counted and pod.uid in self._named and self._is_in_force(pod)):
                applied[pod.uid] = Applied(latest)
            else:
                applied[pod.uid] = Applied(before.generation, message)
        applied |= self._of_gone(applied, counted=counted)
        self._applied = applied
        return Resized(applied, self.extra()[1])

    def _of_gone(self, here: Collection[str], *, counted: bool) -> dict[str, Applied]:
        """Entries of pods that are gone, until the kubelet has been seen to count without them."""
        now = self._clock()
        self._gone = {uid: self._gone.get(uid, now) for uid in self._applied if uid not in here and not counted}
        return {uid: self._applied[uid] for uid, since in self._gone.items() if now - since < GONE_SECONDS}

    def _is_in_force(self, pod: Bound) -> bool:
        return all(one.slices == part for one, part in self._with_parts(pod))

    def _is_lowered(self, pod: Bound) -> bool:
        """Whether no container of the pod has more than its record says."""
        pairs = self._with_parts(pod)
        return all(_within(one.slices, part) and one.id not in self._before for one, part in pairs)

    def _with_parts(self, pod: Bound) -> Collection[tuple[TenantAllocation, tuple[Slice, ...]]]:
        """Its containers that may have processes, with what the record gives them."""
        found = []
        for one in self._allocations.all():
            part = pod.part(one.tenant.container) if one.tenant.uid == pod.uid else None
            if part is not None and self._allocations.is_in_force(one):
                found.append((one, part))
        return found


def _within(slices: Sequence[Slice], part: Sequence[Slice]) -> bool:
    most = {one.uuid: one for one in part}
    return all(
        one.uuid in most and one.bytes <= most[one.uuid].bytes and one.core <= most[one.uuid].core for one in slices
    )
