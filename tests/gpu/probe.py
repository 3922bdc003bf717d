# SPDX-License-Identifier: Apache-2.0
"""
One question to a card, by the driver, NVML and the runtime alone: no package is needed. Prints one line of JSON.

    python tests/gpu/probe.py costs            bytes of a context, a module of 64 MiB, 512 MiB of managed memory
    python tests/gpu/probe.py runtime          what the library saw of the context that NVIDIA's runtime makes
    python tests/gpu/probe.py times            nanoseconds of an allocation with its release, and of a launch
    python tests/gpu/probe.py calibrate        how much work a kernel of 1 ms does, on a card that nobody else uses
    python tests/gpu/probe.py busy SECONDS N   kernels of that much work, as many as there is time for
    python tests/gpu/probe.py hold MIB         allocate, say so, wait for the end of the input
    python tests/gpu/probe.py fill MIB         blocks of 64 MiB until one is refused, MIB at most

CUDA_VISIBLE_DEVICES names the card by its UUID.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.realgpu import Driver  # noqa: E402 (after the path)

MIB = 1 << 20
MODULE_MIB, MANAGED_MIB = 64, 512
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
KERNEL_NS = 1_000_000
PTX = f"""
.version 6.0
.target sm_50
.address_size 64
// simgpu kernel busy ns=$0
// simgpu kernel nothing ns=0
.visible .global .align 16 .b8 block[{MODULE_MIB * MIB}];
.visible .entry busy(.param .u64 p_count)
{{
    .reg .u64 %left;
    .reg .u32 %x;
    .reg .pred %more, %odd;
    ld.param.u64 %left, [p_count];
    mov.u32 %x, %clock;
LOOP:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra LOOP;
    setp.eq.u32 %odd, %x, 0;
    @%odd st.global.u32 [block], %x;
    ret;
}}
.visible .entry nothing()
{{
    ret;
}}
"""


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (("pid", c_uint), ("used", c_uint64), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (("version", c_uint), *((name, c_uint64) for name in ("total", "reserved", "free", "used")))


class Nvml:
    """The card that CUDA_VISIBLE_DEVICES names."""

    def __init__(self) -> None:
        self._lib, self._card = ctypes.CDLL("libnvidia-ml.so.1"), c_void_p()
        self._do("nvmlInit_v2")
        self._do("nvmlDeviceGetHandleByUUID", c_char_p(os.environ["CUDA_VISIBLE_DEVICES"].encode()), byref(self._card))

    def used(self) -> int:
        """Bytes in use on the card, without what the driver keeps for itself."""
        memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
        self._do("nvmlDeviceGetMemoryInfo_v2", self._card, byref(memory))
        return memory.used

    def settled(self) -> int:
        """The same once it stands still for a second: memory of a process that has ended comes back late."""
        end, seen = time.monotonic() + 20, [self.used()]
        while time.monotonic() < end and (len(seen) < 6 or len(set(seen[-6:])) > 1):
            time.sleep(0.2)
            seen.append(self.used())
        return seen[-1]

    def listed(self) -> int | None:
        """Bytes of all processes on it, by NVML's list; None where it has no bytes."""
        found, count = (Process * 256)(), c_uint(256)
        self._do("nvmlDeviceGetComputeRunningProcesses_v3", self._card, byref(count), found)
        bytes_of = [one.used for one in found[: count.value]]
        return None if not bytes_of or max(bytes_of) == (1 << 64) - 1 else sum(bytes_of)

    def _do(self, name: str, *arguments: Any) -> None:
        status = self._lib[name](*arguments)
        if status:
            raise SystemExit(f"{name}: NVML error {status}")


def module(driver: Driver) -> c_void_p:
    """The text above, compiled by the driver."""
    loaded = c_void_p()
    driver.do("cuModuleLoadData", byref(loaded), c_char_p(PTX.encode()))
    return loaded


def kernel(driver: Driver, loaded: c_void_p, name: bytes) -> c_void_p:
    """A kernel of it."""
    found = c_void_p()
    driver.do("cuModuleGetFunction", byref(found), loaded, name)
    return found


def costs() -> dict[str, Any]:
    """Growth of the card's figure, and of the processes' figures for managed memory that the card has touched."""
    nvml = Nvml()
    marks = [nvml.settled()]
    driver = Driver()
    marks.append(nvml.used())
    module(driver)
    marks.append(nvml.used())
    listed, at = nvml.listed(), c_uint64()
    driver.do("cuMemAllocManaged", byref(at), c_size_t(MANAGED_MIB * MIB), 1)
    ctypes.CDLL("libcuda.so.1").cuMemPrefetchAsync(at, c_size_t(MANAGED_MIB * MIB), 0, None)
    driver.do("cuMemsetD8_v2", at, 1, c_size_t(MANAGED_MIB * MIB))
    driver.do("cuCtxSynchronize")
    marks.append(nvml.used())
    grown = None if listed is None else nvml.listed() - listed
    context, loaded, managed = (after - before for before, after in pairwise(marks))
    return {"context": context, "module": loaded, "managed_on_card": managed, "managed_in_processes": grown}


def booked() -> int:
    """What the library has charged on the only card of this share."""
    from isolation.lib import files  # noqa: PLC0415 (only under a share)

    return files.read_region(Path(os.environ["GPUSHARE_REGION"])).cards[0].used_bytes


def runtime() -> dict[str, Any]:
    """Charged bytes before and after the runtime's first call, the card's growth, and which runtime it was."""
    packaged = [str(one) for folder in sys.path for one in Path(folder).glob("nvidia/*/lib/libcudart.so.*")]
    for name in (*RUNTIMES, *packaged):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        break
    else:
        raise SystemExit(f"none of {', '.join(RUNTIMES)} is found")
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    before = booked()
    status = library.cudaFree(None)
    return {"runtime": name, "status": status, "before": before, "after": booked()}


def times() -> dict[str, int]:
    """Medians over batches; ctypes is in both figures, with the library and without it."""
    driver = Driver()
    nothing, at = kernel(driver, module(driver), b"nothing"), c_uint64()

    def allocate() -> None:
        driver.do("cuMemAlloc_v2", byref(at), c_size_t(4 * MIB))
        driver.do("cuMemFree_v2", at)

    def batch(act: Any) -> int:
        begin = time.perf_counter_ns()
        for _ in range(20):
            act()
        taken = time.perf_counter_ns() - begin
        driver.do("cuCtxSynchronize")
        return taken // 20

    acts = {"alloc_ns": allocate, "launch_ns": lambda: driver.launch(nothing)}
    return {name: int(statistics.median(batch(act) for _ in range(200))) for name, act in acts.items()}


def calibrate() -> dict[str, int]:
    """Rounds of the kernel's loop in `KERNEL_NS`."""
    driver = Driver()
    loaded, count = kernel(driver, module(driver), b"busy"), KERNEL_NS
    for _ in range(4):  # the first are short of a warm card
        taken, work = [], c_uint64(count)
        for _ in range(20):
            begin = time.perf_counter_ns()
            driver.launch(loaded, work)
            driver.do("cuCtxSynchronize")
            taken.append(time.perf_counter_ns() - begin)
        count = max(1, count * KERNEL_NS // int(statistics.median(taken)))
    return {"count": count}


def busy(seconds: float, count: int) -> dict[str, float]:
    """
    Kernels a second after a second of running in.

    Of a fixed amount of work: one that ran until a moment had passed would count its neighbours' slices as its own.
    """
    driver = Driver()
    loaded, work = kernel(driver, module(driver), b"busy"), c_uint64(count)
    began, ran, start = time.monotonic(), 0, None
    while True:
        for _ in range(8):
            driver.launch(loaded, work)
        driver.do("cuCtxSynchronize")
        now = time.monotonic()
        if start is None:
            start = now if now - began > 1 else None
            continue
        ran += 8
        if now - start > seconds:
            return {"kernels_per_second": ran / (now - start)}


def hold(mib: int) -> None:
    """Until the end of the input."""
    Driver().alloc(mib * MIB)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


def fill(mib: int) -> dict[str, Any]:
    """MiB got, and the driver's status at the end; the total that the driver shows."""
    driver, library = Driver(), ctypes.CDLL("libcuda.so.1")
    at, free, total, got, status = c_uint64(), c_size_t(), c_size_t(), 0, c_int()
    driver.do("cuMemGetInfo_v2", byref(free), byref(total))
    while got < mib and not (status := library.cuMemAlloc_v2(byref(at), c_size_t(64 * MIB))):
        got += 64
    return {"got_mib": got, "status": int(status), "total_mib": total.value // MIB}


if __name__ == "__main__":
    made = {"calibrate": calibrate, "costs": costs, "runtime": runtime, "times": times}
    match sys.argv[1:]:
        case [name, *_] if name in made:
            answer = made[name]()
        case ["busy", seconds, count]:
            answer = busy(float(seconds), int(count))
        case ["hold", size]:
            sys.exit(hold(int(size)))
        case ["fill", size]:
            answer = fill(int(size))
        case _:
            sys.exit(__doc__)
    print(json.dumps(answer))  # noqa: T201
