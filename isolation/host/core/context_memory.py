# SPDX-License-Identifier: Apache-2.0
"""
What a CUDA context takes on a kind of card, where that is known.

Pure. The library charges each process this much before the driver tells; without a figure it assumes
320 MiB, too much for small chips and too little for the largest. Approximations: what nvidia-smi shows of
a process with a context and nothing else (drivers 535 to 580); it varies with the driver by some 10 MiB.
Figures that were measured on a machine of one's own belong here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from isolation.contract.model import Card

CONTEXT_MIB: Final = {
    "Tesla T4": 104,
    "Tesla V100": 306,
    "NVIDIA A10": 256,
    "NVIDIA A100": 416,
    "NVIDIA H100": 522,
    "NVIDIA H200": 528,
    "NVIDIA B200": 560,
}
"""By the beginning of the product name that NVML tells; a MIG instance's begins with its card's."""


_UNKNOWN_MIB: Final = 640
"""More than the context of any card above."""


def server_bytes(model: str) -> int:
    """Bytes to keep for an MPS server on such a card: its context."""
    return context_bytes(model) or _UNKNOWN_MIB * MIB


def under_mps(card: Card) -> Card:
    """The card without what an MPS server has of it."""
    return replace(card, reserved_bytes=min(card.total_bytes, card.reserved_bytes + server_bytes(card.model)))


def context_bytes(model: str) -> int:
    """
    Bytes of one context on such a card; 0: not known, the library's own estimate holds.

    `model`: as NVML names it, or as node labels do, with dashes for blanks.
    """
    fitting = [name for name in CONTEXT_MIB if model.replace("-", " ").startswith(name)]
    return CONTEXT_MIB[max(fitting, key=len)] * MIB if fitting else 0
