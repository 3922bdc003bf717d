# SPDX-License-Identifier: Apache-2.0
"""
Which container was allocated what on which card: one allocation per container and card.

Allocations that the node agent or `gpushare run` wrote come first; the kubelet's device assignments count for
containers without one. A command of `gpushare run` has no pod: its name is shown as the pod, its promise id as the
container, and its namespace is empty.

Memory units: device IDs of our own agent name no card and count for nothing, since its containers have a promise as
soon as they are created. The open-source gpushare plugin picks another card than its IDs say. Its units are counted,
and the card is the node's only one or the one on which the container has processes; otherwise the allocation has no
card. Time slices come without memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from exporter.pipeline.device_ids import DYNAMIC, Devices, is_counted_unit, unit_card, units_bytes, usable_bytes
from exporter.pipeline.owners import bound_label, list_owners, live_pods, pod_names
from isolation.contract.model import FULL_CORE, ComputePolicy
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from exporter.pipeline.owners import ProcessOwner
    from exporter.pipeline.snapshot import CardSample, DeviceGrant, HoldSample, RegionSample, Snapshot
    from isolation.contract.model import Compute, Slice

AllocationKey: TypeAlias = tuple[str, str, str, str, str]
"""Namespace, pod, container, card, and the promise id or the pod's UID."""


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """What one container was promised on one card."""

    namespace: str
    pod: str
    container: str
    uuid: str
    index: int
    allocation_source: str
    """agent, run, kubelet or ids."""
    bytes: int | None
    """None: no memory was promised."""
    exclusive: bool = False
    core_ratio: float | None = None
    limit_core_ratio: float | None = None
    """Most of the card's compute that it may use; None: it is not limited."""
    policy: str = ""
    pod_uid: str = ""
    """Empty: not known, or no pod."""
    promise: str = ""
    hold: str = ""
    """Promise id of a command of `gpushare run`."""
    region: RegionSample | None = None
    """None: nothing is enforced."""
    limits_error: str = ""
    """How the library's limits file differs from the promise; empty: it does not."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Namespace, pod and container."""
        return (self.namespace, self.pod, self.container)

    @property
    def key(self) -> AllocationKey:
        """What no other allocation has, a pod of the same name included."""
        return (self.namespace, self.pod, self.container, self.uuid, self.promise or self.pod_uid)


@dataclass(frozen=True, slots=True)
class NodeAllocations:
    """Every allocation on a node's cards."""

    all: tuple[ContainerAllocation, ...]
    complete: bool
    """Whether every source of promises could be read."""
    counted: bool = True
    """Whether each card's are all known: no record that cannot be read, no promise of an unknown card."""
    unplaced: frozenset[tuple[str, str, str]] = frozenset()
    """Containers that were promised part of an unknown card."""
    unanswered: frozenset[tuple[str, str]] = frozenset()
    """Pods, by namespace and name, of which only the kubelet could tell, and did not yet."""
    kubernetes: bool = False
    """A kubelet or a node agent hands the cards out: nobody else should be on them."""
    allocated: Mapping[str, int] | None = None
    """Bytes promised by card, what an init container hands on to its pod counted once; None: incomplete."""


class _Part(NamedTuple):
    """What device IDs of one container say of one card."""

    uuid: str
    units: frozenset[str]
    exclusive: bool
    bytes: int | None


def list_allocations(snapshot: Snapshot, unit_bytes: int = GIB) -> NodeAllocations:
    """Every allocation, in the order of its names; `unit_bytes` is what one memory ID stands for."""
    devices = Devices(snapshot.machine.value)
    of_holds = tuple(_of_holds(snapshot, devices.cards))
    book = _Assignments(snapshot, devices, of_holds, unit_bytes)
    of_grants = tuple(book.allocations())
    found = tuple(sorted((*of_holds, *of_grants), key=lambda allocation: allocation.key))
    kubelet, promises = snapshot.kubelet, snapshot.promises.value
    unanswered = (
        kubelet.value.unanswered - {allocation.names[:2] for allocation in of_holds}
        if kubelet and kubelet.value
        else ()
    )
    complete = snapshot.promises.ok and (kubelet is None or kubelet.ok) and not unanswered
    counted = complete and promises is not None and not promises.unreadable and not book.anywhere
    return NodeAllocations(
        all=found,
        complete=complete,
        counted=counted,
        unplaced=frozenset(book.unplaced),
        unanswered=frozenset(unanswered),
        kubernetes=kubelet is not None or (promises is not None and promises.agent),
        allocated=_allocated(of_holds, of_grants, book.units) if counted else None,
    )


def _of_holds(snapshot: Snapshot, cards: Mapping[str, CardSample]) -> Iterator[ContainerAllocation]:
    promises, live = snapshot.promises.value, live_pods(snapshot.kernel.value)
    seen: set[AllocationKey] = set()
    for found in promises.holds if promises else ():
        tenant = found.hold.tenant
        if tenant is not None and live is not None and tenant.uid not in live:
            continue
        for allocation in _of_hold(found, cards):
            if allocation.key not in seen:
                seen.add(allocation.key)
                yield allocation


def _of_hold(found: HoldSample, cards: Mapping[str, CardSample]) -> Iterator[ContainerAllocation]:
    hold, tenant = found.hold, found.hold.tenant
    names = ("", hold.name, hold.id) if tenant is None else (tenant.namespace, tenant.pod, tenant.container)
    namespace, pod, container = map(bound_label, names)
    for part in hold.slices:
        yield ContainerAllocation(
            namespace=namespace,
            pod=pod,
            container=container,
            uuid=part.uuid,
            index=cards[part.uuid].index if part.uuid in cards else part.index,
            allocation_source="run" if tenant is None else "agent",
            bytes=part.bytes,
            core_ratio=part.core / FULL_CORE if part.core else None,
            limit_core_ratio=_limit_ratio(hold.compute, part),
            policy=bound_label(hold.policy),
            pod_uid="" if tenant is None else bound_label(tenant.uid),
            promise=bound_label(hold.id),
            hold=hold.id if tenant is None else "",
            region=found.region,
            limits_error=found.limits_error,
        )


def _limit_ratio(compute: Compute, part: Slice) -> float | None:
    """The ceiling of its compute on one card; None where there is none."""
    if compute.policy is ComputePolicy.NONE:
        return None
    if compute.policy is ComputePolicy.FIXED:
        return (part.core or compute.ceiling) / FULL_CORE or None
    return (compute.ceiling or FULL_CORE) / FULL_CORE


class _Assignments:
    """The kubelet's device assignments while they are read."""

    def __init__(
        self, snapshot: Snapshot, devices: Devices, held: Iterable[ContainerAllocation], unit_bytes: int
    ) -> None:
        self._snapshot, self._devices, self._unit_bytes = snapshot, devices, unit_bytes
        self._cards = devices.cards
        self._held = {(allocation.names, allocation.pod_uid) for allocation in held}
        self._held_names = {names for names, _ in self._held}
        promises = snapshot.promises.value
        # units of memory that no record explains are our agent's only where it has written some
        self._ours = promises is not None and (
            promises.unreadable > 0 or any(one.hold.tenant for one in promises.holds)
        )
        self._live = live_pods(snapshot.kernel.value)
        self._uids: dict[tuple[str, str], set[str]] = {}
        """By name; several: pods of one name, one after the other."""
        for uid, name in pod_names(snapshot).items():
            self._uids.setdefault(name, set()).add(uid)
        known = {uid for uids in self._uids.values() for uid in uids}
        self._nameless = self._live - known if self._live else frozenset()
        self._where: Mapping[tuple[str, str, str], set[str]] | None = None
        self._dynamic: Mapping[tuple[str, str], int] = {}
        """In how many containers a device of a DRA claim is: one claim may serve several."""
        self.unplaced: set[tuple[str, str, str]] = set()
        self.anywhere = False
        """Whether units of memory were promised of an unknown card."""
        self.units: dict[AllocationKey, frozenset[str]] = {}

    def allocations(self) -> Iterator[ContainerAllocation]:
        """One per container and card."""
        merged: dict[tuple[tuple[str, str, str], str], set[tuple[str, str]]] = {}
        for grant in self._grants():
            names = (bound_label(grant.namespace), bound_label(grant.pod), bound_label(grant.container))
            uid = self._uid(grant)
            if uid is None or (names, uid) in self._held or (uid == "" and names in self._held_names):
                continue
            ids = {(grant.resource, one) for one in grant.device_ids if not is_counted_unit(one)}
            merged.setdefault((names, uid), set()).update(ids)
        self._dynamic = Counter(one for ids in merged.values() for one in ids if one[0].startswith(DYNAMIC))
        for (names, uid), ids in merged.items():
            for part, by in self._parts(names, ids):
                allocation = ContainerAllocation(
                    *names,
                    uuid=part.uuid,
                    index=self._cards[part.uuid].index,
                    allocation_source=by,
                    bytes=part.bytes,
                    exclusive=part.exclusive,
                    core_ratio=1.0 if part.exclusive else None,
                    pod_uid=uid,
                    promise=uid,
                )
                self.units[allocation.key] = part.units
                yield allocation

    def _grants(self) -> tuple[DeviceGrant, ...]:
        kubelet = self._snapshot.kubelet
        return kubelet.value.grants if kubelet and kubelet.value else ()

    def _uid(self, grant: DeviceGrant) -> str | None:
        """Of the pod to which this was given; empty: not known; None: the pod is over."""
        if grant.pod_uid:
            return None if self._live is not None and grant.pod_uid not in self._live else bound_label(grant.pod_uid)
        known = self._uids.get((grant.namespace, grant.pod), set())
        if self._live is None:
            return next(iter(known)) if len(known) == 1 else ""
        alive = known & self._live
        if known and not alive and not self._nameless:
            return None  # an old kubelet lists terminated pods; a successor would have a control group of its own
        return next(iter(alive)) if len(alive) == 1 else ""

    def _parts(self, names: tuple[str, str, str], ids: Iterable[tuple[str, str]]) -> Iterator[tuple[_Part, str]]:
        whole: dict[str, set[str]] = {}
        sliced: dict[str, set[str]] = {}
        units: set[str] = set()
        for resource, one in sorted(ids):
            if resource == ACK.memory:
                units.add(one)
                continue
            named = self._devices.find(resource, one)
            if named is not None and named.card is None:
                self.unplaced.add(names)
            elif named is not None and named.card is not None:
                shared = named.shared or self._dynamic.get((resource, one), 0) > 1
                (sliced if shared else whole).setdefault(named.card.uuid, set()).add(one)
        for uuid in whole:
            # one card, however many names it has
            yield _Part(uuid, frozenset({uuid}), True, usable_bytes(self._cards[uuid])), "kubelet"
        for uuid, mine in sliced.items():
            if uuid not in whole:
                yield _Part(uuid, frozenset(mine), False, None), "kubelet"
        for part, by in self._memory(names, units) if units else ():
            if part.uuid not in whole and part.uuid not in sliced:
                yield part, by

    def _memory(self, names: tuple[str, str, str], ids: set[str]) -> Iterator[tuple[_Part, str]]:
        by_card: dict[str, set[str]] = {}
        for one in ids:
            by_card.setdefault(unit_card(one), set()).add(one)
        if self._ours:
            for uuid, mine in sorted(by_card.items()):
                if uuid in self._cards:
                    yield _Part(uuid, frozenset(mine), False, len(mine) * self._unit_bytes), "kubelet"
                else:
                    self.unplaced.add(names)
            return
        seen = self._cards if len(self._cards) == 1 else self._used_by(names)
        if len(seen) != 1:
            self.unplaced.add(names)
            self.anywhere = True
            return
        uuid = next(iter(seen))
        yield _Part(uuid, frozenset(ids), False, units_bytes(len(ids), self._unit_bytes, self._cards[uuid])), "ids"

    def _used_by(self, names: tuple[str, str, str]) -> set[str]:
        """Cards on which the container has processes."""
        if self._where is None:
            owner_by_pid = list_owners(self._snapshot) or {}
            self._where = _places(owner_by_pid, self._cards.values())
        return self._where.get(names, set())


def _places(
    owner_by_pid: Mapping[int, ProcessOwner], cards: Iterable[CardSample]
) -> dict[tuple[str, str, str], set[str]]:
    found: dict[tuple[str, str, str], set[str]] = {}
    for card in cards:
        for process in card.processes or ():
            owner = owner_by_pid.get(process.pid)
            if owner is not None and owner.named:
                found.setdefault((owner.namespace, owner.pod, owner.container), set()).add(card.uuid)
    return found


def _allocated(
    held: Iterable[ContainerAllocation],
    granted: Iterable[ContainerAllocation],
    units: Mapping[AllocationKey, frozenset[str]],
) -> dict[str, int]:
    """By card. Device IDs that two containers of one pod have are one promise that an init container handed on."""
    total: dict[str, int] = {}
    for allocation in held:
        total[allocation.uuid] = total.get(allocation.uuid, 0) + (allocation.bytes or 0)
    handed: set[tuple[str, str, str, str]] = set()
    for allocation in granted:
        mine = units[allocation.key]
        fresh = [one for one in mine if (allocation.namespace, allocation.pod, allocation.pod_uid, one) not in handed]
        handed.update((allocation.namespace, allocation.pod, allocation.pod_uid, one) for one in fresh)
        part = (allocation.bytes or 0) * len(fresh) // max(1, len(mine))
        total[allocation.uuid] = total.get(allocation.uuid, 0) + part
    return total
