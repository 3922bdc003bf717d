# SPDX-License-Identifier: Apache-2.0
"""
Memory limits of a real driver 615 against programs that do not load the library. Skipped without one.

Needs root, cgroup version 2 at /sys/fs/cgroup, gcc, and a card that nobody else uses. Each program allocates in steps
of 64 MiB until the driver refuses, in a control group that is limited to 2 GiB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from support.cdi_process import own_loader
from support.cgroups import groups, unified

from isolation.host.machine import MachineError, NvmlMachine
from isolation.host.memory_limits import UNLIMITED, MemoryLimits

if TYPE_CHECKING:
    from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
PROMISE = 2 * GIB
pytestmark = pytest.mark.gpu

PROGRAM = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!cuda) { fprintf(stderr, "%s\\n", dlerror()); return 3; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*get)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    if (init(0) || retain(&context, 0) || use(context))
        return 4;
    uint64_t at, had = 0;
    int status;
    while ((status = get(&at, 64u << 20)) == 0)
        had += 64u << 20;
    printf("%llu %d\\n", (unsigned long long)had, status);
    fflush(stdout);
    getchar();
    return 0;
}
"""


@pytest.fixture(scope="module")
def limits():
    """The driver's limits; skipped where it has none."""
    machine = NvmlMachine()
    try:
        uuids = tuple(card.uuid for card in machine.cards())
    except MachineError as exc:
        pytest.skip(f"no NVIDIA card: {exc}")
    found = MemoryLimits(machine)
    if os.geteuid() != 0 or unified() is None:
        pytest.skip("needs root and cgroup version 2")
    if why := found.unavailable(unified(), uuids):
        pytest.skip(why)
    yield found, uuids[0]
    machine.close()


@pytest.fixture
def group(limits):
    """A control group that is limited."""
    with groups("gpu") as made:
        limits[0].set(limits[1], made, PROMISE)
        yield made


def _compile(folder: Path, *flags: str, compiler: str = "gcc") -> Path:
    source, target = folder / "fill.c", folder / f"fill-{compiler}{len(flags)}"
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-O1", *flags, "-o", str(target), str(source), "-ldl"], check=True, capture_output=True)
    return target


def _commands(folder: Path, who: str) -> list[str]:
    if who == "static":
        return [str(_compile(folder, "-static"))]
    if who == "own loader":
        return [str(own_loader(folder)), str(_compile(folder))]
    compiler = shutil.which("musl-gcc")
    if compiler is None:
        pytest.skip("musl-gcc is not installed")
    # A musl program cannot load the driver's glibc library by itself: it brings the loader along.
    launcher, target = folder / "launch.c", folder / "launch"
    launcher.write_text("#include <unistd.h>\nint main(int n, char **a) { (void)n; return execv(a[1], a + 1); }\n")
    subprocess.run([compiler, "-static", "-o", str(target), str(launcher)], check=True, capture_output=True)
    return [str(target), str(own_loader(folder)), str(_compile(folder))]


@pytest.mark.parametrize("who", ["static", "musl", "own loader"])
def test_who_does_not_load_the_library_gets_no_byte_beyond_the_limit(limits, group, tmp_path, who):
    command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *_commands(tmp_path, who)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        words = process.stdout.readline().split()
        found = limits[0].get(limits[1], group)
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    had, status = int(words[0]), int(words[1])
    assert status == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    assert 0 < had <= PROMISE
    assert had < found.used <= PROMISE, "the context counts too"


def test_removed_groups_leave_no_limit_behind(limits):
    driver, uuid = limits
    with groups("gpu-many") as top:
        for at in range(1000):
            one = top / str(at)
            one.mkdir()
            driver.set(uuid, one, PROMISE)
            one.rmdir()
        assert driver.get(uuid, top).hard == UNLIMITED


def test_setting_a_limit_takes_no_longer_than_the_hook_may(limits, group):
    driver, uuid = limits
    times = []
    for at in range(100):
        began = time.monotonic()
        driver.set(uuid, group, PROMISE + at * MIB)
        driver.get(uuid, group)
        times.append(time.monotonic() - began)
    assert sorted(times)[50] <= 0.020
