# SPDX-License-Identifier: Apache-2.0
"""One judge of a living allocation, for `gpushare run` and the exporter: what is unknown counts as living."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest
from support.hold_writer import HoldWriter
from support.promises_written import names, source_on
from support.run_holds import BOOT, counted, entry

from isolation.file_locks import locked
from isolation.host import liveness
from isolation.run.store import AllocationStore

NOBODY = 65534


@pytest.fixture
def folder():
    """A directory of ours. The test runs as a user whom permissions concern, also if we are root."""
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        Path(made).chmod(0o1777)
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
            stack.callback(os.seteuid, 0)
        yield Path(made)


def test_a_folder_that_may_not_be_opened_counts_as_living(folder):
    """
    Its lock cannot be asked: to call it dead would give its memory to a second tenant.
    """
    (folder / "run-1").mkdir(mode=0o111)

    assert locked(folder / "run-1")
    assert not locked(folder / "run-1", unknown=False)
    assert liveness.lives(entry("run-1"), folder / "run-1", BOOT)


def test_what_is_no_folder_is_not_held(folder):
    """
    Gone, a file, or a link: there is nothing to lock.
    """
    (folder / "file").write_text("")
    (folder / "link").symlink_to(folder)

    assert [False] * 3 == [locked(folder / name) for name in ("gone", "file", "link")]


def test_a_region_that_may_not_be_opened_counts_as_living(folder):
    """
    A process may have its slot of it, whoever else let the folder's lock go. A call at the edge is no call then:
    a tenant's ledger must be corrected all the same.
    """
    (folder / "run-1").mkdir()
    region = folder / "run-1" / liveness.REGION
    region.touch(mode=0o000)

    assert liveness.slots_locked(region)
    assert not liveness.slots_locked(region, unknown=False)
    assert not liveness.edge_locked(region, 0)
    assert not locked(region.parent)
    assert liveness.lives(entry("run-1"), region.parent, BOOT)
    region.chmod(0o644)
    assert not liveness.slots_locked(region)
    assert not liveness.lives(entry("run-1"), region.parent, BOOT)


def test_where_the_kernel_does_not_answer_an_allocation_lives(folder, monkeypatch):
    """
    A file system without locks, for example.
    """
    (folder / "region").write_text("")

    def refuse(*_):
        raise OSError(errno.EINVAL, "no such lock")

    monkeypatch.setattr(liveness.fcntl, "fcntl", refuse)
    monkeypatch.setattr(liveness.fcntl, "flock", refuse)

    assert liveness.slots_locked(folder / "region")
    assert locked(folder)
    assert not liveness.edge_locked(folder / "region", 0)


def test_what_is_no_regular_file_is_no_region(folder):
    """
    Gone, within a file, a link, a folder, a pipe, a socket: nobody has a slot there.
    """
    (folder / "file").write_text("")
    (folder / "link").symlink_to(folder / "file")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        names = ("gone", "file/region", "link", "folder", "pipe", "socket")

        assert [False] * 6 == [liveness.slots_locked(folder / name) for name in names]


def test_the_exporter_shows_an_allocation_whose_lock_it_may_not_ask(folder):
    """
    As `gpushare run` counts it; its memory is not free.
    """
    with contextlib.closing(HoldWriter(folder)) as writer:
        writer.run("run-1", lock=False).chmod(0o111)
        facts = source_on(writer, folder).read(0.0)

        assert (["run-1"], 0) == (names(facts), facts.unreadable)


def test_an_unreadable_draft_of_another_user_stops_nobody(folder):
    """
    Whoever may write to the shared store could leave one there.
    """
    book = AllocationStore(folder / "book")
    with book.locked():
        (book.home / ".draft-run-1").mkdir(mode=0o111)

    assert [] == counted(book)
    assert (book.home / ".draft-run-1").is_dir()
