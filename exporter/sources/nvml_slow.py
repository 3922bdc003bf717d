"""
Figures of a card that change rarely or cost much, asked for every so often: limits, errors, links, modes.

One card's at a time is the caller's business, as is how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.reading import NO_HARDWARE, Hardware

if TYPE_CHECKING:
    from collections.abc import Callable

_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE: Final = 0
"""Since the driver was loaded."""
_NVLINK_FIELDS: Final = (38, 45, 52, 59, 160)
"""NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL: CRC of flow control and of data, replay, recovery, ECC."""
_COMPUTE_MODES: Final = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


@dataclass(frozen=True, slots=True)
class Slow:
    """As found last; None: the card cannot tell."""

    power_limit_watts: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    compute_mode: str = ""
    accounting: bool = False
    hardware: Hardware = NO_HARDWARE
    remapping_failed: bool = False
    """A row of memory that broke could not be replaced."""


NOTHING: Final = Slow()


def read_slow(ask: Callable[..., Any]) -> Slow:
    """`ask` is one of nvidia-ml-py's calls by name, for one card; None where it cannot be told."""
    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    remapped = ask("nvmlDeviceGetRemappedRows")
    return Slow(
        power_limit_watts=None if limit is None else limit / 1000,
        ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
        ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        hardware=Hardware(
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        ),
        pcie_replays=ask("nvmlDeviceGetPcieReplayCounter"),
        nvlink_errors=_nvlink(ask("nvmlDeviceGetFieldValues", list(_NVLINK_FIELDS))),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode"), ""),
        accounting=ask("nvmlDeviceGetAccountingMode") == 1,
        remapping_failed=remapped is not None and bool(remapped[3]),
    )


def _nvlink(fields: Any) -> int | None:
    """All kinds of errors over all links, of the kinds that this card counts."""
    known = [int(one.value.ullVal) for one in fields or () if one.nvmlReturn == 0]
    return sum(known) if known else None
