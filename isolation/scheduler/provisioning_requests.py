# SPDX-License-Identifier: Apache-2.0
"""
Answers ProvisioningRequests: the leader reserves cards for every pod of one, or fails it with the reason.

Decides the order of steps. All cards are kept in the cache by one decision; then the nodes are read once more, one
reservation is stored for each pod, and only then the request is `Provisioned`. Whoever leads next finds either all
reservations, and says so, or some, and deletes them: no pod was started for them. So each step can be repeated. Which
cards is the cache's decision, and which pods a reservation serves its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from isolation.contract.codec import CodecError
from isolation.contract.model import Refusal, Why
from isolation.contract.names import PROVISIONING_CLASS
from isolation.contract.provisioning_request import (
    MAX_PODS,
    ProvisioningCondition,
    provisioning_request_of,
    request_of_template,
    request_path,
    template_path,
    with_conditions,
)
from isolation.kube.core.errors import ClusterError, ConflictError, NotFoundError
from isolation.scheduler.core.gang_placement import BOOKED_SECONDS, refuse_early
from isolation.scheduler.extender import LIVE_READ_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Sequence

    from isolation.contract.model import Request
    from isolation.contract.provisioning_request import ProvisioningRequest
    from isolation.contract.reservation import Reservation
    from isolation.kube.election import Fence
    from isolation.scheduler.core.gang_placement import Member
    from isolation.scheduler.extender import SchedulerContext
    from isolation.scheduler.writes import ObjectWriter

log = logging.getLogger(__name__)
CYCLE_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 5.0
"""Between two attempts for one request."""
TEMPLATE_SECONDS: Final = 60.0
"""Kueue creates the templates after the request: so long they may be missing."""
TEMPLATE_RETRY_SECONDS: Final = 0.5
LOST_SECONDS: Final = 10.0
"""Reserved cards may be gone for so long before the request is revoked: an agent that restarts is back by then."""
MAX_TEMPLATES: Final = 32
"""Each is a question to the API server; Kueue's jobs have at most 8 pod sets."""
_MAX_TRIED: Final = 8
"""Requests in one cycle, of one namespace after another."""
_REST: Final = 4.0
"""After a decision the process does other things for so many times as long."""


class ProvisioningRequests:
    """See the module; `schedulers`: names that a template may give as its `schedulerName`."""

    def __init__(self, context: SchedulerContext, objects: ObjectWriter, schedulers: Collection[str]) -> None:
        self._context, self._objects, self._schedulers = context, objects, schedulers
        self._next: dict[str, float] = {}
        """By UID, when it is tried again."""
        self._lost: dict[str, float] = {}
        """By UID, since when reserved cards are gone."""
        self._orphans: dict[str, float] = {}
        """By UID of a request that is not known, when it is looked up again."""

    async def run(self) -> None:
        """Run until cancelled; an API server error costs one request one attempt."""
        while True:
            await asyncio.sleep(CYCLE_SECONDS)
            fence = self._context.leadership.fence()
            if fence is not None and not self._context.informers.missing() and self._context.informers.knows_gangs():
                await self.run_cycle(fence)

    async def run_cycle(self, fence: Fence) -> None:
        """Look at every request once."""
        now, known = self._context.clock(), self._context.informers.provisioning.known
        for kept in (self._next, self._lost):
            for uid in kept.keys() - known.keys():
                del kept[uid]
        for asked in list(known.values()):
            if asked.over:
                await self._guard(asked.key, self._release(self._context.cache.gang_reservations(asked.uid, now)))
            elif asked.since(ProvisioningCondition.PROVISIONED) is not None:
                await self._guard(asked.key, self._check_booking(asked, now))
        for asked in self._choose_pending(now):
            self._next[asked.uid] = now + RETRY_SECONDS
            await self._guard(asked.key, self._serve(asked, fence))
        await self._guard("of requests that are gone", self._release_orphans(now))

    async def _guard(self, key: str, work: Awaitable[None]) -> None:
        try:
            await work
        except ClusterError as exc:
            log.warning("cannot serve ProvisioningRequest, retrying: %s: request=%s", exc, key)
        except Exception:  # one request, written by a tenant, must not stop the others
            log.exception("cannot serve ProvisioningRequest: internal error: request=%s", key)

    def _choose_pending(self, now: float) -> list[ProvisioningRequest]:
        """Requests that are due, the oldest of each namespace first: nobody's many keep another's one waiting."""
        due = [
            asked
            for asked in self._context.informers.provisioning.known.values()
            if not asked.over
            and asked.since(ProvisioningCondition.PROVISIONED) is None
            and self._next.get(asked.uid, 0.0) <= now
        ]
        before: dict[str, int] = {}
        ranked = []
        for asked in sorted(due, key=lambda one: (one.created, one.uid)):
            rank = before[asked.namespace] = before.get(asked.namespace, -1) + 1
            ranked.append((rank, asked))
        return [asked for _, asked in sorted(ranked, key=lambda pair: pair[0])[:_MAX_TRIED]]

    # -- one request ---------------------------------------------------------------------------------

    async def _serve(self, asked: ProvisioningRequest, fence: Fence) -> None:
        """One attempt, on the request as the API server has it now."""
        live = await self._read(asked)
        if live is None or live.over or live.since(ProvisioningCondition.PROVISIONED) is not None:
            return
        members = await self._read_members(live)
        if members is None:
            return
        made = members if isinstance(members, Refusal) else refuse_early(members) or await self._keep(live, members)
        if isinstance(made, Refusal):
            reason = "InvalidRequest" if made.why is Why.INVALID else "CapacityIsNotFound"
            if made.why is not Why.INVALID and self._context.clock() < live.created + live.wait_seconds:
                await self._say(live, (ProvisioningCondition.PROVISIONED, False, reason, made.reason))
            else:
                await self._say(live, (ProvisioningCondition.FAILED, True, reason, made.reason))
                log.info("refused ProvisioningRequest: %s: request=%s", made.reason, live.key)
        elif made and await self._store(made, fence):
            message = f"cards are reserved for {len(made)} pods, for {BOOKED_SECONDS / 60:.0f} minutes"
            await self._say(live, (ProvisioningCondition.PROVISIONED, True, "CapacityIsFound", message))
            log.info("reserved cards for all pods: pods=%d request=%s", len(made), live.key)

    async def _read(self, asked: ProvisioningRequest) -> ProvisioningRequest | None:
        """The request as it is stored; None: it is gone, or another one of its name."""
        try:
            found = await self._objects.read(asked.path)
            live = None if found is None else provisioning_request_of(found)
        except CodecError as exc:
            log.warning("cannot read ProvisioningRequest, ignoring it: %s: request=%s", exc, asked.key)
            return None
        if live is None or live.uid != asked.uid:
            return None
        self._context.informers.provisioning.update(live)
        return live

    async def _read_members(self, asked: ProvisioningRequest) -> list[Member] | Refusal | None:
        """Every pod with what it asks for; None: a template is not there yet."""
        if not 0 < asked.pods <= MAX_PODS:
            return Refusal(Why.INVALID, f"{asked.pods} pods: 1 to {MAX_PODS} start together")
        templates = list(dict.fromkeys(one.template for one in asked.pod_sets))
        if len(templates) > MAX_TEMPLATES:
            return Refusal(Why.INVALID, f"{len(templates)} pod templates: at most {MAX_TEMPLATES} in one request")
        requests: dict[str, Request | None] = {}
        for name in templates:
            found = await self._objects.read(template_path(asked.namespace, name))
            now = self._context.clock()
            if found is None and now < asked.created + TEMPLATE_SECONDS:
                self._next[asked.uid] = now + TEMPLATE_RETRY_SECONDS
                return None
            if found is None:
                return Refusal(Why.INVALID, f"PodTemplate {name} does not exist")
            request = request_of_template(
                found, asked.namespace, schedulers=self._schedulers, unit_bytes=self._context.unit_bytes
            )
            if isinstance(request, Refusal):
                return Refusal(request.why, f"PodTemplate {name}: {request.reason}")
            requests[name] = request
        members: list[Member] = []
        for one in asked.pod_sets:
            request = requests[one.template]
            members += [] if request is None else [(one.template, request)] * one.count
        return members

    async def _keep(self, asked: ProvisioningRequest, members: Sequence[Member]) -> list[Reservation] | Refusal:
        """Cards for every pod: those that a leader before has reserved, or newly chosen ones; empty: not now."""
        now, cache = self._context.clock(), self._context.cache
        known = cache.gang_reservations(asked.uid, now)
        if len(known) == len(members) and all(one.expires >= now + BOOKED_SECONDS for one in known):
            return known
        if known:
            # Only whoever makes it Provisioned has stored all of them, and it is not: no pod was started for these.
            await self._release(known)
            self._next[asked.uid] = now + TEMPLATE_RETRY_SECONDS
            return []
        began = time.perf_counter()
        made = cache.reserve_gang(asked, members, now)
        if isinstance(made, Refusal):
            await asyncio.sleep(_REST * (time.perf_counter() - began))
            return made
        for one in made:
            self._context.informers.reservations.add(one)
        return made

    async def _store(self, made: Sequence[Reservation], fence: Fence) -> bool:
        """Whether every reservation is stored and has its place; else as many as can be are taken back."""
        handler, done = self._context.informers.reservations, False
        new = [one for one in made if not one.uid]
        try:
            for node in dict.fromkeys(one.placement.node for one in made):
                # The leader before may have bound pods there that the watch has not shown yet.
                await self._context.live_read.check(node, fence.epoch, LIVE_READ_SECONDS)
            done = self._stands(made, fence) and await self._create(new, fence) and self._stands(made, fence)
        except TimeoutError:
            log.warning("cannot list pods of a node before reserving its cards: timed out")
        finally:
            if not done:
                for one in new:
                    handler.withdraw(one)
        if not done and self._leads(fence):
            await self._release(made)
        return done

    def _leads(self, fence: Fence) -> bool:
        """Whether this is still the leader that decided."""
        now = self._context.leadership.fence()
        return now is not None and now.epoch == fence.epoch

    def _stands(self, made: Iterable[Reservation], fence: Fence) -> bool:
        return self._leads(fence) and not any(self._context.cache.lacks_place(one) for one in made)

    async def _create(self, made: Iterable[Reservation], fence: Fence) -> bool:
        for one in made:
            error = await self._objects.create_reservation(one) if self._leads(fence) else "no longer the leader"
            if error:
                log.warning("cannot create reservation: %s: reservation=%s", error, one.name)
                return False
        return True

    # -- afterwards ----------------------------------------------------------------------------------

    async def _check_booking(self, asked: ProvisioningRequest, now: float) -> None:
        """End the booking when its time is over, or when reserved cards are gone."""
        made = self._context.cache.gang_reservations(asked.uid, now)
        lost = [one for one in made if self._context.cache.lacks_place(one)]
        if not lost:
            self._lost.pop(asked.uid, None)
        if now >= (asked.since(ProvisioningCondition.PROVISIONED) or 0.0) + BOOKED_SECONDS:
            message = f"{BOOKED_SECONDS / 60:.0f} minutes are over: {len(made)} unused reservations are released"
            await self._say(asked, (ProvisioningCondition.EXPIRED, True, "BookingExpired", message))
        elif lost and now >= self._lost.setdefault(asked.uid, now) + LOST_SECONDS:
            places = ", ".join(sorted({one.placement.node for one in lost})[:3])
            message = f"{len(lost)} reserved places are gone (node {places}): all reservations are released"
            await self._say(asked, (ProvisioningCondition.REVOKED, True, "CapacityIsLost", message))

    async def _release_orphans(self, now: float) -> None:
        """Delete reservations for requests that are gone; a request that is only not known yet is looked up."""
        known = self._context.informers.provisioning.known
        orphans: dict[str, list[Reservation]] = {}
        for one in self._context.informers.reservations.known.values():
            if one.provisioning_request and one.holder not in known:
                orphans.setdefault(one.holder, []).append(one)
        self._orphans = {uid: at for uid, at in self._orphans.items() if uid in orphans}
        for uid, made in orphans.items():
            if self._orphans.get(uid, 0.0) > now:
                continue
            self._orphans[uid] = now + RETRY_SECONDS
            names = (quote(name, safe="") for name in (made[0].namespace, made[0].provisioning_request))
            found = await self._objects.read(request_path(*names))
            metadata = found.get("metadata") if found is not None else None
            if not isinstance(metadata, dict) or metadata.get("uid") != uid:
                await self._release(made)

    async def _release(self, made: Iterable[Reservation]) -> None:
        for one in made:
            error = await self._objects.delete_reservation(one)
            if error:
                log.warning("cannot delete reservation: %s: reservation=%s", error, one.name)

    async def _say(self, asked: ProvisioningRequest, what: tuple[ProvisioningCondition, bool, str, str]) -> None:
        """Write a condition, where it is new; one that cannot be written now is found out again."""
        accepted = (ProvisioningCondition.ACCEPTED, True, "Accepted", f"served by class {PROVISIONING_CLASS}")
        conditions = with_conditions(asked, (accepted, what), self._context.clock())
        if conditions == asked.conditions:
            return
        try:
            now = await self._objects.set_conditions(asked, conditions)
        except (ConflictError, NotFoundError):
            self._next[asked.uid] = self._context.clock() + TEMPLATE_RETRY_SECONDS
            return
        if now is not None:
            self._context.informers.provisioning.update(now)
