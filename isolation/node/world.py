# SPDX-License-Identifier: Apache-2.0
"""
What the node agent needs of the world: values, and protocols that somebody else fulfils.

The kubelet, the API server, the disk, control groups and cards stand behind these. Tests and the simulator
put worlds in memory in their place; the agent cannot tell. Every call ends by itself within a deadline of
its own: `UnreachableError` says that nothing was learnt, never that something is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.model import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isolation.contract.codec import Allocation
    from isolation.contract.model import Card, Slice

SERVED: Final = frozenset({Mode.SHARE, Mode.CGPU, Mode.CORE_MEM})
"""Modes of a node that offers shares."""


class NotYetError(Exception):
    """A container cannot start now; the text says why. The kubelet asks again by itself."""


class UnreachableError(Exception):
    """Nobody answered in time: nothing is known."""


class UndeliverableError(Exception):
    """What a container needs could not be put in its place; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's part of GetPreferredAllocation."""

    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Granted:
    """One container's part of an Allocate answer."""

    cdi_device: str


@dataclass(frozen=True, slots=True)
class Device:
    """One unit of one card, as the kubelet is told."""

    id: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container that asks for units of shared memory."""

    name: str
    units: int
    init: bool = False
    """It ends before the pod's app containers start (a sidecar does not)."""
    done: bool = False
    """It is an init container and has ended well."""
    over: bool = False
    """It has ended, and is not about to be started again by the kubelet's last word."""
    id: str = ""
    """The runtime's id of the container that runs now, 64 hex digits; empty: not known."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod that is bound to this node and asks for shares, as the API server tells."""

    uid: str
    name: str
    namespace: str
    wanted: tuple[Wanted, ...]
    """In the order in which the kubelet admits them: init containers and sidecars, then the others."""
    allocation: Allocation | None
    """Our record; None: there is none that can be read."""
    created: float = 0.0
    ended: bool = False
    """Succeeded or failed: none of its containers starts again."""
    started: bool = False
    """One of its containers has run."""
    deleting: bool = False
    """A deletion was asked for."""
    exempt: bool = False
    """System software: nothing is enforced."""

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    def container(self, name: str) -> Wanted | None:
        """One of them by name."""
        return next((one for one in self.wanted if one.name == name), None)

    def part(self, name: str) -> tuple[Slice, ...] | None:
        """What the record gives that container; None: nothing."""
        parts = self.allocation.parts if self.allocation else ()
        return next((part.slices for part in parts if part.container == name), None)


class Pods(Protocol):
    """Pods of this node that ask for shares, by the API server."""

    def bound(self) -> Iterable[Bound]:
        """As the watch tells; from memory."""

    def synced(self) -> bool:
        """Whether the watch has told of every pod once, and still runs."""

    async def changed(self, seconds: float) -> None:
        """Until the watch tells something new, at most that long."""

    async def fetch(self, seconds: float) -> Iterable[Bound]:
        """All of them, asked afresh within that time. UnreachableError."""

    async def get(self, namespace: str, name: str) -> Bound | None:
        """The pod of that name now, on whatever node; None: there is none. UnreachableError."""

    async def delete(self, pod: Bound, reason: str) -> None:
        """Delete it by UID, and say in an Event why; a pod that is gone is no error. UnreachableError."""


class PodResources(Protocol):
    """The kubelet's own word of who has which devices of ours."""

    async def get(self, namespace: str, name: str, seconds: float) -> Mapping[str, frozenset[str]] | None:
        """Device IDs of our resource by container (empty: none yet); None: no such pod. UnreachableError."""


class Cgroups(Protocol):
    """Processes of pods, by the kernel."""

    def living(self, uid: str) -> bool | None:
        """Whether a process of the pod lives; None: cannot be told."""


class Inventory(Protocol):
    """This node: its cards and what it serves."""

    def cards(self) -> Sequence[Card]:
        """Every card that was ever seen; one that is lost is not healthy."""

    def mode(self) -> Mode:
        """What the node's label says."""

    def whole(self) -> bool:
        """Whether somebody offers whole cards here."""


class Shelf(Protocol):
    """Where the book lies."""

    def load(self) -> str | None:
        """The text; None: there was none. UnreachableError: it cannot be read."""

    async def save(self, text: str) -> None:
        """Durable when it returns. UnreachableError."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What is delivered to one container."""

    hash: str
    """Of its device IDs: the name of folder and CDI device."""
    ids: tuple[str, ...]
    pod: Bound
    container: str
    slices: tuple[Slice, ...]
    policy: str
    """How compute is shared; `none`: nothing at all is enforced."""
    claim: str = ""
    """The book's entry, as text, to lie beside it."""

    @property
    def id(self) -> str:
        """The promise id: in hold, limits, region and metrics."""
        return f"{self.pod.uid}.{self.container}"


class Delivery(Protocol):
    """Files of a container and its CDI device."""

    async def deliver(self, promise: Promise) -> None:
        """Everything in place, checked, as often as asked. UndeliverableError."""

    async def uncount(self, hash_: str) -> None:
        """Its hold goes, the files stay."""

    async def retire(self, hash_: str) -> None:
        """Nobody uses it any more: everything of it goes. Not an error where there is nothing."""

    def standing(self) -> Iterable[str]:
        """Hashes of which anything stands."""

    def claims(self) -> Iterable[str]:
        """The entry that each of them was written for: the book is made anew from these if it is lost."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by all of a machine's clocks."""

    now: float
    """Seconds that only grow, while the machine runs."""
    wall: float
    """Seconds since 1970 as the machine believes; can be set."""
    boot: str
    """Which run of the machine it is; empty: not known."""


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Seconds that only grow, over restarts of the agent too."""

    def moment(self) -> Moment:
        """The same, to be compared after a reboot."""

    async def sleep(self, seconds: float) -> None:
        """Let others work."""


@dataclass(frozen=True, slots=True)
class World:
    """All of it."""

    pods: Pods
    resources: PodResources
    cgroups: Cgroups
    inventory: Inventory
    shelf: Shelf
    delivery: Delivery
    clock: Clock
