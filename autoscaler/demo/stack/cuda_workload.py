# SPDX-License-Identifier: Apache-2.0
"""
The program of each demo tenant: takes device memory through the CUDA driver API and computes on it.

Run as a script under `gpushare run`, so it imports nothing of this project. It ends when its standard input does: its
parent holds the other end, and may be killed.

    python cuda_workload.py HOLD_MIB GROW_MIB MAX_MIB BUSY_MS EVERY_MS

It takes HOLD at once, then GROW more every two seconds until it has MOST (a refusal does not stop it from asking), and
computes BUSY of every EVERY milliseconds.
"""

from __future__ import annotations

import ctypes
import select
import sys
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Final

MIB: Final = 1 << 20
GROW_SECONDS: Final = 2.0
OUT_OF_MEMORY: Final = 2
IMAGE: Final = b"simgpu 1\nkernel busy params=8 ns=$0 width=1000\n"
"""The simulated driver's own form of a module: a kernel that takes as long as its parameter says."""


class DriverFailure(SystemExit):
    """The driver cannot be used."""


class CudaDevice:
    """The first card that this process sees."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, module, self._kernel = c_void_p(), c_void_p(), c_void_p()
        self._do("cuInit", 0)
        self._do("cuDevicePrimaryCtxRetain", byref(context), 0)
        self._do("cuCtxSetCurrent", context)
        self._do("cuModuleLoadData", byref(module), IMAGE)
        self._do("cuModuleGetFunction", byref(self._kernel), module, b"busy")

    def take(self, mib: int) -> bool:
        """Allocate; false where the promise or the card has no room for it."""
        pointer = c_uint64()
        status = self._driver.cuMemAlloc_v2(byref(pointer), c_size_t(mib * MIB))
        if status not in {0, OUT_OF_MEMORY}:
            raise DriverFailure(f"cuMemAlloc_v2 failed: status {status}")
        return not status

    def compute(self, seconds: float) -> None:
        """One kernel of this length, to its end."""
        nanoseconds = c_uint64(int(seconds * 1e9))
        parameters = (c_void_p * 1)(ctypes.addressof(nanoseconds))
        self._do("cuLaunchKernel", self._kernel, 1, 1, 1, 1024, 1, 1, 0, None, parameters, None)
        self._do("cuCtxSynchronize")

    def _do(self, name: str, *arguments: object) -> None:
        if status := getattr(self._driver, name)(*arguments):
            raise DriverFailure(f"{name} failed: status {status}")


def run_until_stdin_ends(hold: int, grow: int, most: int, busy: float, every: float) -> None:
    """Until standard input ends; memory in MiB, times in seconds."""
    device = CudaDevice()
    have = hold if hold and device.take(hold) else 0
    grown = time.monotonic()
    while True:
        begun = time.monotonic()
        if grow and have < most and begun - grown >= GROW_SECONDS:
            grown = begun
            have += grow if device.take(grow) else 0
        if busy:
            device.compute(busy)
        rest = max(0.0, begun + every - time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], rest)
        if ready and not sys.stdin.buffer.read(1):
            return


if __name__ == "__main__":
    amounts = [int(word) for word in sys.argv[1:4]]
    spans = [int(word) / 1000 for word in sys.argv[4:6]]
    run_until_stdin_ends(amounts[0], amounts[1], amounts[2], spans[0], spans[1])
