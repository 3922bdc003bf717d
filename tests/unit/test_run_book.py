"""
The book of holds on disk: what counts, what is swept away, what stops everybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isolation.contract.abi import LOCK_OFFSET, REGION_BYTES
from isolation.contract.hold import Hold, Process
from isolation.contract.model import Slice
from isolation.contract.quantity import gib
from isolation.host import cgroup, evidence, process
from isolation.run.book import Book, BookError

BOOT = process.boot()


def entry(ident="run-1", **more):
    """A hold of 5 GiB on one card, of this boot."""
    given = {
        "id": ident,
        "name": "n",
        "boot": BOOT,
        "created": 1.0,
        "uid": os.geteuid(),
        "runner": Process(1, 1),
        "command": ("true",),
        "slices": (Slice("GPU-0", 0, gib(5)),),
        "policy": "fixed",
    }
    return Hold(**(given | more))


@pytest.fixture
def book(tmp_path):
    """A book nobody has written in."""
    return Book(tmp_path / "book")


def hold(book, **more):
    """Publish a hold and let its lock go: nobody lives on it."""
    with book.deciding():
        one = entry(**more)
        draft = book.draft(one.id)
        held = book.publish(draft, one)
    os.close(draft.lock)
    return held


def counted(book):
    """Ids that count."""
    with book.deciding():
        return [held.entry.id for held in book.holds()]


@contextlib.contextmanager
def running(*command, **more):
    """A process for the length of a block."""
    one = subprocess.Popen(command, stdin=subprocess.DEVNULL, **more)
    try:
        yield one
    finally:
        one.kill()
        one.wait()


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
    with running("sleep", "30", pass_fds=[draft.lock]):
        os.close(draft.lock)
        assert ["run-1"] == counted(book)
    assert [] == counted(book)


def test_a_noted_member_keeps_the_hold_and_a_reused_pid_does_not(book):
    """
    Pid and start time together: the same pid at another time is a stranger.
    """
    held = hold(book)
    with running("sleep", "30") as child:
        member = process.identify(child.pid)
        evidence.write_members(held.folder, [Process(member.pid, member.start)])
        assert ["run-1"] == counted(book)
        evidence.write_members(held.folder, [Process(member.pid, member.start + 1)])
        assert [] == counted(book)


def test_the_mark_in_an_environment_keeps_the_hold(book):
    """
    A process that left everything else behind still has the promise id in its environment.
    """
    ident = f"run-mark-{os.getpid()}"
    hold(book, id=ident)
    with running("sleep", "30", env={"GPUSHARE_PROMISE": ident}) as child:
        while process.marked(f"GPUSHARE_PROMISE={ident}".encode(), os.geteuid()) is False:
            time.sleep(0.01)
        assert ([ident], None) == (counted(book), child.poll())
    assert [] == counted(book)


def test_a_process_of_another_promise_with_a_longer_name_keeps_nothing(book):
    """
    The mark is a whole word: `run-10` is not `run-1`.
    """
    hold(book)
    with running("sleep", "30", env={**os.environ, evidence.MARK: "run-10"}):
        assert [] == counted(book)


def test_a_zombie_keeps_nothing(book):
    """
    It holds no memory; its parent may never ask for it.
    """
    held = hold(book)
    with running("true") as child:
        evidence.write_members(held.folder, [process.identify(child.pid)])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [] == counted(book)


def test_a_locked_slot_of_the_region_keeps_the_hold(book):
    """
    Every process with a CUDA context through the library locks its slot, whatever else it closes.
    """
    held = hold(book)
    region = held.folder / "region"
    with region.open("wb") as file:
        file.truncate(REGION_BYTES)
    fd = os.open(region, os.O_RDWR)
    fcntl.fcntl(fd, 37, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, LOCK_OFFSET + 1023, 1, 0))  # F_OFD_SETLK
    assert ["run-1"] == counted(book)
    os.close(fd)
    assert [] == counted(book)


def test_a_populated_control_group_keeps_the_hold(book):
    """
    Nobody leaves it by anything a program does to itself.
    """
    group = cgroup.create(f"test-{os.getpid()}")
    if group is None:
        pytest.skip("no control group may be made here")
    held = hold(book, cgroup=str(group))
    (held.folder / "group").write_text(str(group))
    with running("sleep", "30") as child:
        (group / "cgroup.procs").write_text(str(child.pid))
        assert (["run-1"], (child.pid,)) == (counted(book), cgroup.pids(group))
    assert ([], False) == (counted(book), group.exists())


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
    with running("sleep", "30") as child:
        evidence.write_members(held.folder, [process.identify(child.pid)])
        assert (False, True) == (book.end(held), held.folder.is_dir())
    assert (True, False) == (book.end(held), held.folder.exists())


def test_an_older_book_still_counts_and_is_left_alone(tmp_path):
    """
    Holds made before there was a common book keep their room; who owns that book sweeps it.
    """
    older = Book(tmp_path / "older")
    with older.deciding():
        draft = older.draft("run-1")
        older.publish(draft, entry())
    book = Book(tmp_path / "book", (older.home,))
    during = counted(book)
    os.close(draft.lock)
    assert (["run-1"], [], True) == (during, counted(book), (older.home / "run-1").is_dir())


@pytest.mark.parametrize("spoil", ["link", "pipe", "folder", "missing", "huge", "other", "bytes"])
def test_what_cannot_be_believed_stops_everybody(book, tmp_path, spoil):
    """
    A hold that is no regular file, not its own, or too large is an error that names it; nobody waits on a
    pipe and nothing is reset.
    """
    path = hold(book).folder / "hold.json"
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
    with pytest.raises(BookError, match=r"hold\.json.*remove"):
        counted(book)
    assert path.parent.is_dir()


def test_one_decides_at_a_time(book):
    """
    Between looking and writing nobody else looks.
    """
    with book.deciding():
        other = decider(book)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.7)
    assert str(book.home.stat().st_ino) == other.communicate(timeout=20)[0]


def decider(book):
    """Another process that decides once, and tells the inode of the book it locked."""
    script = (
        "import sys; from pathlib import Path; from isolation.run.book import Book\n"
        "book = Book(Path(sys.argv[1]))\n"
        "with book.deciding(): print(book.home.stat().st_ino, end='')"
    )
    words = [sys.executable, "-c", script, str(book.home)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2])


def test_a_book_that_was_replaced_while_waiting_is_opened_again(book):
    """
    The lock of a folder that is no longer the book decides nothing.
    """
    with book.deciding():
        other = decider(book)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.7)
        book.home.rename(book.home.with_name("old"))
        book.home.mkdir()
        fresh = book.home.stat().st_ino
        with book.deciding(), pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
    assert str(fresh) == other.communicate(timeout=20)[0]


def test_a_new_book_is_everybodys_and_sticky(book):
    """
    Whatever the umask: other users write beside us, and remove nothing of ours.
    """
    before = os.umask(0o077)
    try:
        assert [] == counted(book)
    finally:
        os.umask(before)
    assert 0o1777 == stat.S_IMODE(book.home.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_two_users_share_one_book(tmp_path):
    """
    Each counts the other's holds; what is left of the other's dead one may stay and counts for nothing.
    """
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path.name.startswith(("test", "pytest", "popen")):
            path.chmod(0o755)
    book = Book(tmp_path / "book")
    with book.deciding():
        draft = book.draft("run-root")
        book.publish(draft, entry("run-root"))

    def as_nobody(act):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = 99
        try:
            os.setgid(65534)
            os.setuid(65534)
            code = act()
        finally:
            os._exit(code)

    lived = as_nobody(lambda: int(counted(book) != ["run-root"]))
    os.close(draft.lock)
    gone = as_nobody(lambda: int(counted(book) != []))
    stayed = (book.home / "run-root").is_dir()
    assert (0, 0, True, []) == (lived, gone, stayed, counted(book))
    assert [] == list(book.home.iterdir())


@pytest.mark.parametrize("kind", ["file", "foreign"])
def test_a_book_elsewhere_is_asked_for_where_this_one_cannot_be_used(tmp_path, kind):
    """
    Not a folder, or somebody's who could remove our holds.
    """
    home = tmp_path / "book"
    if kind == "file":
        home.write_text("")
    else:
        home.mkdir()
        if os.geteuid() != 0:
            pytest.skip("needs to give a folder away")
        os.chown(home, 65534, 65534)
    with pytest.raises(BookError, match="--book"):
        counted(Book(home))


def test_descendants_are_found_through_every_generation(tmp_path):
    """
    Also those in a session of their own; zombies are left out.
    """
    script = f"setsid sleep 30 & echo $! > {tmp_path}/pid; wait"
    with running("sh", "-c", script) as child:
        note = tmp_path / "pid"
        while not (found := process.descendants(child.pid)) or not note.exists() or not note.read_text():
            time.sleep(0.01)
        sleeper = int(note.read_text())
        assert sleeper in {one.pid for one in process.descendants(child.pid)}
        assert found[0] in process.descendants(os.getpid())
        os.kill(sleeper, signal.SIGKILL)


def test_a_name_with_spaces_and_parentheses_is_read():
    """
    The process chooses it; the last parenthesis ends it.
    """
    text = "7 (a) S 1) (b) R 12 " + " ".join(str(n) for n in range(5, 22)) + " 4711 0"
    assert (False, 12, 4711) == process.parse_stat(text)


def test_a_process_whose_first_thread_has_ended_lives():
    """Its state says zombie; the thread that goes on keeps the hold. Without one it is gone."""
    code = "import threading,time,ctypes;threading.Thread(target=time.sleep,args=(30,)).start();"
    with running(sys.executable, "-c", f"{code}ctypes.CDLL(None).pthread_exit(None)") as child:
        status = Path(f"/proc/{child.pid}/status")
        while "zombie" not in status.read_text():
            time.sleep(0.01)
        headless = process.identify(child.pid)
        assert process.alive(headless)
        child.kill()
        child.wait()
        assert not process.alive(headless)


def test_where_the_unified_hierarchy_is():
    """
    Mounted alone, or beside the old ones.
    """
    proc = "24 1 0:22 / /proc rw - proc proc rw\n"
    mounts = f"{proc}30 24 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"
    assert (Path("/sys/fs/cgroup/unified"), None) == (cgroup.root_of(mounts), cgroup.root_of(proc))
    assert ("user.slice/x", None) == (cgroup.own_of("4:memory:/a\n0::/user.slice/x\n"), cgroup.own_of("4:memory:/a\n"))


def test_a_folder_that_is_no_book_is_left_alone(tmp_path):
    """Somebody's own folders are no holds to be removed: the message says that another one is to be chosen."""
    (tmp_path / "photos").mkdir()
    book = Book(tmp_path)
    with pytest.raises(BookError, match="no book") as caught, book.deciding():
        book.holds()
    assert "remove" not in str(caught.value)
