# SPDX-License-Identifier: Apache-2.0
"""
ResourceQuotas on other systems' names, as quotas on ours: a translated pod no longer counts in the old ones.

Kubernetes counts a quota on the stored pod, so after translation only our names are counted: memory in units and
compute in percent, both over all cards of a pod. What counts vGPUs or percent of memory has no such amount.

Source: Kubernetes, "Resource Quotas" (for extended resources only `requests.` is counted); HAMi, "limits." (#1359).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.amounts import amount
from isolation.contract.codec.cursor import show
from isolation.contract.dialects import gpu_manager, hami, koordinator, qgpu, vgpu_manager, volcano
from isolation.contract.dialects.translate import Line
from isolation.contract.model import FULL_CORE
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB, MIB, show_bytes

if TYPE_CHECKING:
    from isolation.contract.codec.cursor import At


class Measure(Enum):
    """What one of a resource is."""

    MIB = "MiB of each card"
    QUARTER = "256 MiB"
    GIB = "GiB"
    BYTE = "bytes"
    EACH = "percent of the compute of each card"
    COMPUTE = "percent of compute, over all cards"
    PART = "percent of a card's memory"
    COUNT = "a number of vGPUs"
    WHOLE = "whole cards"
    OTHER = "no amount of cards"


MEASURES: Final = MappingProxyType(
    {
        hami.COUNT: Measure.WHOLE,
        hami.MEMORY: Measure.MIB,
        hami.PERCENT: Measure.PART,
        hami.CORES: Measure.EACH,
        hami.PRIORITY: Measure.OTHER,
        volcano.COUNT: Measure.COUNT,
        volcano.MEMORY: Measure.MIB,
        volcano.PERCENT: Measure.PART,
        volcano.CORES: Measure.EACH,
        volcano.OLD_MEMORY: Measure.MIB,
        volcano.OLD_COUNT: Measure.COUNT,
        gpu_manager.CORE: Measure.COMPUTE,
        gpu_manager.MEMORY: Measure.QUARTER,
        qgpu.CORE: Measure.COMPUTE,
        qgpu.MEMORY: Measure.GIB,
        qgpu.GREEDY: Measure.OTHER,
        koordinator.SHARED: Measure.COUNT,
        koordinator.BOTH: Measure.PART,
        koordinator.CORE: Measure.COMPUTE,
        koordinator.RATIO: Measure.PART,
        koordinator.MEMORY: Measure.BYTE,
        vgpu_manager.COUNT: Measure.COUNT,
        vgpu_manager.MEMORY: Measure.MIB,
        vgpu_manager.CORES: Measure.EACH,
    }
)
"""Of every resource that is removed from a translated pod."""
_BYTES: Final = {Measure.MIB: MIB, Measure.QUARTER: 256 * MIB, Measure.GIB: GIB, Measure.BYTE: 1}
_PREFIXES: Final = ("requests.", "limits.")
_NO_AMOUNT: Final = {
    Measure.COUNT: "gpushare counts memory and compute of cards, not vGPUs: limit the number of pods by count/pods",
    Measure.OTHER: "it limits no amount of a card",
}
_NO_SIZE: Final = "it is in percent of a card's memory: name the nodes, of one card size, by --nodes-file or --node"
_PER_CARD: Final = "a pod of several cards counts with all of them"


@dataclass(frozen=True, slots=True)
class QuotaTranslation:
    """A quota's amounts on our names, line by line; `left` cannot be expressed, each with the reason."""

    hard: dict[str, str]
    lines: tuple[Line, ...]
    left: tuple[Line, ...]


def translate_quota(hard: At, unit_bytes: int = GIB, card_bytes: int = 0) -> QuotaTranslation:
    """
    What `spec.hard` of a ResourceQuota becomes; empty where it names nothing of another system.

    `card_bytes`: what every card offers, where that is one size; 0: not known. Raises CodecError, Unacceptable.
    """
    amounts: dict[str, int] = {}
    lines, left = [], []
    for resource, key in _named(hard).items():
        measure = MEASURES[resource]
        value = amount(hard[key], key)
        before = f"{key}: {show(hard[key].value)}"
        if measure is Measure.WHOLE:
            lines.append(Line(before, before, "stays, and counts whole cards alone from then on"))
            continue
        if measure in _NO_AMOUNT or (measure is Measure.PART and not card_bytes):
            why = _NO_AMOUNT.get(measure, _NO_SIZE)
            left.append(Line(before, "", why))
            continue
        name = ACK.memory if measure in _BYTES or measure is Measure.PART else ACK.compute
        if measure is Measure.PART:
            count = int(value * (card_bytes // unit_bytes) // FULL_CORE)
            why = f"{card_bytes // unit_bytes} units of {show_bytes(unit_bytes)} are 100 percent of a card"
        elif measure in _BYTES:
            count = int(-(-value * _BYTES[measure] // unit_bytes))
            why = f"in units of {show_bytes(unit_bytes)}, rounded up, as the request of each container is"
        else:
            count, why = int(value), "percent of a card's compute"
        if measure in {Measure.MIB, Measure.EACH}:
            why += f"; {_PER_CARD}"
        amounts[name] = amounts.get(name, 0) + count
        lines.append(Line(before, f"{_PREFIXES[0]}{name}: {count}", why))
    made = {f"{_PREFIXES[0]}{name}": str(count) for name, count in amounts.items()}
    return QuotaTranslation(made, tuple(lines), tuple(left))


def _named(hard: At) -> dict[str, str]:
    """By resource of another system, the key that limits it: as a request where both are there, as they are equal."""
    found: dict[str, str] = {}
    for prefix in reversed(_PREFIXES):
        found |= {
            key.removeprefix(prefix): key
            for key in hard.mapping()
            if key.startswith(prefix) and key.removeprefix(prefix) in MEASURES
        }
    return found
