# SPDX-License-Identifier: Apache-2.0
"""
Whether a container may start with its devices, and everything it needs put in place if so.

All that can be wrong is found here and nowhere earlier, because here a refusal harms nobody: the kubelet
asks again by itself, and other pods go on. Refuses to start what the record, the book and the kubelet's own
list do not agree about, and whoever would share an ID with a process that lives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.contract.abi import Policy
from isolation.contract.model import Mode
from isolation.contract.names import ACK
from isolation.node.book import FORMER, entry_of, entry_record, hash_of
from isolation.node.choose import mismatch
from isolation.node.namesake import Namesakes
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


CHANGED: Final = Obstacle("the owner of these devices has just been resolved: retry", waits=True)
"""No pod's fault: looked at again at once."""


class Starting:
    """PreStartContainer; see the module."""

    def __init__(self, ledger: Ledger, release: Release, resolver: Resolver, unit_bytes: int) -> None:
        self._ledger, self._world, self._release, self._unit = ledger, ledger.world, release, unit_bytes
        self._resolver, self._namesakes = resolver, Namesakes(ledger)

    async def start(self, ids: frozenset[str]) -> None:
        """Everything in place when it returns; NotYetError."""
        clock = self._world.clock
        end = clock.now() + PATIENCE_SECONDS
        owner = ""
        while True:
            latest = self._latest(ids)
            if owner and (latest is None or latest.uid != owner):
                raise NotYetError("another pod received these devices while this pod waited for them")
            owner = latest.uid if latest is not None else ""
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
        found = await self._pod(entry)
        if isinstance(found, Obstacle):
            return found
        entry, pod = found
        if self._ledger.book.lacking(pod) or any(one.guessed for one in self._current(pod)):
            try:
                await self._resolver.look([pod])
            except UnreachableError as exc:
                return Obstacle(f"the other devices of {pod.key} are not known yet: {exc}")
            latest = self._latest(ids)
            if latest is None or latest.uid != pod.uid:
                return CHANGED
            entry = latest
        text = next(filter(None, (disagreement(one, pod, self._unit) for one in self._current(pod))), "")
        obstacle = Obstacle(text, hopeless=True) if text else await self._others(entry)
        if obstacle is None:
            obstacle = await self.deliver(entry, pod)
        if obstacle is None:
            self._ledger.recovered(pod.uid)
        elif obstacle is not CHANGED:
            self._ledger.in_trouble(pod, obstacle.text, hopeless=obstacle.hopeless, waits=obstacle.waits)
        return obstacle

    async def _owner(self, ids: frozenset[str]) -> Entry | Obstacle:
        """The entry of the container that starts, confirmed by the kubelet's list where that shows it."""
        try:
            entry = self._latest(ids)
            if entry is not None and entry.guessed:
                pods = tuple(await self._world.pods.fetch(ANSWER_SECONDS))
                await self._resolver.settle(pods)
                entry = self._latest(ids)
                if entry is not None and entry.guessed and not await self._resolver.alone(entry, pods):
                    return Obstacle(f"it is not confirmed yet that these devices belong to {entry.whose}")
            if entry is not None and await self._confirmed(entry):
                return self._latest(ids) or entry
            found = await self._resolver.find(ids)
            found = found and (self._latest(ids) or found)
            if found is not None and found.guessed:
                pods = tuple(await self._world.pods.fetch(ANSWER_SECONDS))
                if not await self._resolver.alone(found, pods):
                    return Obstacle(f"it is not confirmed yet that these devices belong to {found.whose}")
        except UnreachableError as exc:
            return Obstacle(f"the owner of these devices is not known yet: {exc}")
        if found is None:
            self._ledger.ownerless[ids] = self._world.clock.now()
            return Obstacle("the owner of these devices is not known yet")
        self._ledger.ownerless.pop(ids, None)
        if await self._confirmed(found):
            return found
        text = f"the kubelet does not confirm that these devices belong to {found.whose}/{found.container}"
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
        order = [one.name for one in pod.wanted] if pod else []
        done = {one.name for one in pod.wanted if one.done} if pod else set()
        turns = sorted(entries, key=lambda entry: order.index(entry.container) if entry.container in order else -1)
        return next((entry for entry in turns[:-1] if entry.container not in done), turns[-1])

    async def _confirmed(self, entry: Entry) -> bool:
        """Whether the kubelet's list agrees; it does not show init containers, and may be silent."""
        try:
            listing = await self._world.resources.get(entry.namespace, entry.pod, ANSWER_SECONDS)
        except UnreachableError:
            return not entry.guessed
        if entry.init:
            return listing is not None or not entry.guessed
        shown = listing.get(entry.container) if listing is not None else None
        if not shown:  # what was allocated is listed by now: nothing for it says that another pod was admitted
            return listing is None and not entry.guessed
        if shown == entry.ids and entry.guessed:
            self._ledger.claim(replace(entry, guessed=False))
        return shown == entry.ids

    async def _pod(self, entry: Entry) -> tuple[Entry, Bound] | Obstacle:
        """
        The container that starts and its pod, by the API server's word of this moment.

        The kubelet knows pods by name, and the watch may be behind: another pod of that name may have come.
        While the server is silent only what had these devices before starts again.
        """
        try:
            pod = await self._world.pods.get(entry.namespace, entry.pod)
        except UnreachableError:
            known = self._ledger.bound(entry.uid)
            if known is None or known.allocation is None or not self._delivered(entry):
                return Obstacle(f"the API server does not answer: {entry.whose} may have been replaced by another pod")
            pod = known
        if pod is not None and pod.uid != entry.uid:
            return await self._namesake(entry, pod.uid)
        if pod is None:
            return Obstacle(f"{entry.whose} no longer exists")
        if pod.ended:
            return Obstacle(f"{entry.whose} has ended")
        if pod.deleting:  # its kubelet starts nothing of it any more: whoever starts is another one, or in vain
            return Obstacle(f"{entry.whose} is being deleted", waits=True)
        return entry, pod

    async def _namesake(self, entry: Entry, uid: str) -> tuple[Entry, Bound] | Obstacle:
        """The devices went to a pod that came under that name, if time does not tell otherwise."""
        gone = Obstacle(f"{entry.whose} was replaced by another pod of the same name")
        try:
            found = await self._namesakes.heir(entry, uid)
        except UnreachableError:
            return gone
        if found is None:
            return gone
        pod, seconds = found
        if seconds > 0:
            return replace(gone, waits=True)
        return self._namesakes.inherit(entry, pod), pod

    def _delivered(self, entry: Entry) -> bool:
        """Whether the container had these devices before: its claim lies beside its files."""
        wanted = (entry.uid, entry.container, entry.ids, entry.made)
        for text in self._world.delivery.claims():
            try:
                claim = entry_of(json.loads(text))
            except ValueError:
                continue
            if (claim.uid, claim.container, claim.ids, claim.made) == wanted:
                return True
        return False

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
                text = f"{other.whose} still has devices that the kubelet allocated again: {why}"
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
            if not await asyncio.shield(self._put(entry, promise)):  # a kubelet that hangs up does not tear it
                return CHANGED
            await self._replaced(entry)
            for former in self._ledger.book.of(pod.uid):
                if former.container.startswith(f"{entry.container}{FORMER}"):
                    await self._release.forget(former)
        except (UndeliverableError, UnreachableError) as exc:
            self._ledger.fault = str(exc)
            _log.error("cannot start pod %s: %s", entry.whose, exc)
            return Obstacle(str(exc))
        if entry.guessed:
            self._ledger.claim(replace(entry, guessed=False))
        self._ledger.fault = ""
        self._ledger.shown[promise.hash] = entry.container
        self._ledger.started[pod.uid] = self._world.clock.now()
        return None

    async def _put(self, entry: Entry, promise: Promise) -> bool:
        """Whether it is in place; not where the book says by now that the devices are somebody else's."""
        async with self._release.working:
            await self._ledger.save()
            stands = self._ledger.book.get(entry.uid, entry.container)
            if stands is None or (stands.ids, stands.made) != (entry.ids, entry.made):
                return False
            await self._world.delivery.deliver(promise)
            return True

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
        advice = f"only the gpushare scheduler may bind pods that request {ACK.memory}"
        return f"the pod was bound without a valid allocation annotation: {advice}"
    part = pod.part(entry.container)
    if part is None:
        return f"the allocation annotation has no entry for container {entry.container}"
    return mismatch(entry.ids, part, unit_bytes)
