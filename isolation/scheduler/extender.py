# SPDX-License-Identifier: Apache-2.0
"""
The scheduler extender's verbs: filter, shortlist, prioritize, bind, preempt; bytes in, bytes out.

Decides whether this replica answers (only the leader, once its informers are synced; another replica returns an error,
never "no node fits") and which pod is meant. Which cards fit is the cache's decision, how a bind survives failures the
binder's. Every request gets an answer; one that cannot be read gets the reason.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import CodecError, pod_of
from isolation.contract.model import Refusal
from isolation.contract.names import SHARED
from isolation.kube.core.errors import ClusterError, MalformedError
from isolation.kube.core.wire import pod_wire
from isolation.scheduler.core import extender_api

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from isolation.contract.model import Pod
    from isolation.kube.store import Store
    from isolation.scheduler.binder import Binder
    from isolation.scheduler.core.cache import SchedulerCache
    from isolation.scheduler.core.unschedulable import UnschedulableQueue
    from isolation.scheduler.informers import Informers
    from isolation.scheduler.leader import Leadership
    from isolation.scheduler.live_read import LiveRead

log = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 2.5
"""A request waits for so long while the Lease changes hands: cheaper than kube-scheduler's back-off."""
LIVE_READ_SECONDS: Final = 3.0
SHORTLIST_NODES: Final = 16
"""Of equally good nodes so many are returned; the in-tree scores choose among them."""
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
_MAX_FILTERED: Final = 8192
"""Pods kept from filter calls, for a bind call that comes before the informer has shown the pod."""


@dataclass(frozen=True, slots=True)
class ExtenderResponse:
    """A response body, and its outcome for the metrics."""

    body: bytes
    outcome: str
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What the verbs and the leader's tasks work with."""

    informers: Informers
    leadership: Leadership
    binder: Binder
    live_read: LiveRead
    unschedulable: UnschedulableQueue
    unit_bytes: int
    clock: Callable[[], float] = time.time

    @property
    def cache(self) -> SchedulerCache:
        """Which pod holds which cards."""
        return self.informers.cache

    @property
    def store(self) -> Store:
        """Nodes and pods as the informers have them."""
        return self.informers.store


class Extender:
    """See the module."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._filtered: OrderedDict[str, Pod] = OrderedDict()

    async def answer(self, verb: str, body: bytes) -> ExtenderResponse:
        """Answer whatever happens: an internal error costs the pod one attempt, and kube-scheduler no time-out."""
        try:
            return await _VERBS[verb](self, body)
        except Exception:
            log.exception("cannot answer %s: internal error", verb)
            text = "internal error in gpushare-scheduler; see its log"
        if verb in ("filter", "shortlist"):
            return ExtenderResponse(extender_api.encode_filter_error(text), "failed")
        if verb == "bind":
            return ExtenderResponse(extender_api.encode_binding_result(text), "failed")
        return ExtenderResponse(text.encode(), "failed", HTTPStatus.SERVICE_UNAVAILABLE)

    async def filter(self, body: bytes, *, short: bool = False) -> ExtenderResponse:
        """Nodes whose cards fit the pod."""
        ask = extender_api.read_extender_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(extender_api.encode_filter_error(ask.reason), "bad_request")
        not_ready = await self._explain_not_ready()
        if not_ready:
            return ExtenderResponse(extender_api.encode_filter_error(not_ready), "not_ready")
        pod = self._read_pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(
                extender_api.encode_filter_result(ask, (), {}, dict.fromkeys(ask.names, pod)), "refused"
            )
        now = self._context.clock()
        if short and (few := self._shortlist(pod, ask, now)):
            # Reasons against the other nodes matter only where none fits.
            self._context.unschedulable.note_fit(pod.uid)
            return ExtenderResponse(extender_api.encode_filter_result(ask, few, {}, {}), "fit")
        found = self._context.cache.filter(pod, ask.names, now)
        if not found.fit:
            self._context.unschedulable.add(pod, tuple(found.failed), now, ask.names)
            return ExtenderResponse(
                extender_api.encode_filter_result(ask, (), found.failed, found.unresolvable), "no_fit"
            )
        self._context.unschedulable.note_fit(pod.uid)
        return ExtenderResponse(
            extender_api.encode_filter_result(ask, found.fit, found.failed, found.unresolvable), "fit"
        )

    async def shortlist(self, body: bytes) -> ExtenderResponse:
        """As `filter`, but only the best nodes that fit, where no other plugin's score could prefer another."""
        return await self.filter(body, short=True)

    def _shortlist(self, pod: Pod, ask: extender_api.ExtenderArgs, now: float) -> list[str]:
        """The nodes with the highest score; none where pod or node states a preference that in-tree plugins score."""
        if extender_api.has_node_preferences(ask.pod):
            return []
        few, nodes = self._context.cache.shortlist(pod, ask.names, SHORTLIST_NODES, now), self._context.store.nodes
        known = (nodes.get(name) for name in few)
        avoided = any(taint.effect == PREFER_NO_SCHEDULE for node in known if node is not None for taint in node.taints)
        return [] if avoided else few

    async def prioritize(self, body: bytes) -> ExtenderResponse:
        """Score nodes that fit; equal scores where that is not known, which leaves the choice to in-tree plugins."""
        ask = extender_api.read_extender_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(ask.reason.encode(), "bad_request", HTTPStatus.BAD_REQUEST)
        not_ready = await self._explain_not_ready()
        pod = not_ready or self._read_pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(
                extender_api.encode_host_priorities(ask.names, [0] * len(ask.names)),
                "not_ready" if not_ready else "refused",
            )
        scores = self._context.cache.prioritize(pod, ask.names, self._context.clock())
        return ExtenderResponse(extender_api.encode_host_priorities(ask.names, scores), "done")

    async def bind(self, body: bytes) -> ExtenderResponse:
        """Node, cards and records in one write."""
        ask = extender_api.read_binding_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(extender_api.encode_binding_result(ask.reason), "bad_request")
        not_ready = await self._explain_not_ready()
        if not_ready:
            return ExtenderResponse(extender_api.encode_binding_result(not_ready), "not_ready")
        pod = self._context.store.pods.get(ask.uid) or self._filtered.get(ask.uid)
        if pod is None:
            text = f"pod {ask.uid} is not in the cache of this replica; kube-scheduler will retry it"
            return ExtenderResponse(extender_api.encode_binding_result(text), "unknown")
        if (pod.namespace, pod.name) != (ask.namespace, ask.name):
            text = f"UID {ask.uid} belongs to pod {pod.key}, not to {ask.namespace}/{ask.name}"
            return ExtenderResponse(extender_api.encode_binding_result(text), "bad_request")
        fence = self._context.leadership.fence()
        try:
            await self._context.live_read.check(ask.node, fence.epoch if fence else -1, LIVE_READ_SECONDS)
        except (ClusterError, TimeoutError) as exc:
            why = str(exc) or f"timed out after {LIVE_READ_SECONDS:g} s"
            text = f"cannot list pods of node {ask.node} ({why}); kube-scheduler will retry the pod"
            return ExtenderResponse(extender_api.encode_binding_result(text), "not_ready")
        error = await self._context.binder.bind(pod, ask.node)
        if not error:
            self._filtered.pop(ask.uid, None)
            self._context.unschedulable.remove(ask.uid)
        return ExtenderResponse(extender_api.encode_binding_result(error), "refused" if error else "bound")

    async def preempt(self, body: bytes) -> ExtenderResponse:
        """Victims that free cards that fit, not only a node's sum."""
        ask = extender_api.read_preemption_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(ask.reason.encode(), "bad_request", HTTPStatus.BAD_REQUEST)
        not_ready = await self._explain_not_ready()
        if not_ready:
            return ExtenderResponse(not_ready.encode(), "not_ready", HTTPStatus.SERVICE_UNAVAILABLE)
        pod = self._read_pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(extender_api.encode_preemption_result({}), "refused")
        answer = self._context.cache.preempt(pod, ask.victims, self._context.clock())
        return ExtenderResponse(extender_api.encode_preemption_result(answer), "done" if answer else "no_fit")

    async def _explain_not_ready(self) -> str:
        """Why this replica does not answer about pods now; empty: it does."""
        missing = self._context.informers.missing()
        if missing:
            return f"informer caches of this replica are not synced yet ({missing}); kube-scheduler will retry the pod"
        if self._context.leadership.fence() is None and not await self._context.leadership.wait(PATIENCE_SECONDS):
            holder = self._context.leadership.holder() or "none"
            return f"this replica is not the leader (Lease holder: {holder}); kube-scheduler will retry the pod"
        return ""

    def _read_pod(self, uid: str, raw: msgspec.Raw) -> Pod | str:
        """The pod as the informer has it, else as the caller sent it; or why it is not this scheduler's."""
        pod = self._context.store.pods.get(uid)
        if pod is None:
            try:
                read = pod_of(pod_wire(raw), self._context.store.nodes, unit_bytes=self._context.unit_bytes)
            except (CodecError, MalformedError) as exc:
                return extender_api.clean(f"cannot read the pod: {exc}")
            if isinstance(read, Refusal):
                return extender_api.clean(read.reason)
            pod = read
        if not pod.uid or "/" in pod.uid:
            return "the pod has no valid UID"
        if not pod.request.shared:
            return "the pod requests no GPU share"
        if pod.labels.get(SHARED) != "true":
            return f"the pod has no label {SHARED}=true, which admission sets; recreate it while the webhook is running"
        if pod.uid in self._context.store.pods:
            return pod
        self._filtered[pod.uid] = pod
        while len(self._filtered) > _MAX_FILTERED:
            self._filtered.popitem(last=False)
        return pod


_VERBS: Final = {
    "filter": Extender.filter,
    "shortlist": Extender.shortlist,
    "prioritize": Extender.prioritize,
    "bind": Extender.bind,
    "preempt": Extender.preempt,
}
VERBS: Final = tuple(_VERBS)
