"""
Promises as they stand on disk: whose word is believed, who lives, what changes, and what none of them can do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys

import pytest
from hold_writer import BOOT, CARD, HoldWriter, settle, touch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.sources import evidence, processes, promises
from exporter.sources.errors import SourceError
from exporter.sources.promises import PromiseSource, usual_books
from isolation.contract import abi
from isolation.contract.hold import Process, Tenant, dump
from isolation.contract.model import Slice
from isolation.lib import files

TENANT = Tenant("ml", "train-0", "1140914f-bf25-4cf5-a28a-2853bcd66768", "main")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def writer(tmp_path):
    """Whoever writes promises."""
    made = HoldWriter(tmp_path)
    yield made
    made.close()


@pytest.fixture
def source(writer, tmp_path):
    """The source on them."""
    return PromiseSource([writer.book, tmp_path / "other-book"], writer.run_dir, writer.proc, tmp_path / "cgroup")


def names(facts):
    """Promise ids, in the order told."""
    return [one.hold.id for one in facts.holds]


def test_a_run_is_told_with_its_members_and_its_region(writer, source):
    """
    Everything that its runner, its keeper and its library wrote.
    """
    folder = writer.run("run-1", members=[(41, 100), (42, 200)])
    touch(folder / "region", slots=[(41, 100)], used=1 << 30)

    one = source.read(0.0).holds[0]

    assert (writer.hold("run-1", command=()), (41, 42), (Process(41, 100), Process(42, 200))) == (
        one.hold,
        one.pids,
        one.members,
    )
    assert (1, "") == (one.limits_generation, one.limits_error)
    reading = one.region.reading
    assert [(41, 100)] == [(slot.pid, slot.start_ticks) for slot in reading.slots]
    assert [(CARD, 1 << 30)] == [(card.uuid, card.used_bytes) for card in reading.cards]


def test_an_agents_promise_names_its_container(writer, source):
    """
    And says that an agent keeps the node; its folder is called by device IDs, not by promise.
    """
    folder = writer.agent("0a1b", "promise-1", tenant=TENANT)
    touch(folder / "region/region", slots=[(7, 100)])
    facts = source.read(0.0)
    assert (["promise-1"], True, 0) == (names(facts), facts.agent, facts.unreadable)
    assert (TENANT, 1, (), "") == (
        facts.holds[0].hold.tenant,
        len(facts.holds[0].region.reading.slots),
        facts.holds[0].pids,
        facts.holds[0].limits_error,
    )


def test_a_machine_without_promises_has_none(source, writer):
    """
    No book and no agent is an empty answer, not a failure; an agent without pods is an agent.
    """
    facts = source.read(0.0)
    assert ((), False, 0) == (facts.holds, facts.agent, facts.unreadable)
    (writer.run_dir / "alloc").mkdir(parents=True)
    assert source.read(1.0).agent


def test_nothing_enforced_has_no_region(writer, source):
    """
    Policy none: there is nothing to be read, and nothing amiss.
    """
    writer.run("run-1", policy="none")
    one = source.read(0.0).holds[0]
    assert (None, "", None) == (one.region, one.limits_error, one.limits_generation)


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
    Of a process of the same user outside containers; every process's environment is dear.
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
    assert ["run-41"] == names(source.read(100.0 + evidence.MARKS_SECONDS / 2))
    assert [] == names(source.read(100.0 + evidence.MARKS_SECONDS))


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


def test_without_proc_it_cannot_be_told(writer, source):
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


@root_only
def test_nobody_speaks_for_another_user(writer, source):
    """
    In a common book an entry counts if its file is its user's own, or root's.
    """
    for ident, uid, owner in (("run-1", 1000, 1000), ("run-2", 1000, 1001), ("run-3", 1000, 0), ("run-4", 0, 1000)):
        folder = writer.run(ident, uid=uid)
        os.chown(folder / "hold.json", owner, owner)
    facts = source.read(0.0)
    assert (["run-1", "run-3"], 2) == (names(facts), facts.unreadable)


@root_only
def test_an_agents_folder_is_believed_from_root_only(writer, source):
    """
    Whoever else could write there.
    """
    os.chown(writer.agent("0a1b", "promise-1", tenant=TENANT) / "hold.json", 1000, 1000)
    facts = source.read(0.0)
    assert ([], 1) == (names(facts), facts.unreadable)


def test_one_id_is_one_promise(writer, source, tmp_path):
    """
    A later entry with somebody's id, in another book, changes nothing; the agent's comes before any.
    """
    writer.run("run-1", name="first")
    writer.run("promise-1")
    writer.agent("0a1b", "promise-1", tenant=TENANT)
    settle()
    writer.run("run-1", name="second", book=tmp_path / "other-book")
    assert "first" == source.read(0.0).holds[1].hold.name, "also while the later one is new"
    settle()
    facts = source.read(0.0)
    assert (["promise-1", "run-1"], 2) == (names(facts), facts.unreadable)
    assert ("first", TENANT) == (facts.holds[1].hold.name, facts.holds[0].hold.tenant)


def test_an_entry_under_another_name_is_none(writer, source):
    """
    The folder's name is the id: a copy of somebody's entry is not a second promise.
    """
    folder = writer.run("run-1")
    folder.rename(folder.with_name("run-2"))
    facts = source.read(0.0)
    assert ([], 1) == (names(facts), facts.unreadable)


def test_a_run_cannot_pass_for_a_pod_nor_a_pod_for_a_run(writer, source):
    """
    Who may name a container is the agent.
    """
    writer.run("run-1", tenant=TENANT)
    folder = writer.agent("0a1b", "promise-1", tenant=TENANT)
    (folder / "hold.json").write_text(dump(writer.hold("promise-1")))
    facts = source.read(0.0)
    assert ([], 2) == (names(facts), facts.unreadable)


@pytest.mark.parametrize("text", ["", "{}", "null", "\x00", "[" * 100_000, '{"format": 2}', "9" * (1 << 20)])
def test_an_entry_that_is_none_is_counted_and_harms_nobody(writer, source, text):
    """
    Cut short, foreign, of another version, or far too large.
    """
    writer.run("run-1")
    (writer.run("run-2") / "hold.json").write_text(text)
    facts = source.read(0.0)
    assert (["run-1"], 1) == (names(facts), facts.unreadable)


def test_an_entry_takes_no_more_memory_than_a_promise(writer, source):
    """
    Names are cut, commands dropped, and a promise of thousands of cards is none.
    """
    writer.run("run-1", policy="none", name="n" * 5000, owner="o" * 5000, command=("c" * 500_000,))
    cards = tuple(Slice(f"GPU-{at}", at, 1) for at in range(promises.MOST_SLICES + 1))
    writer.run("run-2", policy="none", slices=cards)
    facts = source.read(0.0)
    assert (["run-1"], 1) == (names(facts), facts.unreadable)
    hold = facts.holds[0].hold
    assert (253, 253, ()) == (len(hold.name), len(hold.owner), hold.command)


def test_a_flood_of_entries_ends_somewhere(writer, source, monkeypatch):
    """
    What is beyond is said to be unreadable.
    """
    monkeypatch.setattr(promises, "MOST_HOLDS", 2)
    for at in range(5):
        writer.run(f"run-{at}", policy="none")
    facts = source.read(0.0)
    assert (2, 3) == (len(facts.holds), facts.unreadable)


def test_strange_things_in_a_book_are_passed_by(writer, source):
    """
    Files, links, pipes, drafts, folders that are being made, and entries that are no files.
    """
    writer.run("run-1")
    (writer.book / "file").touch()
    writer.run("run-9").rename(writer.book / ".draft-run-9")
    (writer.book / "empty").mkdir()
    (writer.book / "link").symlink_to(writer.book / "run-1")
    os.mkfifo(writer.book / "pipe")
    for ident in ("run-2", "run-3", "run-4"):
        (writer.run(ident) / "hold.json").unlink()
    os.mkfifo(writer.book / "run-2/hold.json")
    (writer.book / "run-3/hold.json").symlink_to(writer.book / "run-1/hold.json")
    (writer.book / "run-4/hold.json").mkdir()
    facts = source.read(0.0)
    assert (["run-1"], 3) == (names(facts), facts.unreadable)


def test_a_changed_entry_is_read_again_and_an_unchanged_one_is_not(writer, source, monkeypatch):
    """
    By inode, size and the times that the kernel keeps; a fresh file may change again under the same time.
    """
    folder = writer.run("run-1", name="before")
    source.read(0.0)
    (folder / "hold.json").write_text(dump(writer.hold("run-1", name="behind")))
    assert "behind" == source.read(1.0).holds[0].hold.name
    settle()
    source.read(2.0)
    monkeypatch.setattr(promises, "load", lambda _: pytest.fail("read again"))
    monkeypatch.setattr(abi, "unpack_limits", lambda _: pytest.fail("read again"))
    one = source.read(3.0).holds[0]
    assert ("behind", 1) == (one.hold.name, one.limits_generation)


def test_a_file_just_written_has_no_stamp(tmp_path):
    """
    It may be written again within the same tick of the kernel's clock.
    """
    (tmp_path / "file").write_text("x")
    assert promises._stamp(str(tmp_path / "file")) is None
    settle()
    assert promises._stamp(str(tmp_path / "file")) is not None


def test_members_follow_the_keeper(writer, source):
    """
    The list is replaced as a whole; one that is none is empty.
    """
    folder = writer.run("run-1", members=[(41, 100)])
    assert (41,) == source.read(0.0).holds[0].pids
    draft = folder / ".members"
    draft.write_text("41 100\n42 200\n")
    draft.replace(folder / "members")
    assert (41, 42) == source.read(1.0).holds[0].pids
    for garbage in ("x y\n", "1\n", "1 2 3\n", "é 1\n", "1 1\n" * promises.MEMBER_BYTES):
        (folder / "members").write_text(garbage)
        assert () == source.read(2.0).holds[0].pids
    (folder / "members").unlink()
    assert () == source.read(3.0).holds[0].pids
    (folder / "members").write_text("".join(f"{pid} 1\n" for pid in range(promises.MOST_MEMBERS * 2)))
    assert promises.MOST_MEMBERS == len(source.read(4.0).holds[0].pids)


def test_limits_are_compared_with_the_promise(writer, source):
    """
    A generation that says something else, one for somebody else, one that is torn, and none at all.
    """
    folder = writer.run("run-1")
    limit = abi.CardLimit(CARD, 5 << 30, 0, 300_000)

    def told(limits):
        files.write_limits(folder / "limits", limits)
        one = source.read(0.0).holds[0]
        return one.limits_generation, one.limits_error

    assert (2, "") == told(abi.Limits(2, "run-1", (limit,)))
    assert (3, "limits: other amounts than were promised") == told(
        abi.Limits(3, "run-1", (abi.CardLimit(CARD, 50 << 30, 0, 300_000),))
    )
    assert (4, "limits: other amounts than were promised") == told(abi.Limits(4, "run-1", ()))
    assert (5, "limits: for promise 'run-2'") == told(abi.Limits(5, "run-2", (limit,)))
    with (folder / "limits").open("r+b") as file:
        file.seek(16)
        file.write(b"\x01")
    one = source.read(0.0).holds[0]
    assert (None, "limits: being rewritten, or torn") == (one.limits_generation, one.limits_error)
    (folder / "limits").unlink()
    assert "No such file or directory" == source.read(0.0).holds[0].limits_error


def test_a_card_without_a_uuid_is_not_compared(writer, source):
    """
    What cannot be told is no breach.
    """
    folder = writer.run("run-1", policy="none", slices=(Slice("lost-0", 0, 1 << 30),))
    files.write_limits(folder / "limits", abi.Limits(1, "run-1", ()))
    (folder / "hold.json").write_text(dump(writer.hold("run-1", slices=(Slice("lost-0", 0, 1 << 30),))))
    assert "" == source.read(0.0).holds[0].limits_error


def test_a_missing_region_of_an_enforced_promise_is_an_error_of_its_own(writer, source):
    """
    The promise stands; what its library says is missing.
    """
    (writer.run("run-1") / "region").unlink()
    one = source.read(0.0).holds[0]
    assert (None, "No such file or directory") == (one.region.reading, one.region.error)


def test_the_books_are_those_of_the_machine_or_the_one_that_was_chosen(tmp_path):
    """
    Simulated cards have theirs beside the hardware file.
    """
    assert (promises.COMMON_BOOK, promises.ANYBODYS_BOOK) == usual_books()
    assert (tmp_path / "hw.book",) == usual_books(tmp_path / "hw")
    assert (tmp_path / "x",) == usual_books(tmp_path / "hw", tmp_path / "x")


def test_many_come_and_go_and_nothing_of_them_stays(writer, source):
    """
    Neither entries nor regions are remembered.
    """
    for turn in range(30):
        writer.release(writer.run(f"run-{turn}"))
        source.read(float(turn))
        for path in (writer.book / f"run-{turn}").iterdir():
            path.unlink()
        (writer.book / f"run-{turn}").rmdir()
    source.read(99.0)
    assert ({}, {}) == (source._entries, source._regions._known)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(st.binary(max_size=400), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))),
    st.booleans(),
)
def test_whatever_stands_in_a_book_is_a_promise_or_none(tmp_path_factory, raw, spliced):
    """
    Random bytes, alone or in the middle of an entry, in every file that a user of the book can write.
    """
    writer = HoldWriter(tmp_path_factory.mktemp("fuzz"))
    folder = writer.run("run-1")
    whole = (folder / "hold.json").read_bytes()
    (folder / "hold.json").write_bytes(whole[:90] + raw + whole[90 + len(raw) :] if spliced else raw)
    for name in ("members", "limits"):
        (folder / name).write_bytes(raw)
    writer.run("run-2")
    source = PromiseSource([writer.book], writer.run_dir, writer.proc, writer.root / "cgroup")
    for turn in range(2):
        facts = source.read(float(turn))
        assert "run-2" in names(facts)
        assert 2 == len(facts.holds) + facts.unreadable + ("run-1" not in names(facts) and not facts.unreadable)
    writer.close()


@given(st.binary(max_size=300))
def test_whatever_proc_says_is_a_process_or_an_error_of_one_kind(raw):
    """
    A kernel of another make must not end in anything but "cannot tell".
    """
    for parse in (processes.parse_stat, processes.parse_status):
        with contextlib.suppress(ValueError):
            parse(raw)
