# SPDX-License-Identifier: Apache-2.0
"""
Pods on the move: a home reserved, then the eviction through the Eviction API, and nothing without the home.

Decides what is checked at the last moment (the home is still there and has the room, the pod is the one that was
meant) and what an answer means: a budget's no rests that owner, an answer of trouble from the API server stops every
eviction for a while.

Source: Kubernetes, "API-initiated Eviction" (429: a disruption budget or a rate limit; 500: misconfiguration, such as
two budgets over one pod).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from autoscaler.kube.core.conditions import Condition, ConditionKind
from autoscaler.kube.observe.nominations import used_by
from autoscaler.kube.step_context import RefusedStepError
from isolation.contract.model import FULL_CORE, Phase
from isolation.contract.names import MOVED
from isolation.contract.reservation import LONGEST_SECONDS, RESERVATIONS_PATH, Reservation, manifest_of
from isolation.kube.core.errors import (
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import SuccessorReservation as Wanted
    from autoscaler.core.plan import Move
    from autoscaler.kube.observe.observed_cluster import ObservedCluster
    from autoscaler.kube.step_context import StepContext
    from isolation.contract.model import Placement, Pod

log = logging.getLogger(__name__)
REASON: Final = "move"
SEEN_SECONDS: Final = 0.5
"""Until the scheduler has seen a new reservation, and we a bind that was under way."""
LEFT_SECONDS: Final = 30.0
"""A home must be kept for so long after the eviction, or the successor may come too late."""


def name_reservation(uid: str, now: float) -> str:
    """Never the same twice: a bound pod names the one that it has used up for as long as it lives."""
    return f"{REASON}-{uid}-{int(now * 1000):x}"


class Evictions:
    """See the module."""

    def __init__(self, context: StepContext, limits: ScalingLimits) -> None:
        self._context, self._limits = context, limits
        self._stopped: tuple[float, str] | None = None

    def conditions(self) -> tuple[Condition, ...]:
        """Why nobody is evicted."""
        if self._stopped is None or self._context.now() >= self._stopped[0]:
            return ()
        return (Condition(ConditionKind.EVICTION, f"{self._stopped[1]}; evictions are paused"),)

    async def reserve(self, home: Wanted, seen: ObservedCluster) -> str:
        """Keep the home; its name."""
        pod = seen.observation.pods.get(home.pod)
        if pod is None or not pod.owner_uid:
            raise RefusedStepError(ConditionKind.CONFLICT, f"pod {home.pod} has no controller that recreates it")
        now = self._context.now()
        made = Reservation(
            name=name_reservation(pod.uid, now),
            holder=pod.owner_uid,
            placement=home.placement,
            expires=min(home.until, now + LONGEST_SECONDS),
            namespace=pod.namespace,
            reason=REASON,
        )
        thing = manifest_of(made)
        thing["metadata"]["annotations"] = {MOVED: pod.uid}
        try:
            await self._context.write("POST", RESERVATIONS_PATH, thing)
        except RefusedError as exc:
            raise RefusedStepError(
                ConditionKind.CONFLICT, f"cannot reserve a target for {pod.key}: {exc.message}"
            ) from None
        return made.name

    async def forget(self, names: Iterable[str]) -> None:
        """Delete these; what is gone already is fine."""
        for name in names:
            await self._context.delete_reservation(name)

    async def move(self, step: Move, seen: ObservedCluster) -> None:
        """Reserve, see that it holds, evict."""
        name = await self.reserve(step.reservation, seen)
        # the scheduler learns of the reservation by a watch: without it the room of the evicted pod is free for anybody
        await asyncio.sleep(SEEN_SECONDS)
        try:
            await self.evict(step.pod, step.reason, seen, name)
        except UnreachableError:
            raise  # it may have happened: the home stays, and the next reading tells
        except (RefusedStepError, ClusterError):
            await self.forget((name,))
            raise

    async def evict(self, uid: str, why: str, seen: ObservedCluster, home: str = "") -> None:
        """Let one pod go to its home; gone already is done. `home`: the reservation, where it was just made."""
        pod = seen.observation.pods.get(uid)
        if pod is None:
            return
        if stopped := self.conditions():
            raise RefusedStepError(ConditionKind.EVICTION, stopped[0].text)
        await self._home_stands(pod, home or seen.names.get(uid, ""))
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # by UID: a StatefulSet's next pod has the same name
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._context.write("POST", path, body)
        except RefusedError as exc:
            self._answered(pod, exc)
            return
        await self._context.events.pod(pod.key, uid, "Moving", f"Evicted, moving {why}")

    def _answered(self, pod: Pod, exc: RefusedError) -> None:
        """Return where the pod is gone; else raise what it means."""
        if isinstance(exc, NotFoundError | ConflictError):
            return
        said = exc.message or exc.reason
        # several budgets over one pod, or a broken webhook: the answer is 500 however often it is asked
        if isinstance(exc, ServerError):
            text = f"eviction of {pod.key} failed on the API server: {said}"
            self._stopped = (self._context.now() + self._limits.max_pool_backoff_seconds, text)
            log.error("%s; pausing evictions for %.0f s", text, self._limits.max_pool_backoff_seconds)
            raise RefusedStepError(ConditionKind.EVICTION, text)
        # 429 is the no of a PodDisruptionBudget
        kind = ConditionKind.CONFLICT if isinstance(exc, TooManyRequestsError) else ConditionKind.EVICTION
        raise RefusedStepError(kind, f"eviction of {pod.key} refused: {said}")

    async def _home_stands(self, pod: Pod, name: str) -> None:
        """Whether the home is still stored, for nobody else yet, with room on its cards: asked past the watch."""
        sources = self._context.sources
        stored = sources.reservations.all().get(name)
        if stored is None:
            raise RefusedStepError(ConditionKind.CONFLICT, f"{pod.key} has no reserved target")
        if not await self._context.stored(RESERVATIONS_PATH, name):
            raise RefusedStepError(ConditionKind.CONFLICT, f"the reservation for {pod.key} no longer exists")
        if name in used_by({name: stored}, sources.notes.pods.values()):
            raise RefusedStepError(ConditionKind.CONFLICT, f"another replica used the reservation for {pod.key}")
        if stored.made.expires < self._context.now() + LEFT_SECONDS:
            raise RefusedStepError(ConditionKind.CONFLICT, f"the reservation for {pod.key} expires too soon")
        if full := self._crowded(stored.made.placement):
            raise RefusedStepError(ConditionKind.CONFLICT, f"the reserved target of {pod.key} is gone: {full}")

    def _crowded(self, place: Placement) -> str:
        """Why a reserved place is none, by what is held on its cards now; empty: it is one."""
        sources = self._context.sources
        node = sources.notes.nodes.get(place.node)
        if node is None or not node.ready or node.cordoned:
            return f"node {place.node} is not schedulable"
        kept, now = sources.reservations.all(), self._context.now()
        used = used_by(kept, sources.notes.pods.values())
        slices = [
            part
            for pod in sources.notes.pods.values()
            if pod.placement is not None and pod.placement.node == place.node and pod.phase is not Phase.DONE
            for part in pod.placement.slices
        ]
        for name, stored in kept.items():
            if stored.made.placement.node == place.node and stored.made.expires > now and name not in used:
                slices += stored.made.placement.slices
        for part in place.slices:
            card = next((card for card in node.cards if card.uuid == part.uuid), None)
            if card is None or not card.healthy:
                return f"card {part.uuid} is missing or unhealthy"
            on_it = [other for other in slices if other.uuid == part.uuid]
            if sum(one.bytes for one in on_it) > card.allocatable_bytes or sum(one.core for one in on_it) > FULL_CORE:
                return f"card {part.index} of {place.node} is full"
        return ""
