# SPDX-License-Identifier: Apache-2.0
"""
Events about pods of this node, for what their owners cannot learn from the kubelet.

Threads add them, the event loop writes them. One that the API server refuses is dropped; while it is away they wait,
and beyond `MAX_WAITING` the oldest go: an Event explains, and nothing depends on it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from isolation.kube.core.errors import ClusterError
from isolation.kube.writes import PodRef, Writer

if TYPE_CHECKING:
    from isolation.contract.host_allocation import Tenant

log: Final = logging.getLogger(__name__)
MAX_WAITING: Final = 256
CYCLE_SECONDS: Final = 1.0


class PodEvents:
    """See the module."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: deque[tuple[PodRef, str, str]] = deque(maxlen=MAX_WAITING)

    def warn(self, tenant: Tenant, reason: str, note: str) -> None:
        """A warning about one container's pod. From any thread."""
        self._waiting.append((PodRef(tenant.namespace, tenant.pod, tenant.uid), reason, note))

    async def cycle(self) -> float:
        """Write what waits; seconds until the next look."""
        while self._waiting:
            about, reason, note = one = self._waiting[0]
            try:
                answer = await self._writer.event(about, reason, note, warning=True)
            except ClusterError as exc:
                log.info("cannot record Event: %s: pod=%s/%s", exc, about.namespace, about.name)
                break
            if not answer:
                log.info("cannot record Event: %s: pod=%s/%s", answer.said, about.namespace, about.name)
            if self._waiting and self._waiting[0] is one:  # not dropped meanwhile for newer ones
                self._waiting.popleft()
        return CYCLE_SECONDS
