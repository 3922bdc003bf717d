# SPDX-License-Identifier: Apache-2.0
"""The keeper of `gpushare run`: what it feeds, what it frees, and by what the store knows who lives."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_command import CLIENT, begin, go, holds
from support.waiting import PATIENCE_SECONDS, until

from isolation.host import liveness
from isolation.lib.files import read_region
from isolation.run.store import AllocationStore
from isolation.simgpu.hardware import create, open_box

pytest.importorskip("pynvml")


BUSY = """
import ctypes, select, sys
cu = ctypes.CDLL("libcuda.so.1")
device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cu.cuCtxSetCurrent(context)
cu.cuModuleLoadData(ctypes.byref(module), b"simgpu 1\\nkernel k params=8 us=$0 width=1000\\n")
cu.cuModuleGetFunction(ctypes.byref(function), module, b"k")
micros = ctypes.c_uint64(5000)
words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(micros), ctypes.c_void_p))
while not select.select([sys.stdin], [], [], 0)[0]:
    cu.cuLaunchKernel(function, 80, 1, 1, 256, 1, 1, 0, None, words, None)
    cu.cuCtxSynchronize()
sys.stdin.readline()
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def box(tmp_path):
    """Four V100 of 16 GB, whose driver loses no sample: a lost one is a sixth of a second that nobody can know of."""
    create(tmp_path / "box", ["v100-16g"] * 4, {"sample_missing_permille": 0})
    return tmp_path / "box"


def only(box):
    """Folder of the one hold there is, or None."""
    folders = list(Path(f"{box}.allocations").glob("run-*"))
    return folders[0] if len(folders) == 1 else None


def test_the_keeper_feeds_own_gpu_time(box):
    """
    What it writes for the library is what the simulator's own stores say, once the command has come to rest. Where it
    says that it has not seen all (on a busy machine samples come late, and speak for one period all the same), it may
    be so much less. The library then charges corrected time. Where samples spoke for little, it is measured again.
    """
    for _ in range(5):
        part, own, true = fed_and_computed(box)
        assert part * true - 150_000_000 <= own <= true + 150_000_000
        if part > 0.7:
            return
    raise AssertionError(f"samples spoke for {part:.0%} of the time")


def fed_and_computed(box):
    """Of a busy command: the part of the time that samples spoke for, what was fed, what was computed (ns)."""
    runner = begin(box, "--gpu-mem", "1", "--gpu-core", "40", "--", sys.executable, "-c", BUSY)
    assert until(lambda: only(box))

    def feed():
        return only(box) / "feed"

    def fed():
        """Own GPU time, and the time that samples spoke for, in ns."""
        raw = feed().read_bytes()
        return struct.unpack_from("<Q", raw, 64)[0], struct.unpack_from("<Q", raw, 96)[0]

    def written_twice():
        """The first may have been under way."""
        for _ in range(2):
            before = feed().stat().st_mtime_ns
            until(lambda before=before: feed().stat().st_mtime_ns != before)

    with open_box(box) as machine:

        def truth():
            return sum(client.own_ns for client in machine.clients(0))

        until(lambda: fed()[0] > 0)
        # What was computed before the keeper's first look is nobody's: both are read while no time passes.
        machine.stop()
        written_twice()
        (counted, seen), computed, begun = fed(), truth(), machine.now
        machine.go()
        until(lambda: truth() > computed + 2_000_000_000)
        # While it computes: of a write that is late the library tells until the next one.
        until(lambda: not read_region(only(box) / "region").cards[0].uncorrected)
        runner.stdin.write("\n")
        runner.stdin.flush()
        assert "done\n" == runner.stdout.readline()
        busy = machine.now - begun

        written_twice()
        own, spoken = fed()
        true = truth() - computed
    runner.communicate("\n", timeout=PATIENCE_SECONDS)
    return min(1.0, (spoken - seen) / busy), own - counted, true


def test_what_a_neighbour_leaves_idle_is_granted_while_it_does(box):
    """
    Alone, a burst of 30 % is granted the whole card; beside a neighbour of 30 % that computes, half of it;
    and the whole again when the neighbour has gone.
    """
    options = ("--gpu-mem", "1", "--gpu-core", "30", "--policy", "burst")
    one = begin(box, *options, "--", "sh", "-c", "echo $GPUSHARE_FEED; read x")
    feed = Path(one.stdout.readline().strip())

    def granted(rate):
        return until(lambda: struct.unpack_from("<I", feed.read_bytes(), 64 + 24)[0] == rate)

    alone = granted(1_000_000)
    two = begin(box, *options, "--", sys.executable, "-c", BUSY)
    beside = granted(500_000)
    two.communicate("\n\n", timeout=PATIENCE_SECONDS)
    after = granted(1_000_000)
    one.communicate("\n", timeout=300)
    assert (True, True, True) == (alone, beside, after)


def test_memory_of_a_dead_process_comes_back_while_the_command_runs(box):
    """
    Nobody has to ask for memory first: the keeper looks each second.
    """
    client = CLIENT.replace("sys.stdin.read()", "import time; time.sleep(3600)")
    script = f"{sys.executable} -c '{client}' & read x; kill -9 $!; wait $!; read x"
    runner = begin(box, "--gpu-mem", "2", "--", "sh", "-c", script)
    lines_ = [runner.stdout.readline(), runner.stdout.readline()]
    used = [sum(card.used_bytes for card in read_region(only(box) / "region").cards)]
    runner.stdin.write("\n")
    runner.stdin.flush()
    assert until(lambda: sum(card.used_bytes for card in read_region(only(box) / "region").cards) == 0)
    runner.communicate("\n", timeout=PATIENCE_SECONDS)
    assert ("1\n", True) == (lines_[0], used[0] > 1 << 30)


def test_the_keeper_holds_nothing_of_its_callers(box):
    """
    A pipe that reads the command's output ends with the command, though a daemon of it lives on.
    """
    script = f"setsid {shutil.which('sleep')} 3600 > /dev/null 2>&1 < /dev/null & echo $!"
    done = go(box, "--gpu-mem", "5", "--", "sh", "-c", script)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert until(lambda: holds(box) == {})


def test_the_store_stands_on_every_kind_of_evidence(box):
    """
    With the keeper and the runner killed, a child that closed every descriptor and left its session is
    known by what the store noted of it.
    """
    script = "import os, time; os.setsid(); os.closerange(0, 1024); time.sleep(3600)"
    runner = begin(box, "--gpu-mem", "5", "--name", "k", "--", sys.executable, "-c", script)
    store = AllocationStore(Path(f"{box}.allocations"))

    def noted():
        with store.locked():
            return [(held, liveness.members(held.folder)) for held in store.list_living()]

    def noted_and_closed():
        # the note follows within a second; until then the hold names nobody
        members = [member for _, found in noted() for member in found]
        return members and not list(Path(f"/proc/{members[0].pid}/fd").iterdir())

    assert until(noted_and_closed)
    (held, (command, *_)), *_ = noted()
    keeper = int(Path(f"/proc/{command.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert 125 == runner.wait(PATIENCE_SECONDS)
    assert [held] == [one for one, _ in noted()]
    os.kill(command.pid, signal.SIGKILL)
    assert until(lambda: noted() == [])


BLIND = """
import errno, sys
from gpushare import main
from isolation.host import cgroup, process

def refused(*_):
    raise OSError(errno.EMFILE, "too many open files")

cgroup.pids = process.descendants = refused
main(["run", "--simgpu", sys.argv[1], "--gpu-mem", "1", "--policy", "none", "--", "sh", "-c", "sleep 1.2; exit 7"])
"""


def test_a_keeper_that_cannot_look_for_descendants_stays(box):
    """
    It looks again later; the command's exit status is not lost.
    """
    done = subprocess.run(
        [sys.executable, "-c", BLIND, str(box)], check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (7, "") == (done.returncode, done.stderr)
