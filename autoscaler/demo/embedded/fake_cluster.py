# SPDX-License-Identifier: Apache-2.0
"""
An in-memory cluster: pods come, are placed, run and end; controllers make evicted pods again.

It is a `World` of the autoscaler's loop, as Kubernetes is: the loop observes it, applies steps
to it and waits through it. Time is its agenda's. Decides nothing that the real cluster would
leave to the autoscaler.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from autoscaler.core.observation import Nomination, Observation
from autoscaler.core.plan import CancelDrain, Drain, Evict, Move, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.demo.embedded.accounting import Ledger
from autoscaler.demo.embedded.clock import Agenda
from autoscaler.demo.embedded.cluster_state import Book
from autoscaler.demo.embedded.node_pools import SupplyError
from autoscaler.demo.embedded.provider import Provider
from autoscaler.demo.embedded.scheduler import Scheduler
from autoscaler.demo.embedded.usage import Life, used_byte_seconds
from isolation.contract.model import Pod
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from autoscaler.core.observation import Reservation
    from autoscaler.core.plan import Step
    from autoscaler.demo.embedded.node_pools import Fleet
    from autoscaler.demo.embedded.workload import Arrival
    from isolation.contract.model import Placement

GRACE_SECONDS = 2.0
"""From an eviction until the old pod has ended; its successor is made at once."""
SCHEDULE_SECONDS = 1.0
"""From something new in the queue, or room becoming free, to the next pass of the scheduler."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Awaiting this hands the seconds to whoever runs the coroutine."""

    seconds: float

    def __await__(self) -> Generator[float, None, None]:
        yield self.seconds


class World:
    """See the module."""

    def __init__(self, fleet: Fleet, workload: Iterable[Arrival], *, seed: int, policy: str = "potential") -> None:
        self.seed = seed
        self.agenda = Agenda()
        self.ledger = Ledger(self.agenda)
        self.book = Book(policy, seed)
        self.lives: dict[str, Life] = {}
        self.pass_due = False
        """The scheduler is about to look at the queue: whoever fits now will be placed."""
        self._made = 0
        self.provider = Provider(fleet, self.agenda, self.book, self.ledger, self._room_changed)
        self.scheduler = Scheduler(self.book, self.provider.machines, self._place)
        self._workload = iter(workload)
        self._last_arrival = float("-inf")
        self._next_arrival()

    # -- the loop's side -----------------------------------------------------------------------

    async def observe(self) -> Observation:
        """As on Kubernetes."""
        return self.seen()

    def seen(self) -> Observation:
        """Live views: valid until the next await."""
        return Observation(
            at=self.agenda.now,
            engine=self.book.engine,
            pods=self.book.pods,
            on=self.book.on,
            load=self.book.load,
            machines=self.provider.machines,
            pools=self.provider.pools,
            pending=self.scheduler.pending,
            reserved=self.book.reserved,
            nominations=self.scheduler.homes,
        )

    async def settle(self, seconds: float) -> None:
        """The fleet's time passes, not the caller's."""
        await Pause(seconds)

    async def nominate(self, homes: Mapping[str, Nomination]) -> None:
        """Kept for the scheduler."""
        self.scheduler.homes = dict(homes)

    async def apply(self, step: Step) -> None:
        """Do one thing."""
        if isinstance(step, ScaleUp):
            self.ledger.count(*("fragmented_pods_placed",) * step.fragmented_pods)
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
            self.ledger.say("scale_down", step.node, step.reason)
            self.provider.delete(step.node)
        elif isinstance(step, RemoveFailedNode):
            self.provider.discard(step.node, step.reason)

    def _drain(self, step: Drain) -> None:
        self.ledger.say("drain", step.node, step.reason, "nodes_drained")
        self.provider.drain(step.node)
        for home in step.reservations:
            self._reserve(home)

    def _reserve(self, home: Reservation) -> None:
        self.book.reserve(home)
        self.agenda.at(home.until, partial(self._expire, home))

    def _keep(self, step: CancelDrain) -> None:
        self.ledger.say("cancel_drain", step.node, step.reason, "drains_cancelled")
        for uid in self.book.on[step.node]:
            self._lapse(uid)
        self.provider.keep(step.node)

    def _expire(self, home: Reservation) -> None:
        """A reservation's time is up; a later one for the same pod is not meant."""
        if self.book.reserved.get(home.pod) is home:
            self._lapse(home.pod)

    def _lapse(self, uid: str) -> None:
        """A reservation ends unused; one whose pod is on its way stays."""
        home = self.book.reserved.get(uid)
        if home is not None and not (uid in self.book.pods and self.book.pods[uid].deleting):
            self.book.unreserve(home)
            self._room_changed()

    # -- pods ----------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._workload, None)
        if arrival is None:
            return
        if arrival.at < self._last_arrival:
            raise SupplyError(
                f"pod {arrival.name} arrives at {arrival.at}, earlier than the pod before it; sort pods by time"
            )
        self._last_arrival = arrival.at
        self.agenda.at(arrival.at, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        # the mix is learnt from arrivals only: a successor is no new demand
        self.book.engine.arrive(arrival.request)
        self.ledger.count("pods_arrived")
        self._make(Life.of(arrival, self.seed))
        self._next_arrival()

    def _make(self, life: Life) -> None:
        """A controller creates a pod: a new identity each time."""
        self._made += 1
        arrival = life.arrival
        pod = Pod(
            uid=str(UUID(bytes=hashlib.blake2b(f"{self.seed}/{self._made}".encode(), digest_size=16).digest())),
            name=arrival.name,
            namespace=arrival.namespace,
            request=arrival.request,
            created=self.agenda.now,
            priority=arrival.priority,
            labels=arrival.labels,
            evictable=arrival.evictable and bool(arrival.request.owner),
        )
        self.book.pods[pod.uid] = pod
        self.lives[pod.uid] = life
        self.scheduler.add(pod)
        self._room_changed()

    def _room_changed(self) -> None:
        """Something to schedule, or room to schedule it on."""
        if not self.pass_due:
            self.pass_due = True
            self.agenda.after(SCHEDULE_SECONDS, self._schedule)

    def _schedule(self) -> None:
        self.pass_due = False
        self.scheduler.run()

    def _place(self, pod: Pod, placement: Placement) -> None:
        now = self.agenda.now
        bound = self.book.bind(pod, placement)
        life = self.lives[pod.uid] = replace(self.lives[pod.uid], born=now)
        waited = now - pod.created
        self.ledger.longest_wait = max(self.ledger.longest_wait, waited)
        self.ledger.promise(sum(part.bytes for part in placement.slices))
        cards = ", ".join(f"card {part.index}" for part in placement.slices)
        where = f"{placement.node} {cards}".rstrip()
        self.ledger.say("place", pod.key, f"on {where} after {waited:.0f} s", "pods_placed")
        if life.left_seconds is not None:
            self.agenda.after(life.left_seconds, partial(self._finish, pod.uid))
        if pod.request.cards and life.habits and life.arrival.excess is not None:
            onset = min(habit.onset_seconds for habit in life.habits)
            self.agenda.after(onset, partial(self._breach, bound))

    def _breach(self, pod: Pod) -> None:
        if pod.uid in self.book.pods and pod.placement is not None:
            promised = show_bytes(sum(part.bytes for part in pod.placement.slices))
            excess = self.lives[pod.uid].arrival.excess or 0.0
            self.book.broken[pod.placement.node] += len(pod.placement.slices)
            self.ledger.say("breach", pod.key, f"uses {excess:.0%} more than its promise of {promised}", "breaches")

    def _finish(self, uid: str) -> None:
        """A pod's work is done; one that is being moved leaves the rest of it to its successor."""
        pod = self.book.pods.get(uid)
        if pod is not None and not pod.deleting:
            self.ledger.say("finish", pod.key, "completed", "pods_finished")
            self._end(uid)

    def _evict(self, step: Evict | Move) -> None:
        pod, life = self.book.pods[step.pod], self.lives[step.pod]
        self.ledger.say("move", pod.key, step.reason, "pods_moved")
        self.book.mark_deleting(pod)
        ran = self.agenda.now - life.born
        left = None if life.left_seconds is None else max(0.0, life.left_seconds - ran)
        # as with a ReplicaSet: the successor is made at once, while the old pod still ends
        self.agenda.after(GRACE_SECONDS, partial(self._end, step.pod))
        self._make(replace(life, left_seconds=left))

    def _end(self, uid: str) -> None:
        """A pod's containers have ended; its room is free."""
        if uid not in self.book.pods:
            return
        pod, life = self.book.pods[uid], self.lives.pop(uid)
        self.ledger.used(used_byte_seconds(pod, life, self.agenda.now))
        self.book.remove(uid)
        if pod.placement is not None:
            self.ledger.promise(-sum(part.bytes for part in pod.placement.slices))
        if not pod.deleting:
            self._lapse(uid)
        self._room_changed()
