# SPDX-License-Identifier: Apache-2.0
"""
What the tests of the isolation library share: builds, and jobs that run under it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from support.compiled import gcc, kept

from isolation.contract import abi, breach_ring
from isolation.lib import build, files

LIB = Path(build.__file__).parent
STRICT_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")

PRELUDE = """
import ctypes, json, os, sys, time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
GIB, MIB = 1 << 30, 1 << 20
cu = ctypes.CDLL("libcuda.so.1")
def begin(device=0):
    assert 0 == cu.cuInit(0)
    ctx = c_void_p()
    rc = cu.cuDevicePrimaryCtxRetain(byref(ctx), device)
    if rc == 0:
        cu.cuCtxSetCurrent(ctx)
    return rc
def alloc(size, name="cuMemAlloc_v2", *more):
    at = c_uint64()
    rc = cu[name](byref(at), c_size_t(size), *more)
    return rc, at
def free(at):
    return cu.cuMemFree_v2(at)
def info():
    left, total = c_size_t(), c_size_t()
    rc = cu.cuMemGetInfo_v2(byref(left), byref(total))
    return [rc, left.value, total.value]
def truth(card=0):
    cu.fake_used.restype = c_uint64
    return cu.fake_used(card)
def say(**what):
    print(json.dumps(what), flush=True)
"""


@dataclass
class Job:
    """One container's worth of promise, and a way to run Python under it on the small fake driver."""

    folder: Path
    library: Path
    driver: Path
    hardware: Path
    cards: tuple[abi.CardLimit, ...]
    flags: abi.Flag = abi.Flag.NONE
    generation: int = 1
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        files.create_region(self.region, self.folder.name)
        self.promise(*self.cards)

    @property
    def region(self) -> Path:
        """The ledger."""
        return self.folder / "region"

    @property
    def limits(self) -> Path:
        """The promise."""
        return self.folder / "limits"

    @property
    def feed(self) -> Path:
        """The host's word."""
        return self.folder / "feed"

    def promise(self, *cards: abi.CardLimit) -> None:
        """Promise again, in place."""
        self.cards = cards
        files.write_limits(self.limits, abi.Limits(self.generation, self.folder.name, cards, self.flags))
        self.generation += 1

    def environment(self, *, preload: bool = True) -> dict[str, str]:
        """What a process of this container has in its environment."""
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.driver), FAKE_CUDA_FILE=str(self.hardware))
        env |= {"GPUSHARE_LIMITS": str(self.limits), "GPUSHARE_REGION": str(self.region)}
        env |= {"GPUSHARE_FEED": str(self.feed)} | self.env
        return env | ({"LD_PRELOAD": str(self.library)} if preload else {})

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        """Run Python under the promise, pipes open."""
        command = [sys.executable, "-S", "-c", PRELUDE + code]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment() | env, text=True, **pipes)

    def run(self, code: str, **env: str) -> dict:
        """Run Python under the promise; what it said last."""
        process = self.start(code, **env)
        out, err = process.communicate(timeout=120)
        assert 0 == process.returncode, err
        return json.loads(out.splitlines()[-1]) | {"stderr": err}

    def book(self) -> abi.RegionReading:
        """The region as the host reads it."""
        return files.read_region(self.region)

    def breaches(self) -> list[breach_ring.BreachRecord]:
        """What the region says went against the promise."""
        return list(files.read_breaches(self.region)[2])


def compile_c(name: str, *sources: str, flags: tuple[str, ...] = ()) -> Path:
    """One test program or library from files of isolation/lib."""
    inputs = [LIB / source for source in sources]
    flags = (*STRICT_FLAGS, *flags, f"-I{LIB}/include", "-lpthread")
    return gcc(name, inputs, *flags, beside=[LIB / "include", LIB / "src", LIB / "tests"])


def library(variant: str) -> Path:
    """One of the two, built the way the wheel's are."""
    inputs = [LIB / "build.py", LIB / "include", LIB / "src"]
    return kept(variant, ["-Werror", build.version()], inputs, lambda target: build.build(target, variant, "-Werror"))


@pytest.fixture(scope="session")
def c_program():
    """Compile a test program once: `c_program("kill", "tests/kill.c", ...)`."""
    return compile_c


@pytest.fixture(scope="session")
def plain_library() -> Path:
    """libgpushare.so."""
    return library(build.PLAIN)


@pytest.fixture(scope="session")
def strict_library() -> Path:
    """The variant whose SONAME is libcuda.so.1."""
    return library(build.STRICT)


@pytest.fixture(scope="session")
def fake_driver() -> Path:
    """A folder with the small fake libcuda.so.1."""
    flags = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    return compile_c("libcuda.so.1", "tests/fake_cuda.c", flags=flags).parent


@pytest.fixture
def job(tmp_path, plain_library, fake_driver):
    """Make jobs that share one machine: `job(gib, ...)` promises that much on card 0."""
    hardware = tmp_path / "hardware"
    hardware.write_bytes(bytes(4096))
    made: list[Job] = []

    def make(*gib: float, context_mib: int = 320, flags: abi.Flag = abi.Flag.NONE, **limit) -> Job:
        cards = tuple(
            abi.CardLimit(UUID(int=index + 1), int(size * (1 << 30)), context_mib << 20, **limit)
            for index, size in enumerate(gib)
        )
        made.append(Job(tmp_path / f"job-{len(made) + 1}", plain_library, fake_driver, hardware, cards, flags))
        return made[-1]

    return make
