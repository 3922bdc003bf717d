# SPDX-License-Identifier: Apache-2.0
"""Who keeps a hold: members, marks, slots, control groups; and how processes are read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.run_holds import counted, hold, running
from support.waiting import until

from isolation.contract.abi import LOCK_OFFSET, REGION_BYTES
from isolation.contract.host_allocation import Process
from isolation.host import cgroup, liveness, process
from isolation.run.store import AllocationStore


@pytest.fixture
def store(tmp_path):
    """A store nobody has written in."""
    return AllocationStore(tmp_path / "store")


def test_a_noted_member_keeps_the_hold_and_a_reused_pid_does_not(store):
    """
    Pid and start time together: the same pid at another time is a stranger.
    """
    held = hold(store)
    with running("sleep", "3600") as child:
        member = process.identify(child.pid)
        liveness.write_members(held.folder, [Process(member.pid, member.start)])
        assert ["run-1"] == counted(store)
        liveness.write_members(held.folder, [Process(member.pid, member.start + 1)])
        assert [] == counted(store)


def test_the_mark_in_an_environment_keeps_the_hold(store):
    """
    A process that left everything else behind still has the promise id in its environment.
    """
    ident = f"run-mark-{os.getpid()}"
    hold(store, id=ident)
    with running("sleep", "3600", env={"GPUSHARE_PROMISE": ident}) as child:
        until(lambda: process.environment(child.pid, liveness.MARK) == ident)
        assert ([ident], None) == (counted(store), child.poll())
    assert [] == counted(store)


def test_a_process_of_another_promise_with_a_longer_name_keeps_nothing(store):
    """
    The mark is a whole word: `run-10` is not `run-1`.
    """
    hold(store)
    with running("sleep", "3600", env={**os.environ, liveness.MARK: "run-10"}):
        assert [] == counted(store)


def test_a_zombie_keeps_nothing(store):
    """
    It holds no memory; its parent may never ask for it.
    """
    held = hold(store)
    with running("true") as child:
        liveness.write_members(held.folder, [process.identify(child.pid)])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [] == counted(store)


def test_a_locked_slot_of_the_region_keeps_the_hold(store):
    """
    Every process with a CUDA context through the library locks its slot, whatever else it closes.
    """
    held = hold(store)
    region = held.folder / "region"
    with region.open("wb") as file:
        file.truncate(REGION_BYTES)
    fd = os.open(region, os.O_RDWR)
    fcntl.fcntl(fd, 37, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, LOCK_OFFSET + 1023, 1, 0))  # F_OFD_SETLK
    assert ["run-1"] == counted(store)
    os.close(fd)
    assert [] == counted(store)


def test_a_populated_control_group_keeps_the_hold(store):
    """
    Nobody leaves it by anything a program does to itself.
    """
    ident = f"run-{os.getpid()}"
    group = cgroup.create(ident)
    if group is None:
        pytest.skip("no control group may be made here")
    held = hold(store, id=ident, cgroup=str(group))
    (held.folder / "group").write_text(str(group))
    with running("sleep", "3600") as child:
        (group / "cgroup.procs").write_text(str(child.pid))
        assert ([ident], (child.pid,)) == (counted(store), cgroup.pids(group))
    assert ([], False) == (counted(store), group.exists())


def test_descendants_are_found_through_every_generation(tmp_path):
    """
    Also those in a session of their own; zombies are left out.
    """
    script = f"setsid sleep 3600 & echo $! > {tmp_path}/pid; wait"
    with running("sh", "-c", script) as child:
        note = tmp_path / "pid"
        until(lambda: process.descendants(child.pid) and note.exists() and note.read_text())
        found = process.descendants(child.pid)
        sleeper = int(note.read_text())
        assert sleeper in {one.pid for one in process.descendants(child.pid)}
        assert found[0] in process.descendants(os.getpid())
        os.kill(sleeper, signal.SIGKILL)


@contextlib.contextmanager
def again_and_again(step):
    """`step` in a thread, until the block ends."""
    ended = threading.Event()

    def turn():
        while not ended.is_set():
            step()

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_processes_that_end_while_descendants_are_read_are_left_out():
    """
    Before, one look in seventy at a parent of short-lived children failed, and with it the keeper.
    """
    with again_and_again(lambda: subprocess.run(["true"], check=True)):
        for _ in range(2000):
            process.descendants(os.getpid())


def test_groups_that_vanish_while_members_are_read_are_left_out(tmp_path, monkeypatch):
    """
    Commands make groups below their own and remove them, and other commands' groups end at any moment.
    """
    monkeypatch.setattr(cgroup, "_is_one", lambda *_: True)
    (tmp_path / "cgroup.procs").write_text("7\n")

    def come_and_go():
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b").rmdir()
        (tmp_path / "a").rmdir()

    with again_and_again(come_and_go):
        assert {(7,)} == {cgroup.pids(tmp_path) for _ in range(2000)}


def test_a_name_with_spaces_and_parentheses_is_read():
    """
    The process chooses it; the last parenthesis ends it.
    """
    text = "7 (a) S 1) (b) R 12 " + " ".join(str(n) for n in range(5, 22)) + " 4711 0"
    stat = process.parse_stat(text.encode())
    assert ("a) S 1) (b", 12, 4711, False) == (stat.name, stat.parent, stat.start, stat.ended)


def test_a_process_whose_first_thread_has_ended_lives():
    """Its state says zombie; the thread that goes on keeps the hold. Without one it is gone."""
    code = "import threading,time,ctypes;threading.Thread(target=time.sleep,args=(3600,)).start();"
    with running(sys.executable, "-c", f"{code}ctypes.CDLL(None).pthread_exit(None)") as child:
        status = Path(f"/proc/{child.pid}/status")
        until(lambda: "zombie" in status.read_text())
        headless = process.identify(child.pid)
        assert process.alive(headless)
        child.kill()
        child.wait(timeout=300)
        assert not process.alive(headless)


def test_where_the_unified_hierarchy_is():
    """
    Mounted alone, or beside the old ones.
    """
    proc = "24 1 0:22 / /proc rw - proc proc rw\n"
    mounts = f"{proc}30 24 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"
    assert (Path("/sys/fs/cgroup/unified"), None) == (cgroup.root_of(mounts), cgroup.root_of(proc))
    assert ("user.slice/x", None) == (cgroup.own_of("4:memory:/a\n0::/user.slice/x\n"), cgroup.own_of("4:memory:/a\n"))
