# SPDX-License-Identifier: Apache-2.0
"""
What is wrong on a node in one sample: memory over the limit, denied allocations, processes without the library, ...

Memory over the limit is measured by NVML. What the container's own library reports is labelled `library`: a tenant may
write there what it likes, about itself only. A process without an allocation is wrong on a Kubernetes node, and on a
card of which something is allocated; the host's display server and MPS server are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporter.pipeline.breach_log import MAX_PIDS, BreachFinding, BreachKind
from exporter.pipeline.process_binding import MPS_SERVER, Binding, BoundProcess, Visibility
from isolation.contract.abi import Breach as Reported
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from exporter.pipeline.allocations import AllocationKey, ContainerAllocation
    from exporter.pipeline.attribution import Attribution
    from exporter.pipeline.container_history import ContainerHistory, OverLimitState
    from isolation.contract.reading import ContainerReading

DENIED_SECONDS: Final = 60.0
"""Denials that come again within this time are one breach."""
MAX_TEXT: Final = 200


def list_findings(
    found: Attribution, histories: Mapping[AllocationKey, ContainerHistory], now: float
) -> Iterator[BreachFinding]:
    """Everything that is wrong now; each once per owner and card."""
    of: dict[AllocationKey, list[BoundProcess]] = {}
    for bound in found.processes:
        if bound.allocation is not None:
            of.setdefault(bound.allocation.key, []).append(bound)
    for allocation, one in zip(found.container_allocations, found.reading.containers, strict=True):
        history = histories[allocation.key]
        yield from _find_over_limit(allocation, one, history.excess)
        yield from _find_denied(allocation, history, now)
        if found.visibility.get(allocation.uuid) is Visibility.CLEAR:
            yield from _find_uninstrumented(allocation, of.get(allocation.key, ()), slotted=history.slotted)
        if allocation.region is not None and allocation.region.reading is None:
            text = f"cannot read the region of the container's isolation library: {allocation.region.error}"
            yield _finding(BreachKind.UNREADABLE_REGION, allocation, "library", text)
        if allocation.limits_error:
            text = f"the isolation library does not have the promised limits: {allocation.limits_error}"
            yield _finding(BreachKind.WRONG_LIMITS, allocation, "limits", text)
    yield from _find_unallocated(found)


def list_region_pids(allocation: ContainerAllocation) -> tuple[int, ...] | None:
    """Pids, in the container's own counting, of living processes in its region; None: it cannot be read."""
    if allocation.region is None or allocation.region.reading is None:
        return None
    return tuple(slot.pid for slot in allocation.region.reading.slots if not slot.ghost)


def _finding(
    kind: BreachKind, allocation: ContainerAllocation, source: str, text: str, **more: object
) -> BreachFinding:
    fields: dict[str, object] = {
        "kind": kind,
        "uuid": allocation.uuid,
        "card": allocation.index,
        "namespace": allocation.namespace,
        "pod": allocation.pod,
        "container": allocation.container,
        "promise": allocation.promise,
        "source": source,
        "text": text[:MAX_TEXT],
        "allocated_bytes": allocation.bytes,
    }
    return BreachFinding(**(fields | more))  # type: ignore[arg-type] # the fields' types are checked where they are made


def _find_over_limit(
    allocation: ContainerAllocation, one: ContainerReading, excess: OverLimitState
) -> Iterator[BreachFinding]:
    if allocation.bytes is None or not (excess.over or excess.spiked):
        return
    spike = excess.spiked and not excess.over
    most = excess.spike_bytes if spike else one.used_bytes
    verb = "used" if spike else "uses"
    amount = "more memory" if most is None else show_bytes(most)
    text = f"the container {verb} {amount} of the card; promised: {show_bytes(allocation.bytes)}"
    yield _finding(BreachKind.OVER_LIMIT, allocation, "accounting" if spike else "nvml", text, used_bytes=most)


def _find_denied(allocation: ContainerAllocation, history: ContainerHistory, now: float) -> Iterator[BreachFinding]:
    if history.denied_at is None or now - history.denied_at > DENIED_SECONDS:
        return
    records = allocation.region.breaches if allocation.region else ()
    requested = max((one.requested for one in records if one.kind is Reported.DENIED), default=None)
    largest = "" if requested is None else f", the largest of {show_bytes(requested)}"
    text = f"the isolation library denied allocations beyond the promise{largest}"
    yield _finding(BreachKind.DENIED, allocation, "library", text, times=history.fresh_denied)


def _find_uninstrumented(
    allocation: ContainerAllocation, mine: Sequence[BoundProcess], *, slotted: bool
) -> Iterator[BreachFinding]:
    """Processes on the card that have no slot in their container's region."""
    booked = list_region_pids(allocation)
    if booked is None or not mine:
        return
    if not booked and not slotted:
        text = f"{_processes(len(mine))} on the card; none was ever registered with the isolation library"
        yield _measured_finding(BreachKind.MISSING_LIBRARY, allocation, mine, text)
        return
    pids = {bound.owner.namespace_pid for bound in mine if bound.owner is not None}
    if None in pids:
        strange = mine[: max(0, len(mine) - len(booked))]
        named = False
    else:
        strange = [bound for bound in mine if bound.owner is not None and bound.owner.namespace_pid not in booked]
        named = True
    if strange:
        text = f"{_processes(len(strange))} on the card not registered with the isolation library"
        yield _measured_finding(BreachKind.UNINSTRUMENTED, allocation, strange if named else (), text)


def _measured_finding(
    kind: BreachKind, allocation: ContainerAllocation, processes: Iterable[BoundProcess], text: str
) -> BreachFinding:
    found = tuple(processes)
    return _finding(kind, allocation, "nvml", text, pids=_pids(found), used_bytes=_bytes(found))


def _find_unallocated(found: Attribution) -> Iterator[BreachFinding]:
    """Processes on a card of which nothing was promised to them, by container or, on the host, by name."""
    promised = {allocation.uuid for allocation in found.container_allocations}
    groups: dict[tuple[str, ...], list[BoundProcess]] = {}
    for bound in found.processes:
        owner = bound.owner
        if bound.binding is not Binding.UNALLOCATED or owner is None:
            continue
        if (owner.namespace, owner.pod, owner.container) in found.allocations.unplaced:
            continue
        if owner.in_pod:
            names = (owner.namespace, owner.pod or owner.pod_uid, owner.container, "")
        elif bound.process.kind == "graphics" or owner.name.startswith(MPS_SERVER):
            continue
        elif found.allocations.kubernetes or bound.uuid in promised:
            names = ("", "", "", owner.name)
        else:
            continue
        groups.setdefault((bound.uuid, *names), []).append(bound)
    for (uuid, namespace, pod, container, process), processes in groups.items():
        who = "a host process" if process else "a container"
        yield BreachFinding(
            kind=BreachKind.UNALLOCATED,
            uuid=uuid,
            card=processes[0].index,
            namespace=namespace,
            pod=pod,
            container=container,
            promise="",
            source="nvml",
            text=f"{who} without a promise uses the card: {_processes(len(processes))}",
            process=process,
            pids=_pids(processes),
            used_bytes=_bytes(processes),
        )


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _pids(processes: Iterable[BoundProcess]) -> tuple[int, ...]:
    return tuple(sorted(bound.process.pid for bound in processes))[:MAX_PIDS]


def _bytes(processes: Sequence[BoundProcess]) -> int | None:
    known = [bound.process.bytes for bound in processes if bound.process.bytes is not None]
    return sum(known) if processes and len(known) == len(processes) else None
