# SPDX-License-Identifier: Apache-2.0
"""
Memory limits of driver 615 on simulated cards: the documented calls, and a process that owns the hardware.

NVIDIA NVML API reference v615 (nvmlSetMemoryLimits_v1_t, nvmlGetMemoryLimits_v1_t) and "MPS v3 Memory Partitioning".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.cgroups import enter, groups, remove, unified
from support.waiting import until

from isolation.simgpu.hardware import LIBRARIES
from isolation.simgpu.owner import NO_LIMIT, ask_books

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from isolation.simgpu.hardware import Box

MIB = 1 << 20
CONTEXT = 306 * MIB
TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or unified() is None, reason="needs root and cgroup version 2: limits are root's to set"
)


@pytest.fixture
def group() -> Iterator[Path]:
    with groups("limits") as made:
        yield made


@pytest.fixture
def own() -> Iterator[Callable[[Box], subprocess.Popen[str]]]:
    """Start the process that owns a box; ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(box: Box) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from isolation.simgpu.cli import simgpu; simgpu()", "own", str(box.path)]
        process = subprocess.Popen([*command, "--cgroup", str(unified())], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("owning")
        return process

    yield start
    for one in started:
        one.kill()
        one.wait(timeout=30)


def nvml(box: Box, code: str, prefix: tuple[str, ...] = (), shell: str = "") -> Any:
    """What a program says that speaks to NVML; `status(call, ...)` is the error of a call, 0 for none."""
    script = """
import json, pynvml as n, ctypes
ctypes.CDLL(LIB, mode=ctypes.RTLD_GLOBAL)
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
MAX = n.NVML_DEVICE_MEMORY_LIMIT_MAX
def status(act):
    try: act(); return 0
    except n.NVMLError as exc: return exc.value
def put(path, hard, soft=0):
    s = n.c_nvmlSetMemoryLimits_v1_t(str(path).encode(), soft, hard)
    return status(lambda: n.nvmlDeviceSetMemoryLimits_v1(h, s))
def get(path):
    g = n.c_nvmlGetMemoryLimits_v1_t(str(path).encode(), 0, 0, 0)
    return status(lambda: n.nvmlDeviceGetMemoryLimits_v1(h, g)) or [g.softLimit, g.hardLimit, g.currentUsed]
"""
    script = script.replace("LIB", repr(str(LIBRARIES / "libnvidia-ml.so.1"))) + textwrap.dedent(code)
    command = [*prefix, sys.executable, "-c", script]
    if shell:
        command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cuda(box: Box, code: str, shell: str = "", prefix: tuple[str, ...] = ()) -> Any:
    """What a program says that computes, after the shell's lines."""
    script = "from support.simclient import *\nimport json\n" + textwrap.dedent(code)
    command = ["sh", "-c", f'{shell or ":"}; exec "$@"', "sh", *prefix, sys.executable, "-c", script]
    env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FILL = """
start()
got = 0
while call('cuMemAlloc_v2', byref(c_uint64()), c_size_t(32 * MIB)) == 0: got += 32 * MIB
print(json.dumps({"got": got, "info": list(info())}))
"""


def test_a_limit_is_set_by_the_full_path_of_a_group_and_read_back_by_anybody(make_box, group):
    box = make_box()
    assert nvml(box, f"print(json.dumps([put({str(group)!r}, 1 << 30), get({str(group)!r})]))") == [0, [0, 1 << 30, 0]]
    reader = ("setpriv", "--reuid", "65534", "--clear-groups")
    box.path.chmod(0o666)
    found = nvml(box, f"print(json.dumps([get({str(group)!r}), put({str(group)!r}, MAX)]))", reader)
    assert found == [[0, 1 << 30, 0], 4], "reading is anybody's, setting is root's"


def test_what_is_no_group_is_not_found(make_box, group, tmp_path):
    box = make_box()
    name = "/" + str(group.relative_to(unified()))
    asked = [f"put({name!r}, 1)", f"put({str(tmp_path)!r}, 1)", "put('limits', 1)", f"get({str(group / 'no')!r})"]
    assert nvml(box, f"print(json.dumps([{', '.join(asked)}]))") == [6, 6, 2, 6]


def test_without_a_limit_hard_is_the_maximum_and_that_clears_one(make_box, group):
    box = make_box()
    found = nvml(
        box,
        f"""
p = {str(group)!r}
print(json.dumps([get(p), put(p, 5), get(p)[1], put(p, MAX), get(p), put(p, 0), get(p)[1], put(p, 5, soft=6)]))
""",
    )
    assert found == [[0, NO_LIMIT, 0], 0, 5, 0, [0, NO_LIMIT, 0], 0, 0, 2], "a hard limit of 0 is one"


def test_a_limit_holds_for_the_group_and_is_the_card_that_programs_see(make_box, group):
    box = make_box()
    nvml(box, f"print(put({str(group)!r}, 1 << 30))")
    found = cuda(box, FILL, enter(group))
    assert found["got"] == (1024 * MIB - CONTEXT) // (32 * MIB) * 32 * MIB
    assert found["info"][1] == 1 << 30


def test_a_removed_group_takes_its_limit_with_it(make_box, group):
    box = make_box()
    code = """
import os
for i in range(200):
    at = os.path.join(TOP, str(i)); os.mkdir(at)
    assert put(at, 1 << 30) == 0, i
    os.rmdir(at)
print(json.dumps(get(TOP)))
""".replace("TOP", repr(str(group)))
    assert nvml(box, code) == [0, NO_LIMIT, 0], "of 64 places for limits, 200 removed groups hold none"


@pytest.mark.parametrize("owned", [False, True])
def test_a_private_cgroup_namespace_hides_nobody(make_box, group, own, owned, tmp_path):
    """The process sees itself in `/`; its limit stands on the group that the host sees."""
    box = make_box()
    if owned:
        own(box)
    nvml(box, f"print(put({str(group)!r}, 1 << 30))")
    seen = f"mount -t cgroup2 none {tmp_path} && grep -q '^0::/$' /proc/self/cgroup"
    inside = ("unshare", "-C", "-m", "sh", "-c", f'{seen} && exec "$@"', "sh")
    assert cuda(box, FILL, enter(group), inside)["got"] <= 1024 * MIB - CONTEXT


def test_limits_nest_under_dmem_and_the_nearest_one_counts_without_it(make_box, group, own):
    box = make_box()
    inner = group / "inner"
    inner.mkdir()
    own(box)
    nvml(box, f"print(json.dumps([put({str(group)!r}, 512 << 20), put({str(inner)!r}, 1 << 30)]))")
    assert cuda(box, FILL, enter(inner))["got"] <= 512 * MIB - CONTEXT
    box.set("memacct", 1)
    assert cuda(box, FILL, enter(inner))["got"] > 512 * MIB
    box.set("memacct", 0)
    assert nvml(box, f"print(json.dumps(put({str(inner)!r}, 1)))") == 3


def test_an_owner_grants_what_a_group_may_have_whatever_stands_in_the_file(make_box, group, own):
    """A program that clears every limit and its own accounts in the file, which it can write, gets nothing more."""
    box = make_box()
    own(box)
    nvml(box, f"print(put({str(group)!r}, 1 << 30))")
    edit = """
import mmap, os
start()
fd = os.open(os.environ["GPUSHARE_SIMGPU"], os.O_RDWR)
memory = mmap.mmap(fd, 0)
got = edits = 0
while call('cuMemAlloc_v2', byref(c_uint64()), c_size_t(32 * MIB)) == 0:
    got += 32 * MIB
    used = (got + 306 * MIB).to_bytes(8, "little")  # its own accounts and the card's, wherever they stand
    at = memory.find(used)
    while 0 <= at:
        memory[at:at + 8] = bytes(8)
        edits += 1
        at = memory.find(used, at + 8)
print(json.dumps([got, edits]))
"""
    got, edits = cuda(box, edit, enter(group))
    assert edits >= 2
    assert got <= 1024 * MIB - CONTEXT
    until(lambda: not ask_books(box.path)["holders"])
    books = ask_books(box.path)
    assert [one["most"] <= 1 << 30 for one in books["groups"]] == [True]


def test_without_its_owner_owned_hardware_grants_nothing(make_box, own):
    box = make_box()
    process = own(box)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert cuda(box, "print(json.dumps(call('cuInit', 0) or call('cuCtxCreate_v2', byref(c_void_p()), 0, 0)))") == 2


def test_root_of_a_container_may_not_change_limits(make_box, group, own):
    box = make_box()
    own(box)
    nvml(box, f"print(put({str(group)!r}, 1 << 30))")
    tenant = ("capsh", "--drop=cap_sys_admin", "--", "-c", 'exec "$@"', "sh")
    if subprocess.run(["sh", "-c", "command -v capsh"], capture_output=True, check=False, timeout=300).returncode:
        tenant = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    asked = f"print(json.dumps([put({str(group)!r}, MAX), get({str(group)!r})[1]]))"
    assert nvml(box, asked, tenant) == [4, 1 << 30]
    other = ("unshare", "--user", "--map-root-user")
    assert nvml(box, asked, other) == [4, 1 << 30], "root of a user namespace is not root of the machine"


def test_kills_leave_neither_memory_nor_limits(make_box, group, own):
    box = make_box()
    own(box)
    for i in range(20):
        one = group / str(i)
        one.mkdir()
        nvml(box, f"print(put({str(one)!r}, 1 << 30))")
        script = """
from support.simclient import *
import os, signal
start(); call('cuMemAlloc_v2', byref(c_uint64()), c_size_t(64 * MIB)); os.kill(os.getpid(), signal.SIGKILL)
"""
        env = {**os.environ, "GPUSHARE_SIMGPU": str(box.path), "PYTHONPATH": str(TESTS)}
        command = ["sh", "-c", f'{enter(one)}; exec "$@"', "sh", sys.executable, "-c", script]
        assert subprocess.run(command, env=env, timeout=60, check=False).returncode == -signal.SIGKILL
        remove(one)
    until(lambda: not ask_books(box.path)["holders"])  # the owner hears of the last one a moment later
    books = ask_books(box.path)
    assert (books["limits"], books["holders"], books["used"]) == (0, 0, [0])
