# SPDX-License-Identifier: Apache-2.0
"""
Pods with shares that another scheduler placed before gpushare came: their cards are held before the first decision.

Our watches select pods by a label that admission sets; a pod of the classic gpushare-scheduler-extender, or of ACK's
own scheduler, has none. So all bound pods without it are listed once at the start, and those whose card is written down
get the label: from then on they are pods like all others. Where the API server refuses the label, they are held all the
same, and listed again every minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import CodecError, pod_of
from isolation.contract.model import Pod
from isolation.contract.names import ACK, CLASSIC_CARD, SHARED
from isolation.kube.core.errors import ClusterError, MalformedError
from isolation.kube.core.wire import pod_wire
from isolation.kube.informer import NOT_ENDED
from isolation.kube.paging import list_objects
from isolation.kube.writes import PodRef

if TYPE_CHECKING:
    import msgspec

    from isolation.kube.paging import PageSource
    from isolation.kube.store import ClusterChange, Store
    from isolation.scheduler.informers import Informers
    from isolation.scheduler.writes import ObjectWriter

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 60.0
_SHOWN_SECONDS: Final = 10.0
"""For the watch to show the pods that got the label; the others are gone."""
_QUERY: Final = {"labelSelector": f"!{SHARED}", "fieldSelector": f"{NOT_ENDED},spec.nodeName!="}
_RECORDS: Final = tuple(name.encode() for name in (CLASSIC_CARD, ACK.allocation_annotation))


class Adoption:
    """See the module; the informers count as synced when it has been done once."""

    def __init__(self, source: PageSource, objects: ObjectWriter, informers: Informers, unit_bytes: int) -> None:
        self._source, self._objects, self._informers, self._unit = source, objects, informers, unit_bytes
        self._held: frozenset[str] = frozenset()
        """UIDs of those without the label."""
        self._awaited: set[str] = set()
        self._all_shown = asyncio.Event()
        informers.store.listen(self._note)
        informers.adopted.clear()

    async def run(self) -> None:
        """Forever; there is nothing to do once every such pod has the label."""
        await self._informers.synced()
        while True:
            try:
                again = await self._adopt()
            except (ClusterError, TimeoutError) as exc:
                log.warning("cannot list pods of other schedulers, so no pod is placed yet: %s", exc)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._informers.adopted.set()
            if not again:
                await asyncio.Event().wait()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _adopt(self) -> bool:
        """Once; whether some could not get the label."""
        store, labelled, held = self._informers.store, set[str](), set[str]()
        async for raw in list_objects(self._source, "/api/v1/pods", _QUERY):
            pod = self._read(raw, store)
            if pod is None:
                continue
            refused = await self._objects.label_shared(PodRef(pod.namespace, pod.name, pod.uid))
            if refused:
                log.error("cannot label pod of another scheduler, its cards are held: %s: pod=%s", refused, pod.key)
                store.pod_is(raw)
            (held if refused else labelled).add(pod.uid)
        for uid in self._held - held - labelled:
            store.pod_gone(uid)
        self._held = frozenset(held)
        await self._shown(labelled - store.pods.keys())
        if labelled:
            log.info("%d pods of other schedulers are adopted: their cards are held", len(labelled))
        return bool(held)

    async def _shown(self, uids: set[str]) -> None:
        """Wait until the watch has shown these pods; not for ever, since some may be gone."""
        self._awaited = uids
        if not uids:
            return
        self._all_shown.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_SECONDS):
                await self._all_shown.wait()

    def _note(self, change: ClusterChange) -> None:
        if change.pod is not None and change.pod.uid in self._awaited:
            self._awaited.discard(change.pod.uid)
            if not self._awaited:
                self._all_shown.set()

    def _read(self, raw: msgspec.Raw, store: Store) -> Pod | None:
        """A pod whose card is written down; None: nothing to hold."""
        text = bytes(raw)
        if not any(name in text for name in _RECORDS):
            return None
        try:
            pod = pod_of(pod_wire(raw), store.nodes, unit_bytes=self._unit)
        except (CodecError, MalformedError) as exc:
            log.warning("cannot read pod of another scheduler, ignoring it: %s", exc)
            return None
        slices = pod.placement.slices if isinstance(pod, Pod) and pod.placement is not None else ()
        return pod if isinstance(pod, Pod) and pod.request.shared and slices else None
