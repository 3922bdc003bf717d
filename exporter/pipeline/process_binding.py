# SPDX-License-Identifier: Apache-2.0
"""
Binds each process on a card to the container allocation that it uses, or says why it cannot.

A process belongs to the container whose control group it is in. One without an allocation on its card is unallocated,
but only if every source that could have named its owner was read: otherwise it is unknown, which accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exporter.pipeline.allocations import AllocationKey, ContainerAllocation, NodeAllocations
    from exporter.pipeline.owners import ProcessOwner
    from exporter.pipeline.snapshot import CardProcess, CardSample, Snapshot

MPS_SERVER: Final = "nvidia-cuda-mps"
"""What the kernel keeps (15 characters) of the name nvidia-cuda-mps-server."""
NOISE_BYTES: Final = 64 * MIB
"""Less than this on a card without processes is the driver's, nobody's hidden use."""


class Binding(StrEnum):
    """How a process is bound. The values are public: `/processes` shows them."""

    ALLOCATED = "claim"
    AMBIGUOUS = "between"
    """It is in one of several containers of its pod, and no source names which."""
    UNALLOCATED = "nobody"
    UNKNOWN = "unknown"
    """A source that could have named its owner was not read."""


class Visibility(StrEnum):
    """How well a card's processes can be told apart."""

    CLEAR = "clear"
    FAILED = "failed"
    """A source failed: containers have no figures here."""
    NO_HOST_PIDS = "no-host-pids"
    MPS = "mps"
    """The driver counts the memory of MPS clients as their server's."""
    SANDBOX = "sandbox"
    """A card that is used, that one container has whole, and without a process: they run in a sandbox's kernel."""


@dataclass(frozen=True, slots=True)
class BoundProcess:
    """One process on one card."""

    uuid: str
    index: int
    process: CardProcess
    owner: ProcessOwner | None
    """None: the process is gone."""
    binding: Binding
    allocation: ContainerAllocation | None = None


@dataclass(frozen=True, slots=True)
class CardBinding:
    """The processes of one card, by allocation."""

    visibility: Visibility
    processes: tuple[BoundProcess, ...] = ()
    ambiguous: frozenset[AllocationKey] = frozenset()
    """Allocations of which it is unknown which processes are theirs."""
    of: Mapping[AllocationKey, Sequence[BoundProcess]] = field(default_factory=dict)
    """Processes by the allocation that explains them."""
    busy: Mapping[AllocationKey, float] | None = None
    """Compute by allocation; one that is missing did nothing. None: the card cannot tell."""
    key_by_pid: Mapping[int, AllocationKey | None] = field(default_factory=dict)
    """The allocation of each process that computed; None: unallocated. A pid that is missing is not known yet."""

    def part(self, parts: Mapping[int, float] | None, allocation: ContainerAllocation) -> float | None:
        """What an allocation's processes do of something, at most 1; None: the card cannot tell."""
        found = _by_claim(parts, self.key_by_pid)
        return None if found is None else min(1.0, found.get(allocation.key, 0.0))


def used_bytes(card: CardSample) -> int | None:
    """Total less free."""
    return None if card.free_bytes is None or card.lost else card.total_bytes - card.free_bytes


def bind_processes(
    snapshot: Snapshot,
    card: CardSample,
    allocations: Sequence[ContainerAllocation],
    book: NodeAllocations,
    owner_by_pid: Mapping[int, ProcessOwner] | None,
    *,
    gone: Mapping[int, ProcessOwner],
) -> CardBinding:
    """
    The processes of a card, bound. `allocations` are those on this card, `book` all of the node.

    `gone` are the owners of processes that ended a moment ago: the driver still reports what they computed.
    """
    if snapshot.kernel.value is None or card.lost or card.processes is None:
        return CardBinding(Visibility.FAILED)
    if owner_by_pid is None:
        return CardBinding(Visibility.NO_HOST_PIDS)
    index = _Index(allocations)
    processes: list[BoundProcess] = []
    ambiguous: set[AllocationKey] = set()
    of: dict[AllocationKey, list[BoundProcess]] = {}
    for process in card.processes:
        owner = owner_by_pid.get(process.pid)
        mine = index.explain(owner) if owner else ()
        binding = _bind(snapshot, owner, mine, book, index)
        bound = BoundProcess(
            card.uuid, card.index, process, owner, binding, mine[0] if binding is Binding.ALLOCATED else None
        )
        processes.append(bound)
        if bound.allocation is not None:
            of.setdefault(bound.allocation.key, []).append(bound)
        elif binding is Binding.AMBIGUOUS:
            ambiguous.update(one.key for one in mine)
        elif binding is Binding.UNKNOWN and owner is not None and owner.in_pod:
            # It may be in any pod of which only the name is known: their figures might lack it.
            ambiguous.update(index.nameless)
    visibility = Visibility.CLEAR
    if _behind_mps(processes):
        visibility = Visibility.MPS
    elif not processes and _hidden(card, allocations):
        visibility = Visibility.SANDBOX
    key_by_pid = _whose(card, index, {**gone, **owner_by_pid})
    return CardBinding(
        visibility, tuple(processes), frozenset(ambiguous), of, _by_claim(card.busy, key_by_pid), key_by_pid
    )


def _whose(
    card: CardSample, index: _Index, owner_by_pid: Mapping[int, ProcessOwner]
) -> dict[int, AllocationKey | None]:
    found: dict[int, AllocationKey | None] = {}
    for pid in {*(card.busy or ()), *(card.compute_seconds or ())}:
        if (owner := owner_by_pid.get(pid)) is not None:
            mine = index.explain(owner)
            found[pid] = mine[0].key if len(mine) == 1 else None
    return found


def _by_claim(
    parts: Mapping[int, float] | None, key_by_pid: Mapping[int, AllocationKey | None]
) -> dict[AllocationKey, float] | None:
    """What processes do, by allocation; None stays None."""
    if parts is None:
        return None
    found: dict[AllocationKey, float] = {}
    for pid, part in parts.items():
        if (key := key_by_pid.get(pid)) is not None:
            found[key] = found.get(key, 0.0) + part
    return found


class _Index:
    """The allocations on one card, by the names under which an owner may be known."""

    def __init__(self, allocations: Sequence[ContainerAllocation]) -> None:
        self._by_hold = {one.hold: one for one in reversed(allocations) if one.hold}
        self._by_names: dict[tuple[str, str, str], list[ContainerAllocation]] = {}
        self._by_uid: dict[str, list[ContainerAllocation]] = {}
        self.nameless = tuple(one.key for one in allocations if not one.hold and not one.pod_uid)
        """Allocations of pods whose UID is unknown."""
        for one in allocations:
            if not one.hold:
                self._by_names.setdefault(one.names, []).append(one)
            if one.pod_uid:
                self._by_uid.setdefault(one.pod_uid, []).append(one)

    def explain(self, owner: ProcessOwner) -> tuple[ContainerAllocation, ...]:
        """The allocations that a process may use: none, one, or several if only its pod is known."""
        if not owner.in_pod:
            mine = self._by_hold.get(owner.hold) if owner.hold else None
            return () if mine is None else (mine,)
        if not owner.named:
            return tuple(self._by_uid.get(owner.pod_uid, ()))
        named = self._by_names.get((owner.namespace, owner.pod, owner.container), ())
        # A pod may have a successor of the same name while it still lives: the UID decides where it is known.
        exact = next((one for one in named if one.pod_uid == owner.pod_uid), None)
        loose = next((one for one in named if not one.pod_uid), None)
        found = exact or loose
        return () if found is None else (found,)


def _bind(
    snapshot: Snapshot,
    owner: ProcessOwner | None,
    mine: Sequence[ContainerAllocation],
    book: NodeAllocations,
    index: _Index,
) -> Binding:
    if mine:
        return Binding.ALLOCATED if len(mine) == 1 else Binding.AMBIGUOUS
    # From here on no allocation was found. That means something only if all sources of allocations were read.
    if not snapshot.promises.ok:
        return Binding.UNKNOWN
    if owner is None or not owner.in_pod:
        return Binding.UNALLOCATED
    if snapshot.kubelet is not None and not snapshot.kubelet.ok:
        return Binding.UNKNOWN
    if (owner.namespace, owner.pod) in book.unanswered or (book.unanswered and not owner.pod):
        return Binding.UNKNOWN
    return Binding.UNALLOCATED if owner.named or not index.nameless else Binding.UNKNOWN


def _hidden(card: CardSample, allocations: Sequence[ContainerAllocation]) -> bool:
    """Whether a card without processes is used, and one container has all of it."""
    used = used_bytes(card)
    if used is None or card.reserved_bytes is None or not (len(allocations) == 1 and allocations[0].exclusive):
        return False
    return used - card.reserved_bytes > max(NOISE_BYTES, card.total_bytes // 100)


def _behind_mps(processes: Sequence[BoundProcess]) -> bool:
    """
    Whether the memory of MPS clients counts as their server's.

    A name is believed of host processes only, or any tenant could hide the card's use by calling itself a server. A
    server in a container serves that container only; one whose clients NVML lists hides nothing.
    """
    clients = [bound for bound in processes if bound.process.kind == "mps"]
    if clients:
        return any(bound.process.bytes is None for bound in clients)
    return any(_is_server(bound) for bound in processes)


def _is_server(bound: BoundProcess) -> bool:
    owner, held = bound.owner, bound.process.bytes
    if owner is None or owner.in_pod or owner.hold or not owner.name.startswith(MPS_SERVER):
        return False
    return held is None or held > NOISE_BYTES
