# SPDX-License-Identifier: Apache-2.0
"""
What the leader does between requests: delete reservations, resize and requeue pods, preempt by card.

Decides the order of steps; each can be repeated, or left out after a crash. In-tree preemption counts a node's sum, so
it never helps a pod that fits by sum but on no card. Here cards are reserved for the pod first (no other pod may take
them), then the victims are evicted through the Eviction API, which keeps disruption budgets; a budget that refuses
ends the attempt on that node for a while. Which pods to evict is the cache's decision.
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
    from isolation.scheduler.core.unschedulable import UnschedulablePod
    from isolation.scheduler.extender import SchedulerContext
    from isolation.scheduler.metrics import Metrics
    from isolation.scheduler.resizer import Resizer
    from isolation.scheduler.writes import ObjectWriter

log = logging.getLogger(__name__)
CYCLE_SECONDS: Final = 0.25
SWEEP_SECONDS: Final = 5.0
"""Between two look-ups of pods that were assumed and not observed bound."""
RESERVED_SECONDS: Final = 60.0
"""Longer than a victim takes to end by default (30 s of grace)."""
EVICTION_REFUSED_SECONDS: Final = 30.0
"""A node whose victims may not be evicted is not tried again before."""
FORGET_SECONDS: Final = 300.0
"""For a pod that the watch never showed: by then kube-scheduler has retried it itself, if it still exists."""
_MAX_REQUEUED: Final = 20
"""Pods requeued in one cycle."""
_MAX_PREEMPTIONS: Final = 4
_MAX_REFUSED: Final = 10_000


class LeaderTasks:
    """One cycle after another, on the leader only."""

    def __init__(
        self, context: SchedulerContext, objects: ObjectWriter, writer: Writer, metrics: Metrics, resizer: Resizer
    ) -> None:
        self._context, self._objects, self._writer, self._metrics = context, objects, writer, metrics
        self._resizer = resizer
        self._refused: dict[tuple[str, str], float] = {}
        self._checked_at = context.clock()
        self._epoch: int | None = None
        """Of the Lease, when pending pods were last added to the unschedulable queue."""
        context.informers.on_capacity_freed(lambda: context.unschedulable.note_freed(context.clock()))

    async def run(self) -> None:
        """Run until cancelled; an API server error costs one cycle."""
        while True:
            await asyncio.sleep(CYCLE_SECONDS)
            try:
                await self._check_assumed(self._context.clock())
            except ClusterError as exc:
                log.warning("cannot check pods whose binding is not confirmed: %s", exc)
            fence = self._context.leadership.fence()
            if fence is None or self._context.informers.missing():
                continue
            try:
                self._take_over(fence.epoch)
                await self.run_cycle()
            except ClusterError as exc:
                log.warning("cannot preempt, requeue pods or delete reservations, retrying: %s", exc)
                await asyncio.sleep(1.0)

    async def run_cycle(self) -> None:
        """Delete reservations, resize and requeue pods, preempt."""
        now = self._context.clock()
        await self._delete_reservations(now)
        await self._resizer.run_cycle()
        await self._requeue(now)
        await self._preempt(now)

    def _take_over(self, epoch: int) -> None:
        """
        Queue the pending pods of the leader before, which may have refused them.

        kube-scheduler does not know that the leader is another one, and does not retry them. After a lapse of this
        replica's own Lease (same epoch) no pod was refused: without an answer a pod only gets a back-off.
        """
        if epoch == self._epoch:
            return
        self._epoch = epoch
        now, names = self._context.clock(), tuple(self._context.store.nodes)
        for pod in self._context.store.pods.values():
            if pod.placement is None and not pod.deleting:
                self._context.unschedulable.add_unknown(pod, names, now)
        self._context.unschedulable.note_freed(now)

    async def _check_assumed(self, now: float) -> None:
        """Look up pods not observed bound; also without the Lease, or their cards would stay taken for ever."""
        if now >= self._checked_at + SWEEP_SECONDS:
            self._checked_at = now
            await self._context.binder.sweep()

    async def _delete_reservations(self, now: float) -> None:
        """Delete reservations that are used up, expired, abandoned, or for a pod that is gone."""
        for made in list(self._context.cache.find_stale_reservations(now)):
            error = await self._objects.delete_reservation(made)
            if error:
                log.warning("cannot delete reservation: %s: reservation=%s", error, made.name)

    async def _requeue(self, now: float) -> None:
        requeued = 0
        for entry in list(self._context.unschedulable.to_requeue(now)):
            # A pod that the watch has not shown yet waits all the same; the watch or the write will tell its end.
            pod = self._context.store.pods.get(entry.pod.uid, entry.pod)
            if pod.placement is not None or pod.deleting:
                self._context.unschedulable.remove(entry.pod.uid)
                continue
            if entry.pod.uid not in self._context.store.pods and now >= entry.last + FORGET_SECONDS:
                self._context.unschedulable.remove(entry.pod.uid)
                continue
            self._context.unschedulable.mark_requeued(pod.uid, now)
            await asyncio.sleep(0)  # thousands of pods may wait: let other tasks run
            cache, names = self._context.cache, entry.asked or tuple(self._context.store.nodes)
            if not (cache.could_fit(pod, now) and cache.filter(pod, names, now).fit):
                continue
            moment = dt.datetime.fromtimestamp(now, dt.UTC).isoformat()
            error = await self._objects.requeue(_target(pod), moment)
            self._metrics.count_requeue(error)
            requeued += 1
            if requeued >= _MAX_REQUEUED:
                return

    async def _preempt(self, now: float) -> None:
        """Preempt for pods that fit by sum but on no card."""
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        reserved = {made.holder for made in self._context.informers.reservations.known.values() if not made.pool}
        tried = 0
        for entry in list(self._context.unschedulable.to_preempt_for(now)):
            pod = self._context.store.pods.get(entry.pod.uid, entry.pod)
            if pod.placement is not None or pod.deleting:
                self._context.unschedulable.remove(entry.pod.uid)
                continue
            if pod.uid in reserved or pod.uid not in self._context.store.pods:
                continue
            tried += await self._preempt_for(entry, pod, now)
            if tried >= _MAX_PREEMPTIONS:
                return

    async def _preempt_for(self, entry: UnschedulablePod, pod: Pod, now: float) -> bool:
        """One attempt for one pod; whether there was one to make."""
        names = [name for name in entry.names if (pod.uid, name) not in self._refused]
        found = self._context.cache.find_preemption(pod, names, now)
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
            self._metrics.count_preemption("unreserved")
            return True
        for uid in found.victims:
            if not await self._evict(uid, pod):
                if len(self._refused) < _MAX_REFUSED:
                    self._refused[pod.uid, found.node] = now + EVICTION_REFUSED_SECONDS
                await self._objects.delete_reservation(made)
                self._metrics.count_preemption("blocked")
                return True
        self._metrics.count_preemption("done")
        log.info("preempted %d pods: node=%s for=%s", len(found.victims), found.node, pod.key)
        return True

    async def _reserve(self, made: Reservation, pod: Pod) -> bool:
        """Keep the cards before the first await: no other pod may be placed there while the object is created."""
        kept = self._context.informers.reservations
        kept.add(made)
        try:
            error = await self._objects.create_reservation(made)
        except ClusterError:
            kept.withdraw(made)
            raise
        if error:
            kept.withdraw(made)
            log.warning("cannot create reservation: %s: pod=%s", error, pod.key)
        return not error

    async def _evict(self, uid: str, preemptor: Pod) -> bool:
        """Whether the victim is ending; the Lease is checked for each one."""
        victim = self._context.store.pods.get(uid)
        if victim is None or victim.deleting:
            return True
        fence = self._context.leadership.fence()
        if fence is None:
            return False
        answer = await self._writer.evict(_target(victim))
        self._metrics.count_eviction(answer.outcome)
        if answer.outcome not in (Outcome.DONE, Outcome.GONE):
            log.info("cannot evict pod: %s: pod=%s for=%s", answer.said, victim.key, preemptor.key)
            return False
        if answer:
            note = f"Preempted by {preemptor.key}, which has a higher priority and fits on no other card"
            try:
                await self._writer.event(_target(victim), "Preempted", note, warning=True)
            except ClusterError as exc:
                log.info("cannot record Event: %s: pod=%s", exc, victim.key)
        return True


def _target(pod: Pod) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)
