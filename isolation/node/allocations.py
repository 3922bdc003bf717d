# SPDX-License-Identifier: Apache-2.0
"""
Which containers have which part of this node's cards, by what the runtime says of them.

Kept in memory; made again from the promises on the disk and the runtime's list of containers. A container's part is in
force while the runtime says that it may run, or a process of it lives: a program that was killed may take a while to
give its memory back. May be used by several threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Final, Protocol

from isolation.node.core.container_check import Given, InForce
from isolation.node.delivery import promise_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from isolation.contract.host_allocation import HostAllocation, Tenant
    from isolation.contract.model import Slice
    from isolation.node.nri.model import Container, Sandbox


START_SECONDS: Final = 30.0
"""After its creation a container without a process, of a pod or sandbox that is gone, will not be started any more."""
_UNLISTED: Final = ""
"""Stands for containers of before this agent that the runtime does not list any more."""


class ProcessLookup(Protocol):
    """Processes of pods, by the kernel."""

    def pids(self, uid: str, container: str) -> frozenset[int] | None:
        """Of one container of a pod, by the runtime's id; None: cannot be told."""

    def strays(self, uid: str, known: Collection[str]) -> frozenset[int] | None:
        """Of those containers of a pod, its sandbox among them, that are not known; None: cannot be told."""


@dataclass(slots=True)
class TenantAllocation:
    """One container of a pod, over its restarts."""

    tenant: Tenant
    given: Given
    runs: set[str] = field(default_factory=set)
    """Ids of containers that may run."""
    ended: set[str] = field(default_factory=set)
    """Ids of containers that have ended, and whose processes are not known to be gone."""
    latest: str = ""
    """Id of the last one that was created; empty: not known."""
    created: float = 0.0
    """When the last one was created, by the clock that is given."""
    sandbox: str = ""
    """In which the last one was created; empty: not known."""
    renewed: bool = False
    """Whether its pod has another sandbox since: a runtime starts no container in one that was stopped."""
    counted: bool = True
    """Whether its promise counts: not that of an init container that has ended."""

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Its parts of cards."""
        return self.given.slices

    @property
    def id(self) -> str:
        """The promise id."""
        return promise_id(self.tenant)

    @property
    def key(self) -> str:
        """`namespace/pod/container`, for people."""
        return f"{self.tenant.namespace}/{self.tenant.pod}/{self.tenant.container}"


class Allocations:
    """See the module."""

    def __init__(self, cgroups: ProcessLookup, now: Callable[[], float] = time.monotonic) -> None:
        self._cgroups, self._now = cgroups, now
        self._known: dict[str, TenantAllocation] = {}
        self._listed: set[str] = set()
        """Ids of containers and sandboxes that the runtime has named."""
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._known)

    def load(self, holds: Iterable[HostAllocation]) -> None:
        """Promises that stand on the disk; which of their containers run is learnt later."""
        with self._lock:
            for hold in holds:
                if hold.tenant is not None and promise_id(hold.tenant) not in self._known:
                    made = TenantAllocation(hold.tenant, Given(hold.slices, hold.enforced, hold.compute, hold.trust))
                    made.ended.add(_UNLISTED)
                    self._known[made.id] = made

    def get(self, ident: str) -> TenantAllocation | None:
        """By promise id."""
        return self._known.get(ident)

    def all(self) -> tuple[TenantAllocation, ...]:
        """As they are now."""
        with self._lock:
            return tuple(self._known.values())

    def named(self, container: Container) -> None:
        """The runtime has named a container, with a share or without: it and its sandbox are not of before."""
        with self._lock:
            self._listed |= {container.id, container.sandbox.id}
            for known in self._known.values():
                if known.tenant.uid == container.sandbox.uid and known.sandbox:
                    known.renewed = known.sandbox != container.sandbox.id

    def creates(self, tenant: Tenant, given: Given, container: str, sandbox: str = "") -> TenantAllocation:
        """A container is about to be created; it counts from here on."""
        with self._lock:
            known = self._known.setdefault(promise_id(tenant), TenantAllocation(tenant, given))
            known.given, known.latest, known.counted, known.created = given, container, True, self._now()
            known.sandbox, known.renewed = sandbox, False
            known.runs.add(container)
            return known

    def gone(self, container: Container) -> None:
        """It has ended, or was never started; its processes may still be there."""
        with self._lock:
            for known in self._known.values():
                if container.id in known.runs:
                    known.runs.discard(container.id)
                    known.ended.add(container.id)

    def runtime_has(self, containers: Iterable[Container], sandboxes: Iterable[Sandbox]) -> None:
        """All that the runtime knows: a container that is not among them has ended."""
        found = {one.id: one for one in containers}
        with self._lock:
            self._listed = set(found) | {one.id for one in sandboxes}
            for known in self._known.values():
                known.ended |= {one for one in known.runs if one not in found or not found[one].runs}
                known.runs -= known.ended
            for one in found.values():
                mine = self._known.get(f"{one.sandbox.uid}.{one.name}")
                if mine is None:
                    continue
                if one.runs:
                    mine.runs.add(one.id)
                    mine.latest, mine.sandbox = one.id, one.sandbox.id
                else:
                    mine.ended.add(one.id)  # processes of it may be left

    def end_unstarted(self, known: TenantAllocation) -> None:
        """
        Containers of a pod that is gone, or has another sandbox, which were never started.

        CRI-O reports no end of a container that its OCI runtime, or the guard, refused to create. And a kubelet keeps
        the last container of each name as it is while the pod lives.
        """
        if self._now() - known.created <= START_SECONDS:
            return
        # read without the lock: the runtime waits for answers that need it
        empty = {one for one in tuple(known.runs) if self._cgroups.pids(known.tenant.uid, one) == frozenset()}
        with self._lock:
            known.ended |= known.runs & empty
            known.runs -= empty

    def drop(self, ident: str) -> None:
        """Nobody uses it any more."""
        with self._lock:
            self._known.pop(ident, None)

    def in_force(self, but: str = "") -> list[InForce]:
        """What containers may use now; `but`: without this promise."""
        return [
            InForce(part.uuid, part.bytes, known.given.trust)
            for known in self.all()
            if known.id != but and self.is_in_force(known)
            for part in known.slices
        ]

    def is_in_force(self, known: TenantAllocation) -> bool:
        """Whether it may have processes."""
        return bool(known.runs) or any(self._lives(known, one) for one in tuple(known.ended))

    def bytes_by_card(self) -> dict[str, int]:
        """Memory in force by card."""
        found: dict[str, int] = {}
        for one in self.in_force():
            found[one.uuid] = found.get(one.uuid, 0) + one.bytes
        return found

    def processes(self, ident: str) -> frozenset[int] | None:
        """Of the container that has this promise; None: cannot be told."""
        known = self._known.get(ident)
        if known is None or not known.latest:
            return None
        return self._cgroups.pids(known.tenant.uid, known.latest)

    def processes_of(self, container: Container) -> frozenset[int]:
        """By its control group; empty: none, or they cannot be found."""
        return self._cgroups.pids(container.sandbox.uid, container.id) or frozenset()

    def _lives(self, known: TenantAllocation, container: str) -> bool:
        """Whether an ended container has processes, as far as can be told."""
        uid = known.tenant.uid
        if container == _UNLISTED:
            pids = self._cgroups.strays(uid, frozenset(self._listed))
        else:
            pids = self._cgroups.pids(uid, container)
        if pids is not None and not pids:
            known.ended.discard(container)
            return False
        return True
