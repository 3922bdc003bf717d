# SPDX-License-Identifier: Apache-2.0
"""
A client of the simulated driver through ctypes, for tests that run it as a process of its own.
"""

from __future__ import annotations

import ctypes as c
import sys
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

LIB = c.CDLL(str(Path(__file__).parents[2] / "isolation/simgpu/lib/libcuda.so.1"))
MIB = 1 << 20
OOM = 2
IMAGE = b"""simgpu 1
kernel busy params=8 ns=$0 width=1000
kernel half params=8 ns=$0 width=500
kernel wave us=100 wave
kernel bad ns=1000 fault=700
global table 4096
"""


def call(name: str, *arguments: object) -> int:
    """The status of a driver call."""
    return int(getattr(LIB, name)(*arguments))


def do(name: str, *arguments: object) -> None:
    """A driver call that must succeed."""
    status = call(name, *arguments)
    if status:
        raise SystemExit(f"{name}: {status}")


def start(device: int = 0) -> c_void_p:
    """Initialise, and make the device's primary context current."""
    context = c_void_p()
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", byref(context), device)
    do("cuCtxSetCurrent", context)
    return context


def alloc(size: int) -> c_uint64:
    """Device memory."""
    pointer = c_uint64()
    do("cuMemAlloc_v2", byref(pointer), c_size_t(size))
    return pointer


def info() -> tuple[int, int]:
    """Free and total bytes as cuMemGetInfo tells them."""
    free, total = c_size_t(), c_size_t()
    do("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def functions(*names: bytes) -> list[c_void_p]:
    """Kernels of the test image."""
    module = c_void_p()
    do("cuModuleLoadData", byref(module), IMAGE)
    found = []
    for name in names:
        function = c_void_p()
        do("cuModuleGetFunction", byref(function), module, name)
        found.append(function)
    return found


def stream(flags: int = 0) -> c_void_p:
    """A stream."""
    made = c_void_p()
    do("cuStreamCreate", byref(made), flags)
    return made


def event() -> c_void_p:
    """An event."""
    made = c_void_p()
    do("cuEventCreate", byref(made), 0)
    return made


def launch(function: c_void_p, ns: int, where: c_void_p | None = None, blocks: int = 1) -> None:
    """One launch; `ns` is the kernel's first parameter."""
    value = c_uint64(ns)
    params = (c_void_p * 1)(c.addressof(value))
    do("cuLaunchKernel", function, blocks, 1, 1, 1024, 1, 1, 0, where, params, None)


def elapsed(begin: c_void_p, end: c_void_p) -> float:
    """Milliseconds between two events that happened."""
    ms = c_float()
    do("cuEventElapsedTime", byref(ms), begin, end)
    return ms.value


def vmm_prop(*, shared: bool = False) -> c.Array[c_int]:
    """CUmemAllocationProp for device 0."""
    return (c_int * 8)(1, int(shared), 1, 0)


def join() -> None:
    """Take part in the story of `virtual_clock` in which we were started, if we were."""
    getattr(c.CDLL(None), "virtual_clock_join", int)()


def say(*words: object) -> None:
    """Tell the test."""
    print(*words, flush=True)  # noqa: T201


def wait() -> str:
    """Wait for the test's word."""
    return sys.stdin.readline().strip()
