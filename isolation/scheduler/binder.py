# SPDX-License-Identifier: Apache-2.0
"""
One bind from the wish to the certainty, whatever the API server and the Lease do meanwhile.

Room is taken before anything is awaited and given back only when it is certain that the pod did not
get it. An answer that did not come, or came as the server's own trouble, says nothing: the server is
asked by UID, and while it says "unbound" and somebody still wants the pod there, the same binding is
sent again: to the same node with the same records, so that it does not matter which of them arrives.
A request that may still be under way keeps its room for `HORIZON_SECONDS`. Binds do not wait for one
another, also not on one node; of one pod there is one at a time. Decides nothing about cards (`books`).
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
    from isolation.scheduler.core.answers import Assumed
    from isolation.scheduler.core.cache import Books

log = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 4.0
"""Who asked for a bind gets an answer by then (kube-scheduler's own limit is 5 s unless configured)."""
WANTED_SECONDS: Final = 10.0
"""So long after it was last asked for is a binding sent again; asking again renews it."""
HORIZON_SECONDS: Final = REQUEST_SECONDS + 15.0
"""So long can a request whose answer did not come still be under way: as the API server allows, and the way there."""
SEEN_SECONDS: Final = 30.0
"""A pod that is bound by the server's word shows up in the watch sooner, or the server is asked again."""
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0


class Bindings(Protocol):
    """The writes that a bind needs (`isolation.kube.writes.Writer`); ClusterError: nobody knows."""

    async def bind(
        self, pod: PodRef, node: str, annotations: Mapping[str, str], seconds: float | None = None
    ) -> WriteResult:
        """Node and records in one write, by UID; refused where the pod is bound already."""

    async def placed(self, pod: PodRef, seconds: float | None = None) -> PodLocation | None:
        """Where the pod is by the server's word; None where there is no such pod."""


@dataclass(slots=True)
class _Job:
    """One pod on its way to one node."""

    target: PodRef
    node: str
    records: Mapping[str, str]
    wanted: float
    """When it was last asked for."""
    unsure: float | None = None
    """When a request was last sent whose answer did not come."""
    refused: bool = False
    """The last request was answered, with no."""
    said: str = ""
    task: asyncio.Task[str] = field(init=False)


class Binder:
    """See the module; `fence` gives the right to act, `clock` is that of the fence, `wall` that of the books."""

    def __init__(
        self,
        books: Books,
        writer: Bindings,
        fence: Callable[[], Fence | None],
        *,
        clock: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dialect: Dialect = ACK,
        unit_bytes: int = GIB,
    ) -> None:
        self._books, self._writer, self._fence = books, writer, fence
        self._clock, self._wall, self._sleep = clock, wall, sleep
        self._dialect, self._unit = dialect, unit_bytes
        self._open: dict[str, _Job] = {}
        self._dropped = False
        """Whether a bind was let go of before its outcome was certain."""

    @property
    def open(self) -> int:
        """Binds whose outcome is not certain yet."""
        return len(self._open)

    def settled(self) -> bool:
        """Whether no request of ours can take effect any more."""
        return not self._open and not self._dropped

    async def bind(self, pod: Pod, node: str) -> str:
        """Bind the pod there; empty when it is bound, else why not (yet), for people."""
        job = self._open.get(pod.uid) or self._begin(pod, node)
        if isinstance(job, str):
            return job
        if job.node != node:
            return f"{pod.key} is already being bound to {job.node}; wait for that binding to finish"
        job.wanted = self._clock()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.shield(job.task)
        except TimeoutError:
            why = job.said or "no response yet"
            return f"binding of {pod.key} to {node} is not confirmed yet ({why}); its cards remain reserved"

    async def sweep(self) -> None:
        """Ask the server about pods that have long been assumed and not been seen; every few seconds is enough."""
        for late in self._books.overdue(self._wall(), SEEN_SECONDS):
            if late.uid in self._open:
                continue
            where = await self._writer.placed(PodRef(late.namespace, late.name, late.uid))
            if where is None or where.ended:
                self._books.pod_gone(late.uid)
            elif where.node:
                self._bound_as(late.uid, where)
            elif late.uid not in self._open:
                self._books.undo(late.uid)

    async def drain(self, seconds: float) -> None:
        """Wait for the binds under way, so long at most; then let go of them."""
        jobs = [job.task for job in self._open.values()]
        if not jobs:
            return
        _, late = await asyncio.wait(jobs, timeout=seconds)
        self._dropped = self._dropped or bool(late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _begin(self, pod: Pod, node: str) -> _Job | str:
        """Take the room and send the request on its way, without a pause in between."""
        if self._fence() is None:
            return "this replica is not the leader; kube-scheduler will retry the pod"
        found = self._books.assume(pod, node, self._wall())
        if isinstance(found, Refusal):
            return found.reason
        job = _Job(PodRef(pod.namespace, pod.name, pod.uid), node, self._records(pod, found), self._clock())
        self._open[pod.uid] = job
        job.task = asyncio.create_task(self._certain(job))
        return job

    def _records(self, pod: Pod, found: Assumed) -> dict[str, str]:
        records = {
            ALLOCATION: encode_allocation(pod.uid, pod.request, found.placement),
            self._dialect.allocation_annotation: encode_vendor(
                pod.request, found.placement, _positions(pod.request), unit_bytes=self._unit
            ),
        }
        return records | ({RESERVATION: found.reservation} if found.reservation else {})

    async def _certain(self, job: _Job) -> str:
        """Until it is certain: empty if the pod is bound as wished, else why not."""
        wait = _FIRST_WAIT
        try:
            while True:
                pause = await self._send(job)
                if pause is None:
                    return ""
                decided = await self._look(job)
                if decided is not None:
                    return decided
                await self._sleep(max(wait, min(pause, _LONGEST_WAIT)))
                wait = min(2 * wait, _LONGEST_WAIT)
        finally:
            if self._open.get(job.target.uid) is job:
                del self._open[job.target.uid]

    async def _send(self, job: _Job) -> float | None:
        """Send the binding if it may and should be: None if it is done, else seconds that the server wants to rest."""
        now, fence = self._clock(), self._fence()
        if fence is None or now - job.wanted > WANTED_SECONDS:
            job.said = job.said or "this replica is no longer the leader"
            return 0.0
        job.refused = False
        try:
            answer = await self._writer.bind(job.target, job.node, job.records, fence.left(now))
        except ClusterError as exc:
            job.unsure, job.said = self._clock(), str(exc)
            return 0.0
        if answer:
            self._books.confirm(job.target.uid)
            return None
        job.said = answer.said or answer.outcome.value
        if answer.outcome is Outcome.BLOCKED:
            # A server's trouble (5xx) can come after the write as well as before it.
            job.unsure = self._clock()
        else:
            job.refused = True
        return answer.retry_after or 0.0

    async def _look(self, job: _Job) -> str | None:
        """What the server says of the pod, if that decides: why it is not bound as wished; empty: it is."""
        try:
            where = await self._writer.placed(job.target)
        except ClusterError as exc:
            job.said = str(exc)
            return None
        uid, now = job.target.uid, self._clock()
        if where is None:
            self._books.pod_gone(uid)
            return "the pod no longer exists"
        if where.node:
            return self._bound(job, where)
        under_way = job.unsure is not None and now - job.unsure < HORIZON_SECONDS
        wanted = self._fence() is not None and now - job.wanted <= WANTED_SECONDS
        if under_way or (wanted and not job.refused):
            return None
        self._books.undo(uid)
        return job.said

    def _bound(self, job: _Job, where: PodLocation) -> str:
        """The pod is bound: by us, then it does not matter which request it was; or by somebody else."""
        uid = job.target.uid
        ours = where.node == job.node and where.annotations.get(ALLOCATION) == job.records[ALLOCATION]
        if where.ended:
            self._books.pod_gone(uid)
            return "" if ours else "the pod has already finished"
        if ours:
            self._books.confirm(uid)
            return ""
        whose = "by another replica" if self._bound_as(uid, where) else "by a client that wrote no allocation record"
        log.warning("pod %s is already bound to %s %s", uid, where.node, whose)
        return f"the pod is already bound to {where.node} {whose}"

    def _bound_as(self, uid: str, where: PodLocation) -> bool:
        """Book what the server says; False: without cards, which the watch will tell where the vendor's record does."""
        try:
            slices = decode_allocation(where.annotations.get(ALLOCATION, "")).slices
        except CodecError:
            slices = ()
        self._books.bound_as(uid, Placement(where.node, slices), where.annotations.get(RESERVATION, ""))
        return bool(slices)


def _positions(request: Request) -> list[str]:
    """Names by position in `spec.containers`; empty where the container asks for nothing."""
    at = {ask.position: ask.container for ask in request.asks if ask.position >= 0}
    return [at.get(i, "") for i in range(max(at, default=-1) + 1)]
