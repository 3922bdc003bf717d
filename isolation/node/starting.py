"""
Whether a container may start with its devices, and everything it needs put in place if so.

All that can be wrong is found here and nowhere earlier, because here a refusal harms nobody: the kubelet
asks again by itself, and other pods go on. Refuses to start what the record, the book and the kubelet's own
list do not agree about, and whoever would share an ID with a process that lives.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import Policy
from isolation.contract.model import Mode
from isolation.contract.names import ACK
from isolation.node.book import FORMER, entry_record, hash_of
from isolation.node.choose import mismatch
from isolation.node.world import NotYetError, Promise, UndeliverableError, UnreachableError

if TYPE_CHECKING:
    from isolation.node.book import Entry
    from isolation.node.ledger import Ledger
    from isolation.node.release import Release
    from isolation.node.resolve import Resolver
    from isolation.node.world import Bound

_log: Final = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 1.0
"""For one question to the kubelet: nobody else waits for this container."""
PATIENCE_SECONDS: Final = 6.0
"""How long to wait for somebody's end before the kubelet is told to ask again, in some 12 seconds."""
PAUSE_SECONDS: Final = 0.2
NOTHING: Final = "none"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why not now."""

    text: str
    hopeless: bool = False
    """No waiting heals it."""
    waits: bool = False
    """For the end of somebody who holds the devices."""


class Starting:
    """PreStartContainer; see the module."""

    def __init__(self, ledger: Ledger, release: Release, resolver: Resolver, unit_bytes: int) -> None:
        self._ledger, self._world, self._release, self._unit = ledger, ledger.world, release, unit_bytes
        self._resolver = resolver

    async def start(self, ids: frozenset[str]) -> None:
        """Everything in place when it returns; NotYetError."""
        clock = self._world.clock
        end = clock.now() + PATIENCE_SECONDS
        while True:
            obstacle = await self._attempt(ids)
            if obstacle is None:
                return
            if not obstacle.waits or clock.now() >= end:
                raise NotYetError(obstacle.text)
            await clock.sleep(PAUSE_SECONDS)

    async def _attempt(self, ids: frozenset[str]) -> Obstacle | None:
        entry = await self._owner(ids)
        if isinstance(entry, Obstacle):
            return entry
        pod = await self._pod(entry)
        if isinstance(pod, Obstacle):
            return pod
        text = next(filter(None, (disagreement(one, pod, self._unit) for one in self._current(pod))), "")
        obstacle = Obstacle(text, hopeless=True) if text else await self._others(entry)
        if obstacle is None:
            obstacle = await self.deliver(entry, pod)
        if obstacle is None:
            self._ledger.trouble.pop(pod.uid, None)
        else:
            self._ledger.in_trouble(pod, obstacle.text, hopeless=obstacle.hopeless, waits=obstacle.waits)
        return obstacle

    async def _owner(self, ids: frozenset[str]) -> Entry | Obstacle:
        """The entry of the container that starts, confirmed by the kubelet's list where that shows it."""
        entry = self._latest(ids)
        if entry is not None and await self._confirmed(entry):
            return self._latest(ids) or entry
        found = await self._resolver.find(ids)
        if found is None:
            return Obstacle("the pod of these devices is not known yet")
        found = self._latest(ids) or found
        if await self._confirmed(found):
            return found
        text = f"the kubelet does not say that these devices are those of {found.whose}/{found.container}"
        if (pod := self._ledger.bound(found.uid)) is not None:
            self._ledger.in_trouble(pod, text, waits=True)
        return Obstacle(text)

    def _latest(self, ids: frozenset[str]) -> Entry | None:
        """The pod that was given these last, and of its containers the one whose turn it is."""
        entries = [entry for entry in self._ledger.book.exactly(ids) if FORMER not in entry.container]
        if not entries or not entries[-1].uid:
            return None
        return self.next([entry for entry in entries if entry.uid == entries[-1].uid])

    def next(self, entries: list[Entry]) -> Entry:
        """Of a pod's containers with the very same devices the one that runs now: init containers come first."""
        pod = self._ledger.bound(entries[-1].uid)
        for entry in entries[:-1]:
            wanted = pod.container(entry.container) if pod else None
            if wanted is None or not wanted.done:
                return entry
        return entries[-1]

    async def _confirmed(self, entry: Entry) -> bool:
        """Whether the kubelet's list agrees; it does not show init containers, and may be silent."""
        try:
            listing = await self._world.resources.get(entry.namespace, entry.pod, ANSWER_SECONDS)
        except UnreachableError:
            return not entry.guessed
        if entry.init:
            return listing is not None or not entry.guessed
        shown = listing.get(entry.container) if listing is not None else None
        if not shown:
            return not entry.guessed
        if shown == entry.ids and entry.guessed:
            self._ledger.claim(replace(entry, guessed=False))
        return shown == entry.ids

    async def _pod(self, entry: Entry) -> Bound | Obstacle:
        """The pod with its record; asked for afresh where the watch has not told of it."""
        pod = self._ledger.bound(entry.uid)
        if pod is None or pod.allocation is None:
            try:
                pod = await self._world.pods.get(entry.namespace, entry.pod)
            except UnreachableError:
                return Obstacle(f"the API server does not answer, and nothing is known of {entry.whose} yet")
        if pod is None or pod.uid != entry.uid:
            return Obstacle(f"{entry.whose} is gone")
        if pod.ended:
            return Obstacle(f"{entry.whose} has ended")
        return pod

    def _current(self, pod: Bound) -> list[Entry]:
        """What the pod has now: one container on a wrong card spoils the pod."""
        return [entry for entry in self._ledger.book.of(pod.uid) if FORMER not in entry.container]

    async def _others(self, entry: Entry) -> Obstacle | None:
        """Whoever else has one of the devices: released if nothing of it lives."""
        for other in self._ledger.book.touching(entry.ids):
            if other.uid == entry.uid or other.made > entry.made:
                continue  # who came later waits for us
            why = await self._release.attempt(other)
            if why:
                rival = self._ledger.bound(other.uid) if other.uid else None
                final = rival is not None and rival.started and not rival.ended and not rival.deleting
                text = f"{other.whose} still has devices that the kubelet gave again: {why}"
                return Obstacle(text, hopeless=final, waits=not final)
        return None

    async def deliver(self, entry: Entry, pod: Bound) -> Obstacle | None:
        """Put everything in its place. pre: nothing disagrees."""
        part = pod.part(entry.container) or ()
        policy = Policy.FIXED.name.lower()
        if pod.exempt or self._world.inventory.mode() is Mode.SHARE:
            policy = NOTHING
        claim = json.dumps(entry_record(entry))
        promise = Promise(hash_of(entry.ids), tuple(sorted(entry.ids)), pod, entry.container, part, policy, claim)
        self._ledger.started[pod.uid] = self._world.clock.now()
        try:
            async with self._release.working:
                await self._ledger.save()
                await self._world.delivery.deliver(promise)
            await self._replaced(entry)
        except (UndeliverableError, UnreachableError) as exc:
            self._ledger.fault = str(exc)
            _log.error("%s cannot start: %s", entry.whose, exc)
            return Obstacle(str(exc))
        self._ledger.fault = ""
        self._ledger.shown[promise.hash] = entry.container
        self._ledger.started[pod.uid] = self._world.clock.now()
        return None

    async def _replaced(self, entry: Entry) -> None:
        """Init containers have ended when an app container starts: their promise counts no more."""
        if entry.init:
            return
        mine = self._ledger.book.of(entry.uid)
        kept = {one.ids for one in mine if not one.init}  # a sidecar has an init container's very devices
        for before in mine:
            if before.init and before.ids not in kept:
                await self._world.delivery.uncount(hash_of(before.ids))


def disagreement(entry: Entry, pod: Bound, unit_bytes: int) -> str:
    """In which way the book and the record do not agree; empty: in none."""
    if pod.allocation is None:
        return f"it was bound without our record: only our scheduler binds pods that ask for {ACK.memory}"
    part = pod.part(entry.container)
    if part is None:
        return f"its record promises nothing to container {entry.container}"
    return mismatch(entry.ids, part, unit_bytes)
