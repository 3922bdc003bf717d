# SPDX-License-Identifier: Apache-2.0
"""
NVML from its start to its end: calls, and what their failures mean.

The only module that knows nvidia-ml-py, and the layouts of what NVML lists. Failures are sorted into
three: the driver as a whole is gone (`GoneError`), this card is (`LostError`), or this figure cannot be had
(None). What a model does not support is asked once. What figures mean, and when to ask for them, is
`nvml_card`'s business.

Lists are asked for in one call with room to spare, where nvidia-ml-py calls twice: a list costs the
driver milliseconds, under a lock that tenants wait for.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from pathlib import Path
from struct import Struct
from typing import Any, Final

import isolation.contract
from exporter.pipeline.busy_time import BusySample, Load
from exporter.sources.errors import SourceError
from isolation.distribution import install_command

SIMGPU: Final = "GPUSHARE_SIMGPU"
"""Environment variable by which the simulated driver finds its hardware file."""
_LIBRARY: Final = Path(isolation.contract.__file__).parents[1] / "simgpu" / "lib" / "libnvidia-ml.so.1"

# nvmlReturn_t, NVML API reference
_SUCCESS: Final = 0
_NO_PERMISSION: Final = 4
_NOT_FOUND: Final = 6
_INSUFFICIENT_SIZE: Final = 7
_GONE: Final = frozenset({1, 9, 12, 18})
"""Uninitialized, driver not loaded, library not found, library and driver of different versions."""
_LOST: Final = frozenset({15, 16})
"""Fallen off the bus, or of no use until it is reset."""
_NEVER: Final = frozenset({3, 4, 13, 22, 24, 25, 26})
"""Not supported (also of ECC on vGPU, clocks, versions), not permitted, not there, deprecated."""

_PROCESS: Final = (("_v3", Struct("=I4xQII")), ("_v2", Struct("=I4xQII")), ("", Struct("=I4xQ")))
"""nvmlProcessInfo_t by version of the call: pid, bytes, GPU and compute instance."""
_SAMPLE: Final = Struct("=I4xQIIII")
"""nvmlProcessUtilizationSample_t: pid, microseconds, percent of SM, memory, encoder, decoder."""
_LOAD: Final = Struct("=QI4x")
"""nvmlSample_t with an unsigned value: microseconds, percent."""
_NOT_AVAILABLE: Final = 2**64 - 1
_GPU_SAMPLES: Final = 1
_ROOM: Final = 128
_MAX_ROOM: Final = 1 << 16
"""Entries; a driver that tells of more is not believed."""


class CardGoneError(Exception):
    """NVML must be restarted."""


class LostError(Exception):
    """Nothing can be learned of this card."""


class Library:
    """NVML, started; `close` ends it."""

    def __init__(self, hardware: Path | None = None) -> None:
        self._nvml = _start(hardware)
        self._never: set[tuple[str, str]] = set()
        self._room = _ROOM
        self._buffer = ctypes.create_string_buffer(_ROOM * _SAMPLE.size)

    def close(self) -> None:
        """End it; one that is gone is ended already."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def ask(self, model: str | None, name: str, *arguments: Any) -> Any:
        """
        One figure by one of nvidia-ml-py's calls; None where it cannot be had.

        What a `model` does not support is not asked again; without one it is.
        """
        if (model, name) in self._never:
            return None
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as exc:
            self._judge(model, name, exc.value)
        except (AttributeError, ValueError):  # a call that this release does not have; text that is none
            return None
        return None

    def handle(self, index: int) -> Any:
        """A card by its number; None for one that is not ours to see, LostError for one that does not answer."""
        name = "nvmlDeviceGetHandleByIndex"
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as exc:
            if exc.value == _NO_PERMISSION:
                return None
            self._judge(None, name, exc.value)
            raise LostError(f"{name}: {exc}") from None

    def memory(self, model: str, handle: Any) -> tuple[int, int | None, int] | None:
        """Total, reserved and free bytes; drivers before 510 count what is reserved as used (None)."""
        key = (model, "nvmlDeviceGetMemoryInfo_v2")
        if key not in self._never:
            try:
                found = self._nvml.nvmlDeviceGetMemoryInfo(handle, self._nvml.nvmlMemory_v2)
                return int(found.total), int(found.reserved), int(found.free)
            except self._nvml.NVMLError as exc:
                self._judge(*key, exc.value)
        found = self.ask(model, "nvmlDeviceGetMemoryInfo", handle)
        return None if found is None else (int(found.total), None, int(found.free))

    def gpm_request(self) -> Any:
        """An empty question about activity between two samples."""
        return self._nvml.c_nvmlGpmMetricsGet_t()

    def ask_again(self) -> None:
        """Forget what was not supported: modes change."""
        self._never.clear()

    def processes(self, model: str, kind: str, handle: Any) -> list[tuple[int, int | None]] | None:
        """Pids and bytes; `kind` is Compute, Graphics or MPSCompute. None: unknown."""
        for version, layout in _PROCESS:
            name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
            rows = self._listed(model, name, layout, lambda call, data, count: call(handle, count, data))
            if rows is not None:
                return [(row[0], None if row[1] == _NOT_AVAILABLE else row[1]) for row in rows]
        return None

    def samples(self, model: str, handle: Any, since: int) -> list[BusySample] | None:
        """Who computed since then (microseconds); None: this card cannot tell."""
        name, at = "nvmlDeviceGetProcessUtilization", ctypes.c_ulonglong(since)
        rows = self._listed(model, name, _SAMPLE, lambda call, data, count: call(handle, data, count, at))
        return None if rows is None else [BusySample(*row) for row in rows]

    def loads(self, model: str, handle: Any, since: int) -> list[Load] | None:
        """How busy the card was since then (microseconds); None: it cannot tell."""
        at, kind = ctypes.c_ulonglong(since), ctypes.c_int()
        rows = self._listed(
            model,
            "nvmlDeviceGetSamples",
            _LOAD,
            lambda call, data, count: call(handle, _GPU_SAMPLES, at, ctypes.byref(kind), count, data),
        )
        return None if rows is None else [Load(*row) for row in rows]

    def _listed(self, model: str, name: str, layout: Struct, ask: Any) -> list[tuple[int, ...]] | None:
        """The entries of one list, in one call unless there are more of them than ever; None as in `ask`."""
        call = None if (model, name) in self._never else getattr(self._nvml.nvmlLib, name, None)
        if call is None:
            return None
        while True:
            count = ctypes.c_uint(self._room)
            status = ask(call, self._buffer, ctypes.byref(count))
            if status == _SUCCESS:
                return list(layout.iter_unpack(memoryview(self._buffer)[: min(count.value, self._room) * layout.size]))
            if status == _NOT_FOUND:  # nobody did anything
                return []
            if status != _INSUFFICIENT_SIZE or self._room >= _MAX_ROOM:
                self._judge(model, name, status)
                return None
            self._room = min(_MAX_ROOM, max(2 * self._room, count.value + _ROOM))
            self._buffer = ctypes.create_string_buffer(self._room * _SAMPLE.size)

    def _judge(self, model: str | None, name: str, status: int) -> None:
        """Nothing, where only this figure is missing."""
        if status in _GONE:
            raise CardGoneError(f"{name}: {self._nvml.NVMLError(status)}")
        if status in _LOST:
            raise LostError(f"{name}: {self._nvml.NVMLError(status)}")
        if status in _NEVER and model is not None:
            self._never.add((model, name))


def address(handle: Any) -> int:
    """What tells one card's handle from another's."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _start(hardware: Path | None) -> Any:
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        raise SourceError(f"nvidia-ml-py is not installed: run {install_command('exporter')}") from None
    if hardware is not None:
        _load_simulated(hardware)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        fault = import_module("isolation.simgpu.hardware").find_fault(hardware) if hardware is not None else ""
        advice = _advice(exc.value) if hardware is None else ""
        raise SourceError(fault or f"cannot initialize NVML: {exc}{advice}") from None
    return nvml


def _advice(status: int) -> str:
    if status == 18:  # noqa: PLR2004 (NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        return " (the driver was updated while the exporter was running: restart the exporter to load the new library)"
    return (
        " (check that the NVIDIA driver is installed and available in this container; simulated cards: --simgpu FILE)"
    )


def _load_simulated(hardware: Path) -> None:
    """Loaded first, our libnvidia-ml.so.1 is what that name means from then on."""
    if not hardware.is_file():
        raise SourceError(f"{hardware} is not a file: create it with gpushare simgpu create {hardware} --model t4")
    if not _LIBRARY.is_file():
        raise SourceError(f"{_LIBRARY.name} of the simulated driver is not built: run `make test` or `pip install .`")
    os.environ[SIMGPU] = str(hardware)
    ctypes.CDLL(str(_LIBRARY), mode=ctypes.RTLD_GLOBAL)
