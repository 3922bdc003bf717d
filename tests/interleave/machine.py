# SPDX-License-Identifier: Apache-2.0
"""
One machine: cards, processes of containers, control groups, files that survive a boot and files that do not.

What is here is true whatever anybody believes: the judges look at it. Programs come and go, a reboot ends every
process and empties what is kept in memory; a container ends by itself at its time or after it was told to.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isolation.contract.nri_api import NriContainerState
from isolation.node.device_plugin.exchange import Offer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from interleave.loop import VirtualLoop

    from isolation.contract.host_allocation import HostAllocation
    from isolation.contract.model import Card, Slice
    from isolation.node.nri.model import Sandbox


@dataclass(eq=False, slots=True)
class Files:
    """What the agent has made for one container of a pod; parts of it may be missing after a crash."""

    boot: int
    """In which the region was made: of another boot it is made anew."""
    slices: tuple[Slice, ...] = ()
    """The limits."""
    hold: HostAllocation | None = None


@dataclass(eq=False, slots=True)
class Container:
    """One container as the runtime keeps it, and its processes."""

    cid: str
    name: str
    sandbox: Sandbox
    guarded: bool
    """Whether the kubelet was given the gate's device for it."""
    pid: int
    state: int = NriContainerState.CREATED
    annotations: dict[str, str] = field(default_factory=dict)
    cards: frozenset[str] = frozenset()
    """UUIDs of the CDI devices that it was given."""
    promise: str = ""
    """Whose limits are mounted; empty: nobody's."""
    files: Files | None = None
    """Those that were found there at the start."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    """The runtime says that it has ended; processes of it may be left."""
    well: bool = False
    """It ended by itself, as it should."""


@dataclass(slots=True)
class Machine:
    """See the module."""

    name: str
    cards: tuple[Card, ...]
    loop: VirtualLoop
    draw: random.Random
    started: Callable[[Machine, Container], None] = lambda _machine, _container: None
    """The judge's ear."""
    spoilt: Callable[[Machine, Container], None] = lambda _machine, _container: None
    """The same, for a container that was prepared and is refused by the guard."""
    ended: Callable[[Container], None] = lambda _container: None
    """The runtime's ear: its first process, or its last one, has ended."""
    containers: list[Container] = field(default_factory=list)
    """Those that have processes."""
    disk: dict[str, Files] = field(default_factory=dict)
    """By promise id."""
    marks: dict[str, str] = field(default_factory=dict)
    """Nonces by container id; in memory."""
    gate: bool = False
    """Whether the runtime finds the gate's device; in memory."""
    offer: Offer = Offer()  # noqa: RUF009 (frozen)
    """The agent's last one; on the disk."""
    grouped: bool = True
    """Whether the tree of pods' control groups is there: after a boot the kubelet makes it."""
    slow_until: float = 0.0
    """The disk takes seconds until then."""
    boots: int = 1
    serial: int = 0

    def begin(self, container: Container, seconds: float | None) -> None:
        """Its program runs until it is told to end, or (an init container) well for so many seconds."""
        self.containers.append(container)
        container.files = self.disk.get(container.promise)
        self.started(self, container)
        if seconds is not None:
            self.loop.later(seconds, self._well, container)

    def _well(self, container: Container) -> None:
        if container in self.containers:
            container.well = True
            self.kill(container, self.draw.choice((0.0, 0.0, 0.0, 2.0)))

    def kill(self, container: Container, linger: float) -> None:
        """It is told to end, and does after a while; now and then its first process is gone long before the last."""
        first = linger * self.draw.choice((0.0, 0.3, 1.0, 1.0))
        self.loop.later(first, self.ended, container)
        self.loop.later(linger, self._end, container)

    def _end(self, container: Container) -> None:
        if container in self.containers:
            self.containers.remove(container)
        self.ended(container)

    def living(self, uid: str) -> list[Container]:
        """Containers of a pod that have processes."""
        return [one for one in self.containers if one.sandbox.uid == uid]

    def stall(self) -> float:
        """Seconds of one touch of the disk."""
        if self.loop.time() < self.slow_until and self.draw.random() < 0.3:
            return self.draw.uniform(0.2, 2.5)
        return self.draw.random() * 0.002

    def reboot(self) -> None:
        """Nothing runs any more."""
        self.boots += 1
        self.grouped = self.gate = False
        self.marks.clear()
        for container in list(self.containers):
            self._end(container)

    def number(self) -> int:
        """Never the same."""
        self.serial += 1
        return self.serial
