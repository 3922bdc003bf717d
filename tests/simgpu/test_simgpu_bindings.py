# SPDX-License-Identifier: Apache-2.0
"""The simulated libcuda under the real, unmodified cuda-bindings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from isolation.simgpu.hardware import LIBRARIES

pytest.importorskip("cuda.bindings")
PRELUDE = """
import ctypes
from cuda.bindings import driver as d
def do(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
do(d.cuInit(0)); device = do(d.cuDeviceGet(0)); context = do(d.cuDevicePrimaryCtxRetain(device))
do(d.cuCtxSetCurrent(context))
A = d.CUdevice_attribute
"""
SETTINGS = {"cuda_version": 13050}


def use(box, code: str, **env: str) -> str:
    """Run some lines with cuda-bindings on the box's libcuda; what they print."""
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "LD_LIBRARY_PATH": str(LIBRARIES), **env}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


def test_devices_describe_themselves(make_box):
    """
    Names, SMs, capability, UUID and PCI id; the faster card comes first unless PCI order is asked for.
    """
    box = make_box("t4", "a100-80g", **SETTINGS)
    code = """
every = [do(d.cuDeviceGet(i)) for i in range(do(d.cuDeviceGetCount()))]
names = [do(d.cuDeviceGetName(40, each)).split(b"\\0")[0].decode() for each in every]
print(names, do(d.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)),
      do(d.cuDeviceGetPCIBusId(16, device)).split(b"\\0")[0], len(do(d.cuDeviceGetUuid(device)).bytes))
"""

    assert "['NVIDIA A100-SXM4-80GB', 'Tesla T4'] 108 b'0000:11:00.0' 16" == use(box, code)
    assert "['Tesla T4', 'NVIDIA A100-SXM4-80GB'] 40 b'0000:10:00.0' 16" == use(
        box, code, CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    assert "['Tesla T4'] 40 b'0000:10:00.0' 16" == use(box, code, CUDA_VISIBLE_DEVICES="1,7,0")


def test_a_mig_instance_is_chosen_by_its_uuid(make_box):
    """
    On a divided card a process sees the first instance, or the one that CUDA_VISIBLE_DEVICES names.
    """
    box = make_box("a100-80g-mig", **SETTINGS)
    code = "u = do(d.cuDeviceGetUuid(device)); print(do(d.cuDeviceGetCount()), u.bytes.hex(), "
    code += "do(d.cuDeviceTotalMem(device)) >> 20)"
    uuids = [bytes(card.model.uuid).hex() for card in box.cards()]
    dashed = f"{uuids[3][:8]}-{uuids[3][8:12]}-{uuids[3][12:16]}-{uuids[3][16:20]}-{uuids[3][20:]}"

    assert f"1 {uuids[1]} 9715" == use(box, code)
    assert f"1 {uuids[3]} 9715" == use(box, code, CUDA_VISIBLE_DEVICES=f"MIG-{dashed}")


def test_ptx_runs_for_as_long_as_its_comment_says(make_box):
    """
    A PTX kernel with parameters is launched from tuples; the `simgpu` comment gives its duration.
    """
    ptx = r"""
ptx = b'''.version 8.0
.target sm_70
.address_size 64
// simgpu kernel saxpy us=$1
.global .align 4 .b8 table[256];
.visible .entry saxpy(.param .u64 out, .param .u32 us, .param .f32 a) { ret; }
'''
module = do(d.cuModuleLoadData(ptx)); saxpy = do(d.cuModuleGetFunction(module, b"saxpy"))
stream = do(d.cuStreamCreate(0)); a, b = do(d.cuEventCreate(0)), do(d.cuEventCreate(0)); out = do(d.cuMemAlloc(4096))
values = ((int(out), 500000, 2.0), (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float))
do(d.cuLaunchKernel(saxpy, 80, 1, 1, 256, 1, 1, 0, stream, values, 0)); do(d.cuEventRecord(a, stream))
do(d.cuLaunchKernel(saxpy, 80, 1, 1, 256, 1, 1, 0, stream, values, 0)); do(d.cuEventRecord(b, stream))
do(d.cuStreamSynchronize(stream))
print(round(do(d.cuEventElapsedTime(a, b)), 1), do(d.cuModuleGetGlobal(module, b"table"))[1])
library = do(d.cuLibraryLoadData(ptx, [], [], 0, [], [], 0)); kernel = do(d.cuLibraryGetKernel(library, b"saxpy"))
print(do(d.cuKernelGetName(kernel)), do(d.cuFuncGetParamInfo(saxpy, 2)))
"""

    assert "500.0 256\nb'saxpy' (12, 4)" == use(make_box(**SETTINGS), ptx)


def test_pools_vmm_and_graphs_work_through_the_bindings(make_box):
    """
    The calls of PyTorch's expandable segments, stream-ordered allocation and an explicit graph.
    """
    code = """
p = d.CUmemAllocationProp(); p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; p.location.id = 0
size = do(d.cuMemGetAllocationGranularity(p, d.CUmemAllocationGranularity_flags(0)))
at = do(d.cuMemAddressReserve(8 * size, 0, 0, 0))
h = do(d.cuMemCreate(size, p, 0)); do(d.cuMemMap(at, size, 0, h, 0)); do(d.cuMemRelease(h))
w = d.CUmemAccessDesc(); w.location = p.location; w.flags = d.CUmemAccess_flags(3)
do(d.cuMemSetAccess(at, size, [w], 1))
do(d.cuMemsetD8(at, 7, size)); back = bytearray(4); do(d.cuMemcpyDtoH(back, at, 4)); print(size, bytes(back))
do(d.cuMemUnmap(at, size)); do(d.cuMemAddressFree(at, 8 * size))
pool = do(d.cuDeviceGetDefaultMemPool(device)); x = do(d.cuMemAllocAsync(5000, 0))
K = d.CUmemPool_attribute; print(int(do(d.cuMemPoolGetAttribute(pool, K.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))))
do(d.cuMemFreeAsync(x, 0))
m = do(d.cuModuleLoadData(b"simgpu 1\\nkernel k ms=200\\n")); f = do(d.cuModuleGetFunction(m, b"k"))
g = do(d.cuGraphCreate(0))
n = d.CUDA_KERNEL_NODE_PARAMS(); n.func = f
n.gridDimX = n.gridDimY = n.gridDimZ = n.blockDimX = n.blockDimY = n.blockDimZ = 1
first = do(d.cuGraphAddKernelNode(g, [], 0, n)); do(d.cuGraphAddKernelNode(g, [first], 1, n))
do(d.cuGraphAddEmptyNode(g, [], 0))
e = do(d.cuGraphInstantiate(g, 0)); a, b, s = do(d.cuEventCreate(0)), do(d.cuEventCreate(0)), do(d.cuStreamCreate(1))
do(d.cuGraphLaunch(e, s)); do(d.cuEventRecord(a, s)); do(d.cuGraphLaunch(e, s)); do(d.cuEventRecord(b, s))
do(d.cuStreamSynchronize(s))
print(round(do(d.cuEventElapsedTime(a, b)), 1))
print(d.cuMemAlloc(1 << 40)[0].name, do(d.cuGetErrorName(d.CUresult(2))))
"""

    expected = "2097152 b'\\x07\\x07\\x07\\x07'\n5120\n400.0\nCUDA_ERROR_OUT_OF_MEMORY b'CUDA_ERROR_OUT_OF_MEMORY'"
    assert expected == use(make_box(**SETTINGS), code)


def test_a_green_context_has_part_of_the_card(make_box):
    """
    A kernel that fills a V100 takes twice as long in a green context of half its 80 SMs.
    """
    code = """
T = d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM; every = do(d.cuDeviceGetDevResource(device, T))
groups, count, rest = do(d.cuDevSmResourceSplitByCount(1, every, 0, 40))
print(groups[0].sm.smCount, count, rest.sm.smCount)
green = do(d.cuGreenCtxCreate(do(d.cuDevResourceGenerateDesc(groups, 1)), device, 1))
s = do(d.cuGreenCtxStreamCreate(green, 1, 0)); do(d.cuCtxSetCurrent(do(d.cuCtxFromGreenCtx(green))))
f = do(d.cuModuleGetFunction(do(d.cuModuleLoadData(b"simgpu 1\\nkernel k ms=500 width=1000\\n")), b"k"))
a, b = do(d.cuEventCreate(0)), do(d.cuEventCreate(0)); n = (1,) * 6
do(d.cuLaunchKernel(f, *n, 0, s, 0, 0)); do(d.cuEventRecord(a, s)); do(d.cuLaunchKernel(f, *n, 0, s, 0, 0))
do(d.cuEventRecord(b, s)); do(d.cuStreamSynchronize(s)); print(round(do(d.cuEventElapsedTime(a, b))))
do(d.cuGreenCtxDestroy(green)); print(d.cuCtxSynchronize()[0].name)
"""

    assert "40 1 40\n1000\nCUDA_ERROR_CONTEXT_IS_DESTROYED" == use(make_box(**SETTINGS), code)


def test_an_old_driver_lacks_what_came_later(make_box):
    """
    With CUDA 12.2 the bindings do not find a function of 12.4, and what is older works.
    """
    code = """
print(do(d.cuDriverGetVersion()), do(d.cuMemGetInfo())[1] >> 20)
try: print(d.cuDeviceGetDevResource(device, d.CUdevResourceType(1)))
except Exception as exc: print(type(exc).__name__)
"""

    assert "12020 16161\nFunctionNotFoundError" == use(make_box(cuda_version=12020), code)
