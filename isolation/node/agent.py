# SPDX-License-Identifier: Apache-2.0
"""
The node agent: what it answers the kubelet, and what it does by itself.

Two kinds of answers. GetPreferredAllocation and Allocate hold up every pod of the node and an error fails a
pod for good: they answer from memory in milliseconds, whatever is wrong. PreStartContainer harms nobody:
there everything is checked, and refused until it is right. No gRPC and no Kubernetes here (`world`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB
from isolation.node.book import Entry, card_of, device_of, id_of, number_of
from isolation.node.choose import preferred, units_by_card
from isolation.node.identity import Identity
from isolation.node.keeper import Keeper, Parts
from isolation.node.ledger import Ledger
from isolation.node.release import Release
from isolation.node.resolve import Resolver
from isolation.node.starting import Starting
from isolation.node.world import SERVED, Device, Granted, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.node.book import Book
    from isolation.node.turn import Found
    from isolation.node.world import Ask, World

_log: Final = logging.getLogger(__name__)
REMEMBERED_SECONDS: Final = 2.0
"""Between our preference and the Allocate that follows it."""
OWN, FREE, LEFT, TAKEN = -1, 0, 1, 2


class Agent:
    """See the module. `start` comes first."""

    def __init__(self, world: World, unit_bytes: int = GIB) -> None:
        self._world, self._unit = world, unit_bytes
        self._ledger = Ledger(world)
        self._identity = Identity(self._ledger)
        release, resolver = Release(self._ledger), Resolver(self._ledger, unit_bytes)
        self._starting = Starting(self._ledger, release, resolver, unit_bytes)
        self._keeper = Keeper(Parts(self._ledger, release, resolver, self._starting), unit_bytes)
        self._expected: tuple[frozenset[str], Found | None, float] | None = None
        self._admitting = asyncio.Lock()

    @property
    def book(self) -> Book:
        """Who has which devices."""
        return self._ledger.book

    @property
    def fault(self) -> str:
        """What keeps containers of this node from starting; empty: nothing."""
        return self._ledger.fault

    @property
    def rebuilt(self) -> str:
        """Why the book had to be made anew; empty: it was read."""
        return self._ledger.rebuilt

    async def start(self) -> None:
        """Take up the book."""
        self._keeper.remember(book=not self._ledger.open())
        try:
            await self._ledger.save()
        except UnreachableError as exc:
            self._ledger.fault = f"cannot save allocations: {exc}"
            _log.error("%s", self._ledger.fault)

    def devices(self) -> tuple[Device, ...]:
        """
        Every unit of every card.

        What a container has stays healthy: taking it away stops nobody and fails pods that come back. Nothing
        else is offered where the node serves no shares, or whole cards besides.
        """
        held = self.book.held()
        if self._world.inventory.mode() not in SERVED or self._world.inventory.whole():
            return tuple(Device(ident, healthy=True) for ident in sorted(held))
        offered: dict[str, bool] = {}
        for card in self._world.inventory.cards():
            for number in range(card.allocatable_bytes // self._unit):
                offered[id_of(card.uuid, number)] = card.healthy
        offered |= dict.fromkeys(held, True)
        return tuple(Device(ident, healthy) for ident, healthy in offered.items())

    async def preferred(self, asks: Sequence[Ask]) -> list[list[str]]:
        """The devices that each container should get."""
        async with self._admitting:
            answers = []
            for ask in asks:
                found = await self._whose(ask.size, frozenset(ask.must))
                ids = preferred(ask, self._units(found), self._rank(found))
                self._expected = (frozenset(ids), found, self._world.clock.now() + REMEMBERED_SECONDS)
                answers.append(ids)
            return answers

    async def allocate(self, asks: Sequence[Sequence[str]]) -> list[Granted]:
        """Write down who has these devices now."""
        async with self._admitting:
            answers = []
            for ids in map(frozenset, asks):
                found = await self._expectation(ids)
                for entry in found.before if found else ():
                    if self._open(*entry.key):
                        self._ledger.claim(entry)
                self._ledger.claim(self._entry(ids, found))
                answers.append(Granted(device_of(ids)))
            try:
                await self._ledger.save()
            except UnreachableError as exc:
                _log.error("cannot save allocations (%s): no new container starts until saving succeeds", exc)
            return answers

    async def prestart(self, ids: Sequence[str]) -> None:
        """Everything that the container with these devices needs, in place; NotYetError."""
        await self._starting.start(frozenset(ids))

    async def tick(self) -> None:
        """What is due, about once a second."""
        await self._keeper.turn()

    async def _expectation(self, ids: frozenset[str]) -> Found | None:
        """Whose they are: as it was found a moment ago, if these are what was preferred."""
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] == ids and self._world.clock.now() < expected[2]:
            found = expected[1]
            if found is None or self._waits(found):
                return found
        found = await self._whose(len(ids), ids)
        return found if found is not None and self._waits(found) else None

    def _waits(self, found: Found) -> bool:
        """Whether the container has nothing yet: the keeper may have learned meanwhile that its turn was before."""
        return found.again or self._open(found.pod.uid, found.wanted.name)

    def _open(self, uid: str, container: str) -> bool:
        entry = self.book.get(uid, container)
        return entry is None or entry.guessed

    async def _whose(self, size: int, ids: frozenset[str]) -> Found | None:
        try:
            return await self._identity.whose(size, ids)
        except Exception:  # noqa: BLE001 (whatever it is, an error would fail the pod for good; PreStart finds out)
            _log.exception("cannot identify the pod being admitted")
            return None

    def _entry(self, ids: frozenset[str], found: Found | None) -> Entry:
        made = self.book.next()
        if found is None or found.again:
            whose = found.pod.key if found else "unknown"
            _log.warning("allocated %d devices, pod not confirmed: PreStartContainer checks it (%s)", len(ids), whose)
            return Entry(ids, made=made)
        pod, wanted = found.pod, found.wanted
        return Entry(ids, pod.uid, pod.namespace, pod.name, wanted.name, wanted.init, found.guessed, made)

    def _units(self, found: Found | None) -> Mapping[str, int]:
        """How many units of which card, by the record, or by what the container had; empty: not known."""
        if found is None:
            return {}
        part, before = found.pod.part(found.wanted.name), self.book.get(found.pod.uid, found.wanted.name)
        if part is None:
            return Counter(map(card_of, before.ids if before else ()))
        return units_by_card(part, self._unit)

    def _rank(self, found: Found | None) -> Callable[[str], int]:
        """How bad it would be to give an ID away: its own; free; of a pod that is going; of a pod that stays."""
        staying = {pod.uid for pod in self._world.pods.bound() if not (pod.ended or pod.deleting)}
        ranks: dict[str, int] = {}
        for entry in self.book:
            for ident in entry.ids:
                ranks[ident] = max(ranks.get(ident, FREE), TAKEN if entry.uid in staying or not entry.uid else LEFT)
        before = self.book.get(found.pod.uid, found.wanted.name) if found else None
        ranks |= dict.fromkeys(before.ids if before else (), OWN)
        return lambda ident: ranks.get(ident, FREE) if number_of(ident) >= 0 else TAKEN
