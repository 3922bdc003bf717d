# SPDX-License-Identifier: Apache-2.0
"""
Figures of a card that change rarely or cost much to read: limits, errors, links, modes, and GPM's activity.

How often they are read is decided in `exporter.sources.nvml.source`. What only `--collect` shows is read only if its
group was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.reading import NO_HARDWARE, Hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE: Final = 0
"""Since the driver was loaded."""
_NVLINK_FIELDS: Final = (38, 45, 52, 59, 160)
"""NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL: CRC of flow control and of data, replay, recovery, ECC."""
_COMPUTE_MODES: Final = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; drivers of release 565 and later."""
_MEMORY_TEMPERATURE: Final = 82
"""NVML_FI_DEV_MEMORY_TEMP."""
_RETIRED: Final = {"single_bit": 29, "double_bit": 30}
"""NVML_FI_DEV_RETIRED_SBE, _DBE."""
_PCIE_ERRORS: Final = {"correctable": 173, "non_fatal": 179, "fatal": 180}
"""NVML_FI_DEV_PCIE_COUNT_*_ERROR(S)."""
# Not nvmlDeviceGetPcieThroughput, which measures for 20 ms in each direction while tenants wait for its lock.
_PCIE_SENT, _PCIE_RECEIVED = 197, 198
"""NVML_FI_DEV_PCIE_COUNT_TX_BYTES, _RX_BYTES."""
_EVERY_LINK: Final = 0xFFFFFFFF
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _RX: KiB, of all links together with scope `_EVERY_LINK`."""
_MAX_LINKS: Final = 36
_KIB: Final = 1024
_FIGURES: Final = {1: "uiVal", 2: "ulVal", 3: "ullVal", 5: "siVal"}
"""nvmlValueType_t: whole numbers."""
_PERCENT: Final = 100
_GPM_METRICS: Final = {2: "sm_activity", 3: "sm_occupancy", 5: "tensor_activity", 10: "memory_bandwidth"}
"""nvmlGpmMetricId_t: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL; percent."""
_GPM_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SlowReadings:
    """As found last; None: the card cannot tell."""

    power_limit_watts: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    compute_mode: str = ""
    accounting: bool = False
    hardware: Hardware = NO_HARDWARE


NO_READINGS: Final = SlowReadings()


def read_slow(ask: Callable[..., Any], groups: Container[str] = ()) -> SlowReadings:
    """`ask` is one of nvidia-ml-py's calls by name, for one card; None where it fails."""
    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    return SlowReadings(
        power_limit_watts=None if limit is None else limit / 1000,
        ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
        ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        pcie_replays=ask("nvmlDeviceGetPcieReplayCounter"),
        nvlink_errors=_sum(_fields(ask, _NVLINK_FIELDS).values()),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode"), ""),
        accounting=ask("nvmlDeviceGetAccountingMode") == 1,
        hardware=_hardware(ask, groups),
    )


def _hardware(ask: Callable[..., Any], groups: Container[str]) -> Hardware:
    remapped = ask("nvmlDeviceGetRemappedRows")
    found: dict[str, Any] = {"recovery_action": _fields(ask, (_RECOVERY_ACTION,)).get(_RECOVERY_ACTION)}
    if remapped is not None:
        found |= {"remap_pending": bool(remapped[2]), "remap_failed": bool(remapped[3])}
    if "engines" in groups:
        found["encoder_ratio"] = _ratio(ask("nvmlDeviceGetEncoderUtilization"))
        found["decoder_ratio"] = _ratio(ask("nvmlDeviceGetDecoderUtilization"))
    if "pcie" in groups:
        found["pcie_generation"] = ask("nvmlDeviceGetCurrPcieLinkGeneration")
        found["pcie_width"] = ask("nvmlDeviceGetCurrPcieLinkWidth")
        values = _fields(ask, (*_PCIE_ERRORS.values(), _PCIE_SENT, _PCIE_RECEIVED))
        found["pcie_sent_bytes"], found["pcie_received_bytes"] = values.get(_PCIE_SENT), values.get(_PCIE_RECEIVED)
        found["pcie_errors"] = _name_values(_PCIE_ERRORS, values)
    if "nvlink" in groups:
        found["nvlink_links"] = _links(ask)
        values = _fields(ask, (_NVLINK_SENT, _NVLINK_RECEIVED), _EVERY_LINK)
        kib = values.get(_NVLINK_SENT), values.get(_NVLINK_RECEIVED)
        found["nvlink_sent_bytes"], found["nvlink_received_bytes"] = (_times(one, _KIB) for one in kib)
    if "memory" in groups:
        values = _fields(ask, (_MEMORY_TEMPERATURE, *_RETIRED.values()))
        found["memory_celsius"], found["retired_pages"] = (
            values.get(_MEMORY_TEMPERATURE),
            _name_values(_RETIRED, values),
        )
        if remapped is not None:
            found["remapped_rows"] = (("corrected", int(remapped[0])), ("uncorrected", int(remapped[1])))
    return Hardware(**found)


def _fields(ask: Callable[..., Any], idents: Iterable[int], scope: int = 0) -> Mapping[int, int]:
    """Those fields that the card has, by number."""
    found = ask("nvmlDeviceGetFieldValues", [(ident, scope) for ident in idents])
    return {
        int(one.fieldId): int(getattr(one.value, _FIGURES[one.valueType]))
        for one in found or ()
        if one.nvmlReturn == 0 and one.valueType in _FIGURES
    }


def _links(ask: Callable[..., Any]) -> int | None:
    """How many links are up; None: it has none."""
    found = []
    for link in range(_MAX_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", link)
        if state is None:
            break
        found.append(int(state == 1))
    return sum(found) if found else None


def _name_values(names: Mapping[str, int], values: Mapping[int, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, values[ident]) for name, ident in names.items() if ident in values)


def _sum(values: Iterable[int]) -> int | None:
    """All kinds of errors over all links, of the kinds that this card counts."""
    known = list(values)
    return sum(known) if known else None


def _ratio(found: Any) -> float | None:
    return None if found is None else min(1.0, int(found[0]) / _PERCENT)


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


class Gpm:
    """
    Activity of a card's parts by NVML's GPM, on Hopper and later, as averages between two readings.

    A card without it, and one that MIG divides, has none. `close` frees its samples.
    """

    def __init__(self, ask: Callable[..., Any], of_card: Callable[..., Any], request: Callable[[], Any]) -> None:
        """`ask` is one of nvidia-ml-py's calls by name, `of_card` one for the card, `request` an empty question."""
        self._ask, self._of_card, self._request = ask, of_card, request
        self._samples: list[Any] = []

    def read(self) -> dict[str, Any]:
        """Parts of the time, 0..1, by field of `Hardware`, since the last reading; none at the first."""
        support = self._of_card("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return {}
        sample = self._ask("nvmlGpmSampleAlloc")
        if sample is None:
            return {}
        self._samples.append(sample)
        if self._of_card("nvmlGpmSampleGet", sample) is None:
            self._free(self._samples.pop())
            return {}
        if len(self._samples) == 1:
            return {}
        before = self._samples.pop(0)
        try:
            return self._between(before, sample)
        finally:
            self._free(before)

    def close(self) -> None:
        """Give the samples back."""
        while self._samples:
            self._free(self._samples.pop())

    def _between(self, before: Any, after: Any) -> dict[str, Any]:
        wanted = self._request()
        wanted.version, wanted.numMetrics, wanted.sample1, wanted.sample2 = (
            _GPM_VERSION,
            len(_GPM_METRICS),
            before,
            after,
        )
        for at, ident in enumerate(_GPM_METRICS):
            wanted.metrics[at].metricId = ident
        if self._ask("nvmlGpmMetricsGet", wanted) is None:
            return {}
        values = ((_GPM_METRICS[ident], wanted.metrics[at]) for at, ident in enumerate(_GPM_METRICS))
        return {name: min(1.0, one.value / _PERCENT) for name, one in values if one.nvmlReturn == 0 and one.value >= 0}

    def _free(self, sample: Any) -> None:
        self._ask("nvmlGpmSampleFree", sample)
