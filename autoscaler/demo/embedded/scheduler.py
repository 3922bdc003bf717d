# SPDX-License-Identifier: Apache-2.0
"""
The simulated scheduler: which pods are pending, in which order, and where each is placed.

Like kube-scheduler it takes pods by priority and age, and asks the placement engine for each. Reservations for pods
that move, and placements planned on machines that have just booted, go first. Pods of one shape share one refusal per
pass, so a long queue costs as much as its distinct shapes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from autoscaler.core.bin_packing import get_shape
from autoscaler.core.lifecycle import MachineState
from isolation.contract.model import Refusal
from isolation.placement.engine import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.core.bin_packing import Shape
    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.core.observation import Nomination, SuccessorReservation
    from autoscaler.demo.embedded.cluster_state import FakeClusterState
    from isolation.contract.model import Placement, Pod, Request

    QueueKey = tuple[int, float, str]


def _queue_key(pod: Pod) -> QueueKey:
    return (-pod.priority, pod.created, pod.uid)


class FakeScheduler:
    """The queue and its passes."""

    def __init__(
        self, state: FakeClusterState, machines: Mapping[str, PoolMachine], bound: Callable[[Pod, Placement], None]
    ) -> None:
        self._state, self._machines, self._bound = state, machines, bound
        self._heaps: dict[Shape, list[tuple[QueueKey, Pod]]] = {}
        self._waiting: dict[str, Pod] = {}
        self._pending: tuple[Pod, ...] | None = ()
        self.homes: dict[str, Nomination] = {}
        """Where waiting pods go on machines that are still coming, by UID."""
        self.refusals: dict[Shape, Refusal] = {}
        """Why each shape that waits was refused last."""

    @property
    def pending(self) -> tuple[Pod, ...]:
        """Who waits, in the order of the queue."""
        if self._pending is None:
            self._pending = tuple(sorted(self._waiting.values(), key=_queue_key))
        return self._pending

    def refusal(self, request: Request) -> Refusal | None:
        """Why the last pass refused such a request; None where no pass has."""
        return self.refusals.get(get_shape(request))

    def add(self, pod: Pod) -> None:
        """A pod waits from now on."""
        self._waiting[pod.uid] = pod
        heapq.heappush(self._heaps.setdefault(get_shape(pod.request), []), (_queue_key(pod), pod))
        self._pending = None

    def run(self) -> None:
        """One pass over the queue."""
        if not self._waiting:
            return
        self._take_reserved()
        self._take_planned()
        heads = [(heap[0][0], shape) for shape, heap in self._heaps.items() if self._trim(heap)]
        order = [(key, at) for at, (key, _) in enumerate(heads)]
        heapq.heapify(order)
        while order:
            _, at = heapq.heappop(order)
            shape = heads[at][1]
            pod = self._heaps[shape][0][1]
            answer = self._state.engine.place(pod.request)
            if isinstance(answer, Refusal):
                self.refusals[shape] = answer
                continue
            self._bind(pod, answer)
            if self._trim(self._heaps[shape]):
                heapq.heappush(order, (self._heaps[shape][0][0], at))
        self._heaps = {shape: heap for shape, heap in self._heaps.items() if heap}

    def _trim(self, heap: list[tuple[QueueKey, Pod]]) -> bool:
        """Drop pods that were placed otherwise from the top; whether any pending pod is left."""
        while heap and heap[0][1].uid not in self._waiting:
            heapq.heappop(heap)
        return bool(heap)

    def _bind(self, pod: Pod, placement: Placement) -> None:
        del self._waiting[pod.uid]
        self._pending = None
        self._bound(pod, placement)

    def _take_reserved(self) -> None:
        """Successors of evicted pods go to the homes kept for them."""
        for home in tuple(self._state.reserved.values()):
            # before the eviction, a sibling of the same shape must not take the home
            moving = self._state.pods.get(home.pod)
            if moving is not None and not moving.deleting:
                continue
            pod = next((pod for pod in self.pending if home.matches(pod)), None)
            if pod is not None:
                self._use(home, pod)

    def _use(self, home: SuccessorReservation, pod: Pod) -> None:
        self._state.unreserve(home)
        self._bind(pod, home.placement)

    def _take_planned(self) -> None:
        """Pods for which a machine was bought go where the plan packed them, if it is still so."""
        for uid, home in tuple(self.homes.items()):
            pod, machine = self._waiting.get(uid), self._machines.get(home.machine)
            if pod is None or machine is None or machine.state is not MachineState.READY:
                continue
            node = self._state.engine.nodes.get(home.machine)
            place = None if node is None else home.place_on(node, pod.request)
            if place is None:
                continue
            try:
                self._bind(pod, place)
            except PlacementError:
                # another pod took the place: this one queues with the others
                self.add(pod)
