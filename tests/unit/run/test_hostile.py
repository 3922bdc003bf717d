# SPDX-License-Identifier: Apache-2.0
"""
Whatever somebody writes into a store of holds: it is read, or refused in words; nobody crashes or hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.budget import examples
from support.builders import card

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, HostAllocationError, Process, Tenant, dump, load
from isolation.contract.model import CardChoice, Slice
from isolation.contract.quantity import gib
from isolation.host import feed, liveness, process
from isolation.host.files import read_text
from isolation.lib import files
from isolation.run import listing
from isolation.run.core.request import RunRequest, choose_cards

CARDS = [card(i) for i in range(4)]
SLICES = tuple(Slice(f"GPU-n-{index}", index, gib(5), 30) for index in range(2))
POD = Tenant("ns", "pod", "uid", "container")
ENTRY = HostAllocation("run-1", "n", process.boot(), 1.0, 0, Process(1, 1), ("x",), SLICES, "fixed", "o", tenant=POD)
FIELDS = json.loads(dump(ENTRY))

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([10**400, -1, 2**31, 2**63, 2**64]), st.floats(), st.booleans()
)
WORDS = st.text() | st.sampled_from(
    ["\0", "\x1b[2J", "\ud800", "../../etc", "burst", "/sys/fs/cgroup/gpushare-\0", "MIG-x"]
)
ANYTHING = st.recursive(
    st.none() | NUMBERS | WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4)
)
CARD = st.fixed_dictionaries(dict.fromkeys(("uuid", "index", "bytes", "core"), NUMBERS | WORDS))


def used(entry: HostAllocation) -> None:
    """Everything that the room does with a hold of somebody else's."""
    console = Console(width=100)
    json.dumps(listing.as_json([entry]))
    listing.render_table([entry], 2.0, console)
    listing.describe_cards(CARDS, [entry])
    listing.describe_wait("x", CARDS, [entry], 1.0).encode()
    choose_cards(RunRequest(1), CARDS, [entry] * 16, CardChoice.SPREAD)
    feed._tenant(entry.core, entry, active=True, got=1.0)
    liveness.lives(entry, Path("/nonexistent"), entry.boot)


@settings(max_examples=examples(400), deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), ANYTHING | st.lists(CARD, min_size=1, max_size=17), max_size=3))
@example({"created": float("nan")})
@example({"created": float("inf")})
@example({"created": 10**400})
@example({"policy": "nobody's"})
@example({"cgroup": "/sys/fs/cgroup/gpushare-\0"})
@example({"id": "\ud800"})
@example({"cards": [{"uuid": "GPU-n-0", "index": 0, "bytes": 2**62, "core": 0}]})
@example({"runner": [2**70, 1]})
@example({"pod": ["\ud800", "", "", ""]})
def test_an_entry_is_one_of_ours_or_refused(changes):
    """
    Any JSON in any field: an entry with which everything else works, or HostAllocationError.
    """
    try:
        entry = load(json.dumps(FIELDS | changes))
    except HostAllocationError:
        return
    used(entry)


@settings(deadline=None)
@given(st.integers(0, 400), st.binary(max_size=40))
def test_cut_or_overwritten_text_is_refused_or_read(cut, noise):
    """
    A hold that was cut short or scribbled over never becomes another hold by accident of an exception.
    """
    text = dump(ENTRY)
    with contextlib.suppress(HostAllocationError):
        used(load(text[:cut] + noise.decode("latin-1") + text[cut + len(noise) :]))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":1,' + '"a":' * 5000, "9" * 10_000, '{"format": 1e999}'])
def test_deep_and_long_texts_are_refused(text):
    """
    Neither the parser's depth nor its digits are a way in.
    """
    with pytest.raises(HostAllocationError):
        load(text)


MEMBERS = ["4194305 1", "-1 1", "0 1", "9" * 5000 + " 1", "1 2 3", "x y", "\x00", "1 -5"]


@pytest.mark.parametrize("line", MEMBERS)
def test_members_that_cannot_be_processes_are_nobody(tmp_path, line):
    """
    Impossible pids and other noise name nobody who lives; what stands before them counts.
    """
    (tmp_path / "members").write_text(f"{os.getpid()} 5\n{line}\n")
    found = liveness.members(tmp_path)

    assert Process(os.getpid(), 5) == found[0]
    assert [] == [one for one in found if process.alive(one)]


def test_special_files_in_the_ledgers_place_are_refused_and_nothing_leaks(tmp_path):
    """
    A folder, a pipe, a link, a device: an error at once, and not one descriptor is kept.
    """
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        for path in (tmp_path / "folder", tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
            with pytest.raises(OSError, match=r"regular|symbolic"):
                read_text(path)
            assert not liveness.slots_locked(path)

    assert before == len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_do_not_fit_are_refused_with_a_reason(tmp_path, number):
    """
    What the host would write is checked as well: AbiError, and what stood there stays.
    """
    limits, fed = tmp_path / "limits", tmp_path / "feed"
    files.write_limits(limits, abi.Limits(1, "p", ()))
    files.write_feed(fed, [abi.CardFeed(1, 2)], now_ns=3)
    before = limits.read_bytes(), fed.read_bytes()
    for make in (
        lambda: files.write_feed(fed, [abi.CardFeed(number, 0)]),
        lambda: files.write_feed(fed, [abi.CardFeed(0, 0)] * 17),
        lambda: files.write_limits(limits, abi.Limits(number, "p", ())),
    ):
        with pytest.raises(abi.AbiError):
            make()

    assert before == (limits.read_bytes(), fed.read_bytes())
