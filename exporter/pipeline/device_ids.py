# SPDX-License-Identifier: Apache-2.0
"""
Which card a device ID names, as the device plugins and DRA drivers in use spell it.

Pure. Knows the cards of this moment and the spellings; who was given which ID is not known here.

  GPU-...               a whole card             MIG-...           a whole instance
  GPU-...::n MIG-...::n a time slice or an MPS share (NVIDIA's plugin): no memory is promised
  nvidiaN, nvidiaN/giM  by minor number and GPU instance (GKE's plugin); with /vgpuK behind it: a time slice
  <uuid>-_-<n>          one unit of memory (the open-source gpushare plugin)
  1GiB-<n> 256MiB-<n>   one unit of memory of any card (our node agent): which card, only its promise says
  gpu.nvidia.com/<pool>/gpu-N[/<share>]  a device of NVIDIA's DRA driver, by minor number
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.contract.names import ACK, MIG_PREFIX
from isolation.contract.quantity import MIB, UNITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exporter.pipeline.snapshot import CardSample, MachineSample

SHARED_SUFFIX: Final = ".shared"
"""What the NVIDIA plugin adds to a resource of shared cards, where it is told to rename them."""
DYNAMIC: Final = "claim:"
"""What stands before the name of a DRA claim in place of a resource."""
_DRA_DRIVER: Final = "gpu.nvidia.com"
_MINOR: Final = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,4}))?(/vgpu\d{1,4})?")
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/(\d{1,4})/\d{1,4}")
_DYNAMIC: Final = re.compile(rf"{re.escape(_DRA_DRIVER)}/[^/]{{1,253}}/gpu-(\d{{1,4}})(/[^/]{{1,253}})?")
_UNIT: Final = re.compile(r"(.{1,80})-_-\d{1,6}")
_COUNTED: Final = re.compile(rf"(?:{'|'.join(UNITS)})-\d{{1,7}}")


class NamedDevice(NamedTuple):
    """What one device ID stands for."""

    card: CardSample | None
    """None: no card that we see."""
    shared: bool
    """A slice of its time, without a promise of memory."""


class Devices:
    """The cards of a node, found by device ID."""

    def __init__(self, machine: MachineSample | None) -> None:
        self.cards: Mapping[str, CardSample] = {card.uuid: card for card in machine.cards} if machine else {}
        self._places = {(card.parent or card.uuid, card.gpu_instance): card for card in self.cards.values()}
        known = (*self.cards.values(), *(machine.divided if machine else ()))
        self._minors = {card.minor: card.parent or card.uuid for card in known if card.minor is not None}

    def find(self, resource: str, ident: str) -> NamedDevice | None:
        """What an ID of a resource stands for; None: no card at all, another kind of device."""
        if resource.startswith(DYNAMIC):
            if not ident.startswith(f"{_DRA_DRIVER}/"):
                return None
            dynamic = _DYNAMIC.fullmatch(ident)
            card = None if dynamic is None else self._place(int(dynamic[1]), None)
            return NamedDevice(card, dynamic is not None and dynamic[2] is not None)
        if resource.removesuffix(SHARED_SUFFIX) != ACK.whole and not resource.startswith(MIG_PREFIX):
            return None
        base, slice_of, _ = ident.partition("::")
        if (card := self.cards.get(base)) is not None:
            return NamedDevice(card, bool(slice_of))
        if (old := _OLD_MIG.fullmatch(base)) is not None:
            return NamedDevice(self._places.get((old[1], int(old[2]))), bool(slice_of))
        if (place := _MINOR.fullmatch(base)) is None:
            return NamedDevice(None, bool(slice_of))
        instance = None if place[2] is None else int(place[2])
        return NamedDevice(self._place(int(place[1]), instance), bool(slice_of or place[3]))

    def _place(self, minor: int, instance: int | None) -> CardSample | None:
        return self._places.get((self._minors.get(minor, ""), instance))


def unit_card(ident: str) -> str:
    """UUID in the ID of a unit of memory; empty where there is none."""
    unit = _UNIT.fullmatch(ident)
    return unit[1] if unit else ""


def is_counted_unit(ident: str) -> bool:
    """Whether it is a unit that our node agent offers, which the kubelet only counts."""
    return _COUNTED.fullmatch(ident) is not None


def units_bytes(units: int, unit_bytes: int, card: CardSample) -> int | None:
    """Bytes in so many units: gpushare plugins count GiB or, where that is more than the card has, MiB."""
    return next((units * unit for unit in (unit_bytes, MIB) if units * unit <= card.total_bytes), None)


def usable_bytes(card: CardSample) -> int | None:
    """What a container that has the whole card can use of it."""
    return None if card.lost or card.total_bytes <= 0 else card.total_bytes - (card.reserved_bytes or 0)
