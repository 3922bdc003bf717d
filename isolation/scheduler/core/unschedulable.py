# SPDX-License-Identifier: Apache-2.0
"""
The pods that were refused: whom to wake when room becomes free, whom to help by pre-emption.

Pure; time is an argument. kube-scheduler tries a refused pod again at any event of the cluster, which
may reach it before it reaches us: the pod is then refused for room that is there, and sleeps for up to
five minutes. So a pod that was refused before room became free, and was not asked about since, is
woken. Decides nothing about fit: the caller asks the books whether waking would help.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from isolation.contract.model import Pod

MOST: Final = 4096
"""Pods that are remembered; beyond that kube-scheduler's own five minutes stand for the oldest."""
MOST_NAMES: Final = 256
"""Nodes that are remembered for each of them: thousands may wait for room on thousands of nodes."""
SETTLE_SECONDS: Final = 0.4
"""So long after room became free kube-scheduler has had its own chance."""
REQUEUE_AGAIN_SECONDS: Final = 5.0
PREEMPT_AFTER_SECONDS: Final = 0.5
"""A pod that waits for so long is not about to get room that is just becoming free."""


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    """One pod that waits."""

    pod: Pod
    names: tuple[str, ...]
    """Nodes that were full for it and might not be after a pre-emption, as it was asked last: the first of them."""
    first: float
    last: float
    woken: float = float("-inf")
    asked: tuple[str, ...] = ()
    """Every node that it was asked about, also those that could not serve it then; empty: too many to remember."""


class UnschedulableQueue:
    """Refused pods by UID, the one asked about last at the end."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, UnschedulablePod] = OrderedDict()
        self._freed = float("-inf")

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, pod: Pod, names: tuple[str, ...], now: float, asked: Sequence[str] = ()) -> None:
        """None of the nodes `asked` about had room; `names` of them are full."""
        known = self._refused.pop(pod.uid, None) or UnschedulablePod(pod, (), now, now)
        all_ = tuple(asked) if len(asked) <= MOST_NAMES else ()
        self._refused[pod.uid] = replace(known, pod=pod, names=names[:MOST_NAMES], last=now, asked=all_)
        while len(self._refused) > MOST:
            self._refused.popitem(last=False)

    def missed(self, pod: Pod, names: tuple[str, ...], now: float) -> None:
        """Somebody else may have been asked about it; no news where we were."""
        if pod.uid not in self._refused:
            self.refused(pod, names, now)

    def served(self, uid: str) -> None:
        """It found a node, was bound, or is no more."""
        self._refused.pop(uid, None)

    def freed(self, now: float) -> None:
        """Some room may have become free."""
        self._freed = now

    def to_wake(self, now: float) -> Iterator[UnschedulablePod]:
        """Pods that may not know of the room; the ones that matter most first."""
        if now < self._freed + SETTLE_SECONDS:
            return
        asleep = (
            one
            for one in self._refused.values()
            if one.last <= self._freed and now >= one.woken + REQUEUE_AGAIN_SECONDS
        )
        yield from sorted(asleep, key=_rank)

    def woken(self, uid: str, now: float) -> None:
        """It was told."""
        known = self._refused.get(uid)
        if known is not None:
            self._refused[uid] = replace(known, woken=now)

    def to_relieve(self, now: float) -> Iterator[UnschedulablePod]:
        """Pods that might get room by pre-emption; the ones that matter most first."""
        waits = (one for one in self._refused.values() if one.names and now >= one.first + PREEMPT_AFTER_SECONDS)
        yield from sorted(waits, key=_rank)


def _rank(one: UnschedulablePod) -> tuple[int, float, str]:
    return -one.pod.priority, one.pod.created, one.pod.uid
