# SPDX-License-Identifier: Apache-2.0
"""Libraries that allocate in their own ways: each gets the whole promise, not a byte more, and its own error then."""

from __future__ import annotations

import pytest
from cuda_programs.harness import CARD_MIB, SHARE_MIB, java_command, python, python_home, rust_program, showed

CUDA_CORE = """
from cuda.core import Device
device = Device(0)
device.set_current()
stream, held = device.create_stream(), []
try:
    while len(held) < 1000:
        held.append(device.allocate(64 << 20, stream=stream))
except Exception as exc:
    print(64 * len(held), "OUT_OF_MEMORY" in str(exc))
"""
DRJIT = """
import drjit as dr
from drjit.cuda import UInt32
held = []
try:
    while len(held) < 1000:
        block = dr.arange(UInt32, 16 << 20) + len(held)
        dr.eval(block)
        dr.sync_thread()
        held.append(block)
except RuntimeError as exc:
    print(64 * len(held), "out of memory" in str(exc).lower())
"""
TAICHI = """
import taichi as ti
ti.init(arch=ti.cuda, offline_cache=False, device_memory_GB=0.5)
held = []
try:
    while len(held) < 12:
        held.append(ti.ndarray(ti.u8, shape=1 << 30))
    print(1024 * len(held), False)
except RuntimeError as exc:
    print(1024 * len(held), "memory" in str(exc).lower())
"""
PROGRAMS = {
    "cuda-core": ("pools and streams", 64, lambda _: (*python(python_home()), "-c", CUDA_CORE)),
    "cudarc": ("asynchronous allocations (Rust)", 64, lambda _: (rust_program("cudarc"),)),
    "drjit": ("its caching allocator", 64, lambda _: (*python(python_home()), "-c", DRJIT)),
    "jcuda": ("the driver API (Java)", 64, lambda machine: java_command("Blocks", machine.home)),
    "taichi": ("its allocator, by `RTLD_DEEPBIND`", 1024, lambda _: (*python(python_home()), "-c", TAICHI)),
}
"""What is tried, in blocks of how many MiB, by which command. Taichi fills what it gets, in this machine's memory."""
OVERHEAD_MIB = 768
"""Of context, modules and reserves, at most: what is lacking is not the program's."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_blocks_fill_the_promise_and_no_more(machine, program):
    """
    Until one is refused with the program's own error for it. The cards' records judge, not the program.
    """
    what, block, command = PROGRAMS[program]
    shared, refused = machine.shared(*command(machine)).split()[-2:]
    peak = machine.peak_mib()
    plain, _ = machine.plain(*command(machine)).split()[-2:]

    assert "True" == refused.capitalize()
    assert SHARE_MIB - OVERHEAD_MIB - block < int(shared) <= peak <= SHARE_MIB
    assert 2 * SHARE_MIB < int(plain) <= CARD_MIB
    showed(program, f"{what}: blocks of {block} MiB", f"{int(plain):,} MiB", f"{int(shared):,} MiB, then out of memory")
