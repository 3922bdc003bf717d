# SPDX-License-Identifier: Apache-2.0
"""
A real NVIDIA card through the driver API alone, for the tests marked `gpu`: no toolkit, no runtime.

    python tests/support/realgpu.py costs            host cost of events and launches, bytes of a context
    python tests/support/realgpu.py gaps SECONDS     when this process was kept from the card, by the card's own clock
    python tests/support/realgpu.py hold MIB         allocate, say so, wait for the end of the input

Each prints one line of JSON. CUDA_VISIBLE_DEVICES chooses the card.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

GAP_NS = 100_000
"""Shorter pauses are not another process's slice but the clock's own resolution."""
ROOM = 4096
PTX = f"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry gaps(.param .u64 p_span, .param .u64 p_out, .param .u32 p_room)
{{
    .reg .u64 %now, %last, %end, %out, %delta, %span;
    .reg .u32 %n, %room;
    .reg .pred %late, %fits;
    ld.param.u64 %span, [p_span];
    ld.param.u64 %out, [p_out];
    ld.param.u32 %room, [p_room];
    cvta.to.global.u64 %out, %out;
    mov.u64 %last, %globaltimer;
    add.u64 %end, %last, %span;
    mov.u32 %n, 0;
LOOP:
    mov.u64 %now, %globaltimer;
    sub.u64 %delta, %now, %last;
    setp.gt.u64 %late, %delta, {GAP_NS};
    setp.lt.u32 %fits, %n, %room;
    and.pred %late, %late, %fits;
    @!%late bra NEXT;
    st.global.u64 [%out], %last;
    st.global.u64 [%out+8], %now;
    add.u64 %out, %out, 16;
    add.u32 %n, %n, 1;
NEXT:
    mov.u64 %last, %now;
    setp.lt.u64 %late, %now, %end;
    @%late bra LOOP;
    ret;
}}
.visible .entry nothing()
{{
    ret;
}}
"""


@dataclass(frozen=True)
class RealCard:
    """A card that NVML finds."""

    uuid: str
    name: str
    driver: str


def cards() -> list[RealCard]:
    """Every real card; empty where there is no driver."""
    try:
        import pynvml as nvml  # type: ignore[import-untyped]  # noqa: PLC0415 (optional)

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 (no package, no library, no driver: all the same here)
        return []
    driver = str(nvml.nvmlSystemGetDriverVersion())
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    return [RealCard(nvml.nvmlDeviceGetUUID(one), nvml.nvmlDeviceGetName(one), driver) for one in handles]


def used_bytes(uuid: str) -> int:
    """Bytes in use on a card, without what the driver keeps for itself."""
    import pynvml as nvml  # noqa: PLC0415

    nvml.nvmlInit()
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid), version=nvml.nvmlMemory_v2).used)


class Driver:
    """A context on the first visible card."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.do("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.do("cuDeviceGet", byref(device), 0)
        self.do("cuDevicePrimaryCtxRetain", byref(context), device)
        self.do("cuCtxSetCurrent", context)

    def do(self, name: str, *arguments: Any) -> None:
        """A call that must succeed."""
        status = self._lib[name](*arguments)
        if status:
            raise SystemExit(f"{name}: CUDA error {status}")

    def kernel(self, name: bytes) -> c_void_p:
        """A kernel of the text above, compiled by the driver."""
        module, function = c_void_p(), c_void_p()
        self.do("cuModuleLoadData", byref(module), ctypes.c_char_p(PTX.encode()))
        self.do("cuModuleGetFunction", byref(function), module, name)
        return function

    def launch(self, function: c_void_p, *values: Any) -> None:
        """One thread of it, on the default stream."""
        words = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        self.do("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, words, None)

    def alloc(self, size: int) -> c_uint64:
        """Device memory."""
        at = c_uint64()
        self.do("cuMemAlloc_v2", byref(at), c_size_t(size))
        return at


def timed(act: Any, settle: Any, rounds: int = 50, each: int = 20) -> int:
    """Median nanoseconds of one call, in batches; `settle` empties the queue between them."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(each):
            act()
        found.append((time.perf_counter_ns() - begin) // each)
        settle()
    return int(statistics.median(found))


def costs() -> dict[str, int]:
    """What one event record and one launch cost the caller (ctypes included, some 500 ns), and a context the card."""
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    before = used_bytes(uuid)
    driver = Driver()
    context = used_bytes(uuid) - before
    nothing, event = driver.kernel(b"nothing"), c_void_p()
    driver.do("cuEventCreate", byref(event), 0)

    def settle() -> None:
        driver.do("cuCtxSynchronize")

    driver.launch(nothing)
    settle()
    return {
        "context_bytes": context,
        "launch_ns": timed(lambda: driver.launch(nothing), settle),
        "event_ns": timed(lambda: driver.do("cuEventRecord", event, None), settle),
    }


def gaps(seconds: float) -> list[tuple[int, int]]:
    """(last seen, seen again) of every pause, in nanoseconds of the card's clock."""
    driver = Driver()
    function, out = driver.kernel(b"gaps"), driver.alloc(16 * ROOM)
    driver.do("cuMemsetD8_v2", out, 0, c_size_t(16 * ROOM))
    driver.launch(function, c_uint64(int(seconds * 1e9)), out, c_uint(ROOM))
    driver.do("cuCtxSynchronize")
    words = (c_uint64 * (2 * ROOM))()
    driver.do("cuMemcpyDtoH_v2", words, out, c_size_t(16 * ROOM))
    pairs = zip(words[::2], words[1::2], strict=True)
    return [(begin, end) for begin, end in pairs if end]


def hold(mib: int) -> None:
    """Memory in pieces of 64 MiB and less, until the input ends."""
    driver = Driver()
    for size in [64] * (mib // 64) + ([mib % 64] if mib % 64 else []):
        driver.alloc(size << 20)
    print("held", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["costs"]:
            print(json.dumps(costs()))  # noqa: T201
        case ["gaps", seconds]:
            print(json.dumps(gaps(float(seconds))))  # noqa: T201
        case ["hold", mib]:
            hold(int(mib))
        case _:
            sys.exit(__doc__)
