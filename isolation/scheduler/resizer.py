# SPDX-License-Identifier: Apache-2.0
"""
Live resize as the leader does it: one step of one pod's record after the other.

Decides when a step is written and what an answer means; which step it is, `core.resizing` decides. A record is written
only over the very record that the step was made from (JSON Patch, `test`), so two leaders cannot write past each other,
and what it books is held before the first await. Where the outcome is unknown it stays held until the pod was read.
Growth counts against the namespace's ResourceQuota as well: Kubernetes charges what the spec requests, once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from isolation.contract.codec import CodecError, decode_allocation, encode_allocation, encode_vendor
from isolation.contract.codec.resize import ResizeCondition, ResizeReason, ResizeStatus, decode_status, encode_status
from isolation.contract.names import ACK, ALLOCATION, RESIZE_STATUS
from isolation.contract.quantity import QuantityError, parse, show_bytes
from isolation.kube.core.errors import ClusterError, InvalidError, RefusedError, ServerError
from isolation.kube.election import boottime
from isolation.kube.writes import PodRef, decode_object
from isolation.scheduler.binder import positions
from isolation.scheduler.core.resizing import ResizeStep, is_open

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.contract.model import Pod
    from isolation.kube.access import Access
    from isolation.kube.store import ClusterChange
    from isolation.kube.writes import PodLocation, Writer
    from isolation.scheduler.core.resizing import RecordChange
    from isolation.scheduler.extender import SchedulerContext

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 1.0
"""Between two looks at a resize that waits for room."""
_MAX_WRITES: Final = 20
"""In one cycle."""
_QUOTA: Final = f"requests.{ACK.memory}"


class Resizer:
    """See the module."""

    def __init__(
        self, context: SchedulerContext, access: Access, writer: Writer, clock: Callable[[], float] = boottime
    ) -> None:
        """`clock` is the fence's."""
        self._context, self._access, self._writer, self._clock = context, access, writer, clock
        self._open: set[str] = set()
        self._again: dict[str, float] = {}
        """By UID, when to look again at a step that changed nothing."""
        self._unknown: dict[str, tuple[Pod, ResizeStep]] = {}
        """By UID, a write whose outcome is not known: it is sent again until it is."""
        context.store.listen(self._note)

    async def run_cycle(self) -> None:
        """One step for each pod that has one to take."""
        now, written = self._context.clock(), 0
        for uid in list(self._open):
            pod = self._context.store.pods.get(uid)
            if pod is None or not is_open(pod):
                self._forget(uid)
                continue
            if self._again.get(uid, 0.0) > now:
                continue
            if uid in self._unknown:
                await self._send_again(uid, now)
                continue
            step = self._context.cache.resize_step(uid)
            if step is None:
                continue
            try:
                written += await self._take(pod, step, now)
            except ClusterError as exc:
                log.warning("cannot resize pod, retrying: %s: pod=%s", exc, pod.key)
            if written >= _MAX_WRITES:
                return

    async def _take(self, pod: Pod, step: ResizeStep, now: float) -> bool:
        """Write what the step says; whether anything was written."""
        self._again[pod.uid] = now + RETRY_SECONDS
        fence = self._context.leadership.fence()
        if fence is None:
            return False
        if step.grows_bytes > 0:
            over = await self._over_quota(pod, step.grows_bytes)
            fresh = self._context.cache.resize_step(pod.uid)  # others may have been bound meanwhile
            if fresh != step:
                return False
            if over:
                step = ResizeStep(
                    status=ResizeStatus(ResizeCondition.PENDING, ResizeReason.DEFERRED, over, pod.wanted_resize)
                )
        status = "" if step.status is None else encode_status(step.status)
        if step.change is None and status == pod.resize_status:
            if step.done:
                self._open.discard(pod.uid)
            return False
        if step.change is not None and step.change.resize != pod.resize:
            self._context.cache.book_resize(pod.uid, step.change.resize.generation, step.change.booked)
        await self._write(pod, step, status, fence.left(self._clock()))
        return True

    async def _write(self, pod: Pod, step: ResizeStep, status: str, seconds: float) -> None:
        """One request, made from the record as the API server has it."""
        ref, cache = PodRef(pod.namespace, pod.name, pod.uid), self._context.cache
        known = self._unknown.pop(pod.uid, None) is None
        try:
            where = await self._writer.placed(ref, seconds)
            if where is None or not _is_same(where, pod):
                if known or where is None or not _has(where, step):
                    cache.settle_resize(pod.uid)
                return  # the watch will show what it is
            patch = self._patch(pod, step, status, where)
            await self._access.send("PATCH", f"{ref.path}/status", patch, "json-patch", seconds)
        except ServerError as exc:  # before the write or after it
            why = exc.message or exc.reason
            self._unknown[pod.uid] = (pod, step)
        except RefusedError as exc:
            why = exc.message or exc.reason
            if known or not isinstance(exc, InvalidError):
                cache.settle_resize(pod.uid)
            else:  # the first of the requests came through just now
                self._unknown[pod.uid] = (pod, step)
        except ClusterError as exc:
            why = str(exc)
            self._unknown[pod.uid] = (pod, step)
        else:
            await self._tell(pod, step)
            return
        log.warning("cannot write resize of pod: %s: pod=%s", why, pod.key)

    def _patch(self, pod: Pod, step: ResizeStep, status: str, where: PodLocation) -> Sequence[Mapping[str, Any]]:
        made: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
        if step.change is not None:
            compute = decode_allocation(where.annotations[ALLOCATION]).compute
            request = replace(pod.request, compute=compute)
            text = encode_allocation(pod.uid, request, step.change.booked, compute.policy, resize=step.change.resize)
            made += [
                {"op": "test", "path": _at(ALLOCATION), "value": where.annotations[ALLOCATION]},
                {"op": "replace", "path": _at(ALLOCATION), "value": text},
            ]
            if ACK.allocation_annotation in where.annotations and step.change.final:
                # It has one amount: the larger one, until the smaller one is in force.
                vendor = self._vendor(pod, step.change)
                made.append({"op": "replace", "path": _at(ACK.allocation_annotation), "value": vendor})
        if status:
            made.append({"op": "add", "path": _at(RESIZE_STATUS), "value": status})
        elif RESIZE_STATUS in where.annotations:
            made.append({"op": "remove", "path": _at(RESIZE_STATUS)})
        return made

    def _vendor(self, pod: Pod, change: RecordChange) -> str:
        sums = {part.container: sum(s.bytes for s in part.slices) for part in change.resize.parts}
        asks = tuple(replace(ask, bytes=sums.get(ask.container, ask.bytes)) for ask in pod.request.asks)
        request = replace(pod.request, asks=asks)
        return encode_vendor(request, change.booked, positions(request), unit_bytes=self._context.unit_bytes)

    async def _send_again(self, uid: str, now: float) -> None:
        """A write without an answer; nothing where the watch has shown its record meanwhile."""
        pod, step = self._unknown[uid]
        fence = self._context.leadership.fence()
        if step.change is None or self._context.cache.resize_step(uid) is not None:
            del self._unknown[uid]
        elif fence is not None:
            self._again[uid] = now + RETRY_SECONDS
            status = "" if step.status is None else encode_status(step.status)
            await self._write(pod, step, status, fence.left(self._clock()))

    async def _over_quota(self, pod: Pod, grows: int) -> str:
        """Why the namespace's ResourceQuotas do not allow it; empty: they do."""
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/resourcequotas"
        found = decode_object(await self._access.send("GET", path))
        extra = self._context.cache.extra_bytes(pod.namespace)
        unit = self._context.unit_bytes
        for item in found.get("items") or ():
            status = item.get("status") or {}
            hard, used = (status.get(part) or {} for part in ("hard", "used"))
            limit = hard.get(_QUOTA, ((item.get("spec") or {}).get("hard") or {}).get(_QUOTA))
            if limit is None:
                continue
            try:
                most, spent = int(parse(limit)) * unit, int(parse(used.get(_QUOTA, "0"))) * unit + extra
            except QuantityError:
                continue
            if spent + grows > most:
                name = (item.get("metadata") or {}).get("name", "")
                return (
                    f"exceeds ResourceQuota {name} of namespace {pod.namespace}: {show_bytes(spent)} of "
                    f"{show_bytes(most)} {_QUOTA} used; {show_bytes(grows)} more are wanted"
                )
        return ""

    async def _tell(self, pod: Pod, step: ResizeStep) -> None:
        """One Event per change of the status."""
        try:
            before = decode_status(pod.resize_status) if pod.resize_status else None
        except CodecError:
            before = None
        status = step.status
        if (
            status is not None
            and before is not None
            and (status.condition, status.reason) == (before.condition, before.reason)
        ):
            return
        if status is None and before is None:
            return
        if status is None and before is not None and before.condition is not ResizeCondition.IN_PROGRESS:
            return  # nothing is wanted any more
        reason, note, warning = _event(status)
        try:
            await self._writer.event(PodRef(pod.namespace, pod.name, pod.uid), reason, note, warning=warning)
        except ClusterError as exc:
            log.info("cannot record Event: %s: pod=%s", exc, pod.key)

    def _note(self, change: ClusterChange) -> None:
        """Pods and nodes that say something of a resize."""
        pod, node = change.pod, change.node
        if pod is not None and is_open(pod):
            self._open.add(pod.uid)
            self._again.pop(pod.uid, None)
        elif change.pod_before is not None and pod is None:
            self._forget(change.pod_before.uid)
        before = change.node_before.applied if change.node_before is not None else None
        if node is not None and node.applied is not None and node.applied != before:
            for uid in node.applied:
                self._open.add(uid)
                self._again.pop(uid, None)

    def _forget(self, uid: str) -> None:
        self._open.discard(uid)
        self._again.pop(uid, None)
        self._unknown.pop(uid, None)


def _is_same(where: PodLocation, pod: Pod) -> bool:
    """Whether the API server has the record that the step was made from."""
    if pod.placement is None or where.ended or where.node != pod.placement.node:
        return False
    try:
        found = decode_allocation(where.annotations.get(ALLOCATION, ""))
    except CodecError:
        return False
    generation = found.resize.generation if found.resize is not None else 0
    known = pod.resize.generation if pod.resize is not None else 0
    if generation == known == 0:  # amounts are the spec's, whatever somebody has written there
        return [one.uuid for one in found.slices] == [one.uuid for one in pod.placement.slices]
    return generation == known and found.slices == pod.placement.slices


def _has(where: PodLocation, step: ResizeStep) -> bool:
    """Whether the API server has what the step writes, or something later."""
    try:
        found = decode_allocation(where.annotations.get(ALLOCATION, ""))
    except CodecError:
        return False
    wanted = step.change.resize.generation if step.change is not None else 0
    return not where.ended and found.resize is not None and found.resize.generation >= wanted


def _at(annotation: str) -> str:
    """Where an annotation stands, as a JSON pointer."""
    return f"/metadata/annotations/{annotation.replace('~', '~0').replace('/', '~1')}"


def _event(status: ResizeStatus | None) -> tuple[str, str, bool]:
    """Reason, note and whether it is a warning; Kubernetes' reasons for its own resize."""
    if status is None:
        return "ResizeCompleted", "The resize of GPU shares is in force", False
    if status.condition is ResizeCondition.IN_PROGRESS and status.reason is ResizeReason.NONE:
        return "ResizeStarted", f"The resize of GPU shares is booked: {status.wanted}", False
    if status.condition is ResizeCondition.IN_PROGRESS:
        return "ResizeError", f"The resize of GPU shares is not in force yet: {status.message}", True
    reason = "ResizeInfeasible" if status.reason is ResizeReason.INFEASIBLE else "ResizeDeferred"
    return reason, f"The resize of GPU shares: {status.message}", True
