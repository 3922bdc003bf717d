# SPDX-License-Identifier: Apache-2.0
"""`gpushare run` on simulated cards, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.children import HEEDS_SIGNALS
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
CLIENT = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
device, count, context, pointer = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cu.cuInit(0)
cu.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
for at in range(count.value):
    cu.cuDeviceGet(ctypes.byref(device), at)
    cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cu.cuCtxSetCurrent(context)
    cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    taken = 0
    while cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0:
        taken += 256
    print(total.value >> 20, taken)
sys.stdout.flush()
sys.stdin.read()
"""


def words(box: Path, *arguments: str) -> list[str]:
    """A whole command line."""
    return [sys.executable, "-c", FRONT, "run", "--simgpu", str(box), *arguments]


def go(box: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        words(box, *arguments), check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=ROOT, **more
    )


def begin(box: Path, *arguments: str, before: Iterable[str] = HEEDS_SIGNALS, **more: Any) -> subprocess.Popen[str]:
    """Run in the background with a pipe for its input and output."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen([*before, *words(box, *arguments)], **(pipes | more))


def holds(box: Path) -> dict[str, list[tuple[int, float]]]:
    """Name and cards (index, GiB) of every hold."""
    listed = json.loads(go(box, "--list", "--json").stdout)["allocations"]
    return {one["name"]: [(card["index"], card["memory_gib"]) for card in one["cards"]] for one in listed}
