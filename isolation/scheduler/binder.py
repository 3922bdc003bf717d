# SPDX-License-Identifier: Apache-2.0
"""
Bind one pod, until it is certain whether it is bound, whatever the API server and the Lease do meanwhile.

Cards are taken before the first await, and given back only when it is certain that the pod was not bound. A time-out
or a server error (5xx) is an unknown outcome: the write may have happened, or may still happen. So the pod is read by
UID. While it is unbound, its cards are still free and kube-scheduler still wants it there, the same binding is sent
again, to the same node with the same records, so that it does not matter which of the requests arrives. A request that
may still be under way keeps its cards for `HORIZON_SECONDS`. Bindings do not wait for each other, not even on one
node; a pod has one at a time. Which cards a pod gets is the cache's decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.codec import CodecError, decode_allocation, encode_allocation, encode_vendor
from isolation.contract.model import Placement, Refusal
from isolation.contract.names import ACK, ALLOCATION, RESERVATION, Dialect
from isolation.contract.quantity import GIB
from isolation.kube.core.errors import ClusterError
from isolation.kube.election import boottime
from isolation.kube.writes import REQUEST_SECONDS, Outcome, PodRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from isolation.contract.model import Pod, Request
    from isolation.kube.election import Fence
    from isolation.kube.writes import PodLocation, WriteResult
    from isolation.scheduler.core.cache import AssumedPlacement, SchedulerCache

log = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 4.0
"""The caller gets an answer by then (kube-scheduler's own limit is 5 s unless configured)."""
WANTED_SECONDS: Final = 10.0
"""A binding is sent again for so long after the last bind call for it."""
HORIZON_SECONDS: Final = REQUEST_SECONDS + 15.0
"""A request without an answer can still be under way for so long: the API server's limit, and the way there."""
OBSERVED_SECONDS: Final = 30.0
"""A bound pod shows up in the watch sooner than this, or is looked up."""
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0


class BindingWriter(Protocol):
    """The requests that a bind needs (`isolation.kube.writes.Writer`); ClusterError: the outcome is unknown."""

    async def bind(
        self, pod: PodRef, node: str, annotations: Mapping[str, str], seconds: float | None = None
    ) -> WriteResult:
        """Node and records in one write, by UID; refused where the pod is bound already."""

    async def placed(self, pod: PodRef, seconds: float | None = None) -> PodLocation | None:
        """Where the API server says that the pod is; None: there is no such pod."""


@dataclass(slots=True)
class _PendingBinding:
    """One pod on its way to one node."""

    target: PodRef
    node: str
    records: Mapping[str, str]
    requested: float
    """When the bind verb last asked for it."""
    unanswered: float | None = None
    """When a request was last sent whose outcome is unknown."""
    refused: bool = False
    """The last request was answered, and refused."""
    message: str = ""
    task: asyncio.Task[str] = field(init=False)


class Binder:
    """See the module; `fence` gives the right to act, `clock` is the fence's, `wall` the cache's, both in seconds."""

    def __init__(
        self,
        cache: SchedulerCache,
        writer: BindingWriter,
        fence: Callable[[], Fence | None],
        *,
        clock: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dialect: Dialect = ACK,
        unit_bytes: int = GIB,
    ) -> None:
        self._cache, self._writer, self._fence = cache, writer, fence
        self._clock, self._wall, self._sleep = clock, wall, sleep
        self._dialect, self._unit = dialect, unit_bytes
        self._open: dict[str, _PendingBinding] = {}
        self._dropped = False
        """Whether a binding was given up before its outcome was certain."""

    @property
    def open(self) -> int:
        """Bindings whose outcome is not certain yet."""
        return len(self._open)

    def settled(self) -> bool:
        """Whether no request of this process can take effect any more."""
        return not self._open and not self._dropped

    async def bind(self, pod: Pod, node: str) -> str:
        """Bind the pod there; empty: it is bound, else why not (yet), for people."""
        job = self._open.get(pod.uid) or self._begin(pod, node)
        if isinstance(job, str):
            return job
        if job.node != node:
            return f"{pod.key} is already being bound to {job.node}; wait for that binding to finish"
        job.requested = self._clock()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                # Shielded: the caller gives up after its time, the binding does not.
                return await asyncio.shield(job.task)
        except TimeoutError:
            why = job.message or "no response yet"
            return f"binding of {pod.key} to {node} is not confirmed yet ({why}); its cards remain reserved"

    async def sweep(self) -> None:
        """Look up pods that have long been assumed and not been observed bound; every few seconds is enough."""
        for late in self._cache.find_overdue(self._wall(), OBSERVED_SECONDS):
            if late.uid in self._open:
                continue
            where = await self._writer.placed(PodRef(late.namespace, late.name, late.uid))
            if where is None or where.ended:
                self._cache.remove_pod(late.uid)
            elif where.node:
                self._record_binding(late.uid, where)
            elif late.uid not in self._open:  # a bind may have begun while the pod was looked up
                self._cache.forget(late.uid)

    async def drain(self, seconds: float) -> None:
        """Wait for open bindings, so long at most; then give them up."""
        jobs = [job.task for job in self._open.values()]
        if not jobs:
            return
        _, late = await asyncio.wait(jobs, timeout=seconds)
        self._dropped = self._dropped or bool(late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _begin(self, pod: Pod, node: str) -> _PendingBinding | str:
        """Take the cards and start the request; without an await, so that no other bind gets in between."""
        if self._fence() is None:
            return "this replica is not the leader; kube-scheduler will retry the pod"
        found = self._cache.assume(pod, node, self._wall())
        if isinstance(found, Refusal):
            return found.reason
        job = _PendingBinding(PodRef(pod.namespace, pod.name, pod.uid), node, self._records(pod, found), self._clock())
        self._open[pod.uid] = job
        job.task = asyncio.create_task(self._run_until_certain(job))
        return job

    def _records(self, pod: Pod, found: AssumedPlacement) -> dict[str, str]:
        records = {
            ALLOCATION: encode_allocation(
                pod.uid, pod.request, found.placement, self._cache.policy_of(found.placement.node)
            ),
            self._dialect.allocation_annotation: encode_vendor(
                pod.request, found.placement, positions(pod.request), unit_bytes=self._unit
            ),
        }
        return records | ({RESERVATION: found.reservation} if found.reservation else {})

    async def _run_until_certain(self, job: _PendingBinding) -> str:
        """Send and look up in turns until the outcome is certain; empty: bound as requested, else why not."""
        wait = _FIRST_WAIT
        try:
            while True:
                pause = await self._send(job)
                if pause is None:
                    return ""
                result = await self._check(job)
                if result is not None:
                    return result
                await self._sleep(max(wait, min(pause, _LONGEST_WAIT)))
                wait = min(2 * wait, _LONGEST_WAIT)
        finally:
            if self._open.get(job.target.uid) is job:
                del self._open[job.target.uid]

    async def _send(self, job: _PendingBinding) -> float | None:
        """Send the binding if this replica leads and it is still wanted: None if done, else seconds to wait first."""
        now, fence = self._clock(), self._fence()
        if fence is None or now - job.requested > WANTED_SECONDS:
            job.message = job.message or "this replica is no longer the leader"
            return 0.0
        if job.unanswered is not None and not self._cache.still_fits(job.target.uid):
            # The Lease was another replica's meanwhile, and it knew nothing of a request that had not arrived.
            job.refused, job.message = True, "its cards are no longer free: another pod was bound to them"
            return 0.0
        job.refused = False
        try:
            answer = await self._writer.bind(job.target, job.node, job.records, fence.left(now))
        except ClusterError as exc:
            job.unanswered, job.message = self._clock(), str(exc)
            return 0.0
        if answer:
            self._cache.confirm(job.target.uid)
            return None
        job.message = answer.said or answer.outcome.value
        if answer.outcome is Outcome.BLOCKED:
            # A 5xx can come after the write as well as before it: the outcome is unknown.
            job.unanswered = self._clock()
        else:
            job.refused = True
        return answer.retry_after or 0.0

    async def _check(self, job: _PendingBinding) -> str | None:
        """Read the pod: None if nothing is certain yet; empty: bound as requested, else why not."""
        try:
            where = await self._writer.placed(job.target)
        except ClusterError as exc:
            job.message = str(exc)
            return None
        uid, now = job.target.uid, self._clock()
        if where is None:
            self._cache.remove_pod(uid)
            return "the pod no longer exists"
        if where.node:
            return self._settle_bound(job, where)
        # "Unbound" now does not mean that it stays so: an unanswered request may still arrive, and bind the pod after
        # its cards were given to another one.
        under_way = job.unanswered is not None and now - job.unanswered < HORIZON_SECONDS
        wanted = self._fence() is not None and now - job.requested <= WANTED_SECONDS
        if under_way or (wanted and not job.refused):
            return None
        self._cache.forget(uid)
        return job.message

    def _settle_bound(self, job: _PendingBinding, where: PodLocation) -> str:
        """The pod is bound: by us (whichever of the requests it was), or by another client."""
        uid = job.target.uid
        ours = where.node == job.node and where.annotations.get(ALLOCATION) == job.records[ALLOCATION]
        if where.ended:
            self._cache.remove_pod(uid)
            return "" if ours else "the pod has already finished"
        if ours:
            self._cache.confirm(uid)
            return ""
        recorded = self._record_binding(uid, where)
        binder = "by another replica" if recorded else "by a client that wrote no allocation record"
        log.warning("cannot bind pod: it is already bound %s: uid=%s node=%s", binder, uid, where.node)
        return f"the pod is already bound to {where.node} {binder}"

    def _record_binding(self, uid: str, where: PodLocation) -> bool:
        """Put what the pod says into the cache; False: it has no record of ours (the watch may read the vendor's)."""
        try:
            slices = decode_allocation(where.annotations.get(ALLOCATION, "")).slices
        except CodecError:
            slices = ()
        self._cache.record_binding(uid, Placement(where.node, slices), where.annotations.get(RESERVATION, ""))
        return bool(slices)


def positions(request: Request) -> list[str]:
    """Container names by position in `spec.containers`; empty where the container requests nothing."""
    at = {ask.position: ask.container for ask in request.asks if ask.position >= 0}
    return [at.get(i, "") for i in range(max(at, default=-1) + 1)]
