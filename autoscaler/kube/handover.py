# SPDX-License-Identifier: Apache-2.0
"""
What is handed over to cluster-autoscaler: annotations on pods that exist, and the pools as one ConfigMap.

Decides which pods say something else than they should, by the latest reading and each pod's own annotations, and how
many are written to at once. New pods are annotated by admission; here is whoever was there before, and whoever landed
on a node of another pool. Also in a dry run and switched off: there the annotations go, since somebody must scale. The
ConfigMap tells admission and the scheduler which pools are scaled here; the leader writes it when it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from autoscaler.core.disruption_budget import belongs_to_node
from isolation.contract.cluster_autoscaler_annotations import Ours, changes
from isolation.contract.codec.pools import KEY, PublishedPool, encode_pools
from isolation.contract.model import Phase
from isolation.contract.names import POOLS, SCHEDULER
from isolation.kube.core.errors import ClusterError, ConflictError, NotFoundError
from isolation.kube.writes import PodRef
from isolation.placement.node_rules import kind_of, ours_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from autoscaler.core.observation import Observation
    from autoscaler.kube.annotations import PodNote
    from isolation.contract.model import Pod
    from isolation.kube.access import Access

log = logging.getLogger(__name__)
PASS_SECONDS: Final = 5.0
"""Between two looks at all pods, or sooner after a reconcile cycle."""
MAX_WRITES_PER_PASS: Final = 250
"""Pods written to in one pass; with the defaults 50 a second, of the thousands that an API server takes."""
AT_ONCE: Final = 5
STRETCH: Final = 500
"""Pods looked at without a pause: some milliseconds."""
_SECONDS: Final = 10.0
_PUBLISH_SECONDS: Final = 5.0
_NOTHING: Final = Ours()


@dataclass(frozen=True, slots=True)
class AnnotationChange:
    """What one pod's annotations should be instead."""

    pod: PodRef
    version: str
    """Of the pod as it was read: a word that its owner has written since is not overwritten."""
    annotations: Mapping[str, str | None]


class Owners:
    """For whom of the pods gpushare buys and drains, by one reading; `ours`: by pool, what it does there now."""

    def __init__(self, seen: Observation, ours: Mapping[str, Ours]) -> None:
        self._machines, self._ours = seen.machines, ours
        self._fresh = [(seen.pools[name].template, each) for name, each in ours.items() if name in seen.pools]
        self._alike: dict[tuple[object, ...], Ours] = {}
        """What was found for pods that ask for the same."""

    def of(self, pod: Pod) -> Ours:
        """The pod's node's pool decides; of a waiting one every pool that could host it."""
        if belongs_to_node(pod):
            return _NOTHING
        if pod.placement is not None:
            machine = self._machines.get(pod.placement.node)
            return _NOTHING if machine is None else self._ours.get(machine.pool, _NOTHING)
        asked = pod.request
        alike = asked.cards, asked.card_bytes, kind_of(asked), asked.rules
        if alike not in self._alike:
            self._alike[alike] = ours_of(asked, self._fresh)
        return self._alike[alike]


def find_change(pod: Pod, note: PodNote | None, owners: Owners) -> AnnotationChange | None:
    """None: its annotations are as they should be, or it is none of our scheduler's pods."""
    if note is None or not pod.request.shared or note.scheduler != SCHEDULER or pod.deleting:
        return None
    if pod.phase is Phase.DONE:
        return None
    changed = changes(note.handover, owners.of(pod))
    return AnnotationChange(PodRef(pod.namespace, pod.name, pod.uid), note.version, changed) if changed else None


class Handover:
    """Brings the annotations of all pods to what they should be, pass after pass."""

    def __init__(self, access: Access, allowed: Callable[[], bool]) -> None:
        """`allowed`: asked before each write, whether we lead."""
        self._access, self._allowed = access, allowed
        self.left: int | None = None
        """Pods that have yet to be written to, as of the last pass; None: there was none yet."""

    async def carry(self, seen: Observation, notes: Mapping[str, PodNote], ours: Mapping[str, Ours]) -> None:
        """One pass; what has changed meanwhile is written in the next. Raises ClusterError where it is not answered."""
        wishes, wrong, owners = [], 0, Owners(seen, ours)
        for number, pod in enumerate(list(seen.pods.values())):
            if not number % STRETCH:
                await asyncio.sleep(0)
            wish = find_change(pod, notes.get(pod.uid), owners)
            if wish is not None:
                wrong += 1
                if wrong <= MAX_WRITES_PER_PASS:  # more would only be held for the garbage collector to look through
                    wishes.append(wish)
        self.left = wrong
        if wrong:
            log.info("annotations for cluster-autoscaler: %d pods to change", wrong)
        self.left -= await written(self._access, wishes, self._allowed)


async def written(access: Access, wishes: Iterable[AnnotationChange], allowed: Callable[[], bool]) -> int:
    """How many pods were written to; the others have changed since they were read, or are gone. Raises ClusterError."""
    queue, done = iter(wishes), 0

    async def some() -> None:
        nonlocal done
        for wish in queue:
            if not allowed():
                return
            wanted = {"uid": wish.pod.uid, "resourceVersion": wish.version, "annotations": dict(wish.annotations)}
            with contextlib.suppress(ConflictError, NotFoundError):
                path = f"{wish.pod.path}/status"
                await access.send("PATCH", path, {"metadata": wanted}, "merge-patch", _SECONDS)
                done += 1

    try:
        async with asyncio.TaskGroup() as group:  # which ends the others where one fails
            for _ in range(AT_ONCE):
                group.create_task(some())
    except* ClusterError as found:
        raise found.exceptions[0] from None
    return done


def describe_pools(observation: Observation, ours: Mapping[str, Ours]) -> tuple[PublishedPool, ...]:
    """The configured ones of an observation; `ours`: what is done for each here at this moment."""
    return tuple(
        PublishedPool(name, pool.template, pool.min_nodes, pool.max_nodes, ours[name])
        for name, pool in sorted(observation.pools.items())
        if name in ours
    )


class PoolsPublisher:
    """The ConfigMap."""

    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._all = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._written: tuple[int, str] | None = None

    async def put(self, pools: tuple[PublishedPool, ...], epoch: int, *, complete: bool = False) -> None:
        """
        Write it where it is another than this leader (by the epoch of its Lease) wrote last. Raises ClusterError.

        `complete`: these are all the pools that are configured.
        """
        text = encode_pools(pools, complete=complete)
        if self._written == (epoch, text):
            return
        body = {"metadata": {"name": POOLS}, "data": {KEY: text}}
        try:
            await self._access.send("PATCH", f"{self._all}/{POOLS}", body, "merge-patch", _PUBLISH_SECONDS)
        except NotFoundError:
            await self._access.send(
                "POST", self._all, {"apiVersion": "v1", "kind": "ConfigMap"} | body, "json", _PUBLISH_SECONDS
            )
        self._written = epoch, text
        log.info("published %d pools: pools=%s", len(pools), [(pool.name, pool.ours) for pool in pools])
