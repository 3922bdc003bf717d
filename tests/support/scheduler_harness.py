# SPDX-License-Identifier: Apache-2.0
"""Pods, reservations and an API server's answers for tests of the scheduler's decisions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from support.builders import ask

from isolation.contract.codec import decode_allocation
from isolation.contract.model import Ask, Placement, Pod, Slice
from isolation.contract.names import ALLOCATION, RESERVATION
from isolation.contract.quantity import gib
from isolation.contract.reservation import Reservation
from isolation.kube.core.errors import UnreachableError
from isolation.kube.election import Fence
from isolation.kube.writes import Outcome, PodLocation, WriteResult

if TYPE_CHECKING:
    from collections.abc import Callable


def pod(uid: str = "u", size: int = 4, cards: int = 1, **rest: Any) -> Pod:
    """A pending pod that asks for `size` GiB on each of `cards` cards."""
    core, owner = rest.pop("core", 0), rest.pop("owner", "")
    asks = (Ask("main", gib(size) * cards, core * cards, position=0),)
    given = {"namespace": "ml", "name": f"pod-{uid}"} | rest
    extra = {key: given.pop(key) for key in ("cpu_milli", "memory_bytes") if key in given}
    return Pod(uid=uid, request=ask(size, cards, core=core, owner=owner, asks=asks, **extra), **given)


def at(node: str, *cards: int, size: int = 4, core: int = 0) -> Placement:
    """These cards of a node of `builders.node`."""
    return Placement(node, tuple(Slice(f"GPU-{node}-{i}", i, gib(size), core) for i in cards))


def bound(what: Pod, placement: Placement, reservation: str = "") -> Pod:
    """The pod as the watch shows it after its binding."""
    return replace(what, placement=placement, reservation=reservation)


def reserve(name: str, holder: str, placement: Placement, expires: float = 1000.0, **rest: Any) -> Reservation:
    """A stored reservation."""
    return Reservation(name, holder, placement, expires, **rest)


@dataclass
class Server:
    """The part of an API server that binds: one truth, and a script of what goes wrong on the way."""

    nodes: dict[str, str] = field(default_factory=dict)
    """UID to node."""
    records: dict[str, dict[str, str]] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """Of those, who has succeeded or failed."""
    script: list[str] = field(default_factory=list)
    """The next binds: ok, lost (applied, no answer), dropped (not applied, no answer), or the name of an outcome."""
    down: bool = False
    posts: int = 0
    gate: asyncio.Event | None = None
    """Binds wait here, if there is one, before anything happens."""
    under_way: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """By UID, where and with which records: requests that nobody has answered and that were not carried out."""

    async def bind(self, target: Any, node: str, annotations: Any, seconds: float | None = None) -> WriteResult:
        """As `Writer.bind`."""
        assert seconds is None or seconds > 0
        self.posts += 1
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        step = self.script.pop(0) if self.script else "ok"
        if self.down or step == "dropped":
            self.under_way[target.uid] = node, dict(annotations)
            raise UnreachableError("request timed out after 5.0 s")
        if step in ("blocked", "refused"):
            return WriteResult(Outcome(step), "as scripted")
        if target.uid not in self.alive:
            return WriteResult(Outcome.GONE, "pods not found")
        if target.uid in self.nodes:
            return WriteResult(Outcome.REFUSED, f"pod is already assigned to node {self.nodes[target.uid]}")
        self.nodes[target.uid] = node
        self.records[target.uid] = dict(annotations)
        if step == "lost":
            raise UnreachableError("request timed out after 5.0 s")
        return WriteResult(Outcome.DONE)

    def arrive(self, uid: str) -> None:
        """A request that was taken for lost is carried out after all."""
        self.nodes[uid], self.records[uid] = self.under_way.pop(uid)

    async def placed(self, target: Any, seconds: float | None = None) -> PodLocation | None:
        """As `Writer.placed`."""
        assert seconds is None or seconds > 0
        await asyncio.sleep(0)
        if self.down:
            raise UnreachableError("no answer")
        if target.uid not in self.alive:
            return None
        return PodLocation(self.nodes.get(target.uid, ""), self.records.get(target.uid, {}), target.uid in self.ended)

    def seen(self, what: Pod) -> Pod:
        """The pod as a watch of this server shows it."""
        if what.uid not in self.nodes:
            return what
        record = self.records[what.uid]
        slices = decode_allocation(record[ALLOCATION]).slices
        return bound(what, Placement(self.nodes[what.uid], slices), record.get(RESERVATION, ""))


@dataclass(slots=True)
class Clock:
    """Time that moves when somebody sleeps, or is told to; also the fence of one who holds the Lease."""

    now: float = 100.0
    leads: bool = True

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """No time passes in the real world."""
        self.now += seconds
        await asyncio.sleep(0)

    def fence(self) -> Fence | None:
        """The right to act, for a while."""
        return Fence(1, self.now + 6.0) if self.leads else None


async def until(holds: Callable[[], object]) -> None:
    """Let the others run until this holds."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")
