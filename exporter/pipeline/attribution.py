# SPDX-License-Identifier: Apache-2.0
"""
How much memory and compute of each card each container uses, from one snapshot and its allocations.

What a process uses counts for its container. What processes without an allocation use is unattributed. Memory that no
process explains is the card's remainder and is given to nobody. Every figure names its source:

  nvml        the sum over the container's processes; 0 while it has none
  library     the container's own isolation library, where NVML's processes cannot be told apart by container (no host
              PIDs, MPS clients) and the promise is enforced
  allocation  the card's use without the driver's own, where one container has the whole card and its processes cannot
              be seen (no host PIDs, a sandbox such as Kata) or NVML does not tell their memory

If a source fails, its figures are absent: never 0, and never replaced by another source's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

from exporter.pipeline.owners import bound_label, list_departed, list_owners
from exporter.pipeline.process_binding import Binding, BoundProcess, CardBinding, Visibility, bind_processes, used_bytes
from isolation.contract.quantity import GIB
from isolation.contract.reading import CardReading, ContainerReading, NodeReading
from isolation.host.core.card_health import APPLICATION, FATAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from exporter.pipeline.allocations import AllocationKey, ContainerAllocation, NodeAllocations
    from exporter.pipeline.snapshot import CardSample, Snapshot
    from isolation.contract.abi import CardLedger


_NO_XIDS: Final = MappingProxyType(dict.fromkeys((FATAL - frozenset(range(144, 151))) | APPLICATION, 0))
"""Exposed as 0 from the start, so that `increase()` sees the first; without those of NVLink 5, which few cards have."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """What the exporter was configured with for its node."""

    node: str
    pool: str = ""
    mode: str = ""
    isolation: str = ""
    unit_bytes: int = GIB
    """Memory is allocated in such units."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """A reading of the node, and what it was made from."""

    reading: NodeReading
    processes: tuple[BoundProcess, ...]
    allocations: NodeAllocations
    container_allocations: tuple[ContainerAllocation, ...]
    """One for each of `reading.containers`, in their order."""
    visibility: Mapping[str, Visibility]
    """By card."""
    busy: Mapping[str, float | None]
    """Compute of all processes on a card, strangers included."""
    key_by_pid: Mapping[str, Mapping[int, AllocationKey | None]]
    """By card: the allocation of each process that computed, as in `CardBinding`."""
    facts: Mapping[str, CardSample]
    """Cards as they were read, by UUID; without those that MIG divides."""
    churned: bool
    """A process ended between the reads of two sources: both are read again, once."""


def attribute(snapshot: Snapshot, allocations: NodeAllocations, labels: NodeLabels) -> Attribution:
    """Everything known about a node's cards and containers at one moment."""
    machine, kernel = snapshot.machine.value, snapshot.kernel.value
    by_card: dict[str, list[ContainerAllocation]] = defaultdict(list)
    for allocation in allocations.all:
        by_card[allocation.uuid].append(allocation)
    owner_by_pid, gone = list_owners(snapshot), list_departed(snapshot)
    cards: list[CardReading] = []
    containers: list[ContainerReading] = []
    processes: list[BoundProcess] = []
    container_allocations: list[ContainerAllocation] = []
    visibility: dict[str, Visibility] = {}
    busy: dict[str, float | None] = {}
    key_by_pid: dict[str, Mapping[int, AllocationKey | None]] = {}
    for card in machine.cards if machine else ():
        mine = by_card.pop(card.uuid, [])
        card_binding = bind_processes(snapshot, card, mine, allocations, owner_by_pid, gone=gone)
        readings = [_read_container(card, allocation, card_binding, alone=len(mine) == 1) for allocation in mine]
        attributable = card_binding.visibility is Visibility.CLEAR and all(one.source == "nvml" for one in readings)
        cards.append(_card_reading(card, mine, card_binding, allocations, labels.unit_bytes, attributable=attributable))
        containers += readings
        container_allocations += mine
        processes += card_binding.processes
        visibility[card.uuid] = card_binding.visibility
        key_by_pid[card.uuid] = card_binding.key_by_pid
        busy[card.uuid] = None if card.busy is None else sum(card.busy.values())
    unseen = [allocation for rest in by_card.values() for allocation in rest]
    containers += [_container_reading(allocation) for allocation in unseen]
    cards += [_divided_card_reading(card) for card in machine.divided] if machine else []
    reading = NodeReading(
        node=bound_label(labels.node),
        pool=labels.pool,
        mode=labels.mode,
        isolation=labels.isolation,
        cards=tuple(cards),
        containers=tuple(containers),
        driver=bound_label(machine.driver) if machine else "",
        host_pids=kernel.host_pids if kernel else None,
        mps=machine.mps if machine else None,
    )
    facts = {card.uuid: card for card in machine.cards} if machine else {}
    churned = any(bound.owner is None for bound in processes)
    return Attribution(
        reading,
        tuple(processes),
        allocations,
        (*container_allocations, *unseen),
        visibility,
        busy,
        key_by_pid,
        facts,
        churned,
    )


def find_library_book(allocation: ContainerAllocation) -> CardLedger | None:
    """What the container's isolation library counts on the card. The tenant can write there what it likes."""
    if allocation.region is None or allocation.region.reading is None:
        return None
    uuid = _parse_uuid(allocation.uuid)
    return next((book for book in allocation.region.reading.cards if book.uuid == uuid), None)


@lru_cache(maxsize=256)
def _parse_uuid(uuid: str) -> UUID | None:
    """The 16 bytes that CUDA tells; None for a name that is no UUID."""
    try:
        return UUID(uuid.removeprefix("GPU-").removeprefix("MIG-"))
    except ValueError:
        return None


def _read_container(
    card: CardSample, allocation: ContainerAllocation, card_binding: CardBinding, *, alone: bool
) -> ContainerReading:
    if card_binding.visibility is Visibility.FAILED or allocation.key in card_binding.ambiguous:
        return _container_reading(allocation)
    whole = allocation.exclusive and alone
    used, source = _used_memory(card, allocation, card_binding, whole=whole)
    core, core_source = None, ""
    if card_binding.visibility is Visibility.CLEAR and card_binding.busy is not None and not card.samples_shared:
        # Rounded samples of processes that take turns add up to a little over 1.
        core, core_source = min(1.0, card_binding.busy.get(allocation.key, 0.0)), "nvml"
    elif whole and card.utilisation_ratio is not None:
        core, core_source = card.utilisation_ratio, "allocation"
    peak, peak_source = _peak_memory(card, card_binding.of.get(allocation.key, ()), used, source)
    found = _container_reading(allocation, (used, source), (core, core_source), (peak, peak_source))
    if core_source != "nvml":
        return found
    return replace(
        found,
        encoder_ratio=card_binding.part(card.encoder_busy, allocation),
        decoder_ratio=card_binding.part(card.decoder_busy, allocation),
    )


def _container_reading(
    allocation: ContainerAllocation,
    memory: tuple[int | None, str] = (None, ""),
    core: tuple[float | None, str] = (None, ""),
    peak: tuple[int | None, str] = (None, ""),
) -> ContainerReading:
    """An allocation with figures and their sources; without them, what was promised is still shown."""
    book = find_library_book(allocation)
    limited = book if allocation.limit_core_ratio is not None else None
    return ContainerReading(
        namespace=allocation.namespace,
        pod=allocation.pod,
        container=allocation.container,
        promise=allocation.promise,
        uuid=allocation.uuid,
        index=allocation.index,
        exclusive=allocation.exclusive,
        allocated_bytes=allocation.bytes or 0,
        used_bytes=memory[0],
        allocated_core_ratio=allocation.core_ratio,
        used_core_ratio=core[0],
        source=memory[1],
        core_source=core[1],
        allocation_source=allocation.allocation_source,
        limit_core_ratio=allocation.limit_core_ratio,
        policy=allocation.policy,
        pod_uid=allocation.pod_uid,
        peak_bytes=peak[0],
        peak_source=peak[1],
        denied=book.denied if book else None,
        overrun_seconds=limited.overrun_ns / 1e9 if limited and limited.overrun_ns is not None else None,
        unknown=() if allocation.bytes is not None else ("allocated_bytes",),
    )


def _used_memory(
    card: CardSample, allocation: ContainerAllocation, card_binding: CardBinding, *, whole: bool
) -> tuple[int | None, str]:
    mine = card_binding.of.get(allocation.key, ())
    if card_binding.visibility is Visibility.CLEAR:
        known = [bound.process.bytes for bound in mine if bound.process.bytes is not None]
        if len(known) == len(mine):
            return sum(known), "nvml"
        # Some of its processes have unknown memory. The card's figure stands in only if no other process is there.
        whole = whole and len(mine) == len(card_binding.processes)
    elif (book := find_library_book(allocation)) is not None:
        return book.used_bytes, "library"
    used = used_bytes(card)
    if not whole or used is None or card.reserved_bytes is None or used < card.reserved_bytes:
        return None, ""
    return used - card.reserved_bytes, "allocation"


def _peak_memory(
    card: CardSample, mine: Iterable[BoundProcess], used: int | None, source: str
) -> tuple[int | None, str]:
    """The larger of this sample and of the driver's accounting for one of the container's processes."""
    if used is None or source != "nvml":
        return used, source
    kept = max((card.peaks.get(bound.process.pid, 0) for bound in mine), default=0)
    return (kept, "accounting") if kept > used else (used, source)


def _card_reading(
    card: CardSample,
    allocations: Sequence[ContainerAllocation],
    card_binding: CardBinding,
    book: NodeAllocations,
    unit_bytes: int,
    *,
    attributable: bool,
) -> CardReading:
    sized = not card.lost and card.total_bytes > 0
    exclusive = any(allocation.exclusive for allocation in allocations)
    promised = None if book.allocated is None else book.allocated.get(card.uuid, 0)
    if any(allocation.exclusive and allocation.bytes is None for allocation in allocations):
        promised = None
    unknown = set() if sized else {"total_bytes", "allocatable_bytes", "reserved_bytes"}
    unknown |= {"reserved_bytes"} if card.reserved_bytes is None else set()
    unknown |= {"allocated_bytes"} if promised is None else set()
    offered = max(0, card.total_bytes - (card.reserved_bytes or 0)) // unit_bytes * unit_bytes
    free: int | None = None
    if sized and promised is not None and all(allocation.bytes is not None for allocation in allocations):
        free = max(0, offered - promised) // unit_bytes * unit_bytes if card.healthy else 0
    return _build_card_reading(
        card,
        allocated_bytes=promised or 0,
        allocatable_bytes=offered,
        used_bytes=used_bytes(card),
        unattributed_bytes=_unattributed_bytes(card_binding),
        largest_free_bytes=free,
        exclusive=True if exclusive else (False if book.counted else None),
        holders=len(allocations) if book.counted else None,
        attributable=None if card.lost else attributable,
        unknown=tuple(sorted(unknown)),
    )


def _unattributed_bytes(card_binding: CardBinding) -> int | None:
    """Memory of processes without an allocation; None where one of them might be a tenant's."""
    if card_binding.visibility not in {Visibility.CLEAR, Visibility.SANDBOX} or any(
        bound.binding is Binding.UNKNOWN for bound in card_binding.processes
    ):
        return None
    strangers = [bound.process.bytes for bound in card_binding.processes if bound.binding is Binding.UNALLOCATED]
    known = [one for one in strangers if one is not None]
    return sum(known) if len(known) == len(strangers) else None


def _divided_card_reading(card: CardSample) -> CardReading:
    """A card that MIG divides: power, health, errors. Memory and containers belong to its instances."""
    return _build_card_reading(
        card,
        allocated_bytes=0,
        allocatable_bytes=0,
        used_bytes=None,
        unattributed_bytes=None,
        unknown=("total_bytes", "reserved_bytes", "allocated_bytes", "allocatable_bytes"),
    )


def _build_card_reading(
    card: CardSample,
    *,
    allocated_bytes: int,
    allocatable_bytes: int,
    used_bytes: int | None,
    unattributed_bytes: int | None,
    unknown: tuple[str, ...],
    largest_free_bytes: int | None = None,
    exclusive: bool | None = None,
    holders: int | None = None,
    attributable: bool | None = None,
) -> CardReading:
    return CardReading(
        uuid=bound_label(card.uuid),
        index=card.index,
        model=bound_label(card.model),
        total_bytes=card.total_bytes,
        reserved_bytes=card.reserved_bytes or 0,
        used_bytes=used_bytes,
        allocated_bytes=allocated_bytes,
        allocatable_bytes=allocatable_bytes,
        unattributed_bytes=unattributed_bytes,
        utilisation_ratio=card.utilisation_ratio,
        power_watts=card.power_watts,
        temperature_celsius=card.temperature_celsius,
        healthy=card.healthy,
        memory_utilisation_ratio=card.memory_utilisation_ratio,
        power_limit_watts=card.power_limit_watts,
        energy_joules=card.energy_joules,
        sm_clock_hertz=card.sm_clock_hertz,
        memory_clock_hertz=card.memory_clock_hertz,
        busy_seconds=card.busy_seconds,
        throttled_seconds=None if card.throttled_seconds is None else tuple(card.throttled_seconds.items()),
        ecc_corrected=card.ecc_corrected,
        ecc_uncorrected=card.ecc_uncorrected,
        xids=tuple(sorted((card.xids if card.parent else {**_NO_XIDS, **card.xids}).items())),
        pcie_replays=card.pcie_replays,
        nvlink_errors=card.nvlink_errors,
        largest_free_bytes=largest_free_bytes,
        exclusive=exclusive,
        holders=holders,
        attributable=attributable,
        lost=card.lost,
        unhealthy=card.unhealthy,
        processes=None if card.processes is None else len(card.processes),
        hardware=card.hardware,
        parent=bound_label(card.parent),
        profile=bound_label(card.profile),
        minor=card.minor,
        unknown=unknown,
    )
