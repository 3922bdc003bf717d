# SPDX-License-Identifier: Apache-2.0
"""
Memory limits that NVIDIA's driver holds itself (615 or newer), by control group.

`nvmlDeviceSetMemoryLimits_v1` and `nvmlDeviceGetMemoryLimits_v1`: NVML API reference v615; what is counted and when it
fails: NVIDIA, "MPS v3 Memory Partitioning". Only hard limits are set: a soft one outlives its group in the groups above
it. May be used by several threads.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from isolation.host.machine import MachineError
from isolation.host.process import read_living

if TYPE_CHECKING:
    from pathlib import Path

    from isolation.host.machine import NvmlMachine

OLDEST: Final = 615
"""Major version of the first driver that has them."""
UNLIMITED: Final = 2**64 - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""
_PROBE: Final = "gpushare-probe-"
"""Before a number of a process, in the name of a group that it tries limits with."""


class MemoryLimitError(Exception):
    """The driver did not do it; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of one control group on one card, in bytes."""

    hard: int
    """`UNLIMITED`: there is none."""
    used: int


class MemoryLimits:
    """See the module."""

    def __init__(self, machine: NvmlMachine) -> None:
        self._machine = machine
        self._lock = Lock()

    def unavailable(self, cgroup: Path, uuids: tuple[str, ...]) -> str:
        """
        Why limits cannot be set here; empty: they can.

        `cgroup`: where version 2 is mounted. A group is made there and limited on the first card: whether the driver
        counts by the kernel's dmem controller or by itself, only that shows.
        """
        try:
            nvml = self._machine.nvml()
            version = str(nvml.nvmlSystemGetDriverVersion())
        except MachineError as exc:
            return str(exc)
        except Exception as exc:  # noqa: BLE001 (pynvml's errors are of classes made at run time)
            return f"cannot read the driver's version: {exc}"
        major = version.partition(".")[0]
        if not major.isdecimal() or int(major) < OLDEST:
            return f"driver {version} is older than {OLDEST}"
        if not (cgroup / "cgroup.procs").is_file() or not (cgroup / "cgroup.subtree_control").is_file():
            return f"cgroup version 2 is not mounted at {cgroup}"
        if not uuids:
            return "no cards"
        probe = cgroup / f"{_PROBE}{os.getpid()}"
        try:
            _sweep(cgroup)
            probe.mkdir(exist_ok=True)
            self.set(uuids[0], probe, 1 << 30)
            found = self.get(uuids[0], probe)
        except (OSError, MemoryLimitError) as exc:
            return str(exc)
        finally:
            with contextlib.suppress(OSError):
                probe.rmdir()
        return "" if found.hard == 1 << 30 else f"a limit of {1 << 30} bytes reads back as {found.hard}"

    def set(self, uuid: str, group: Path, hard: int) -> None:
        """Limit a group, `UNLIMITED` clears it; MemoryLimitError."""
        try:
            nvml, handle = self._machine.nvml(), self._machine.handle(uuid)
            wanted = nvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(group), 0, hard)
            with self._lock:
                nvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
        except Exception as exc:  # noqa: BLE001 (pynvml's errors are of classes made at run time)
            raise MemoryLimitError(f"cannot limit {group} on {uuid}: {_text(exc)}") from None

    def get(self, uuid: str, group: Path) -> MemoryLimit:
        """What a group is limited to; MemoryLimitError."""
        try:
            nvml, handle = self._machine.nvml(), self._machine.handle(uuid)
            found = nvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(group), 0, 0, 0)
            with self._lock:
                nvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
        except Exception as exc:  # noqa: BLE001 (pynvml's errors are of classes made at run time)
            raise MemoryLimitError(f"cannot read the limit of {group} on {uuid}: {_text(exc)}") from None
        return MemoryLimit(int(found.hardLimit), int(found.currentUsed))


_WHY: Final = {
    3: "the driver does not support it (a MIG instance, or RmMemacctMode=0)",
    4: "no permission: CAP_SYS_ADMIN is required",
    6: "not a group of cgroup version 2, or one without the dmem controller",
}
"""By nvmlReturn_t."""


def _sweep(cgroup: Path) -> None:
    """Remove groups that were left, with their limits, by processes that were killed while they tried."""
    for one in cgroup.glob(f"{_PROBE}*"):
        pid = one.name.removeprefix(_PROBE)
        if pid.isdecimal() and read_living(int(pid)) is None:
            with contextlib.suppress(OSError):
                one.rmdir()


def _text(exc: Exception) -> str:
    value: Any = getattr(exc, "value", None)
    return _WHY.get(value, str(exc)) if isinstance(value, int) else str(exc)
