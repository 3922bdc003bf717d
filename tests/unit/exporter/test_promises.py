# SPDX-License-Identifier: Apache-2.0
"""Promises as they stand on disk: what is told of them, and what changes."""

from __future__ import annotations

import pytest
from support.hold_writer import CARD, settle, touch
from support.promises_written import TENANT, names

from exporter.sources import promises
from exporter.sources.promises import default_stores
from isolation.contract import abi
from isolation.contract.host_allocation import Process, dump
from isolation.contract.model import Slice
from isolation.host import liveness
from isolation.lib import files


def test_a_run_is_reported_with_its_members_and_its_region(writer, source):
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
    And says that an agent keeps the node; the name of its folder is of no account.
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


def test_a_changed_entry_is_read_again_and_an_unchanged_one_is_not(writer, source, monkeypatch):
    """
    By inode, size and the times that the kernel keeps; a fresh file may change again under the same time.
    """
    folder = writer.run("run-1", name="before")
    source.read(0.0)
    (folder / "promise.json").write_text(dump(writer.hold("run-1", name="behind")))
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
    for garbage in ("x y\n", "1\n", "1 2 3\n", "é 1\n", "1 1\n" * liveness.MEMBERS_BYTES):
        (folder / "members").write_text(garbage)
        assert () == source.read(2.0).holds[0].pids
    (folder / "members").unlink()
    assert () == source.read(3.0).holds[0].pids
    (folder / "members").write_text("".join(f"{pid} 1\n" for pid in range(1, liveness.MAX_MEMBERS * 2)))
    assert liveness.MAX_MEMBERS == len(source.read(4.0).holds[0].pids)


def test_limits_are_compared_with_the_promise(writer, source):
    """
    A generation that says something else, one for somebody else, one that is torn, and none at all.
    """
    folder = writer.run("run-1")
    limit = abi.CardLimit(CARD, 5 << 30, 0, 300_000, weight=30)

    def kept(limits):
        files.write_limits(folder / "limits", limits)
        one = source.read(0.0).holds[0]
        return one.limits_generation, one.limits_error

    assert (2, "") == kept(abi.Limits(2, "run-1", (limit,)))
    assert (3, "the amounts in the limits file differ from the promise") == kept(
        abi.Limits(3, "run-1", (abi.CardLimit(CARD, 50 << 30, 0, 300_000),))
    )
    assert (4, "the amounts in the limits file differ from the promise") == kept(abi.Limits(4, "run-1", ()))
    assert (5, "the limits file belongs to promise 'run-2'") == kept(abi.Limits(5, "run-2", (limit,)))
    with (folder / "limits").open("r+b") as file:
        file.seek(16)
        file.write(b"\x01")
    one = source.read(0.0).holds[0]
    assert (None, "limits: being rewritten, or torn") == (one.limits_generation, one.limits_error)
    (folder / "limits").unlink()
    assert "No such file or directory" == source.read(0.0).holds[0].limits_error


def test_a_card_without_a_uuid_is_not_compared(writer, source):
    """
    What is unknown is no breach.
    """
    folder = writer.run("run-1", policy="none", slices=(Slice("lost-0", 0, 1 << 30),))
    files.write_limits(folder / "limits", abi.Limits(1, "run-1", ()))
    (folder / "promise.json").write_text(dump(writer.hold("run-1", slices=(Slice("lost-0", 0, 1 << 30),))))
    assert "" == source.read(0.0).holds[0].limits_error


def test_a_missing_region_of_an_enforced_promise_is_an_error_of_its_own(writer, source):
    """
    The promise stands; what its library says is missing.
    """
    (writer.run("run-1") / "region").unlink()
    one = source.read(0.0).holds[0]
    assert (None, "No such file or directory") == (one.region.reading, one.region.error)


def test_the_stores_are_those_of_the_machine_or_the_one_that_was_chosen(tmp_path):
    """
    Simulated cards have theirs beside the hardware file.
    """
    assert (promises.COMMON_STORE, promises.USER_STORE) == default_stores()
    assert (tmp_path / "hw.allocations",) == default_stores(tmp_path / "hw")
    assert (tmp_path / "x",) == default_stores(tmp_path / "hw", tmp_path / "x")


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
