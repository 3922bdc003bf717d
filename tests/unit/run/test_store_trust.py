# SPDX-License-Identifier: Apache-2.0
"""A store that several users share: what stops everybody, what is left alone, who may write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_holds import counted, entry, hold
from support.waiting import PATIENCE_SECONDS

from isolation.run.store import AllocationStore, StoreError


@pytest.fixture
def store(tmp_path):
    """A store nobody has written in."""
    return AllocationStore(tmp_path / "store")


def test_an_older_store_still_counts_and_is_left_alone(tmp_path):
    """
    Holds made before there was a common store keep their room; who owns that store sweeps it.
    """
    older = AllocationStore(tmp_path / "older")
    with older.locked():
        draft = older.draft("run-1")
        older.publish(draft, entry())
    store = AllocationStore(tmp_path / "store", (older.home,))
    during = counted(store)
    os.close(draft.lock)
    assert (["run-1"], [], True) == (during, counted(store), (older.home / "run-1").is_dir())


@pytest.mark.parametrize("spoil", ["link", "pipe", "folder", "missing", "huge", "other", "bytes"])
def test_what_cannot_be_believed_stops_everybody(store, tmp_path, spoil):
    """
    A hold that is no regular file, not its own, or too large is an error that names it; nobody waits on a
    pipe and nothing is reset.
    """
    path = hold(store).folder / "promise.json"
    text = path.read_text()
    path.unlink()
    if spoil == "link":
        (tmp_path / "elsewhere").write_text(text)
        path.symlink_to(tmp_path / "elsewhere")
    elif spoil == "pipe":
        os.mkfifo(path)
    elif spoil == "folder":
        path.mkdir()
    elif spoil != "missing":
        path.write_bytes(
            {"huge": b" " * (1 << 21), "other": text.replace("run-1", "run-2").encode(), "bytes": b"\xff"}[spoil]
        )
    with pytest.raises(StoreError, match=r"promise\.json.*remove"):
        counted(store)
    assert path.parent.is_dir()


def test_a_new_store_is_everybodys_and_sticky(store):
    """
    Whatever the umask: other users write beside us, and remove nothing of ours.
    """
    before = os.umask(0o077)
    try:
        assert [] == counted(store)
    finally:
        os.umask(before)
    assert 0o1777 == stat.S_IMODE(store.home.stat().st_mode)


def counted_by_nobody(store):
    """What the user `nobody` counts, printed; a process of theirs, with our imports since it may not read our files."""
    code = f"""
import os, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from support.run_holds import counted
from isolation.run.store import AllocationStore
os.setgid(65534)
os.setuid(65534)
print(counted(AllocationStore(Path({str(store.home)!r}))))
"""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    ).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_two_users_share_one_store(tmp_path):
    """
    Each counts the other's holds; what is left of the other's dead one may stay and counts for nothing.
    """
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path.name.startswith(("test", "pytest", "popen")):
            path.chmod(0o755)
    store = AllocationStore(tmp_path / "store")
    with store.locked():
        draft = store.draft("run-root")
        store.publish(draft, entry("run-root"))

    lived = counted_by_nobody(store)
    os.close(draft.lock)
    gone = counted_by_nobody(store)
    stayed = (store.home / "run-root").is_dir()
    assert ("['run-root']\n", "[]\n", True, []) == (lived, gone, stayed, counted(store))
    assert [] == list(store.home.iterdir())


@pytest.mark.parametrize("kind", ["file", "foreign"])
def test_a_store_elsewhere_is_asked_for_where_this_one_cannot_be_used(tmp_path, kind):
    """
    Not a folder, or somebody's who could remove our holds.
    """
    home = tmp_path / "store"
    if kind == "file":
        home.write_text("")
    else:
        home.mkdir()
        if os.geteuid() != 0:
            pytest.skip("needs to give a folder away")
        os.chown(home, 65534, 65534)
    with pytest.raises(StoreError, match="--state-dir"):
        counted(AllocationStore(home))


def test_a_folder_that_is_no_store_is_left_alone(tmp_path):
    """Somebody's own folders are no holds to be removed: the message says that another one is to be chosen."""
    (tmp_path / "photos").mkdir()
    store = AllocationStore(tmp_path)
    with pytest.raises(StoreError, match="holds other files") as caught, store.locked():
        store.list_living()
    assert "remove" not in str(caught.value)
