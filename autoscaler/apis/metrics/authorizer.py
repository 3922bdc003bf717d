# SPDX-License-Identifier: Apache-2.0
"""
Whether a user may read a metric: a SubjectAccessReview of kube-apiserver, cached for ten seconds.

kube-apiserver decides; the cache is bounded, and equal requests at the same time share one review. Without an answer
access is denied.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from isolation.kube.core.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.apis.metrics.core.request import ResourceAttributes
    from autoscaler.apis.metrics.front_proxy import User
    from isolation.kube.access import Access

PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEPT_SECONDS: Final = 10.0
MAX_KEPT: Final = 4096
_ASK_SECONDS: Final = 3.0
_MAX_AT_ONCE: Final = 16


class Authorizer:
    """Authorization as it was at most ten seconds ago."""

    def __init__(self, access: Access, clock: Callable[[], float]) -> None:
        self._access, self._clock = access, clock
        self._kept: OrderedDict[tuple[User, ResourceAttributes], tuple[float, str | None]] = OrderedDict()
        self._asking: dict[tuple[User, ResourceAttributes], asyncio.Task[str | None]] = {}
        self._limit = asyncio.Semaphore(_MAX_AT_ONCE)

    async def refusal(self, user: User, wish: ResourceAttributes) -> str | None:
        """Why not; None: allowed. Raises ClusterError where kube-apiserver gives no answer."""
        key = (user, wish)
        kept = self._kept.get(key)
        if kept is not None and 0 <= self._clock() - kept[0] < KEPT_SECONDS:
            return kept[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(user, wish))
            task.add_done_callback(lambda done: self._asked(key, done))
        # a client that disconnects must not cancel the review for the others
        return await asyncio.shield(task)

    def _asked(self, key: tuple[User, ResourceAttributes], done: asyncio.Task[str | None]) -> None:
        self._asking.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = (self._clock(), done.result())
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    async def _ask(self, user: User, wish: ResourceAttributes) -> str | None:
        async with self._limit:
            text = await self._access.send("POST", PATH, build_review(user, wish), seconds=_ASK_SECONDS)
        return parse_review(text)


def build_review(user: User, wish: ResourceAttributes) -> dict[str, Any]:
    """The SubjectAccessReview."""
    attributes = {
        "verb": wish.verb,
        "group": wish.group,
        "version": wish.version,
        "namespace": wish.namespace,
        "resource": wish.resource,
        "subresource": wish.subresource,
        "name": wish.name,
    }
    spec: dict[str, Any] = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def parse_review(text: bytes) -> str | None:
    """Why not; None: allowed, said in so many words. Raises MalformedError."""
    try:
        status = json.loads(text)["status"]
        allowed, denied, reason = status.get("allowed"), status.get("denied"), status.get("reason")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise MalformedError("invalid SubjectAccessReview in the response") from None
    if allowed is True and denied is not True:
        return None
    return reason if isinstance(reason, str) and reason else "no RBAC rule allows it"
