# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run` as the exporter sees it: its promises, its processes, and their end, whatever happened to the keeper.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS, until

from exporter.sources.kernel import KernelSource
from exporter.sources.promises import PromiseSource, default_stores
from isolation.host import process
from isolation.simgpu.hardware import create

pytest.importorskip("pynvml")
ROOT = Path(__file__).resolve().parents[2]
PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
COMMAND = """
import ctypes, os, subprocess, sys
cu = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cu.cuCtxSetCurrent(context)
assert cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
assert cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 30)) != 0
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(os.getpid(), child.pid, flush=True)
sys.stdin.read()
"""


class Run:
    """A command of `gpushare run` with a child of its own."""

    def __init__(self, box: Path) -> None:
        words = ["run", "--simgpu", str(box), "--gpu-mem", "5", "--gpu-core", "30", "--", sys.executable, "-c", COMMAND]
        self.process = subprocess.Popen(
            [sys.executable, "-c", FRONT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.pid, self.child = map(int, self.process.stdout.readline().split())

    def keeper(self) -> int:
        """The command's parent."""
        return process.read_stat(self.pid).parent

    def end(self) -> None:
        """Let it end by itself."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def box(tmp_path):
    """Two T4."""
    create(tmp_path / "box", ["t4"] * 2)
    return tmp_path / "box"


@pytest.fixture
def source(box, tmp_path):
    """The promises of that box."""
    return PromiseSource(default_stores(box), tmp_path / "lib", PROC, CGROUP)


def test_a_run_is_seen_from_promise_to_process(box, source):
    """
    What was promised, what its library stores, and that the command, its child and its keeper's orphans are its own.
    """
    source.read(0.0)
    run = Run(box)
    stranger = os.getpid()
    try:
        facts = source.read(1.0)
        one = facts.holds[0]
        assert (5 << 30, 30, "fixed", "") == (
            one.hold.slices[0].bytes,
            one.hold.core,
            one.hold.policy,
            one.limits_error,
        )
        store = one.region.reading.cards[0]
        assert (5 << 30, 1 << 30) == (store.limit_bytes, store.used_bytes // (1 << 30) * (1 << 30))
        assert [run.pid] == [slot.pid for slot in one.region.reading.slots]
        assert [64 << 30] == [record.requested for record in one.region.breaches]
        assert run.pid in one.pids

        found = KernelSource(PROC, CGROUP).read(1.0, [run.pid, run.child, stranger], facts.holds).processes
        assert [one.hold.id, one.hold.id, ""] == [found[pid].hold for pid in (run.pid, run.child, stranger)]
        assert "gpushare-keeper" == found[run.pid].parent_name
    finally:
        run.end()
    assert until(lambda: not source.read(2.0).holds)


def test_two_runs_are_distinguished(box, source):
    """
    Same program, same user, same card.
    """
    runs = [Run(box), Run(box)]
    try:
        facts = source.read(0.0)
        found = KernelSource(PROC, CGROUP).read(0.0, [run.pid for run in runs], facts.holds).processes
        assert {one.hold.id for one in facts.holds} == {found[run.pid].hold for run in runs}
        assert 2 == len(facts.holds)
    finally:
        for run in runs:
            run.end()


def test_a_run_lives_on_without_its_keeper_and_ends_with_its_last_process(box, source):
    """
    Runner and keeper are killed: the command and its child go on, are still seen, and their end is seen.
    """
    run = Run(box)
    kernel = KernelSource(PROC, CGROUP)
    try:
        kernel.read(0.0, [run.pid, run.child], source.read(0.0).holds)
        keeper = run.keeper()
        run.process.kill()
        os.kill(keeper, signal.SIGKILL)
        assert until(lambda: run.keeper() != keeper)
        facts = source.read(1.0)
        found = kernel.read(1.0, [run.pid, run.child], facts.holds).processes
        assert {facts.holds[0].hold.id} == {found[pid].hold for pid in (run.pid, run.child)}
    finally:
        for pid in (run.child, run.pid):
            os.kill(pid, signal.SIGKILL)
        run.end()
    turns = itertools.count(99.0, 10.0)  # environments are looked at each 10 s
    assert until(lambda: not source.read(next(turns)).holds)
