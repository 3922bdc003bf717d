# SPDX-License-Identifier: Apache-2.0
"""
The verbs that kube-scheduler asks: filter, shortlist, prioritize, bind, preempt; bytes in, bytes out.

Decides who answers (only a replica that leads and has read the whole cluster; everybody else says so,
which is never "no node fits") and which pod is meant. Which cards fit is the books' business, how a
bind survives trouble the binder's. Every request gets an answer; what cannot be read is said back.
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
    from collections.abc import Callable, Mapping

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
"""So long does a request wait for a Lease that is just changing hands: cheaper than kube-scheduler's back-off."""
LIVE_READ_SECONDS: Final = 3.0
SHORTLIST_NODES: Final = 16
"""Of nodes that are equally good to us so many are answered: among them the in-tree scores choose."""
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
_REMEMBERED: Final = 8192


@dataclass(frozen=True, slots=True)
class ExtenderResponse:
    """An answer, and what it amounts to for the metrics."""

    body: bytes
    outcome: str
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """Everything that the verbs need."""

    picture: Informers
    leadership: Leadership
    binder: Binder
    fresh: LiveRead
    waiting: UnschedulableQueue
    unit_bytes: int
    clock: Callable[[], float] = time.time

    @property
    def books(self) -> SchedulerCache:
        """Room, and who has it."""
        return self.picture.books

    @property
    def store(self) -> Store:
        """Objects as the server said last."""
        return self.picture.store


class Extender:
    """See the module."""

    def __init__(self, world: SchedulerContext) -> None:
        self._world = world
        self._asked: OrderedDict[str, Pod] = OrderedDict()

    async def answer(self, verb: str, body: bytes) -> ExtenderResponse:
        """One question, whatever happens: a defect of ours costs the pod one attempt, not kube-scheduler its answer."""
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
        """Nodes with a card set that has the room."""
        ask = extender_api.read_extender_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(extender_api.encode_filter_error(ask.reason), "bad_request")
        closed = await self._closed()
        if closed:
            return ExtenderResponse(extender_api.encode_filter_error(closed), "not_ready")
        pod = self._pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(
                extender_api.encode_filter_result(ask, (), {}, dict.fromkeys(ask.names, pod)), "refused"
            )
        now = self._world.clock()
        if short and (few := self._few(pod, ask, now)):
            # Why others do not fit is asked for only where none does.
            self._world.waiting.served(pod.uid)
            return ExtenderResponse(extender_api.encode_filter_result(ask, few, {}, {}), "fit")
        found = self._world.books.filter(pod, ask.names, now)
        if not found.fit:
            self._world.waiting.refused(pod, tuple(found.failed), now, ask.names)
            return ExtenderResponse(extender_api.encode_filter_result(ask, (), found.failed, found.hopeless), "no_fit")
        self._world.waiting.served(pod.uid)
        return ExtenderResponse(extender_api.encode_filter_result(ask, found.fit, found.failed, found.hopeless), "fit")

    async def shortlist(self, body: bytes) -> ExtenderResponse:
        """As `filter`, but of the nodes that fit only the best, where nobody else has a say in which that is."""
        return await self.filter(body, short=True)

    def _few(self, pod: Pod, ask: extender_api.ExtenderArgs, now: float) -> list[str]:
        """The nodes with the highest score; none where the pod or a node would rather have it otherwise."""
        if extender_api.has_node_preferences(ask.pod):
            return []
        few, nodes = self._world.books.best(pod, ask.names, SHORTLIST_NODES, now), self._world.store.nodes
        known = (nodes.get(name) for name in few)
        unloved = any(taint.effect == PREFER_NO_SCHEDULE for node in known if node is not None for taint in node.taints)
        return [] if unloved else few

    async def prioritize(self, body: bytes) -> ExtenderResponse:
        """Scores of nodes that fit; equal ones where we cannot tell, which leaves it to the others."""
        ask = extender_api.read_extender_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(ask.reason.encode(), "bad_request", HTTPStatus.BAD_REQUEST)
        closed = await self._closed()
        pod = closed or self._pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(
                extender_api.encode_host_priorities(ask.names, [0] * len(ask.names)),
                "not_ready" if closed else "refused",
            )
        scores = self._world.books.prioritize(pod, ask.names, self._world.clock())
        return ExtenderResponse(extender_api.encode_host_priorities(ask.names, scores), "done")

    async def bind(self, body: bytes) -> ExtenderResponse:
        """Node, cards and records in one write."""
        ask = extender_api.read_binding_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(extender_api.encode_binding_result(ask.reason), "bad_request")
        closed = await self._closed()
        if closed:
            return ExtenderResponse(extender_api.encode_binding_result(closed), "not_ready")
        pod = self._world.store.pods.get(ask.uid) or self._asked.get(ask.uid)
        if pod is None:
            text = f"pod {ask.uid} is not in the cache of this replica; kube-scheduler will retry it"
            return ExtenderResponse(extender_api.encode_binding_result(text), "unknown")
        if (pod.namespace, pod.name) != (ask.namespace, ask.name):
            text = f"UID {ask.uid} belongs to pod {pod.key}, not to {ask.namespace}/{ask.name}"
            return ExtenderResponse(extender_api.encode_binding_result(text), "bad_request")
        fence = self._world.leadership.fence()
        try:
            await self._world.fresh.check(ask.node, fence.epoch if fence else -1, LIVE_READ_SECONDS)
        except (ClusterError, TimeoutError) as exc:
            why = str(exc) or f"timed out after {LIVE_READ_SECONDS:g} s"
            text = f"cannot list pods of node {ask.node} ({why}); kube-scheduler will retry the pod"
            return ExtenderResponse(extender_api.encode_binding_result(text), "not_ready")
        error = await self._world.binder.bind(pod, ask.node)
        if not error:
            self._asked.pop(ask.uid, None)
            self._world.waiting.served(ask.uid)
        return ExtenderResponse(extender_api.encode_binding_result(error), "refused" if error else "bound")

    async def preempt(self, body: bytes) -> ExtenderResponse:
        """Victims that free one card set, not a node's sum."""
        ask = extender_api.read_preemption_args(body)
        if isinstance(ask, extender_api.InvalidArgs):
            return ExtenderResponse(ask.reason.encode(), "bad_request", HTTPStatus.BAD_REQUEST)
        closed = await self._closed()
        if closed:
            return ExtenderResponse(closed.encode(), "not_ready", HTTPStatus.SERVICE_UNAVAILABLE)
        pod = self._pod(ask.uid, ask.pod)
        if isinstance(pod, str):
            return ExtenderResponse(extender_api.encode_preemption_result({}), "refused")
        answer = self._world.books.preempt(pod, ask.victims, self._world.clock())
        return ExtenderResponse(extender_api.encode_preemption_result(answer), "done" if answer else "no_fit")

    def known(self) -> Mapping[str, Pod]:
        """Pods that were asked about and not yet bound, by UID."""
        return self._asked

    async def _closed(self) -> str:
        """Why we do not answer about pods now; empty where we do."""
        missing = self._world.picture.missing()
        if missing:
            return f"informer caches of this replica are not synced yet ({missing}); kube-scheduler will retry the pod"
        if self._world.leadership.fence() is None and not await self._world.leadership.wait(PATIENCE_SECONDS):
            holder = self._world.leadership.holder()
            who = holder or "none"
            return f"this replica is not the leader (Lease holder: {who}); kube-scheduler will retry the pod"
        return ""

    def _pod(self, uid: str, raw: msgspec.Raw) -> Pod | str:
        """The pod as the server said last, else as the caller says; or why it is none of ours."""
        pod = self._world.store.pods.get(uid)
        if pod is None:
            try:
                read = pod_of(pod_wire(raw), self._world.store.nodes, unit_bytes=self._world.unit_bytes)
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
        if pod.uid in self._world.store.pods:
            return pod
        self._asked[pod.uid] = pod
        while len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return pod


_VERBS: Final = {
    "filter": Extender.filter,
    "shortlist": Extender.shortlist,
    "prioritize": Extender.prioritize,
    "bind": Extender.bind,
    "preempt": Extender.preempt,
}
VERBS: Final = tuple(_VERBS)
