# SPDX-License-Identifier: Apache-2.0
"""Who lives on a promise: every kind of evidence, and what none of them can do."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest
from support.hold_writer import BOOT
from support.promises_written import TENANT, names

from exporter.sources import promises
from exporter.sources.errors import SourceError
from isolation.contract import abi


def test_a_promise_is_gone_with_the_last_who_lives_on_it(writer, source):
    """
    Within one reading after the lock is free.
    """
    folder = writer.run("run-1")
    assert ["run-1"] == names(source.read(0.0))
    writer.release(folder)
    facts = source.read(1.0)
    assert ([], 0) == (names(facts), facts.unreadable)


def test_a_living_member_is_evidence_and_a_reused_pid_is_none(writer, source):
    """
    The lock may be closed by a program that closes descriptors.
    """
    (writer.proc / "41").mkdir()
    status = f"41 (python) S 1 {'0 ' * 17}100 0\n"
    (writer.proc / "41/stat").write_text(status)
    writer.run("run-1", lock=False, members=[(41, 100)])
    writer.run("run-2", lock=False, members=[(41, 99)])
    assert ["run-1"] == names(source.read(0.0))
    (writer.proc / "41/stat").write_text(status.replace("S", "Z", 1))
    assert [] == names(source.read(1.0))


def test_a_locked_slot_is_evidence(writer, source):
    """
    A process with a CUDA context holds its byte of the region.
    """
    folder = writer.run("run-1", lock=False)
    code = (
        "import fcntl, os, struct, sys\n"
        f"fd = os.open({str(folder / 'region')!r}, os.O_RDWR)\n"
        f"fcntl.fcntl(fd, 37, struct.pack('@hhqqi4x', fcntl.F_WRLCK, 0, {abi.LOCK_OFFSET}, 1, 0))\n"
        "print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert b"locked\n" == holder.stdout.readline()
        assert ["run-1"] == names(source.read(0.0))
    assert [] == names(source.read(1.0))


def test_a_populated_control_group_is_evidence(writer, source, tmp_path):
    """
    Only the hold's own, in the hierarchy; not wherever its entry points.
    """
    group, elsewhere = tmp_path / "cgroup/a/gpushare-run-1", tmp_path / "b/gpushare-run-2"
    for folder in (group, elsewhere):
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    writer.run("run-1", lock=False, cgroup=str(group))
    writer.run("run-2", lock=False, cgroup=str(elsewhere))
    writer.run("run-3", lock=False, cgroup=str(group))
    assert ["run-1"] == names(source.read(0.0))


def test_a_mark_is_the_last_evidence_and_is_looked_for_seldom(writer, source):
    """
    Of a process of the same user outside containers; every process's environment is slow.
    """
    for pid, inner, uid in ((41, 41, os.geteuid()), (42, 7, os.geteuid()), (43, 43, os.geteuid() + 1)):
        folder = writer.proc / str(pid)
        folder.mkdir()
        (folder / "environ").write_bytes(b"A=1\0GPUSHARE_PROMISE=run-%d\0" % pid)
        (folder / "status").write_text(
            f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pid}\t{inner}\n"
            if inner != pid
            else f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pid}\n"
        )
        writer.run(f"run-{pid}", lock=False)
    assert ["run-41"] == names(source.read(100.0))
    (writer.proc / "41/environ").write_bytes(b"")
    assert ["run-41"] == names(source.read(100.0 + promises.MARKS_SECONDS / 2))
    assert [] == names(source.read(100.0 + promises.MARKS_SECONDS))


def test_asking_for_the_lock_takes_it_from_nobody(writer, source):
    """
    A run that locks its new folder, or asks like us at the same moment, is not disturbed.
    """
    folder = writer.run("run-1", lock=False)
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert [] == names(source.read(0.0))
    os.close(fd)
    source.read(1.0)
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_nothing_outlives_a_boot(writer, source):
    """
    Whatever stands in folders that survive one.
    """
    writer.run("run-1", boot="another")
    writer.agent("0a1b", "promise-1", tenant=TENANT, boot="another")
    facts = source.read(0.0)
    assert ([], 0, True) == (names(facts), facts.unreadable, facts.agent)


def test_without_proc_it_is_unknown(writer, source):
    """
    An error with the flag in it; and it recovers.
    """
    writer.run("run-1")
    boot = writer.proc / "sys/kernel/random/boot_id"
    boot.unlink()
    with pytest.raises(SourceError, match="--proc"):
        source.read(0.0)
    boot.write_text(BOOT)
    assert ["run-1"] == names(source.read(1.0))
