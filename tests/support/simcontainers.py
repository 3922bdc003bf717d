# SPDX-License-Identifier: Apache-2.0
"""
A simulated box and containers with promises on it, for tests of the library against the simulator's own records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from support.waiting import PATIENCE_SECONDS

from isolation.contract import abi, breach_ring
from isolation.lib import files
from isolation.simgpu import hardware

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
OOM = 2

CLIENT = """
import ctypes, json, os, sys, time
from ctypes import *
GIB, MIB = 1 << 30, 1 << 20
cu = CDLL("libcuda.so.1")
def ok(rc):
    assert rc == 0, rc
def begin(device=0):
    ok(cu.cuInit(0))
    context = c_void_p()
    rc = cu.cuDevicePrimaryCtxRetain(byref(context), device)
    if rc == 0:
        ok(cu.cuCtxSetCurrent(context))
    return rc
def alloc(size):
    at = c_uint64()
    return cu.cuMemAlloc_v2(byref(at), c_size_t(size)), at
def info():
    left, total = c_size_t(), c_size_t()
    ok(cu.cuMemGetInfo_v2(byref(left), byref(total)))
    return left.value, total.value
def load(text):
    module = c_void_p()
    ok(cu.cuModuleLoadData(byref(module), text))
    return module
def kernel(text=b"simgpu 1\\nkernel k params=8 ns=$0\\n", name=b"k"):
    function = c_void_p()
    ok(cu.cuModuleGetFunction(byref(function), load(text), name))
    return function
def launch(function, ns=1000, stream=None):
    value = c_uint64(int(ns))
    parameters = (c_void_p * 1)(addressof(value))
    return cu.cuLaunchKernel(function, 80, 1, 1, 128, 1, 1, 0, stream, parameters, None)
def entry(name, version=12000):
    found, status = c_void_p(), c_int()
    rc = cu.cuGetProcAddress_v2(name, byref(found), version, c_uint64(0), byref(status))
    return rc, CFUNCTYPE(c_int, c_void_p, c_size_t)(found.value) if found.value else None
def uuid(device):
    raw = (c_uint8 * 16)()
    ok(cu.cuDeviceGetUuid_v2(raw, device))
    return bytes(raw).hex()
def say(what):
    print(json.dumps(what), flush=True)
"""


@dataclass
class SimBox:
    """Cards, our library, and a driver folder."""

    folder: Path
    library: Path
    models: tuple[str, ...] = ("v100-16g",)
    settings: dict[str, int] = field(default_factory=dict)
    box: hardware.Box = field(init=False)

    def __post_init__(self) -> None:
        hardware.create(self.folder / "hardware", self.models, {"teardown_ns": 0} | self.settings)
        hardware.install(self.folder)
        self.box = hardware.Box(self.folder / "hardware")

    @property
    def uuids(self) -> list[UUID]:
        """Of every card and instance, in NVML's order."""
        return [UUID(bytes=bytes(card.model.uuid)) for card in self.box.cards()]

    def context_bytes(self, card: int = 0) -> int:
        """Of one context on that card."""
        return int(self.box.cards()[card].model.context_bytes)

    def promise(self, name: str, *parts: tuple[int, int], core_ppm: int = 0, flags: abi.Flag = abi.Flag.NONE) -> None:
        """A container: (card, MiB) for each of its cards."""
        files.create_region(self.folder / f"{name}.region", name)
        cards = tuple(
            abi.CardLimit(self.uuids[card], size * MIB, self.context_bytes(card), core_ppm) for card, size in parts
        )
        files.write_limits(self.folder / f"{name}.limits", abi.Limits(1, name, cards, flags))

    def environment(self, name: str) -> dict[str, str]:
        """Of a process in that container."""
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.folder), LD_PRELOAD=str(self.library))
        env |= {f"GPUSHARE_{key.upper()}": str(self.folder / f"{name}.{key}") for key in ("limits", "region", "feed")}
        return env | {"GPUSHARE_SIMGPU": str(self.folder / "hardware")}

    def start(self, name: str, code: str, **env: str) -> subprocess.Popen[str]:
        """Run Python in a container, pipes open; an empty value takes a variable away."""
        given = {key: value for key, value in (self.environment(name) | env).items() if value}
        pipe = subprocess.PIPE
        command = [sys.executable, "-S", "-c", CLIENT + code]
        return subprocess.Popen(command, env=given, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    def run(self, name: str, code: str, **env: str) -> object:
        """Run to the end; what it said last."""
        out, err = (process := self.start(name, code, **env)).communicate("", timeout=PATIENCE_SECONDS)
        assert 0 == process.returncode, err
        return json.loads(out.splitlines()[-1])

    def book(self, name: str) -> abi.RegionReading:
        """The region as the host reads it."""
        return files.read_region(self.folder / f"{name}.region")

    def breaches(self, name: str) -> list[breach_ring.BreachRecord]:
        """What the region says went against the promise."""
        return list(files.read_breaches(self.folder / f"{name}.region")[2])

    def close(self) -> None:
        """Forget it all."""
        self.box.close()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()
