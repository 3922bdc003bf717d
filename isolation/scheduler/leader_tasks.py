# SPDX-License-Identifier: Apache-2.0
"""
What the leader does of its own: pre-emption by card, waking, tidying reservations away.

Decides the order of steps, each of which can be repeated or left out after a crash. In-tree pre-emption
counts a node's sum, so a pod that fits by sum and by no card is never helped by it: here room is reserved
for the pod first (nobody else may take it), then the victims are evicted through the Eviction API, which
keeps disruption budgets; a budget that says no ends the attempt on that node for a while. Whom to evict is
decided by the books.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from typing import TYPE_CHECKING, Final

from isolation.contract.reservation import Reservation
from isolation.kube.core.errors import ClusterError
from isolation.kube.writes import Outcome, PodRef
from isolation.scheduler.core.reservations import PREEMPTION

if TYPE_CHECKING:
    from isolation.contract.model import Pod
    from isolation.kube.writes import Writer
    from isolation.scheduler.core.unschedulable import Refused
    from isolation.scheduler.extender import World
    from isolation.scheduler.metrics import Metrics
    from isolation.scheduler.writes import Objects

log = logging.getLogger(__name__)
TURN_SECONDS: Final = 0.25
SWEEP_SECONDS: Final = 5.0
"""Between two looks for binds that were never seen to arrive."""
RESERVED_SECONDS: Final = 60.0
"""Longer than any wait for a victim's end by default (30 s of grace)."""
SPURNED_SECONDS: Final = 30.0
"""A node whose victims may not go is not tried again before."""
FORGET_SECONDS: Final = 300.0
"""A pod that our watch never told of: kube-scheduler itself tries those that it still has after so long."""
_WAKES: Final = 20
"""Most pods woken in one turn."""
_RELIEFS: Final = 4
_MOST_SPURNED: Final = 10_000


class Errands:
    """One turn after another, on the leader only."""

    def __init__(self, world: World, objects: Objects, writer: Writer, metrics: Metrics) -> None:
        self._world, self._objects, self._writer, self._metrics = world, objects, writer, metrics
        self._spurned: dict[tuple[str, str], float] = {}
        self._swept = world.clock()
        self._epoch: int | None = None
        """Of the right to act under which pods that wait were last looked for."""
        world.picture.on_freed(lambda: world.waiting.freed(world.clock()))

    async def run(self) -> None:
        """Until cancelled; trouble with the server costs a turn."""
        while True:
            await asyncio.sleep(TURN_SECONDS)
            try:
                await self._sweep(self._world.clock())
            except ClusterError as exc:
                log.warning("cannot check pods whose binding is not confirmed: %s", exc)
            fence = self._world.leadership.fence()
            if fence is None or self._world.picture.missing():
                continue
            try:
                self._take_over(fence.epoch)
                await self.turn()
            except ClusterError as exc:
                log.warning("cannot preempt, requeue pods or delete reservations, retrying: %s", exc)
                await asyncio.sleep(1.0)

    async def turn(self) -> None:
        """Tidy, wake, help."""
        now = self._world.clock()
        await self._tidy(now)
        await self._wake(now)
        await self._help(now)

    def _take_over(self, epoch: int) -> None:
        """
        Pods that wait as this process begins to lead, or leads again after somebody else, who may have refused them.

        kube-scheduler does not know that we are new, and lets them sleep. Where our own right had only lapsed nobody
        was refused meanwhile: an extender that does not answer costs a pod a back-off, not its sleep.
        """
        if epoch == self._epoch:
            return
        self._epoch = epoch
        now, names = self._world.clock(), tuple(self._world.store.nodes)
        for pod in self._world.store.pods.values():
            if pod.placement is None and not pod.deleting:
                self._world.waiting.missed(pod, names, now)
        self._world.waiting.freed(now)

    async def _sweep(self, now: float) -> None:
        """Ask for pods that were never seen bound; also who leads no more must not keep their room for ever."""
        if now >= self._swept + SWEEP_SECONDS:
            self._swept = now
            await self._world.binder.sweep()

    async def _tidy(self, now: float) -> None:
        """Reservations that are used up, expired, given up half way, or made for a pod that is no more."""
        for made in list(self._world.books.stale_reservations(now)):
            said = await self._objects.release(made)
            if said:
                log.warning("cannot delete reservation %s: %s", made.name, said)

    async def _wake(self, now: float) -> None:
        woken = 0
        for one in list(self._world.waiting.to_wake(now)):
            # One that our watch has not told of yet waits all the same; its end is told by the watch or by the write.
            pod = self._world.store.pods.get(one.pod.uid, one.pod)
            if pod.placement is not None or pod.deleting:
                self._world.waiting.served(one.pod.uid)
                continue
            if one.pod.uid not in self._world.store.pods and now >= one.last + FORGET_SECONDS:
                self._world.waiting.served(one.pod.uid)
                continue
            self._world.waiting.woken(pod.uid, now)
            await asyncio.sleep(0)  # thousands may wait: others get their turn
            books, names = self._world.books, one.asked or tuple(self._world.store.nodes)
            if not (books.could_fit(pod, now) and books.filter(pod, names, now).fit):
                continue
            moment = dt.datetime.fromtimestamp(now, dt.UTC).isoformat()
            said = await self._objects.wake(_target(pod), moment)
            self._metrics.woken(said)
            woken += 1
            if woken >= _WAKES:
                return

    async def _help(self, now: float) -> None:
        """Pods that fit by sum but by no card, and have somebody to come before."""
        self._spurned = {key: until for key, until in self._spurned.items() if until > now}
        served = {made.holder for made in self._world.picture.reservations.known.values() if not made.pool}
        tried = 0
        for one in list(self._world.waiting.to_relieve(now)):
            pod = self._world.store.pods.get(one.pod.uid, one.pod)
            if pod.placement is not None or pod.deleting:
                self._world.waiting.served(one.pod.uid)
                continue
            if pod.uid in served or pod.uid not in self._world.store.pods:
                continue
            tried += await self._relieve(one, pod, now)
            if tried >= _RELIEFS:
                return

    async def _relieve(self, one: Refused, pod: Pod, now: float) -> bool:
        """One attempt for one pod; whether there was anything to try."""
        names = [name for name in one.names if (pod.uid, name) not in self._spurned]
        found = self._world.books.relief(pod, names, now)
        if found is None:
            return False
        made = Reservation(
            name=f"{PREEMPTION}-{pod.uid}",
            holder=pod.uid,
            placement=found.placement,
            expires=now + RESERVED_SECONDS,
            namespace=pod.namespace,
            reason=PREEMPTION,
        )
        if not await self._reserve(made, pod):
            self._metrics.relieved("unreserved")
            return True
        for uid in found.victims:
            if not await self._evict(uid, pod):
                if len(self._spurned) < _MOST_SPURNED:
                    self._spurned[pod.uid, found.node] = now + SPURNED_SECONDS
                await self._objects.release(made)
                self._metrics.relieved("blocked")
                return True
        self._metrics.relieved("done")
        log.info("preempted %d pods on node %s for %s", len(found.victims), found.node, pod.key)
        return True

    async def _reserve(self, made: Reservation, pod: Pod) -> bool:
        """Take the room before anything is awaited: nobody may be placed there while the server is asked."""
        kept = self._world.picture.reservations
        kept.add(made)
        try:
            said = await self._objects.reserve(made)
        except ClusterError:
            kept.withdraw(made)
            raise
        if said:
            kept.withdraw(made)
            log.warning("cannot store reservation for %s: %s", pod.key, said)
        return not said

    async def _evict(self, uid: str, preemptor: Pod) -> bool:
        """Whether the victim is ending; the right to act is asked for each."""
        victim = self._world.store.pods.get(uid)
        if victim is None or victim.deleting:
            return True
        fence = self._world.leadership.fence()
        if fence is None:
            return False
        answer = await self._writer.evict(_target(victim))
        self._metrics.evicted(answer.outcome)
        if answer.outcome not in (Outcome.DONE, Outcome.GONE):
            log.info("cannot evict %s for %s: %s", victim.key, preemptor.key, answer.said)
            return False
        if answer:
            note = f"Preempted by {preemptor.key}, which has a higher priority and fits on no other card"
            try:
                await self._writer.event(_target(victim), "Preempted", note, warning=True)
            except ClusterError as exc:
                log.info("cannot record Event for %s: %s", victim.key, exc)
        return True


def _target(pod: Pod) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)
