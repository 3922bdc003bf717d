# SPDX-License-Identifier: Apache-2.0
"""Processes of a node: that they are themselves, that they live, and what a look at them costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cgroup_tree import CgroupTree
from support.kernel_reading import BOX, OTHER, UID, VICTIM, source
from support.waiting import until

from exporter.sources.errors import SourceError
from exporter.sources.kernel import KernelSource
from isolation.host import process


def test_a_pid_that_is_used_again_is_another_process(tmp_path):
    """
    The start time tells them apart; nothing of the old one is kept.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, container=(UID, BOX), start=10)
    kernel = source(tree)
    kernel.read(0.0, [50])
    tree.process(50, container=(OTHER, VICTIM), start=11)

    found = kernel.read(2.0, [50]).processes[50]
    assert (OTHER, 11) == (found.pod_uid, found.start_ticks)


def test_a_known_process_costs_one_read(tmp_path):
    """
    Of a process that is the same as before only its status line is read: the rest may even be gone.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, container=(UID, BOX))
    kernel = source(tree)
    before = kernel.read(0.0, [50]).processes
    (tree.proc / "50/cgroup").unlink()
    (tree.proc / "50/status").unlink()
    assert before == kernel.read(2.0, [50]).processes


def test_a_process_that_becomes_another_program_is_looked_at_again(tmp_path):
    """
    An exec keeps pid and start time, and may change user and name.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, name="sh", uid=0)
    kernel = source(tree)
    kernel.read(0.0, [50])
    tree.process(50, name="python", uid=1000)
    found = kernel.read(2.0, [50]).processes[50]
    assert ("python", 1000) == (found.name, found.uid)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_the_dead_are_absent(tmp_path, state):
    """
    A zombie holds no memory; a pid that is gone, or nonsense, is nobody.
    """
    tree = CgroupTree(tmp_path)
    tree.process(50, state=state)
    assert {} == source(tree).read(0.0, [50, 51, 0, -1]).processes


def test_a_program_whose_first_thread_has_ended_lives_on(tmp_path):
    """
    It looks like a zombie and holds its memory: nobody hides what he has by ending a thread.
    """
    code = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as program:
        until(lambda: b") Z " in Path(f"/proc/{program.pid}/stat").read_bytes())
        found = KernelSource(Path("/proc"), Path("/sys/fs/cgroup")).read(0.0, [program.pid]).processes
        assert program.pid in found
        program.kill()
    tree = CgroupTree(tmp_path)
    tree.process(50, path="/", state="Z", threads=2)
    tree.process(51, container=(UID, BOX))
    (tree.proc / "50/task").mkdir()
    for thread, group in ((50, "/"), (51, tree.path_of(UID, BOX))):
        (tree.proc / f"50/task/{thread}").mkdir()
        (tree.proc / f"50/task/{thread}/cgroup").write_text(f"0::{group}\n")
    assert UID == source(tree).read(0.0, [50]).processes[50].pod_uid


def test_what_is_not_asked_for_any_more_is_forgotten(tmp_path):
    """
    Ten thousand processes come and go; only the living are kept.
    """
    tree = CgroupTree(tmp_path)
    for pid in range(3000, 3020):
        tree.process(pid)
    kernel = source(tree)
    kernel.read(0.0, range(3000, 3020))
    kernel.read(1.0, [3001])
    assert {3001} == set(kernel._known)


def test_without_proc_nothing_is_reported(tmp_path):
    """
    Failure is not an empty node: an error that says what to mount, or whom to run as.
    """
    tree = CgroupTree(tmp_path)
    tree.exit(1)
    with pytest.raises(SourceError, match="hidepid"):
        source(tree).read(0.0, [])
    (tree.proc / "self").unlink()
    with pytest.raises(SourceError, match="--proc"):
        source(tree).read(0.0, [])
    with pytest.raises(SourceError, match="--proc"):
        KernelSource(tmp_path / "nowhere", tree.cgroup).read(0.0, [1])


def test_it_says_whether_it_sees_the_hosts_processes(tmp_path):
    """
    A second process of that name is no proof: only a kernel thread is.
    """
    tree = CgroupTree(tmp_path)
    tree.process(2, name="kthreadd", flags=0)
    assert not source(tree).read(0.0, []).host_pids
    (tree.proc / "1/ns").mkdir()
    (tree.proc / "1/ns/pid").symlink_to(process.FIRST_NAMESPACE)
    assert source(tree).read(0.0, []).host_pids


def test_the_real_proc_of_this_machine_can_be_read():
    """
    This very process is found with its parent, whatever kernel and container this runs in.
    """
    found = KernelSource(Path("/proc"), Path("/sys/fs/cgroup")).read(0.0, [os.getpid()]).processes[os.getpid()]
    assert (os.getpid(), os.getuid()) == (found.pid, found.uid)
    assert found.start_ticks > 0
    assert found.parent_name
