# SPDX-License-Identifier: Apache-2.0
"""
Activity of a card's parts by NVML's GPM, on Hopper and later: averages between two of our own slow readings.

Asked for only where `--collect gpm` is chosen. A card without it, and one that MIG divides, tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_METRICS: Final = {2: "sm_activity", 3: "sm_occupancy", 5: "tensor_activity", 10: "memory_bandwidth"}
"""nvmlGpmMetricId_t: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL; percent."""
_VERSION: Final = 1
_PERCENT: Final = 100


class Gpm:
    """The samples of one card; `close` gives their memory back."""

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
        wanted.version, wanted.numMetrics, wanted.sample1, wanted.sample2 = _VERSION, len(_METRICS), before, after
        for at, ident in enumerate(_METRICS):
            wanted.metrics[at].metricId = ident
        if self._ask("nvmlGpmMetricsGet", wanted) is None:
            return {}
        told = ((_METRICS[ident], wanted.metrics[at]) for at, ident in enumerate(_METRICS))
        return {name: min(1.0, one.value / _PERCENT) for name, one in told if one.nvmlReturn == 0 and one.value >= 0}

    def _free(self, sample: Any) -> None:
        self._ask("nvmlGpmSampleFree", sample)
