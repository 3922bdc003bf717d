# SPDX-License-Identifier: Apache-2.0
"""
Programs on the CUDA runtime: what the library sees of them, and what it does not.
"""

from __future__ import annotations

import pytest
from support.lib_machine import machines
from support.simcontainers import GIB, MIB

from isolation.simgpu.hardware import KINDS


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


PROGRAM = """
rt = CDLL("libcudart.so.{major}")
rt.__cudaRegisterFatBinary.restype = c_void_p
class Dim3(Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]
rt.cudaLaunchKernel.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]
wrapper = create_string_buffer(32)
image = c_void_p(rt.__cudaRegisterFatBinary(wrapper))
rt.__cudaRegisterFunction(image, c_void_p(16), None, b"k", -1, None, None, None, None, None)
rt.__cudaRegisterVar(image, c_void_p(32), None, b"table", 0, c_size_t(64 * MIB), 0, 0)
def take(size):
    at = c_void_p()
    return rt.cudaMalloc(byref(at), c_size_t(size))
rc = rt.cudaLaunchKernel(16, Dim3(1, 1, 1), Dim3(1, 1, 1), None, 0, None)
taken = [take(MIB * size) for size in (2000, 48, 2)]
say([rc, taken, rt.cudaGetLastError()])
sys.stdin.read()
"""


@pytest.mark.parametrize("major", [12, 13])
def test_the_runtimes_contexts_and_images_are_out_of_sight_and_its_memory_is_not(machine, major):
    """
    As on a card: memory is charged and refused at the promise, and beyond it the card holds a context and an image
    that no hook saw.
    """
    one = machine()
    one.promise("a", (0, 2048))
    process = one.start("a", PROGRAM.replace("{major}", str(major)))

    assert "[0, [0, 0, 2], 2]" == process.stdout.readline().strip()
    (client,) = one.box.clients(0)
    held = {kind: size for kind, size in zip(KINDS, client.bytes, strict=True) if size}
    process.communicate("", timeout=300)
    assert {"context": one.context_bytes(), "module": 64 * MIB, "data": 2 * GIB} == held
