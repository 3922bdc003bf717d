# SPDX-License-Identifier: Apache-2.0
"""
One machine: cards, containers that run on them, control groups, and a disk that survives.

What is here is true whatever anybody believes: the judges look at it. Programs come and go, a reboot
ends every container and leaves the disk; a container ends by itself at its time or after it was told to.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from interleave.loop import VirtualLoop

    from isolation.contract.model import Card, Slice


@dataclass(eq=False, slots=True)
class Container:
    """One container from its start to its last process' end."""

    uid: str
    """Of its pod."""
    name: str
    cid: str
    ids: tuple[str, ...]
    """Device IDs with which it was started."""
    slices: tuple[Slice, ...]
    """What the CDI device and the limits in it allow it."""
    promise: str
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lives(self) -> bool:
        """Whether a process of it does."""
        return not self.over.is_set()


@dataclass(slots=True)
class Delivered:
    """What stands on disk for one allocation; parts of it may be missing after a crash."""

    claim: str = ""
    slices: tuple[Slice, ...] = ()
    promise: str = ""
    hold: bool = False
    """Whether its hold counts."""
    spec: bool = False
    """Whether its CDI spec stands."""


@dataclass(slots=True)
class Machine:
    """See the module."""

    name: str
    cards: tuple[Card, ...]
    loop: VirtualLoop
    draw: random.Random
    started: Callable[[Machine, Container], None] = lambda _machine, _container: None
    """The judge's ear."""
    containers: list[Container] = field(default_factory=list)
    book: str | None = None
    """The agent's durable file."""
    delivered: dict[str, Delivered] = field(default_factory=dict)
    done: set[tuple[str, str]] = field(default_factory=set)
    """Init containers, by pod UID and name, that have ended well in this boot."""
    ran: set[tuple[str, str]] = field(default_factory=set)
    """Containers, by pod UID and name, that have ever been started: the runtime keeps the last dead one of each."""
    boots: int = 1
    booted: float = 0.0
    """When it was, last."""
    serial: int = 0

    def start(self, container: Container, seconds: float | None) -> None:
        """A container runs until it is told to end, or (an init container) well for so many seconds."""
        self.containers.append(container)
        self.ran.add((container.uid, container.name))
        self.started(self, container)
        if seconds is not None:
            self.loop.later(seconds, self._well, container)

    def _well(self, container: Container) -> None:
        if container in self.containers:
            self.done.add((container.uid, container.name))
            self.end(container)

    def end(self, container: Container) -> None:
        """Its last process is gone."""
        if container in self.containers:
            self.containers.remove(container)
            container.over.set()

    def kill(self, container: Container, linger: float) -> None:
        """It is told to end, and does after a while."""
        self.loop.later(linger, self.end, container)

    def living(self, uid: str) -> list[Container]:
        """Containers of a pod whose processes live."""
        return [one for one in self.containers if one.uid == uid]

    def reboot(self) -> None:
        """Nothing runs any more."""
        self.boots += 1
        self.booted = self.loop.time()
        self.done.clear()
        for container in list(self.containers):
            self.end(container)

    def new_cid(self) -> str:
        """64 hex digits, never the same."""
        self.serial += 1
        return f"{self.boots:032x}{self.serial:032x}"
