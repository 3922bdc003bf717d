# SPDX-License-Identifier: Apache-2.0
"""
The canary: a small program that takes memory of a card the way every CUDA program does, and says how it went.

Runs as a process of its own with nothing of gpushare imported. Decides nothing: it prints one line of JSON
with the driver's answers (0 is success, 2 is out of memory) and ends.

Source: CUDA driver API reference (cuInit, cuDevicePrimaryCtxRetain, cuMemGetInfo, cuMemAlloc, cuMemFree).
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p


def answers() -> dict[str, int | str]:
    """What the driver says, step by step, until one fails."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        return {"missing": str(exc)}
    said: dict[str, int | str] = {"init": driver.cuInit(0)}
    device, context = c_int(), c_void_p()
    if not said["init"]:
        said["device"] = driver.cuDeviceGet(byref(device), 0)
    if said.get("device") == 0:
        said["context"] = driver.cuDevicePrimaryCtxRetain(byref(context), device)
    if said.get("context") == 0 and driver.cuCtxSetCurrent(context) == 0:
        said |= _memory(driver)
    return said


def _memory(driver: ctypes.CDLL) -> dict[str, int]:
    free, total, inside, over = c_size_t(), c_size_t(), c_uint64(), c_uint64()
    said = {"info": driver.cuMemGetInfo_v2(byref(free), byref(total)), "free": free.value, "total": total.value}
    said["inside"] = driver.cuMemAlloc_v2(byref(inside), c_size_t(free.value // 2))
    # More than all there is by its own word: without a promise this is more than the card, and refused as well;
    # so what counts is `total`, and that a promise stands behind the refusal (the breach ring).
    said["over"] = driver.cuMemAlloc_v2(byref(over), c_size_t(total.value))
    if said["inside"] == 0:
        driver.cuMemFree_v2(inside)
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers()) + "\n")
