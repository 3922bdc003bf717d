# SPDX-License-Identifier: Apache-2.0
"""
One line of the book: written, read back, and refused whenever it is not exactly that.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.host_allocation import HostAllocation, HostAllocationError, Process, Tenant, dump, load
from isolation.contract.model import Slice, Trust
from isolation.contract.quantity import gib


def entry(**more):
    """A hold of 5 GiB on one card."""
    given_ = {
        "id": "run-1",
        "name": "train",
        "boot": "b",
        "created": 1.5,
        "uid": 7,
        "runner": Process(10, 20),
        "command": ("python", "train.py"),
        "slices": (Slice("GPU-0", 0, gib(5), 30),),
        "policy": "fixed",
    }
    return HostAllocation(**(given_ | more))


def changed(**fields):
    """The text of an entry with some fields replaced, or left out where None."""
    record = json.loads(dump(entry())) | fields
    return json.dumps({key: value for key, value in record.items() if value is not None})


def test_an_entry_is_read_as_it_was_written():
    """
    Every field survives, also words that are no ASCII.
    """
    written = entry(command=("sh", "-c", "echo ü \udcff\n"), owner="a", online=True, cgroup="/sys/x")
    assert written == load(dump(written))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[]", "not an allocation"),
        ("null", "not an allocation"),
        (changed(format=2), "format 2 is not supported, only format 1 is"),
        (changed(format=None), "format None"),
        (changed(id=None), "id is missing"),
        (changed(uid=-1), "uid is negative"),
        (changed(uid=True), "uid is missing or not of type int"),
        (changed(runner=[1]), "runner is not a pair of PID and start time"),
        (changed(cards=[]), "cards are missing"),
        (changed(cards=["x"]), "cards are missing"),
        (changed(cards=[{"uuid": "a", "index": 0, "bytes": 0, "core": 0}]), "memory or compute is out of range"),
        (changed(cards=[{"uuid": "a", "index": 0, "bytes": 1, "core": 101}]), "memory or compute is out of range"),
        (changed(cards=[{"uuid": "a", "index": 0, "bytes": 1, "core": 0}] * 2), "two entries for one card"),
        (changed(command=[1]), "not a string"),
    ],
)
def test_what_is_no_hold_is_refused_with_the_reason(text, complaint):
    """
    A misread hold would be sold twice: nothing is guessed.
    """
    with pytest.raises(HostAllocationError, match=complaint):
        load(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    """
    Any text is an entry or a complaint, never another failure.
    """
    with pytest.raises(HostAllocationError):
        load(text)


@given(st.integers(0, 400))
def test_a_cut_entry_is_never_believed(length):
    """
    A file cut short by a full disk is told from a whole one at every length.
    """
    whole = dump(entry())
    if length < len(whole) - 1:
        with pytest.raises(HostAllocationError):
            load(whole[:length])


def test_a_containers_hold_carries_its_pod_and_comes_back_the_same():
    """The node agent writes the same format with the names of the container."""
    held = entry(tenant=Tenant("team", "train-0", "0f9a", "main"))

    assert held == load(dump(held))


@pytest.mark.parametrize("pod", [[], ["a", "b", "c"], ["a", "b", "c", 4], "abcd"])
def test_half_a_tenant_is_refused(pod):
    """A container whose names are not all there is nobody's."""
    with pytest.raises(HostAllocationError, match="pod"):
        load(changed(pod=pod))


def test_a_hold_keeps_beside_whom_its_container_may_be():
    written = entry(trust=Trust("group/research", 0))
    assert written == load(dump(written))


@pytest.mark.parametrize("trust", [["ml"], ["", 1], ["ml", -1], ["ml", 1 << 31], [1, "ml"], ["m\nl", 1]])
def test_half_a_trust_is_refused(trust):
    with pytest.raises(HostAllocationError, match="trust is not a pair"):
        load(changed(trust=trust))
