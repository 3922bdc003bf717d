# SPDX-License-Identifier: Apache-2.0
"""
The same facts under the names of ack-prometheus-gpu-exporter, `nvidia_gpu_*{allocate_mode}`, for old dashboards.

Pure. An exclusive card's figures stand under its container. A shared card's memory and compute stand under each
container, and what is left of its memory under no name: added up by card, they are the card again. Power and
temperature are the card's and are never copied to those who share it.

Source: Alibaba Cloud, "Troubleshoot issues in GPU monitoring".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import Group, Kind, MetricSpec, Unit, family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from exporter.compat.averages import Averages
    from exporter.pipeline.attribution import Attribution
    from isolation.contract.metrics import Family
    from isolation.contract.reading import CardReading, ContainerReading

    Row = tuple[tuple[str, ...], float | None]

_LEGACY: Final = (
    *("allocate_mode", "container_name", "minor_number", "name", "namespace_name", "node_name", "pod_name", "uuid"),
)


def _spec(name: str, labels: tuple[str, ...], text: str) -> MetricSpec:
    return MetricSpec(name, Kind.GAUGE, labels, Unit.NONE, text, Group.CARD)


NUM_DEVICES: Final = _spec("nvidia_gpu_num_devices", ("node_name",), "Number of cards of the node.")
DUTY_CYCLE: Final = _spec("nvidia_gpu_duty_cycle", _LEGACY, "Fraction of time in which the card was busy, in percent.")
MEMORY_TOTAL: Final = _spec(
    "nvidia_gpu_memory_total_bytes", _LEGACY, "Total memory of the card; for a shared card, promised to the pod."
)
MEMORY_USED: Final = _spec(
    "nvidia_gpu_memory_used_bytes", _LEGACY, "Used memory of the card; for a shared card, used by the pod."
)
POWER: Final = _spec("nvidia_gpu_power_usage_milliwatts", _LEGACY, "Power draw of the card, in milliwatts.")
TEMPERATURE: Final = _spec("nvidia_gpu_temperature_celsius", _LEGACY, "Temperature of the card.")


LEGACY_SPECS: Final = (NUM_DEVICES, DUTY_CYCLE, MEMORY_TOTAL, MEMORY_USED, POWER, TEMPERATURE)
"""Every metric of this module, in order."""


def legacy_families(found: Attribution, averages: Averages) -> Iterator[Family]:
    """Every card, and the containers of shared ones. Nothing without cards: a failure is not an idle node."""
    if not found.visibility:
        return
    yield family(NUM_DEVICES, [((found.reading.node,), sum(1 for card in found.reading.cards if not _divided(card)))])
    rows: dict[MetricSpec, list[Row]] = {
        spec: [] for spec in (DUTY_CYCLE, MEMORY_TOTAL, MEMORY_USED, POWER, TEMPERATURE)
    }
    on: dict[str, list[ContainerReading]] = {}
    for one in found.reading.containers:
        on.setdefault(one.uuid, []).append(one)
    for card in found.reading.cards:
        mine = on.get(card.uuid, [])
        sole = mine[0] if len(mine) == 1 and mine[0].exclusive else None
        labels = _labels(found, card, sole, "share" if mine else "none")
        rows[POWER].append((labels, None if card.power_watts is None else card.power_watts * 1000))
        rows[TEMPERATURE].append((labels, card.temperature_celsius))
        if _divided(card):
            continue
        total = None if "total_bytes" in card.unknown else card.total_bytes
        if sole is not None or not mine:
            rows[DUTY_CYCLE].append((labels, _percent(averages.card(card))))
            rows[MEMORY_TOTAL].append((labels, total))
            rows[MEMORY_USED].append((labels, card.used_bytes))
            continue
        for one in mine:
            tenant = _labels(found, card, one, "share")
            rows[DUTY_CYCLE].append((tenant, _percent(averages.container(one))))
            rows[MEMORY_TOTAL].append((tenant, _allocated(one)))
            rows[MEMORY_USED].append((tenant, one.used_bytes))
        rows[MEMORY_TOTAL].append((labels, _rest(total, [_allocated(one) for one in mine])))
        rows[MEMORY_USED].append((labels, _rest(card.used_bytes, [one.used_bytes for one in mine])))
    for spec, found_rows in rows.items():
        yield family(spec, found_rows)


def _rest(whole: int | None, parts: Iterable[int | None]) -> int | None:
    """What the parts leave; None where a part is not known, or where they are more than the whole."""
    known = list(parts)
    left = None if whole is None or None in known else whole - sum(part or 0 for part in known)
    return left if left is None or left >= 0 else None


def _labels(found: Attribution, card: CardReading, one: ContainerReading | None, mode: str) -> tuple[str, ...]:
    minor = str(card.index if card.minor is None else card.minor)
    namespace, pod, container = ("", "", "") if one is None else (one.namespace, one.pod, one.container)
    mode = "exclusive" if one is not None and one.exclusive else mode
    return (mode, container, minor, card.model, namespace, found.reading.node, pod, card.uuid)


def _divided(card: CardReading) -> bool:
    """A card that MIG divides: its memory and tenants stand with its instances."""
    return "total_bytes" in card.unknown and not card.lost


def _allocated(one: ContainerReading) -> int | None:
    return None if "allocated_bytes" in one.unknown else one.allocated_bytes


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100
