# SPDX-License-Identifier: Apache-2.0
"""Who escapes the library: ways round it are bound, or are seen from outside."""

from __future__ import annotations

import subprocess
from itertools import product

import pytest
from support.lib_machine import machines
from support.simcontainers import GIB, MIB, OOM

TOLERANCE_BYTES = 64 * MIB
"""Contexts and modules are booked by estimate."""


@pytest.fixture
def machine(tmp_path, plain_library):
    """Make one box: `machine("t4", "v100-16g", cuda_version=12000)`."""
    with machines(tmp_path.name, plain_library) as make:
        yield make


DEEP = r"""
#include <stddef.h>
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long *, size_t);
int deep(size_t bytes)
{
    void *context;
    unsigned long at;
    int rc = cuInit(0);
    rc = rc ? rc : cuDevicePrimaryCtxRetain(&context, 0);
    rc = rc ? rc : cuCtxSetCurrent(context);
    return rc ? rc : cuMemAlloc_v2(&at, bytes);
}
"""
ABSOLUTE = r"""
#include <dlfcn.h>
#include <stddef.h>
int deep(const char *path, size_t bytes)
{
    void *driver = dlopen(path, RTLD_NOW), *context;
    unsigned long at;
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*current)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*alloc)(unsigned long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int rc = init(0);
    rc = rc ? rc : retain(&context, 0);
    rc = rc ? rc : current(context);
    return rc ? rc : alloc(&at, bytes);
}
"""


def around(one):
    """Bytes by pid of processes without a slot in the region, and what those with one have beyond the ledger."""
    slots = one.book("a").slots
    ours = {(slot.pid, slot.start_ticks) for slot in slots if not slot.ghost}
    outside, measured = {}, 0
    for client in one.box.clients(0):
        if (client.pid, client.start_time) in ours:
            measured += client.total_bytes
        else:
            outside[client.pid] = outside.get(client.pid, 0) + client.total_bytes
    return outside, measured - sum(max(0, slot.bytes_by_card[0]) for slot in slots)


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
@pytest.mark.parametrize(
    ("name", "deepbind"), list(product(["libcuda.so.1", "libcuda.so", "{folder}/libcuda.so.1"], [False, True]))
)
def test_each_way_to_open_the_driver_is_bound(machine, request, tmp_path, variant, name, deepbind):  # noqa: PLR0917
    """By name, by another name, by its path; also from a DEEPBIND library, whose dlopen and dlsym are not ours."""
    one = machine(library=request.getfixturevalue(variant))
    one.promise("a", (0, 2048))
    source, deep = tmp_path / "deep.c", tmp_path / "deep.so"
    source.write_text(ABSOLUTE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", deep, source, "-ldl"], check=True)
    flags = "os.RTLD_NOW | os.RTLD_DEEPBIND" if deepbind else "os.RTLD_NOW"
    path = name.format(folder=one.folder)
    code = f"deep = CDLL({str(deep)!r}, mode={flags})\n"
    code += f"say([deep.deep({path.encode()!r}, c_size_t(n * GIB)) for n in (3, 1)])"
    process = one.start("a", f"{code}\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    outside, hidden = around(one)
    _, err = process.communicate("", timeout=120)

    assert f"[{OOM}, 0]" == answer, err
    assert ({}, True) == (outside, hidden <= TOLERANCE_BYTES)


MONITOR = r"""
#include <dlfcn.h>
#include <stddef.h>
long deep(void)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card;
    unsigned long long memory[3] = {0};
    int (*init)(void) = dlsym(nvml, "nvmlInit_v2");
    int (*get)(unsigned, void **) = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*info)(void *, unsigned long long *) = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    return init() || get(0, &card) || info(card, memory) ? -1 : (long)(memory[0] >> 20);
}
"""


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_a_deepbind_library_sees_the_promise_in_nvml_too(machine, request, tmp_path, variant):
    """Its NVML is redirected as its driver is."""
    one = machine(library=request.getfixturevalue(variant))
    one.promise("a", (0, 2048))
    source, path = tmp_path / "monitor.c", tmp_path / "monitor.so"
    source.write_text(MONITOR)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
    code = f"say(CDLL({str(path)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).deep())"

    assert 2048 == one.run("a", code)


NAMESPACE = """
libc = CDLL(None)
libc.dlmopen.restype = libc.dlsym.restype = c_void_p
libc.dlsym.argtypes = [c_void_p, c_char_p]
def elsewhere(path):
    # a namespace of its own, where nobody preloaded us
    deep = libc.dlmopen(c_long(-1), path, os.RTLD_NOW)
    return CFUNCTYPE(c_int, c_size_t)(libc.dlsym(deep, b"deep"))
"""
ESCAPES = {
    "no preload": {"LD_PRELOAD": ""},
    "no promise": {"GPUSHARE_LIMITS": "", "GPUSHARE_REGION": ""},
    "namespace": {},
}


@pytest.fixture
def deep(tmp_path):
    """Compile a library that links the driver itself, and allocates."""

    def make(one):
        source, path = tmp_path / "deep.c", tmp_path / "deep.so"
        source.write_text(DEEP)
        command = ["gcc", "-shared", "-fPIC", "-o", path, source, f"-L{one.folder}", "-l:libcuda.so.1"]
        subprocess.run(command, check=True, timeout=300)
        return path

    return make


@pytest.mark.parametrize("way", ESCAPES)
def test_who_escapes_is_seen_as_uninstrumented(machine, deep, way):
    """The driver shows a process with memory, the region has no slot for it: an accusation with pid and bytes."""
    one = machine()
    one.promise("a", (0, 2048))
    code = "begin()\nrc = alloc(3 * GIB)[0]"
    if way == "namespace":
        code = f"{NAMESPACE}\nrc = elsewhere({str(deep(one)).encode()!r})(3 * GIB)"
    escaped = one.start("a", f"{code}\nsay(rc)\nsys.stdin.read()", **ESCAPES[way])
    bound = one.start("a", "begin()\nsay(alloc(GIB)[0])\nsys.stdin.read()")
    answers = [process.stdout.readline().strip() for process in (escaped, bound)]
    outside, hidden = around(one)
    for process in (escaped, bound):
        process.communicate("", timeout=120)

    assert ["0", "0"] == answers
    assert {escaped.pid} == outside.keys()
    assert outside[escaped.pid] > 3 * GIB
    assert hidden <= TOLERANCE_BYTES


def test_memory_taken_around_the_library_is_hidden_no_longer(machine, deep):
    """A process with a slot takes more through a path that we do not see: the driver's figure tells."""
    one = machine()
    one.promise("a", (0, 2048))
    escape = f"elsewhere({str(deep(one)).encode()!r})(3 * GIB)"
    process = one.start("a", f"{NAMESPACE}\nbegin()\nsay({escape})\nsys.stdin.read()")
    answer = process.stdout.readline().strip()
    outside, hidden = around(one)
    process.communicate("", timeout=120)

    assert "0" == answer
    assert {} == outside
    assert 3 * GIB - 64 * MIB <= hidden - one.context_bytes() <= 3 * GIB + 64 * MIB


REOPEN = """
import mmap
libc = CDLL(None)
libc.dlclose.argtypes = [c_void_p]
def mapped(name):
    return any(name in line for line in open("/proc/self/maps"))
def close(library, name):
    libc.dlclose(library._handle)
    left = mapped(name)
    blocks.extend(mmap.mmap(-1, 4096 << each % 9) for each in range(90))  # what comes back lies elsewhere
    return left
libc.dlclose(cu._handle)
blocks, rounds = [], []
for _ in range(6):
    nv = CDLL("libnvidia-ml.so.1")
    card, memory, count = c_void_p(), (c_uint64 * 3)(), c_uint()
    ok(nv.nvmlInit_v2())
    ok(nv.nvmlDeviceGetCount_v2(byref(count)))
    ok(nv.nvmlDeviceGetHandleByIndex_v2(0, byref(card)))
    ok(nv.nvmlDeviceGetMemoryInfo(card, memory))
    ok(nv.nvmlShutdown())
    left = close(nv, "libnvidia-ml.so")
    cu = CDLL("libcuda.so.1")
    ok(begin())
    rc, at = alloc(GIB)
    over, _ = alloc(3 * GIB)
    ok(cu.cuMemFree_v2(at))
    ok(cu.cuDevicePrimaryCtxRelease_v2(0))
    rounds.append([memory[0] // MIB, rc, over, left, close(cu, "libcuda.so")])
say(rounds)
"""


@pytest.mark.parametrize("variant", ["plain_library", "strict_library"])
def test_a_program_may_close_and_reopen_the_driver(machine, request, variant):
    """Each round is bound as the first one; without us the simulated libraries are really gone in between."""
    one = machine(library=request.getfixturevalue(variant))
    one.promise("a", (0, 2048))
    whole = one.box.cards()[0].model.total_bytes // MIB

    assert [[whole, 0, 0, False, False]] * 6 == one.run("a", REOPEN, LD_PRELOAD="")
    assert [[2048, 0, OOM, True, True]] * 6 == one.run("a", REOPEN)
    assert 0 == one.book("a").cards[0].used_bytes


def test_no_promise_no_harm_when_the_driver_is_reopened(machine):
    """Where nothing was promised the library is in the way of nobody either."""
    one = machine()
    one.promise("a", (0, 2048))
    whole = one.box.cards()[0].model.total_bytes // MIB
    rounds = one.run("a", REOPEN, GPUSHARE_LIMITS="", GPUSHARE_REGION="")

    assert [[whole, 0, 0]] * 6 == [each[:3] for each in rounds]
