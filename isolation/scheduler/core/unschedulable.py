# SPDX-License-Identifier: Apache-2.0
"""
The queue of unschedulable pods: which to requeue when cards become free, and for which to preempt.

kube-scheduler retries an unschedulable pod at cluster events, but an event may reach it before it reaches our
informers: the pod is then refused cards that are free, and waits for up to five minutes. So a pod that was refused
before cards became free, and was not filtered since, is requeued. Whether it fits is not decided here: the caller asks
the cache. Pure; time is an argument, in seconds since the epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from isolation.contract.model import Pod

MAX_PODS: Final = 4096
"""Pods in the queue; beyond that the oldest wait for kube-scheduler's own retry after five minutes."""
MAX_NAMES: Final = 256
"""Nodes remembered for each pod: thousands of pods may wait for thousands of nodes."""
SETTLE_SECONDS: Final = 0.4
"""kube-scheduler's own retry comes within so long after cards became free."""
REQUEUE_AGAIN_SECONDS: Final = 5.0
PREEMPT_AFTER_SECONDS: Final = 0.5
"""A pod that waits for so long is not about to get cards that are just becoming free."""


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    """One pod that fits on no node."""

    pod: Pod
    names: tuple[str, ...]
    """Nodes that preemption might free for it, by the last filter call; the first `MAX_NAMES`."""
    first: float
    last: float
    requeued: float = float("-inf")
    asked: tuple[str, ...] = ()
    """Every node of the last filter call; empty: too many to remember."""


class UnschedulableQueue:
    """Unschedulable pods by UID, the entry filtered last at the end."""

    def __init__(self) -> None:
        self._pods: OrderedDict[str, UnschedulablePod] = OrderedDict()
        self._freed = float("-inf")

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: Pod, names: tuple[str, ...], now: float, asked: Sequence[str] = ()) -> None:
        """Add a pod that fits on none of the nodes `asked`; on `names` of them preemption might help."""
        known = self._pods.pop(pod.uid, None) or UnschedulablePod(pod, (), now, now)
        all_names = tuple(asked) if len(asked) <= MAX_NAMES else ()
        self._pods[pod.uid] = replace(known, pod=pod, names=names[:MAX_NAMES], last=now, asked=all_names)
        while len(self._pods) > MAX_PODS:
            self._pods.popitem(last=False)

    def add_unknown(self, pod: Pod, names: tuple[str, ...], now: float) -> None:
        """Add a pod that another replica may have refused, unless it is here."""
        if pod.uid not in self._pods:
            self.add(pod, names, now)

    def note_fit(self, uid: str) -> None:
        """
        It fits now: no pod is evicted for it.

        It stays in the queue until it is bound: if kube-scheduler gave up the request before the answer, the pod sleeps
        on.
        """
        if uid in self._pods:
            self._pods[uid] = replace(self._pods[uid], names=())

    def remove(self, uid: str) -> None:
        """Remove a pod that is bound, or gone."""
        self._pods.pop(uid, None)

    def note_freed(self, now: float) -> None:
        """Some cards may have become free."""
        self._freed = now

    def to_requeue(self, now: float) -> Iterator[UnschedulablePod]:
        """Pods not filtered since cards became free, by priority."""
        if now < self._freed + SETTLE_SECONDS:
            return
        sleeping = (
            entry
            for entry in self._pods.values()
            if entry.last <= self._freed and now >= entry.requeued + REQUEUE_AGAIN_SECONDS
        )
        yield from sorted(sleeping, key=_rank)

    def mark_requeued(self, uid: str, now: float) -> None:
        """Do not requeue it again for a while."""
        known = self._pods.get(uid)
        if known is not None:
            self._pods[uid] = replace(known, requeued=now)

    def to_preempt_for(self, now: float) -> Iterator[UnschedulablePod]:
        """Pods that preemption might help, by priority."""
        waits = (entry for entry in self._pods.values() if entry.names and now >= entry.first + PREEMPT_AFTER_SECONDS)
        yield from sorted(waits, key=_rank)


def _rank(entry: UnschedulablePod) -> tuple[int, float, str]:
    return -entry.pod.priority, entry.pod.created, entry.pod.uid
