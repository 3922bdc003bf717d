# SPDX-License-Identifier: Apache-2.0
"""Whose word is believed: a book that others write in, whatever stands there."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.hold_writer import HoldWriter, settle
from support.promises_written import TENANT, names, source_on

from exporter.sources import promises
from exporter.sources.promises import PromiseSource
from isolation.contract.host_allocation import dump
from isolation.contract.model import Slice
from isolation.host import process

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def writer(tmp_path):
    """Whoever writes promises."""
    with contextlib.closing(HoldWriter(tmp_path)) as made:
        yield made


@pytest.fixture
def source(writer, tmp_path):
    """The source on them."""
    return source_on(writer, tmp_path)


@root_only
def test_nobody_speaks_for_another_user(writer, source):
    """
    In a common book an entry counts if its file is its user's own, or root's.
    """
    for ident, uid, owner in (("run-1", 1000, 1000), ("run-2", 1000, 1001), ("run-3", 1000, 0), ("run-4", 0, 1000)):
        folder = writer.run(ident, uid=uid)
        os.chown(folder / "promise.json", owner, owner)
    facts = source.read(0.0)
    assert (["run-1", "run-3"], 2) == (names(facts), facts.unreadable)


@root_only
def test_an_agents_folder_is_believed_from_root_only(writer, source):
    """
    Whoever else could write there.
    """
    os.chown(writer.agent("0a1b", "promise-1", tenant=TENANT) / "promise.json", 1000, 1000)
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
    (folder / "promise.json").write_text(dump(writer.hold("promise-1")))
    facts = source.read(0.0)
    assert ([], 2) == (names(facts), facts.unreadable)


@pytest.mark.parametrize("text", ["", "{}", "null", "\x00", "[" * 100_000, '{"format": 2}', "9" * (1 << 20)])
def test_an_entry_that_is_none_is_counted_and_harms_nobody(writer, source, text):
    """
    Cut short, foreign, of another version, or far too large.
    """
    writer.run("run-1")
    (writer.run("run-2") / "promise.json").write_text(text)
    facts = source.read(0.0)
    assert (["run-1"], 1) == (names(facts), facts.unreadable)


def test_an_entry_takes_no_more_memory_than_a_promise(writer, source):
    """
    Names are cut, commands dropped, and a promise of thousands of cards is none.
    """
    writer.run("run-1", policy="none", name="n" * 5000, owner="o" * 5000, command=("c" * 500_000,))
    cards = tuple(Slice(f"GPU-{at}", at, 1) for at in range(promises.MAX_SLICES + 1))
    writer.run("run-2", policy="none", slices=cards)
    facts = source.read(0.0)
    assert (["run-1"], 1) == (names(facts), facts.unreadable)
    hold = facts.holds[0].hold
    assert (253, 253, ()) == (len(hold.name), len(hold.owner), hold.command)


def test_a_flood_of_entries_ends_somewhere(writer, source, monkeypatch):
    """
    What is beyond is said to be unreadable.
    """
    monkeypatch.setattr(promises, "MAX_HOLDS", 2)
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
        (writer.run(ident) / "promise.json").unlink()
    os.mkfifo(writer.book / "run-2/promise.json")
    (writer.book / "run-3/promise.json").symlink_to(writer.book / "run-1/promise.json")
    (writer.book / "run-4/promise.json").mkdir()
    facts = source.read(0.0)
    assert (["run-1"], 3) == (names(facts), facts.unreadable)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
    whole = (folder / "promise.json").read_bytes()
    (folder / "promise.json").write_bytes(whole[:90] + raw + whole[90 + len(raw) :] if spliced else raw)
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
    for parse in (process.parse_stat, process.parse_status):
        with contextlib.suppress(ValueError):
            parse(raw)
