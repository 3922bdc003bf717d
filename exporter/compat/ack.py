# SPDX-License-Identifier: Apache-2.0
"""
The same facts under the names of Alibaba ACK's GPU exporters, for dashboards and HPA rules that exist.

Pure. This is GPU monitoring 2.0, `DCGM_*`; what came before is `exporter.compat.legacy`. Names, labels and units
are theirs (MiB, percent, millijoules); what a figure means and whether it is known is decided before
(`exporter.pipeline.attribution`): what is unknown is absent here too. ACK's rules average or add per pod
over series of single processes, so a container that has started nothing yet has none.

Sources: Alibaba Cloud, "Introduction to metrics" (GPU monitoring 2.0) and "Enable auto scaling based on GPU
metrics"; NVIDIA, DCGM field identifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporter.compat.averages import Averages
from exporter.compat.legacy import LEGACY_SPECS, legacy_families
from exporter.pipeline.process_binding import Binding, BoundProcess
from isolation.contract.metrics import Group, Kind, MetricSpec, Unit, family
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from exporter.pipeline.attribution import Attribution
    from exporter.pipeline.snapshot import CardSample, MachineSample
    from isolation.contract.metrics import Family
    from isolation.contract.reading import CardReading, ContainerReading

    Row = tuple[tuple[str, ...], float | None]

_PERCENT: Final = 100.0
_MILLI: Final = 1000.0
_MEGA: Final = 1e6
POD_SOURCE: Final = "ecs"
"""Where pods run: on servers that somebody manages."""
NODE_MODES: Final = {"none": 0, "exclusive": 1, "share": 2}
_TYPES: Final = {"compute": "C", "graphics": "G", "mps": "M+C"}

_DEVICE: Final = ("Hostname", "NodeName", "NodePoolId", "PodSource", "UUID", "device", "gpu", "modelName")
_CUSTOM: Final = ("DriverVersion", "NodeName", "NodePoolId", "PodSource", "SupportDCGM", *_DEVICE[4:])
_OWNER: Final = ("AllocateMode", "ContainerName", "NamespaceName", "NodeName", "NodePoolId", "PodName", "PodSource")
_CONTAINER: Final = (*_OWNER, *_DEVICE[4:])
_PROCESS: Final = (*_OWNER, "ProcessId", "ProcessName", "ProcessType", *_DEVICE[4:])


def _spec(name: str, labels: tuple[str, ...], text: str) -> MetricSpec:
    return MetricSpec(name, Kind.GAUGE, labels, Unit.NONE, text, Group.CARD)


NODE_MODE: Final = _spec(
    "DCGM_CUSTOM_ALLOCATE_MODE", (), "How cards of the node are allocated: 0 not at all, 1 exclusive, 2 shared."
)
COUNT: Final = _spec("DCGM_FI_DEV_COUNT", (), "Number of cards of the node.")
FB_TOTAL: Final = _spec("DCGM_CUSTOM_DEV_FB_TOTAL", _CUSTOM, "Memory of the card, in MiB.")
FB_ALLOCATED: Final = _spec(
    "DCGM_CUSTOM_DEV_FB_ALLOCATED", _CUSTOM, "Fraction of the card's memory that is promised, 0 to 1."
)
MEM_ALLOCATED: Final = _spec(
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", _CONTAINER, "Memory of the card promised to the container, in MiB."
)
CP_ALLOCATED: Final = _spec(
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
    _CONTAINER,
    "Compute of the card promised to the container, 0 to 1; 0 if it is not limited or the card is exclusive.",
)
GPU_UTIL: Final = _spec(
    "DCGM_FI_DEV_GPU_UTIL", _DEVICE, "Utilisation of the card, in percent; average of the last minute."
)
XID_ERRORS: Final = _spec("DCGM_FI_DEV_XID_ERRORS", _DEVICE, "Number of the latest XID error; 0 if there was none.")
_FIELDS: Final[tuple[tuple[MetricSpec, Callable[[CardReading], float | None]], ...]] = (
    (
        _spec("DCGM_FI_DEV_MEM_COPY_UTIL", _DEVICE, "Utilisation of the card's memory bandwidth, in percent."),
        lambda card: _percent(card.memory_utilisation_ratio),
    ),
    (_spec("DCGM_FI_DEV_FB_FREE", _DEVICE, "Free memory of the card, in MiB."), lambda card: _mib(_free(card))),
    (
        _spec("DCGM_FI_DEV_FB_USED", _DEVICE, "Used memory of the card without the driver's reserve, in MiB."),
        lambda card: _mib(_used(card)),
    ),
    (_spec("DCGM_FI_DEV_GPU_TEMP", _DEVICE, "Temperature of the card."), lambda card: card.temperature_celsius),
    (_spec("DCGM_FI_DEV_POWER_USAGE", _DEVICE, "Power draw of the card, in watts."), lambda card: card.power_watts),
    (
        _spec(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            _DEVICE,
            "Energy consumed since the driver was loaded, in millijoules.",
        ),
        lambda card: _times(card.energy_joules, _MILLI),
    ),
    (
        _spec("DCGM_FI_DEV_SM_CLOCK", _DEVICE, "Clock frequency of the multiprocessors, in MHz."),
        lambda card: _times(card.sm_clock_hertz, 1 / _MEGA),
    ),
    (
        _spec("DCGM_FI_DEV_MEM_CLOCK", _DEVICE, "Clock frequency of the memory, in MHz."),
        lambda card: _times(card.memory_clock_hertz, 1 / _MEGA),
    ),
    (
        _spec("DCGM_FI_DEV_ENC_UTIL", _DEVICE, "Utilisation of the video encoders, in percent."),
        lambda card: _percent(card.hardware.encoder_ratio),
    ),
    (
        _spec("DCGM_FI_DEV_DEC_UTIL", _DEVICE, "Utilisation of the video decoders, in percent."),
        lambda card: _percent(card.hardware.decoder_ratio),
    ),
    (
        _spec("DCGM_FI_DEV_MEMORY_TEMP", _DEVICE, "Temperature of the card's memory."),
        lambda card: card.hardware.memory_celsius,
    ),
    (
        _spec(
            "DCGM_FI_DEV_POWER_VIOLATION",
            _DEVICE,
            "Time for which the power limit throttled the card, in microseconds.",
        ),
        lambda card: _times(dict(card.throttled_seconds or ()).get("power_cap"), _MEGA),
    ),
    (
        _spec("DCGM_FI_DEV_THERMAL_VIOLATION", _DEVICE, "Time for which heat throttled the card, in microseconds."),
        lambda card: _times(dict(card.throttled_seconds or ()).get("thermal"), _MEGA),
    ),
    (
        _spec("DCGM_FI_DEV_RETIRED_SBE", _DEVICE, "Memory pages retired after single-bit errors."),
        lambda card: dict(card.hardware.retired_pages).get("single_bit"),
    ),
    (
        _spec("DCGM_FI_DEV_RETIRED_DBE", _DEVICE, "Memory pages retired after double-bit errors."),
        lambda card: dict(card.hardware.retired_pages).get("double_bit"),
    ),
    (
        _spec("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _DEVICE, "Memory rows remapped after corrected errors."),
        lambda card: dict(card.hardware.remapped_rows).get("corrected"),
    ),
    (
        _spec("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _DEVICE, "Memory rows remapped after uncorrected errors."),
        lambda card: dict(card.hardware.remapped_rows).get("uncorrected"),
    ),
    (
        _spec("DCGM_FI_DEV_ROW_REMAP_FAILURE", _DEVICE, "Whether a broken memory row could not be remapped."),
        lambda card: card.hardware.remap_failed,
    ),
    (
        _spec("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _DEVICE, "PCI Express packets that were retransmitted."),
        lambda card: card.pcie_replays,
    ),
    (
        _spec("DCGM_FI_PROF_SM_ACTIVE", _DEVICE, "Activity of the multiprocessors, 0 to 1; Hopper and later."),
        lambda card: card.hardware.sm_activity,
    ),
    (
        _spec("DCGM_FI_PROF_SM_OCCUPANCY", _DEVICE, "Occupancy of the multiprocessors, 0 to 1; Hopper and later."),
        lambda card: card.hardware.sm_occupancy,
    ),
    (
        _spec("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _DEVICE, "Activity of the tensor cores, 0 to 1; Hopper and later."),
        lambda card: card.hardware.tensor_activity,
    ),
    (
        _spec("DCGM_FI_PROF_DRAM_ACTIVE", _DEVICE, "Memory bandwidth in use, 0 to 1; Hopper and later."),
        lambda card: card.hardware.memory_bandwidth,
    ),
)
_ENGINES: Final[tuple[tuple[str, str, Callable[[CardSample], Mapping[int, float] | None]], ...]] = (
    ("SM", "Compute", lambda card: card.busy),
    ("MEM_COPY", "Memory bandwidth", lambda card: card.copy_busy),
    ("ENCODE", "Encoder", lambda card: card.encoder_busy),
    ("DECODE", "Decoder", lambda card: card.decoder_busy),
)


def _of_processes(prefix: str, whose: str) -> tuple[tuple[MetricSpec, ...], MetricSpec]:
    engines = tuple(
        _spec(f"DCGM_CUSTOM_{prefix}_{name}_UTIL", _PROCESS, f"{what} that {whose} uses, in percent.")
        for name, what, _ in _ENGINES
    )
    return engines, _spec(f"DCGM_CUSTOM_{prefix}_MEM_USED", _PROCESS, f"Memory that {whose} uses, in MiB.")


PROCESS: Final = _of_processes("PROCESS", "a process of a container")
ILLEGAL: Final = _of_processes("ILLEGAL_PROCESS", "a process of a container without a promise on the card")

SPECS: Final = (
    *(NODE_MODE, COUNT, FB_TOTAL, FB_ALLOCATED, MEM_ALLOCATED, CP_ALLOCATED),
    *(*PROCESS[0], PROCESS[1], *ILLEGAL[0], ILLEGAL[1]),
    *(GPU_UTIL, XID_ERRORS),
    *(spec for spec, _ in _FIELDS),
    *LEGACY_SPECS,
)
"""Every metric of both generations, in order."""


def ack_families(
    found: Attribution, machine: MachineSample | None, averages: Averages | None = None
) -> Iterator[Family]:
    """
    Both generations. Nothing without cards: a failure is not an idle node.

    Compute is what `averages` says; without it, of the moment.
    """
    if machine is None:
        return
    averages = averages or Averages()
    latest = {card.uuid: next(reversed(card.xids), 0) for card in (*machine.cards, *machine.divided)}
    reading = found.reading
    whole = [card for card in reading.cards if "total_bytes" not in card.unknown]
    modes = {"exclusive" if one.exclusive else "share" for one in reading.containers}
    mode = next((name for name in ("share", "exclusive") if name in modes), "none")
    yield family(NODE_MODE, [((), NODE_MODES[mode] if found.allocations.complete else None)])
    yield family(COUNT, [((), len(machine.cards))])
    custom = [(card, _custom(found, card)) for card in whole]
    yield family(FB_TOTAL, ((labels, card.total_bytes / MIB) for card, labels in custom))
    yield family(FB_ALLOCATED, ((labels, _promised(card)) for card, labels in custom))
    cards = [(card, _device(found, card)) for card in reading.cards]
    yield family(GPU_UTIL, ((labels, _percent(averages.card(card))) for card, labels in cards))
    yield family(XID_ERRORS, ((labels, latest.get(card.uuid)) for card, labels in cards))
    for spec, figure in _FIELDS:
        yield family(spec, ((labels, figure(card)) for card, labels in cards))
    yield from _containers(found)
    yield from _processes(found, machine, PROCESS, lambda bound: bound.allocation is not None, averages)
    yield from _processes(found, machine, ILLEGAL, _illegal, averages)
    yield from legacy_families(found, averages)


def _containers(found: Attribution) -> Iterator[Family]:
    cards = {card.uuid: card for card in found.reading.cards}
    rows = [
        (one, (*_owner(found, one), *_place(cards[one.uuid]))) for one in found.reading.containers if one.uuid in cards
    ]
    yield family(MEM_ALLOCATED, ((labels, _mib(_allocated(one))) for one, labels in rows))
    yield family(
        CP_ALLOCATED, ((labels, 0.0 if one.exclusive else one.allocated_core_ratio or 0.0) for one, labels in rows)
    )


def _illegal(bound: BoundProcess) -> bool:
    return bound.binding is Binding.UNALLOCATED and bound.owner is not None and bound.owner.in_pod


def _processes(
    found: Attribution,
    machine: MachineSample,
    specs: tuple[tuple[MetricSpec, ...], MetricSpec],
    chosen: Callable[[BoundProcess], bool],
    averages: Averages,
) -> Iterator[Family]:
    cards = {card.uuid: card for card in found.reading.cards}
    facts = {card.uuid: card for card in machine.cards}
    rows = [
        (bound, _process(found, bound, cards[bound.uuid]))
        for bound in found.processes
        if bound.uuid in cards and chosen(bound)
    ]
    for spec, (_, _, engine) in zip(specs[0], _ENGINES, strict=True):
        parts = [(labels, bound, _part(engine(facts[bound.uuid]), bound)) for bound, labels in rows]
        if spec is specs[0][0]:
            parts = [
                (labels, bound, averages.process(bound.uuid, bound.process.pid, one)) for labels, bound, one in parts
            ]
        yield family(spec, ((labels, _percent(part)) for labels, _, part in parts))
    yield family(specs[1], ((labels, _mib(bound.process.bytes)) for bound, labels in rows))


def _part(busy: Mapping[int, float] | None, bound: BoundProcess) -> float | None:
    return None if busy is None else busy.get(bound.process.pid, 0.0)


def _process(found: Attribution, bound: BoundProcess, card: CardReading) -> tuple[str, ...]:
    owner, allocation = bound.owner, bound.allocation
    mode = "none" if allocation is None else "exclusive" if allocation.exclusive else "share"
    names = ("", "", "")
    if allocation is not None:
        names = allocation.names
    elif owner is not None:
        names = (owner.namespace, owner.pod, owner.container)
    namespace, pod, container = names
    node = found.reading
    whose = (mode, container, namespace, node.node, node.pool, pod, POD_SOURCE)
    kind = _TYPES.get(bound.process.kind, "C")
    return (*whose, str(bound.process.pid), owner.name if owner else "", kind, *_place(card))


def _place(card: CardReading) -> tuple[str, ...]:
    minor = card.index if card.minor is None else card.minor
    return (card.uuid, f"nvidia{minor}", str(card.index), card.model)


def _device(found: Attribution, card: CardReading) -> tuple[str, ...]:
    node = found.reading
    return (node.node, node.node, node.pool, POD_SOURCE, *_place(card))


def _custom(found: Attribution, card: CardReading) -> tuple[str, ...]:
    node = found.reading
    return (node.driver, node.node, node.pool, POD_SOURCE, "No", *_place(card))


def _owner(found: Attribution, one: ContainerReading) -> tuple[str, ...]:
    node, mode = found.reading, "exclusive" if one.exclusive else "share"
    return (mode, one.container, one.namespace, node.node, node.pool, one.pod, POD_SOURCE)


def _allocated(one: ContainerReading) -> int | None:
    return None if "allocated_bytes" in one.unknown else one.allocated_bytes


def _promised(card: CardReading) -> float | None:
    known = "allocated_bytes" not in card.unknown and card.total_bytes > 0
    return card.allocated_bytes / card.total_bytes if known else None


def _used(card: CardReading) -> int | None:
    known = card.used_bytes is not None and "reserved_bytes" not in card.unknown
    return (card.used_bytes or 0) - card.reserved_bytes if known else card.used_bytes


def _free(card: CardReading) -> int | None:
    known = card.used_bytes is not None and "total_bytes" not in card.unknown
    return card.total_bytes - (card.used_bytes or 0) if known else None


def _percent(ratio: float | None) -> float | None:
    return _times(ratio, _PERCENT)


def _mib(amount: float | None) -> float | None:
    return _times(amount, 1 / MIB)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
