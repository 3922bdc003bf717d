# SPDX-License-Identifier: Apache-2.0
"""The book of holds on disk: what counts, what is swept away, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_holds import counted, entry, hold, running
from support.waiting import PATIENCE_SECONDS, until

from isolation.host import cgroup, liveness, process
from isolation.run.store import Book


@pytest.fixture
def book(tmp_path):
    """A book nobody has written in."""
    return Book(tmp_path / "book")


def test_a_hold_counts_from_its_publication_while_its_lock_is_held(book):
    """
    A draft counts for nobody; a hold for everybody, until the last who inherited its lock lets it go.
    """
    with book.deciding():
        draft = book.draft("run-1")
        before = book.holds()
        held = book.publish(draft, entry())
        during = book.holds()
    os.close(draft.lock)
    assert ((), (held,), []) == (before, during, counted(book))
    assert [] == list(book.home.iterdir())


def test_a_draft_that_was_not_finished_is_swept_away(book):
    """
    Whoever decides next finds it and knows that nobody works on it.
    """
    with book.deciding():
        os.close(book.draft("run-1").lock)
    assert ([], []) == (counted(book), list(book.home.iterdir()))


def test_the_lock_lives_in_whoever_inherited_it(book):
    """
    A child that keeps the descriptor keeps the hold, also when we are through with it.
    """
    with book.deciding():
        draft = book.draft("run-1")
        book.publish(draft, entry())
    with running("sleep", "3600", pass_fds=[draft.lock]):
        os.close(draft.lock)
        assert ["run-1"] == counted(book)
    assert [] == counted(book)


def test_a_group_noted_in_an_unfinished_draft_is_removed(book):
    """
    Whoever was killed between making the group and publishing the hold left a note of it first.
    """
    with book.deciding():
        draft = book.draft("run-1")
        group = cgroup.create(f"test-draft-{os.getpid()}", draft.folder / "group")
        os.close(draft.lock)
        book.holds()
    assert (False, []) == (group is not None and group.exists(), list(book.home.iterdir()))


@pytest.mark.parametrize("name", ["gpushare-x", "../gpushare-x", "gpushare-x/.."])
def test_nothing_but_control_groups_is_ever_removed_as_one(tmp_path, name):
    """
    Whatever a note says, folders elsewhere stay.
    """
    (tmp_path / "a" / "gpushare-x" / "below").mkdir(parents=True)
    cgroup.drop(tmp_path / "a" / name)
    assert (tmp_path / "a" / "gpushare-x" / "below").is_dir()


def test_holds_of_another_boot_are_gone(book):
    """
    Whatever their lock says: nothing outlives a boot.
    """
    with book.deciding():
        draft = book.draft("run-1")
        book.publish(draft, entry(boot="earlier"))
        assert () == book.holds()
    os.close(draft.lock)


def test_holds_come_oldest_first_with_ties_by_id(book):
    """
    One order for every reader.
    """
    fds = []
    with book.deciding():
        for ident, created in (("run-c", 2.0), ("run-b", 2.0), ("run-a", 3.0), ("run-d", 1.0)):
            draft = book.draft(ident)
            book.publish(draft, entry(ident, created=created))
            fds.append(draft.lock)
        found = [held.entry.id for held in book.holds()]
    for fd in fds:
        os.close(fd)
    assert ["run-d", "run-b", "run-c", "run-a"] == found


def test_a_hold_ends_only_when_nobody_lives_on_it(book):
    """
    Whoever believes to be the last is told otherwise.
    """
    held = hold(book)
    with running("sleep", "3600") as child:
        liveness.write_members(held.folder, [process.identify(child.pid)])
        assert (False, True) == (book.end(held), held.folder.is_dir())
    assert (True, False) == (book.end(held), held.folder.exists())


def test_one_decides_at_a_time(book):
    """
    Between looking and writing nobody else looks.
    """
    with book.deciding():
        other = decider(book)
        until(lambda: waits(other), other.poll)
    assert str(book.home.stat().st_ino) == other.communicate(timeout=PATIENCE_SECONDS)[0]


def decider(book):
    """Another process that decides once, and tells the inode of the book it locked."""
    script = (
        "import sys; from pathlib import Path; from isolation.run.store import Book\n"
        "book = Book(Path(sys.argv[1]))\n"
        "with book.deciding(): print(book.home.stat().st_ino, end='')"
    )
    words = [sys.executable, "-c", script, str(book.home)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[3])


def waits(other):
    """Whether it waits for a lock, as the kernel says."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any((words[1], words[5]) == ("->", str(other.pid)) for words in lines)


def test_a_book_that_was_replaced_while_waiting_is_opened_again(book):
    """
    The lock of a folder that is no longer the book decides nothing.
    """
    with book.deciding():
        other = decider(book)
        until(lambda: waits(other), other.poll)
        book.home.rename(book.home.with_name("old"))
        book.home.mkdir()
        fresh = book.home.stat().st_ino
        with book.deciding():
            assert waits(other)
    assert str(fresh) == other.communicate(timeout=PATIENCE_SECONDS)[0]
