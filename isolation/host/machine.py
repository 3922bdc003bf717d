# SPDX-License-Identifier: Apache-2.0
"""
This machine's cards, real ones or simulated ones, as NVML tells of them.

With `card_events`, the only module of the package that knows NVML. Translates its errors; "cannot tell" is None or an
empty answer, never 0.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from isolation.contract.model import Card, Instance
from isolation.distribution import install_command
from isolation.simgpu.hardware import find_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

SIMGPU: Final = "GPUSHARE_SIMGPU"
"""Environment variable by which the simulated driver finds its hardware file."""
_LIBRARIES: Final = Path(__file__).resolve().parents[1] / "simgpu" / "lib"
_NVML: Final = "libnvidia-ml.so.1"
_RUNTIMES: Final = ("libcudart.so.12", "libcudart.so.13")


class MachineError(Exception):
    """The cards cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One process on one card, over a short while before `micros`."""

    pid: int
    micros: int
    """Wall clock, microseconds since the epoch."""
    percent: int


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Who has memory on one card, as the driver tells at one moment."""

    users: Mapping[int, int | None]
    """Bytes by pid; None where the driver cannot tell."""
    used: int
    """Of the whole card, without what the driver keeps back."""
    served: bool = False
    """Clients of MPS compute: their memory stands under the server."""


class Machine(Protocol):
    """What the room asks of a machine."""

    def cards(self) -> tuple[Card, ...]:
        """Every card, in NVML's order; a MIG instance has the index of its physical card."""

    def environment(self) -> Mapping[str, str]:
        """What a command needs in its environment to reach these cards; paths are put in front."""

    def samples(self, uuid: str, since: int) -> tuple[Sample, ...]:
        """Who computed on the card since that time (microseconds on NVML's clock); empty: nobody, or unknown."""

    def memory(self, uuid: str) -> CardMemory | None:
        """Who has memory on the card (or MIG instance); None where the driver cannot tell."""

    def close(self) -> None:
        """Let NVML go; the next call takes it up again, also in another process."""


class NvmlMachine:
    """The cards behind libnvidia-ml; `hardware` is a simulated machine's file."""

    def __init__(self, hardware: Path | None = None) -> None:
        self.hardware = hardware
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}

    def cards(self) -> tuple[Card, ...]:
        """See `Machine`."""
        nvml = self._open()
        try:
            return tuple(card for at in range(nvml.nvmlDeviceGetCount()) for card in self._cards_at(at))
        except nvml.NVMLError as exc:
            raise MachineError(f"cannot read cards: {exc}") from None

    def environment(self) -> Mapping[str, str]:
        """See `Machine`."""
        if self.hardware is None:
            return {}
        # Programs that bring NVIDIA's runtime name its place in their RPATH: only a preloaded one comes before it.
        preload = ":".join(str(_LIBRARIES / name) for name in _RUNTIMES)
        return {SIMGPU: str(self.hardware), "LD_LIBRARY_PATH": str(_LIBRARIES), "LD_PRELOAD": preload}

    def samples(self, uuid: str, since: int) -> tuple[Sample, ...]:
        """See `Machine`."""
        try:
            nvml = self._open()
        except MachineError:
            return ()
        try:
            found = nvml.nvmlDeviceGetProcessUtilization(self._handle(uuid), since)
        except nvml.NVMLError:  # nobody computed (NOT_FOUND), or this card cannot tell
            return ()
        return tuple(Sample(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found)

    def memory(self, uuid: str) -> CardMemory | None:
        """See `Machine`."""
        try:
            nvml = self._open()
        except MachineError:
            return None
        try:
            handle = self._handle(uuid)
            found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            served = self._served(handle)
            try:
                used = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                used = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except nvml.NVMLError:
            return None
        users = {int(one.pid): None if one.usedGpuMemory is None else int(one.usedGpuMemory) for one in found}
        return CardMemory(users, int(used), served)

    def _served(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
        except self._nvml.NVMLError:  # a driver from before MPS clients were listed apart, or a card without MPS
            return False

    def close(self) -> None:
        """See `Machine`."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml = None
        self._handles.clear()

    def nvml(self) -> Any:
        """The module `pynvml`, initialised; MachineError."""
        return self._open()

    def handle(self, uuid: str) -> Any:
        """NVML's handle of a card; MachineError, or NVML's own errors."""
        return self._handle(uuid)

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._open().nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _open(self) -> Any:
        if self._nvml is not None:
            return self._nvml
        try:
            nvml = import_module("pynvml")
        except ModuleNotFoundError:
            raise MachineError(f"nvidia-ml-py is not installed: run {install_command('run')}") from None
        if self.hardware is not None:
            self._load_simulated()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as exc:
            hint = "" if self.hardware else " (install the NVIDIA driver or use simulated cards: --simgpu PATH)"
            fault = find_fault(self.hardware) if self.hardware else ""
            raise MachineError(fault or f"cannot initialize NVML: {exc}{hint}") from None
        self._nvml = nvml
        return nvml

    def _load_simulated(self) -> None:
        """Loaded first, our libnvidia-ml.so.1 is what that name means from then on."""
        library = _LIBRARIES / _NVML
        if self.hardware is None or not self.hardware.is_file():
            make = f"gpushare simgpu create {self.hardware} --model t4"
            raise MachineError(f"{self.hardware} is not a file: create it with {make}")
        if not library.is_file():
            raise MachineError(
                f"{library.name} of the simulated driver is not built: run `make test`, or `pip install .`"
            )
        os.environ[SIMGPU] = str(self.hardware)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    def _cards_at(self, at: int) -> list[Card]:
        """The card, or the MIG instances into which it is divided."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(at)
            model = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError_GpuIsLost:
            return [Card(f"lost-{at}", at, 0, healthy=False)]
        try:
            divided = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError:
            divided = False
        if not divided:
            return [self._card(handle, at, model)]
        found = []
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except nvml.NVMLError:
                continue  # places of the layout that no instance takes
            try:
                found.append(replace(self._card(part, at, model), instance=self._instance(handle, part)))
            except nvml.NVMLError_GpuIsLost:
                return [Card(f"lost-{at}", at, 0, healthy=False)]
        return found

    def _instance(self, handle: Any, instance: Any) -> Instance:
        nvml = self._nvml
        try:
            slices = int(nvml.nvmlDeviceGetAttributes_v2(instance).computeInstanceSliceCount)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            slices = 0
        return Instance(
            parent=_text(nvml.nvmlDeviceGetUUID(handle)),
            profile=_text(nvml.nvmlDeviceGetName(instance)).partition(" MIG ")[2],
            gpu=int(nvml.nvmlDeviceGetGpuInstanceId(instance)),
            compute=int(nvml.nvmlDeviceGetComputeInstanceId(instance)),
            slices=slices,
        )

    def _card(self, handle: Any, index: int, model: str) -> Card:
        nvml = self._nvml
        uuid = f"lost-{index}"
        try:
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            total, reserved, healthy = *self._memory(handle), True
        except nvml.NVMLError_GpuIsLost:
            total, reserved, healthy = 0, 0, False
        return Card(uuid, index, total, reserved, model=model, healthy=healthy)

    def _memory(self, handle: Any) -> tuple[int, int]:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).total), 0
        return int(memory.total), int(memory.reserved)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
