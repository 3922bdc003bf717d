# SPDX-License-Identifier: Apache-2.0
"""A client of the simulated driver that also takes memory where no hook sees it, for programs run under a promise."""

from __future__ import annotations

CLIENT = """
import ctypes, json, sys, time
from ctypes import *
MIB = 1 << 20
cu = CDLL("libcuda.so.1")
class Table(Structure):
    _fields_ = [("bytes", c_size_t)] + [(name, CFUNCTYPE(c_int, *words)) for name, words in [
        ("primary_retain", (c_void_p, c_int)), ("primary_release", (c_int,)), ("module_load", (c_void_p, c_void_p)),
        ("module_unload", (c_void_p,)), ("memory_alloc", (c_void_p, c_size_t)), ("memory_free", (c_uint64,))]]
table = POINTER(Table)()
def ok(rc):
    assert rc == 0, rc
def begin(unseen=False):
    context = c_void_p()
    ok(cu.cuInit(0))
    ok(cu.cuGetExportTable(byref(table), b"simgpu-unseen-01"))
    ok(table.contents.primary_retain(byref(context), 0) if unseen else cu.cuDevicePrimaryCtxRetain(byref(context), 0))
    ok(cu.cuCtxSetCurrent(context))
def alloc(mib):
    at = c_uint64()
    return cu.cuMemAlloc_v2(byref(at), c_size_t(mib * MIB)), at
def unseen(mib):
    at = c_uint64()
    ok(table.contents.memory_alloc(byref(at), mib * MIB))
    return at
def load(mib):
    module = c_void_p()
    return cu.cuModuleLoadData(byref(module), b"simgpu 1\\ncode %d\\n" % (mib * MIB)), module
def left():
    free, total = c_size_t(), c_size_t()
    ok(cu.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value // MIB
def until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return what()
def say(what):
    print(json.dumps(what), flush=True)
def wait():
    return sys.stdin.readline().strip()
"""
