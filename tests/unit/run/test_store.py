# SPDX-License-Identifier: Apache-2.0
"""The store of holds on disk: what counts, what is swept away, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_holds import counted, entry, hold, running
from support.waiting import PATIENCE_SECONDS, until

from isolation.host import cgroup, liveness, process
from isolation.run.store import AllocationStore


@pytest.fixture
def store(tmp_path):
    """A store nobody has written in."""
    return AllocationStore(tmp_path / "store")


def test_a_hold_counts_from_its_publication_while_its_lock_is_held(store):
    """
    A draft counts for nobody; a hold for everybody, until the last who inherited its lock lets it go.
    """
    with store.locked():
        draft = store.draft("run-1")
        before = store.list_living()
        held = store.publish(draft, entry())
        during = store.list_living()
    os.close(draft.lock)
    assert ((), (held,), []) == (before, during, counted(store))
    assert [] == list(store.home.iterdir())


def test_a_draft_that_was_not_finished_is_swept_away(store):
    """
    Whoever decides next finds it and knows that nobody works on it.
    """
    with store.locked():
        os.close(store.draft("run-1").lock)
    assert ([], []) == (counted(store), list(store.home.iterdir()))


def test_the_lock_lives_in_whoever_inherited_it(store):
    """
    A child that keeps the descriptor keeps the hold, also when we are through with it.
    """
    with store.locked():
        draft = store.draft("run-1")
        store.publish(draft, entry())
    with running("sleep", "3600", pass_fds=[draft.lock]):
        os.close(draft.lock)
        assert ["run-1"] == counted(store)
    assert [] == counted(store)


def test_a_group_noted_in_an_unfinished_draft_is_removed(store):
    """
    Whoever was killed between making the group and publishing the hold left a note of it first.
    """
    with store.locked():
        draft = store.draft("run-1")
        group = cgroup.create(f"test-draft-{os.getpid()}", draft.folder / "group")
        os.close(draft.lock)
        store.list_living()
    assert (False, []) == (group is not None and group.exists(), list(store.home.iterdir()))


@pytest.mark.parametrize("name", ["gpushare-x", "../gpushare-x", "gpushare-x/.."])
def test_nothing_but_control_groups_is_ever_removed_as_one(tmp_path, name):
    """
    Whatever a note says, folders elsewhere stay.
    """
    (tmp_path / "a" / "gpushare-x" / "below").mkdir(parents=True)
    cgroup.drop(tmp_path / "a" / name)
    assert (tmp_path / "a" / "gpushare-x" / "below").is_dir()


def test_holds_of_another_boot_are_gone(store):
    """
    Whatever their lock says: nothing outlives a boot.
    """
    with store.locked():
        draft = store.draft("run-1")
        store.publish(draft, entry(boot="earlier"))
        assert () == store.list_living()
    os.close(draft.lock)


def test_holds_come_oldest_first_with_ties_by_id(store):
    """
    One order for every reader.
    """
    fds = []
    with store.locked():
        for ident, created in (("run-c", 2.0), ("run-b", 2.0), ("run-a", 3.0), ("run-d", 1.0)):
            draft = store.draft(ident)
            store.publish(draft, entry(ident, created=created))
            fds.append(draft.lock)
        found = [held.entry.id for held in store.list_living()]
    for fd in fds:
        os.close(fd)
    assert ["run-d", "run-b", "run-c", "run-a"] == found


def test_a_hold_ends_only_when_nobody_lives_on_it(store):
    """
    Whoever believes to be the last is told otherwise.
    """
    held = hold(store)
    with running("sleep", "3600") as child:
        liveness.write_members(held.folder, [process.identify(child.pid)])
        assert (False, True) == (store.release(held), held.folder.is_dir())
    assert (True, False) == (store.release(held), held.folder.exists())


def test_one_decides_at_a_time(store):
    """
    Between looking and writing nobody else looks.
    """
    with store.locked():
        other = decider(store)
        until(lambda: waits(other), other.poll)
    assert str(store.home.stat().st_ino) == other.communicate(timeout=PATIENCE_SECONDS)[0]


def decider(store):
    """Another process that decides once, and tells the inode of the store it locked."""
    script = (
        "import sys; from pathlib import Path; from isolation.run.store import AllocationStore\n"
        "store = AllocationStore(Path(sys.argv[1]))\n"
        "with store.locked(): print(store.home.stat().st_ino, end='')"
    )
    words = [sys.executable, "-c", script, str(store.home)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[3])


def waits(other):
    """Whether it waits for a lock, as the kernel says."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any((words[1], words[5]) == ("->", str(other.pid)) for words in lines)


def test_a_store_that_was_replaced_while_waiting_is_opened_again(store):
    """
    The lock of a folder that is no longer the store decides nothing.
    """
    with store.locked():
        other = decider(store)
        until(lambda: waits(other), other.poll)
        store.home.rename(store.home.with_name("old"))
        store.home.mkdir()
        fresh = store.home.stat().st_ino
        with store.locked():
            assert waits(other)
    assert str(fresh) == other.communicate(timeout=PATIENCE_SECONDS)[0]
