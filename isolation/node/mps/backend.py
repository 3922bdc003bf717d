# SPDX-License-Identifier: Apache-2.0
"""
What a container gets of its card's MPS server, and what becomes of it where that server ends.

The server's defaults carry the largest limit of any container on the card; a container's own stand in its environment,
which a program can change: then the server's apply. The limits are of each process, so the library counts the
container's total. Limits name the card by its index under the server: NVIDIA's client drops all limits of a variable in
which it does not know one. Without a server a container is refused: a program that finds none runs without limits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.model import FULL_CORE, Mode
from isolation.contract.names import IN_CONTAINER, MPS_ENDED
from isolation.contract.quantity import MIB, show_bytes
from isolation.files import replace_file
from isolation.host.files import read_text
from isolation.node.backend import LibraryBackend, UndeliverableError
from isolation.node.cdi import Edits, Mount
from isolation.node.core.mps import Wish
from isolation.node.delivery import ALLOC, CLIENT
from isolation.node.mps.exchange import NO_KEEPER, PIPE, SHARED_MEMORY, MpsExchange, folder_of
from isolation.node.overlimit import end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from isolation.contract.host_allocation import Tenant
    from isolation.contract.model import Card, Slice
    from isolation.node.allocations import Allocations, TenantAllocation
    from isolation.node.core.container_check import Given
    from isolation.node.mps.exchange import MpsServer

_log: Final = logging.getLogger(__name__)
LATELY_SECONDS: Final = 3.0
"""A program may end of its server's failure before the keeper and the agent notice that."""
WAIT_SECONDS: Final = 1.0
"""For a server that is being started: within the deadline of our answers, or nobody reads why."""
_INSIDE: Final = f"{IN_CONTAINER}/mps/{PIPE}"


@dataclass(slots=True)
class MpsBackend(LibraryBackend):
    """See the module."""

    name: str = "mps"
    cards: Callable[[], Sequence[Card]] = tuple
    tell: Callable[[], object] = tuple
    """Let the keeper know what containers need, the one that is being prepared among them."""

    def available(self) -> str:
        """See `EnforcementBackend`."""
        if any(card.instance is not None for card in self.cards()):
            return "some cards of this node are divided into MIG instances"
        if not MpsExchange(self.run_dir).keeper_lives():
            return NO_KEEPER
        return LibraryBackend.available(self)

    def edits(self, folder: Path, given: Given) -> Edits:
        """See `EnforcementBackend`."""
        if len(given.slices) != 1:
            raise UndeliverableError("a process has one MPS server, which has one card: request one card")
        if given.trust is None:
            raise UndeliverableError("the pod's allocation names no user, so it cannot share an MPS server")
        part = given.slices[0]
        server = self._server(part.uuid, given)
        replace_file(folder / CLIENT, f"{server.generation}\n{part.bytes} {percent_of(given)}\n")
        place = folder_of(self.run_dir, part.uuid)
        for name in (PIPE, SHARED_MEMORY):
            if not (place / name).is_dir():
                raise UndeliverableError(f"{place / name} is missing: the MPS keeper restores it")
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": _INSIDE,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={part.bytes // MIB}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent_of(given)),
        }
        mounts = (
            Mount(str(place / PIPE), _INSIDE),
            Mount(str(place / SHARED_MEMORY), "/dev/shm", writable=True, replaces=True),  # noqa: S108 (the container's)
        )
        return LibraryBackend.edits(self, folder, given) + Edits(env, mounts)

    def _server(self, uuid: str, given: Given) -> MpsServer:
        """One that serves this container; UndeliverableError while there is none."""
        exchange, deadline = MpsExchange(self.run_dir), time.monotonic() + WAIT_SECONDS
        self.tell()
        while True:
            found = exchange.servers().get(uuid)
            if found is not None and found.generation and _serves(found, given):
                return found
            if time.monotonic() >= deadline:
                why = found.why if found is not None and found.why else "it is being started"
                why = why if exchange.keeper_lives() else NO_KEEPER
                raise UndeliverableError(
                    f"card {uuid} has no MPS server for this container ({why}); the kubelet will retry"
                )
            time.sleep(0.02)


class MpsInventory(Protocol):
    """This node."""

    def cards(self) -> Sequence[Card]:
        """Every card that was ever seen."""

    def mode(self) -> Mode:
        """What the node's label says."""


class MpsClients:
    """Which containers are clients of which server, by the folders of their promises."""

    def __init__(
        self,
        run_dir: Path,
        allocations: Allocations,
        inventory: MpsInventory,
        warn: Callable[[Tenant, str, str], object] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`warn`: an Event about a container's pod, by reason and note."""
        self._exchange, self._allocations, self._alloc = MpsExchange(run_dir), allocations, run_dir / ALLOC
        self._cards, self._mode, self._telling = inventory.cards, inventory.mode, Lock()
        self._warn, self._clock = warn, clock
        self._wished: dict[str, Wish] | None = None
        self._reported: dict[str, str] = {}
        """By promise id, the generation with which its container was last reported to have ended."""
        self._lately: dict[str, tuple[str, float]] = {}
        """By promise id, the generation of a container that has ended, and when."""
        self._ended: deque[tuple[str, str, float]] = deque()
        """The same as the runtime reports it: its thread waits for no file of ours that is being written."""
        self.failed = 0
        """Containers that ended with their server since the agent started."""

    def wishes(self) -> dict[str, Wish]:
        """What each card's server is to hold."""
        serves = self._mode() is Mode.MPS
        made = {card.uuid: Wish() for card in self._cards()} if serves else {}
        for one in self._allocations.all():
            if one.given.trust is None or not one.given.enforced or not self._allocations.is_in_force(one):
                continue
            part, percent, held = one.slices[0], percent_of(one.given), self.generation(one.id)
            if not (serves or held):
                continue
            had = made.get(part.uuid, Wish())
            made[part.uuid] = Wish(
                one.given.trust.uid,
                max(had.bytes, part.bytes),
                max(had.percent, percent),
                had.held | ({held} if held else frozenset()),
            )
        return made

    def generation(self, ident: str) -> str:
        """Which server a container was given; empty: none."""
        try:
            return read_text(self._alloc / ident / CLIENT).partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def needs_restart(self, allocation: TenantAllocation, part: Sequence[Slice]) -> str:
        """Why these limits do not reach the programs of a client; empty: they do, or it is none."""
        try:
            held, _, limits = read_text(self._alloc / allocation.id / CLIENT).partition("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        try:
            size, percent = map(int, limits.split())
        except ValueError:
            size, percent = 0, 0
        if not held.strip() or (part[0].bytes <= size and _percent(part[0]) == percent):
            return ""
        return (
            f"container {allocation.tenant.container} has MPS limits of its start on each process, "
            f"{show_bytes(size)} and {percent} % of compute: restart it for the new amount"
        )

    def tell(self) -> None:
        """What containers need, where that has changed. OSError."""
        with self._telling:
            self._look_back()  # before the keeper may start a server, which says nothing of the one before
            now = self.wishes()
            if now != self._wished and (now or self._exchange.wishes() is not None):
                self._exchange.wish(now)
            self._wished = now

    def keep(self, allocation: TenantAllocation) -> None:
        """End a container whose server is gone: its programs have failed with it, whether they notice or not."""
        held = self.generation(allocation.id)
        if not held:
            return
        server = self._exchange.servers().get(allocation.slices[0].uuid)
        if server is not None and server.generation == held:
            return
        with self._telling:
            self._report(allocation, held, _end_of(server)[0])
        end(lambda: self._allocations.processes(allocation.id))

    def gone(self, container: str) -> None:
        """A container has ended, by itself perhaps because its server did; by the runtime's id."""
        for one in self._allocations.all():
            if one.latest == container and (held := self.generation(one.id)):
                self._ended.append((one.id, held, self._clock()))

    def _look_back(self) -> None:
        """At containers that have ended a moment ago: with their server, or not."""
        while self._ended:
            ident, held, when = self._ended.popleft()
            self._lately[ident] = held, when
        servers = self._exchange.servers() if self._lately else {}
        for ident, (held, when) in tuple(self._lately.items()):
            known = self._allocations.get(ident)
            if known is None or self._clock() - when > LATELY_SECONDS:
                del self._lately[ident]
                continue
            server = servers.get(known.slices[0].uuid)
            why, failed = _end_of(server)
            if failed:
                self._report(known, held, why)
                del self._lately[ident]
        for ident in [one for one in self._reported if self._allocations.get(one) is None]:
            del self._reported[ident]

    def _report(self, allocation: TenantAllocation, held: str, why: str) -> None:
        """Once for each container and server."""
        if self._reported.get(allocation.id) == held:
            return
        self._reported[allocation.id] = held
        self.failed += 1
        name, card = allocation.tenant.container, allocation.slices[0].uuid
        _log.error("container %s ends with its MPS server: card=%s: %s", allocation.key, card, why)
        note = f"Container {name} ends with its MPS server on card {card}: {why}. Its next start gets a new server"
        self._warn(allocation.tenant, MPS_ENDED, note)


def _end_of(server: MpsServer | None) -> tuple[str, bool]:
    """Why another server than this one is none any more, and whether its clients failed with it."""
    if server is None or not (server.generation or server.why):
        return "the MPS keeper ended", True
    if server.generation:
        return "another one serves the card", False
    return server.why, server.failed


def percent_of(given: Given) -> int:
    """Of the multiprocessors, for each process of the container; all of them where it was promised no compute."""
    return _percent(given.slices[0])


def _percent(part: Slice) -> int:
    return part.core or FULL_CORE


def _serves(server: MpsServer, given: Given) -> bool:
    enough = server.bytes >= given.slices[0].bytes and server.percent >= percent_of(given)
    return given.trust is not None and server.uid == given.trust.uid and enough
