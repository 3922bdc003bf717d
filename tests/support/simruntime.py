# SPDX-License-Identifier: Apache-2.0
"""
A client of the runtime for simulated cards through ctypes, for tests that run it as a process of its own.

RUNTIME in the environment says which: 12 or 13. What `simclient` has is here too.
"""

from __future__ import annotations

import ctypes as c
import os
import struct
import threading  # noqa: F401 (for the clients)
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

from support.simclient import *  # noqa: F403
from support.simclient import LIB

MAJOR = int(os.environ["RUNTIME"])
RT = c.CDLL(str(Path(LIB._name).with_name(f"libcudart.so.{MAJOR}")))
RT.cudaGetErrorName.restype = RT.cudaGetErrorString.restype = c_char_p
RT.__cudaRegisterFatBinary.restype = c_void_p
RT.cudaFree.argtypes = RT.cudaFreeHost.argtypes = [c_void_p]
TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS = 1, 2, 3, 4
ELF, COMPRESSED = 2, 0x2000


class Dim3(c.Structure):
    """Three unsigned integers, by value."""

    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


RT.cudaLaunchKernel.argtypes = [c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p]


def rt(name: str, *arguments: object) -> int:
    """The status of a call of the runtime."""
    return int(getattr(RT, name)(*arguments))


def must(name: str, *arguments: object) -> None:
    """A call that must succeed."""
    status = rt(name, *arguments)
    if status:
        raise SystemExit(f"{name}: {status}")


def malloc(size: int) -> c_void_p:
    """Device memory."""
    pointer = c_void_p()
    must("cudaMalloc", byref(pointer), c_size_t(size))
    return pointer


def made(name: str, *more: object) -> c_void_p:
    """A stream, event or graph."""
    handle = c_void_p()
    must(name, byref(handle), *more)
    return handle


def fat_binary(*images: tuple[int, int, int, int]) -> c.Array[c.c_char]:
    """A wrapper as linked programs hold it; (kind, capability, bytes, uncompressed bytes or 0) of each image."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 72, size, size, 0, 0, 1, arch, 0, 0, flags, 0, full)
        + bytes(8 + size)
        for kind, arch, size, full in images
        for flags in [COMPRESSED if full else 0]
    )
    container = c.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    wrapper = c.create_string_buffer(struct.pack("<IIQQ", 0x466243B1, 1, c.addressof(container), 0))
    wrapper.container = container  # type: ignore[attr-defined]  # kept alive
    return wrapper


def register(wrapper: c.Array[c.c_char], kernels: dict[int, bytes], variables: dict[int, tuple[bytes, int]]) -> None:
    """What the start of a linked program does: names of kernels, names and sizes of variables, by host address."""
    handle = c_void_p(RT.__cudaRegisterFatBinary(wrapper))
    for host, name in kernels.items():
        RT.__cudaRegisterFunction(handle, c_void_p(host), None, name, -1, None, None, None, None, None)
    for host, (name, size) in variables.items():
        RT.__cudaRegisterVar(handle, c_void_p(host), None, name, 0, c_size_t(size), 0, 0)
    RT.__cudaRegisterFatBinaryEnd(handle)


def launch_host(host: int, blocks: int = 1, where: c_void_p | None = None) -> int:
    """The status of launching the kernel behind a host address."""
    return int(RT.cudaLaunchKernel(host, Dim3(blocks, 1, 1), Dim3(256, 1, 1), None, 0, where))


def count() -> int:
    """How many devices the runtime sees; its status where there is an error, negative."""
    found = c_int()
    status = rt("cudaGetDeviceCount", byref(found))
    return -status if status else found.value
