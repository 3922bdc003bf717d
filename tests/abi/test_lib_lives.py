# SPDX-License-Identifier: Apache-2.0
"""
What processes do with memory in their hands, on the simulated driver: fork, exec, exit, close, share, sleep.

Both ledgers are looked at each time: what the hardware counts and what the library charges.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.isolation.exact_runs import boxed
from isolation.lib import native
from isolation.simgpu import hardware

if not (hardware.LIBRARIES / "libcuda.so.1").is_file():
    pytest.skip("the simulated driver is not built", allow_module_level=True)

GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 306 * MIB
"""Of a V100, as the simulated hardware has it and as it is promised."""
OOM = 2

CLIENT = """
import ctypes, json, os, signal, socket, sys, threading, time
from ctypes import *
GIB, MIB = 1 << 30, 1 << 20
cu, libc = CDLL("libcuda.so.1"), CDLL(None)
def ok(rc):
    assert rc == 0, rc
def begin():
    ok(cu.cuInit(0))
    context = c_void_p()
    ok(cu.cuDevicePrimaryCtxRetain(byref(context), 0))
    ok(cu.cuCtxSetCurrent(context))
def alloc(size):
    at = c_uint64()
    return cu.cuMemAlloc_v2(byref(at), c_size_t(size)), at
def say(what):
    print(json.dumps(what), flush=True)
def wait():
    sys.stdin.readline()
class Prop(Structure):
    _fields_ = [(name, c_int) for name in ("type", "handles", "where", "id")] + [("win", c_void_p), ("flags", c_uint64)]
def create(size, handles=0):
    handle = c_uint64()
    return cu.cuMemCreate(byref(handle), c_size_t(size), byref(Prop(1, handles, 1, 0)), c_uint64(0)), handle
def reserve(size):
    at = c_uint64()
    ok(cu.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)))
    return at.value
def map_in(at, size, handle):
    ok(cu.cuMemMap(c_uint64(at), c_size_t(size), c_size_t(0), handle, c_uint64(0)))
"""


@pytest.fixture
def box(plain_library, monkeypatch):
    """A V100 with 4 GiB of it promised to one container."""
    monkeypatch.setattr(native, "library_path", lambda *, strict=False: plain_library)  # noqa: ARG005
    with boxed("v100-16g", plain_library) as made:
        made.promise(4 * GIB)
        yield made


@pytest.fixture
def start(box):
    """Run Python in the container; what still runs at the end is killed."""
    running = []

    def run(code: str, **more) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running.append(
            subprocess.Popen([sys.executable, "-S", "-c", CLIENT + code], env=box.environment(), **pipes, **more)
        )
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate(timeout=300)


def heard(process):
    """The next thing a process says."""
    return json.loads(process.stdout.readline())


def go_on(process):
    """Let a waiting process go on."""
    process.stdin.write("\n")
    process.stdin.flush()


def ledgers(box):
    """Both ledgers once they agree, as they must soon: (hardware, ledger). The dead are reaped first."""
    end = time.monotonic() + 60
    while True:
        native.reap(box.folder / "region")
        truth, ledger = box.used()
        if truth == ledger or time.monotonic() > end:
            return truth, ledger
        time.sleep(0.005)


HOLDER = "begin()\nassert alloc(GIB)[0] == 0\n"


@pytest.mark.parametrize("how", ["os.fork()", "libc.syscall(57)"])
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_forked_child_takes_nothing_of_its_parents_with_it(box, start, how, end):
    """Through libc or as a raw system call, and however the child ends: the parent's memory stays its own, charged."""
    if "57" in how and os.uname().machine != "x86_64":
        pytest.skip("the number of a system call of one machine")
    parent = start(
        f"{HOLDER}child = {how}\nif child == 0: {end}\nos.waitpid(child, 0)\nsay(1)\nwait()\nsay(alloc(3 * GIB)[0])"
    )
    heard(parent)
    held = ledgers(box)
    go_on(parent)

    assert (GIB + CONTEXT,) * 2 == held
    assert OOM == heard(parent)


def test_a_forked_child_that_calls_the_driver_is_refused_and_does_not_hang(box, start):
    """Threads of the parent are inside calls at the fork; the child has the driver's own answer, in time."""
    parent = start("""
begin()
stop = False
def work():
    ok(cu.cuCtxSetCurrent(context))
    held = c_void_p()
    while not stop:
        rc, at = alloc(3 * MIB)
        cu.cuMemFree_v2(at)
        cu.cuDevicePrimaryCtxRetain(byref(held), 0)
        cu.cuDevicePrimaryCtxRelease_v2(0)
context = c_void_p()
ok(cu.cuCtxGetCurrent(byref(context)))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
answers = set()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ours = c_void_p()
        os._exit(cu.cuDevicePrimaryCtxRetain(byref(ours), 0) or alloc(MIB)[0])
    answers.add(os.waitpid(child, 0)[1])
stop = True
for thread in threads: thread.join()
say(sorted(answers))
wait()
""")
    not_initialized = 3

    assert [not_initialized << 8] == heard(parent)
    assert ledgers(box)[0] == CONTEXT


def test_exec_gives_back_what_the_old_image_held(box, start):
    """The same pid, a new program: what the old one had is free in both ledgers, and can be taken."""
    again = CLIENT + "say(1)\nwait()\nbegin()\nsay(alloc(3 * GIB)[0])\nwait()"
    process = start(f"{HOLDER}os.execv(sys.executable, [sys.executable, '-S', '-c', {again!r}])")
    heard(process)
    after = ledgers(box)
    go_on(process)

    assert (0, 0) == after
    assert 0 == heard(process)
    assert (3 * GIB + CONTEXT,) * 2 == ledgers(box)


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_ends_with_memory_in_its_hands_leaves_none(box, start, end):
    """Whatever way it goes, the next one has the whole promise, without anybody reaping from outside."""
    first = start(f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{HOLDER}say(1)\n{end}")
    heard(first)
    first.wait()
    second = start("begin()\nsay(alloc(3 * GIB + 256 * MIB)[0])\nwait()")

    assert 0 == heard(second)
    assert (3 * GIB + 256 * MIB + CONTEXT,) * 2 == ledgers(box)


CLOSING = {
    "close-all": "os.closerange(3, 4096)",
    "foreign close of the region": "os.close(os.open(os.environ['GPUSHARE_REGION'], os.O_RDWR))",
    "foreign lock": "import fcntl\nfd = os.open(os.environ['GPUSHARE_REGION'], os.O_RDWR)\n"
    "fcntl.lockf(fd, fcntl.LOCK_EX, 4096)\nos.close(fd)",
}


@pytest.mark.parametrize("what", CLOSING)
def test_a_living_process_is_not_reaped_whatever_it_closes(box, start, what):
    """Its memory stays charged and its own; after SIGKILL it is free."""
    process = start(f"{HOLDER}{CLOSING[what]}\nsay(1)\nwait()\nsay(alloc(GIB)[0])\nwait()")
    heard(process)
    held = ledgers(box)
    go_on(process)

    assert (GIB + CONTEXT,) * 2 == held
    assert 0 == heard(process)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=300)
    assert (0, 0) == ledgers(box)


def test_expandable_segments_are_charged_while_they_are_mapped(box, start):
    """
    As PyTorch does it: one great range of addresses, segments of 20 MiB mapped into it as the need
    grows, their handles released at once, the end unmapped again when the cache is emptied.
    """
    process = start("""
begin()
SEGMENT = 20 * MIB
base, mapped = reserve(8 * GIB), 0
while True:
    rc, handle = create(SEGMENT)
    if rc: break
    map_in(base + mapped * SEGMENT, SEGMENT, handle)
    ok(cu.cuMemRelease(handle))
    mapped += 1
say([rc, mapped])
wait()
ok(cu.cuMemUnmap(c_uint64(base + 50 * SEGMENT), c_size_t((mapped - 50) * SEGMENT)))
say(50)
wait()
ok(cu.cuMemUnmap(c_uint64(base), c_size_t(50 * SEGMENT)))
ok(cu.cuMemAddressFree(c_uint64(base), c_size_t(8 * GIB)))
say(0)
wait()
""")
    most = (4 * GIB - CONTEXT) // (20 * MIB)

    assert [OOM, most] == heard(process)
    assert (CONTEXT + most * 20 * MIB,) * 2 == ledgers(box)
    go_on(process)
    assert 50 == heard(process)
    assert (CONTEXT + 50 * 20 * MIB,) * 2 == ledgers(box)
    go_on(process)
    assert 0 == heard(process)
    assert (CONTEXT,) * 2 == ledgers(box)


def test_a_sleeping_process_lends_its_memory_and_gets_it_back_when_it_is_free(box, start):
    """
    As vLLM's sleep mode does it: the physical memory goes, the addresses stay; awake, memory is mapped
    at the same addresses. While somebody else has it, waking is refused, and works once that one is gone.
    """
    sleeper = start("""
begin()
base = reserve(3 * GIB)
def wake():
    rc, handle = create(3 * GIB)
    if rc == 0:
        map_in(base, 3 * GIB, handle)
        ok(cu.cuMemRelease(handle))
    return rc
say(wake())
wait()
ok(cu.cuMemUnmap(c_uint64(base), c_size_t(3 * GIB)))
say("asleep")
while True:
    wait()
    say(wake())
""")

    assert 0 == heard(sleeper)
    awake = ledgers(box)
    go_on(sleeper)
    assert "asleep" == heard(sleeper)
    asleep = ledgers(box)
    other = start("begin()\nsay(alloc(3 * GIB)[0])\nwait()")
    assert 0 == heard(other)
    go_on(sleeper)
    assert OOM == heard(sleeper)
    other.kill()
    other.wait()
    assert (CONTEXT,) * 2 == ledgers(box)
    go_on(sleeper)
    assert 0 == heard(sleeper)
    assert [(3 * GIB + CONTEXT,) * 2, (CONTEXT,) * 2] == [awake, asleep]
    assert awake == ledgers(box)


def test_memory_shared_by_descriptor_outlives_its_killed_exporter_in_ledger_and_records(box, start):
    """Exported memory is charged once; its maker killed, it stays charged while another process maps it."""
    ours, theirs = socket.socketpair()
    exporter = start(
        f"""
begin()
rc, handle = create(GIB, 1)
ok(rc)
fd = c_int()
ok(cu.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
socket.send_fds(socket.socket(fileno={theirs.fileno()}), [b"x"], [fd.value])
say(1)
wait()
""",
        pass_fds=[theirs.fileno()],
    )
    heard(exporter)
    (fd,) = socket.recv_fds(ours, 1, 1)[1]
    importer = start(
        f"""
begin()
handle = c_uint64()
ok(cu.cuMemImportFromShareableHandle(byref(handle), c_void_p({fd}), 1))
os.close({fd})
base = reserve(GIB)
map_in(base, GIB, handle)
ok(cu.cuMemRelease(handle))
say(1)
wait()
ok(cu.cuMemUnmap(c_uint64(base), c_size_t(GIB)))
say(2)
wait()
""",
        pass_fds=[fd],
    )
    heard(importer)
    os.close(fd)
    together = ledgers(box)
    exporter.kill()
    exporter.wait()
    orphaned = ledgers(box)
    go_on(importer)
    heard(importer)

    assert [(GIB + 2 * CONTEXT,) * 2, (GIB + CONTEXT,) * 2] == [together, orphaned]
    assert (CONTEXT,) * 2 == ledgers(box)
    ours.close()
    theirs.close()
