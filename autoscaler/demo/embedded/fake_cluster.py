# SPDX-License-Identifier: Apache-2.0
"""
The simulated cluster: pods arrive, are placed, run and end; controllers recreate evicted pods.

It stands behind the autoscaler's loop as Kubernetes does: the loop observes it, applies steps to it and waits. Its time
is that of `clock`. Decides nothing that a real cluster would leave to the autoscaler.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from autoscaler.core.observation import Nomination, Observation
from autoscaler.core.plan import (
    RELEASE,
    RESTORE,
    SHRINK,
    CancelDrain,
    Drain,
    Evict,
    Move,
    RemoveFailedNode,
    RemoveNode,
    ResizePod,
    ScaleUp,
)
from autoscaler.demo.embedded.accounting import Accounting
from autoscaler.demo.embedded.clock import SimulatedClock
from autoscaler.demo.embedded.cluster_state import FakeClusterState
from autoscaler.demo.embedded.node_pools import ScenarioError
from autoscaler.demo.embedded.pod_life import PodLife, used_byte_seconds
from autoscaler.demo.embedded.provider import FakeProvider
from autoscaler.demo.embedded.right_sizing import MEASURE_SECONDS, SimulatedRightSizing
from autoscaler.demo.embedded.scheduler import FakeScheduler
from isolation.contract.model import Pod, Refusal, Why
from isolation.contract.quantity import show_bytes
from isolation.placement.engine import PlacementError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from autoscaler.core.observation import SuccessorReservation
    from autoscaler.core.plan import Step
    from autoscaler.demo.embedded.node_pools import SimulatedFleet
    from autoscaler.demo.embedded.workload import PodArrival
    from isolation.contract.model import Placement

GRACE_SECONDS = 2.0
"""From an eviction until the old pod has ended; its successor is made at once."""
_DONE = {SHRINK: "shrunk", RESTORE: "restored", RELEASE: "released"}
SCHEDULE_SECONDS = 1.0
"""From something new in the queue, or room becoming free, to the next pass of the scheduler."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Awaiting this hands the seconds to whoever runs the coroutine."""

    seconds: float

    def __await__(self) -> Generator[float, None, None]:
        yield self.seconds


class FakeCluster:
    """See the module."""

    def __init__(
        self, fleet: SimulatedFleet, workload: Iterable[PodArrival], *, seed: int, policy: str = "potential"
    ) -> None:
        self.seed = seed
        self.clock = SimulatedClock()
        self.accounting = Accounting(self.clock)
        self.state = FakeClusterState(policy, seed)
        self.lives: dict[str, PodLife] = {}
        self.pass_due = False
        """A scheduling pass is due: pods that fit now will be placed."""
        self._created = 0
        self.right_sizing = SimulatedRightSizing(self.state, self.lives, self.accounting)
        self._measuring = False
        self.provider = FakeProvider(fleet, self.clock, self.state, self.accounting, self._schedule_soon)
        self.scheduler = FakeScheduler(self.state, self.provider.machines, self._place)
        self._workload = iter(workload)
        self._last_arrival = float("-inf")
        self._next_arrival()

    # -- the loop's side -----------------------------------------------------------------------

    async def observe(self) -> Observation:
        """As on Kubernetes."""
        return self.snapshot()

    def snapshot(self) -> Observation:
        """Live views: valid until the next await."""
        return Observation(
            at=self.clock.now,
            engine=self.state.engine,
            pods=self.state.pods,
            on=self.state.on,
            load=self.state.load,
            machines=self.provider.machines,
            pools=self.provider.pools,
            pending=self.scheduler.pending,
            reserved=self.state.reserved,
            nominations=self.scheduler.homes,
            live=self.right_sizing.live(self.clock.now),
        )

    async def settle(self, seconds: float) -> None:
        """The fleet's time passes, not the caller's."""
        await Pause(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Kept for the scheduler."""
        self.scheduler.homes = dict(homes)

    async def apply(self, step: Step) -> Refusal | None:
        """Do one thing."""
        if isinstance(step, ScaleUp):
            self.accounting.count(*("fragmented_pods_placed",) * step.fragmented_pods)
            name = self.provider.buy(step.pool, step.reason)
            homes = (Nomination(name, cards) for cards in step.places)
            self.scheduler.homes.update(zip(step.pods, homes, strict=False))
        elif isinstance(step, Drain):
            self._drain(step)
        elif isinstance(step, Evict):
            self._evict(step)
        elif isinstance(step, Move):
            self._reserve(step.reservation)
            self._evict(step)
        elif isinstance(step, CancelDrain):
            self._keep(step)
        elif isinstance(step, RemoveNode):
            self.accounting.record("scale_down", step.node, step.reason)
            self.provider.delete(step.node)
        elif isinstance(step, RemoveFailedNode):
            self.provider.discard(step.node, step.reason)
        elif isinstance(step, ResizePod):
            return self._resize(step)
        return None

    def _resize(self, step: ResizePod) -> Refusal | None:
        before = self.state.pods[step.pod]
        try:
            after = self.state.resize(step)
        except PlacementError as exc:
            return Refusal(Why.NOT_READY, str(exc))
        self.accounting.add_promised(sum(hold.bytes for hold in after.holds) - sum(hold.bytes for hold in before.holds))
        self.accounting.record(step.kind, after.key, step.reason, f"pods_{_DONE[step.kind]}")
        self._schedule_soon()
        return None

    def _measure(self) -> None:
        self.right_sizing.measure(self.clock.now)
        self.clock.after(MEASURE_SECONDS, self._measure)

    def _drain(self, step: Drain) -> None:
        self.accounting.record("drain", step.node, step.reason, "nodes_drained")
        self.provider.drain(step.node)
        for home in step.reservations:
            self._reserve(home)

    def _reserve(self, home: SuccessorReservation) -> None:
        self.state.reserve(home)
        self.clock.at(home.until, partial(self._expire_reservation, home))

    def _keep(self, step: CancelDrain) -> None:
        self.accounting.record("cancel_drain", step.node, step.reason, "drains_cancelled")
        for uid in self.state.on[step.node]:
            self._release_reservation(uid)
        self.provider.keep(step.node)

    def _expire_reservation(self, home: SuccessorReservation) -> None:
        """The time of a reservation is up, unless the pod has got a later one."""
        if self.state.reserved.get(home.pod) is home:
            self._release_reservation(home.pod)

    def _release_reservation(self, uid: str) -> None:
        """A reservation ends unused; one stays whose pod is being moved."""
        home = self.state.reserved.get(uid)
        if home is not None and not (uid in self.state.pods and self.state.pods[uid].deleting):
            self.state.unreserve(home)
            self._schedule_soon()

    # -- pods ----------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._workload, None)
        if arrival is None:
            return
        if arrival.at < self._last_arrival:
            raise ScenarioError(
                f"pod {arrival.name} arrives at {arrival.at}, earlier than the pod before it; sort pods by time"
            )
        self._last_arrival = arrival.at
        self.clock.at(arrival.at, partial(self._arrive, arrival))

    def _arrive(self, arrival: PodArrival) -> None:
        # the mix is learnt from arrivals only: a successor is no new demand
        self.state.engine.arrive(arrival.request)
        self.accounting.count("pods_arrived")
        self._create_pod(PodLife.of(arrival, self.seed))
        self._next_arrival()

    def _create_pod(self, life: PodLife) -> None:
        """A controller creates a pod: a new identity each time."""
        self._created += 1
        arrival = life.arrival
        pod = Pod(
            uid=str(UUID(bytes=hashlib.blake2b(f"{self.seed}/{self._created}".encode(), digest_size=16).digest())),
            name=arrival.name,
            namespace=arrival.namespace,
            request=arrival.request,
            created=self.clock.now,
            priority=arrival.priority,
            labels=arrival.labels,
            evictable=arrival.evictable and bool(arrival.request.owner),
        )
        self.state.pods[pod.uid] = pod
        self.lives[pod.uid] = life
        self.scheduler.add(pod)
        self._schedule_soon()

    def _schedule_soon(self) -> None:
        """Run the scheduler soon: there is a new pod, or free capacity."""
        if not self.pass_due:
            self.pass_due = True
            self.clock.after(SCHEDULE_SECONDS, self._schedule)

    def _schedule(self) -> None:
        self.pass_due = False
        self.scheduler.run()

    def _place(self, pod: Pod, placement: Placement) -> None:
        now = self.clock.now
        bound = self.state.bind(pod, placement)
        life = self.lives[pod.uid] = replace(self.lives[pod.uid], placed_at=now)
        if life.arrival.wish is not None:
            self.right_sizing.add(pod.uid, life.arrival.wish)
            if not self._measuring:
                self._measuring = True
                self.clock.after(MEASURE_SECONDS, self._measure)
        waited = now - pod.created
        self.accounting.longest_wait = max(self.accounting.longest_wait, waited)
        self.accounting.add_promised(sum(part.bytes for part in placement.slices))
        cards = ", ".join(f"card {part.index}" for part in placement.slices)
        where = f"{placement.node} {cards}".rstrip()
        self.accounting.record("place", pod.key, f"on {where} after {waited:.0f} s", "pods_placed")
        if life.remaining_seconds is not None:
            self.clock.after(life.remaining_seconds, partial(self._finish, pod.uid))
        if pod.request.cards and life.profiles and life.arrival.excess is not None:
            onset = min(profile.onset_seconds for profile in life.profiles)
            self.clock.after(onset, partial(self._breach, bound))

    def _breach(self, pod: Pod) -> None:
        if pod.uid in self.state.pods and pod.placement is not None:
            promised = show_bytes(sum(part.bytes for part in pod.placement.slices))
            excess = self.lives[pod.uid].arrival.excess or 0.0
            self.state.breaches[pod.placement.node] += len(pod.placement.slices)
            self.accounting.record(
                "breach", pod.key, f"uses {excess:.0%} more than its promise of {promised}", "breaches"
            )

    def _finish(self, uid: str) -> None:
        """A pod's work is done; one that is being moved leaves the rest of it to its successor."""
        pod = self.state.pods.get(uid)
        if pod is not None and not pod.deleting:
            self.accounting.record("finish", pod.key, "completed", "pods_finished")
            self._end(uid)

    def _evict(self, step: Evict | Move) -> None:
        pod, life = self.state.pods[step.pod], self.lives[step.pod]
        self.accounting.record("move", pod.key, step.reason, "pods_moved")
        self.state.mark_deleting(pod)
        ran = self.clock.now - life.placed_at
        left = None if life.remaining_seconds is None else max(0.0, life.remaining_seconds - ran)
        # as with a ReplicaSet: the successor is made at once, while the old pod still ends
        self.clock.after(GRACE_SECONDS, partial(self._end, step.pod))
        self._create_pod(replace(life, remaining_seconds=left))

    def _end(self, uid: str) -> None:
        """A pod's containers have ended; its room is free."""
        if uid not in self.state.pods:
            return
        pod, life = self.state.pods[uid], self.lives.pop(uid)
        self.accounting.add_used(used_byte_seconds(pod, life, self.clock.now))
        self.state.remove(uid)
        self.right_sizing.remove(uid)
        if pod.resize is not None:
            self.accounting.add_promised(-sum(hold.bytes for hold in pod.holds))
        elif pod.placement is not None:
            self.accounting.add_promised(-sum(part.bytes for part in pod.placement.slices))
        if not pod.deleting:
            self._release_reservation(uid)
        self._schedule_soon()
