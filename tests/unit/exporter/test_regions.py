# SPDX-License-Identifier: Apache-2.0
"""
Regions are hostile until checked: nothing in one crashes the reading, costs the others theirs, or grows.
"""

from __future__ import annotations

import os
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.hold_writer import HEAD_AT, HIGH_AT, touch

from exporter.sources import regions
from exporter.sources.regions import RegionReader
from isolation.contract import abi
from isolation.lib import files


@pytest.fixture
def region(tmp_path):
    """A fresh region."""
    path = tmp_path / "region"
    files.create_region(path, "run-1")
    return path


@pytest.fixture
def reader():
    """One that has been running for a while."""
    made = RegionReader()
    made.read({})
    return made


def put(path, at, raw):
    """Bytes into a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)


def one(reader, path, key="run-1"):
    """One region's facts."""
    return reader.read({key: str(path)})[key]


def test_a_region_that_did_not_change_is_not_decoded_again(region, reader, monkeypatch):
    """
    The same reading is handed out; any byte that matters makes a new one.
    """
    touch(region, slots=[(7, 100)], used=1 << 30)
    first = one(reader, region)
    monkeypatch.setattr(abi, "_slot", lambda *_: pytest.fail("decoded again"))
    assert first.reading is one(reader, region).reading
    monkeypatch.undo()
    touch(region, slots=[(7, 100)], used=2 << 30)
    assert 2 << 30 == one(reader, region).reading.cards[0].used_bytes
    touch(region, slots=[(7, 100), (8, 200)], used=2 << 30)
    assert [7, 8] == [slot.pid for slot in one(reader, region).reading.slots]


def test_breaches_are_reported_once(region, reader):
    """
    What is new since the last reading, and what was overwritten before we came.
    """
    touch(region, breaches=3)
    assert [1, 2, 3] == [record.sequence for record in one(reader, region).breaches]
    assert () == one(reader, region).breaches
    touch(region, breaches=5)
    assert [4, 5] == [record.sequence for record in one(reader, region).breaches]
    touch(region, breaches=5 + abi.RING + 10)
    found = one(reader, region)
    assert (abi.RING, 10) == (len(found.breaches), found.lost)


def test_what_happened_before_the_exporter_began_is_history(region):
    """
    A restart of the exporter is no new breach; of a promise that came later everything is news.
    """
    touch(region, breaches=3)
    fresh = RegionReader()
    assert () == one(fresh, region).breaches
    touch(region, breaches=4)
    assert [4] == [record.sequence for record in one(fresh, region).breaches]
    assert 4 == len(fresh.read({"run-1": str(region), "run-2": str(region)})["run-2"].breaches)


def test_a_region_recreated_starts_over(region, reader):
    """
    As another file, or in place.
    """
    touch(region, breaches=5)
    one(reader, region)
    fresh = region.with_name("fresh")
    files.create_region(fresh, "run-1")
    touch(fresh, breaches=7)
    fresh.replace(region)
    assert [1, 2, 3, 4, 5, 6, 7] == [record.sequence for record in one(reader, region).breaches]
    touch(region, breaches=1)
    assert [1] == [record.sequence for record in one(reader, region).breaches]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(b"x" * abi.REGION_BYTES), "not one of ours"),
        (lambda path: os.truncate(path, abi.REGION_BYTES - 1), "expected"),
        (lambda path: put(path, 8, struct.pack("<H", 9)), f"version 9.{abi.MINOR}"),
        (lambda path: put(path, 24, struct.pack("<I", 1 << 30)), "impossible layout"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "symbolic links"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "symbolic links"),
    ],
)
def test_what_is_no_region_is_an_error_and_heals(region, reader, spoil, complaint):
    """
    Emptied, foreign, cut, of another major, lying about its layout, and things that are no files.
    """
    other = region.with_name("other")
    files.create_region(other, "run-2")
    touch(region, used=1 << 30)
    one(reader, region)
    spoil(region)
    found = reader.read({"run-1": str(region), "run-2": str(other)})
    assert found["run-1"].reading is None
    assert complaint in found["run-1"].error
    assert found["run-2"].reading is not None
    if region.is_dir() and not region.is_symlink():
        region.rmdir()
    region.unlink(missing_ok=True)
    files.create_region(region, "run-1")
    assert one(reader, region).reading is not None


def test_a_device_or_a_socket_is_no_region(reader):
    """
    Opening must neither block nor have an effect.
    """
    assert "not a regular file" == one(reader, "/dev/null").error


def test_a_region_that_grew_is_read_as_far_as_it_goes(region, reader):
    """
    A hole of a terabyte behind it costs nothing.
    """
    touch(region, used=1 << 30)
    os.truncate(region, 1 << 40)
    assert 1 << 30 == one(reader, region).reading.cards[0].used_bytes


def test_a_region_cut_while_it_is_read_is_an_error(region, reader, monkeypatch):
    """
    Between the look at its size and the last read.
    """
    real = abi.read_region

    def cut_first(pread, *, size):
        os.truncate(region, abi.SLOT_OFFSET)
        return real(pread, size=size)

    touch(region, slots=[(7, 100)])
    monkeypatch.setattr(abi, "read_region", cut_first)
    found = one(reader, region)
    assert (None, "region: cut short") == (found.reading, found.error)


def test_a_count_of_records_may_be_any(region, reader):
    """
    It is the tenant's: bound_label, and no reason to read for ever.
    """
    put(region, HEAD_AT, struct.pack("<Q", (1 << 64) - 1))
    found = one(reader, region)
    assert (0, regions.MAX_LOST) == (len(found.breaches), found.lost)
    put(region, HEAD_AT, struct.pack("<Q", 0))
    assert (0, 0) == (len(one(reader, region).breaches), one(reader, region).lost)


def test_slow_regions_are_read_last_and_cost_no_other(tmp_path, reader, monkeypatch):
    """
    Tenants who fill every slot and change them all the time are left out when the time is up; others are not.
    """
    monkeypatch.setattr(regions, "BUDGET_SECONDS", 0.1)
    paths = {}
    for at in range(16):
        path = tmp_path / f"costly-{at}"
        files.create_region(path, "x")
        raw = abi._SLOT_HEAD.pack(1, 1, 7, 0, 100, 0, 0, b"x", 0, 0).ljust(abi.SLOT_BYTES, b"\1")
        put(path, abi.SLOT_OFFSET, raw * abi.SLOTS)
        put(path, HIGH_AT, struct.pack("<I", 0xFFFFFFFF))
        paths[f"a-costly-{at}"] = str(path)
    for at in range(16):
        path = tmp_path / f"cheap-{at}"
        files.create_region(path, "x")
        paths[f"b-cheap-{at}"] = str(path)
    reader.read(paths)
    for turn in range(3):
        for at in range(16):
            put(tmp_path / f"costly-{at}", abi.SLOT_OFFSET, struct.pack("<I", 2 + turn % 2))
        begun = time.thread_time()  # our own: this machine may be busy with something else
        found = reader.read(paths)
        assert time.thread_time() - begun < 1.0
    assert all(found[key].reading is not None for key in paths if "cheap" in key)
    costly = [found[key] for key in paths if "costly" in key]
    assert any(facts.reading is not None for facts in costly)
    assert {regions.TOO_SLOW, ""} == {facts.error for facts in costly}


def test_who_is_not_named_any_more_is_forgotten(region, reader):
    """
    And comes back as somebody new.
    """
    touch(region, breaches=2)
    one(reader, region)
    reader.read({})
    assert {} == reader._known
    assert 2 == len(one(reader, region).breaches)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * abi.SLOT_BYTES + abi.SLOT_OFFSET), st.binary(min_size=1, max_size=64)), max_size=12
    ),
    st.lists(st.tuples(st.integers(abi.RING_OFFSET, abi.REGION_BYTES), st.binary(min_size=1, max_size=64)), max_size=4),
    st.one_of(st.none(), st.integers(0, abi.REGION_BYTES + 4096)),
    st.integers(0, (1 << 64) - 1),
)
def test_whatever_a_tenant_writes_is_facts_or_an_error(tmp_path, front, ring, size, head):
    """
    Random bytes over headers, cards, slots and the ring; any length; any count of records.
    """
    path = tmp_path / "region"
    path.write_bytes(abi.fresh_region("run-1"))
    put(path, HEAD_AT, struct.pack("<Q", head))
    for at, raw in (*front, *ring):
        put(path, at, raw)
    if size is not None:
        os.truncate(path, size)
    reader = RegionReader()
    reader.read({})
    for _ in range(2):
        found = one(reader, path)
        assert (found.reading is None) == bool(found.error)
        assert 0 <= found.lost <= regions.MAX_LOST
        assert len(found.breaches) <= abi.RING
        if found.reading is not None:
            assert len(found.reading.slots) <= abi.SLOTS
            assert len(found.reading.cards) <= abi.CARDS
            assert all(len(slot.name) <= 16 for slot in found.reading.slots)
            assert len(found.reading.promise) <= 64
