# SPDX-License-Identifier: Apache-2.0
"""
`gpushare run --list`: who holds what, asked by somebody who changes nothing.
"""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Slice
from isolation.contract.quantity import gib
from isolation.host import process
from isolation.run.cli import run
from isolation.run.store import AllocationStore
from isolation.simgpu.hardware import create


@pytest.fixture
def box(tmp_path):
    """A simulated T4 that nobody has used."""
    create(tmp_path / "box", ["t4"])
    return tmp_path / "box"


def asked(*arguments):
    """Exit status, what was printed, and what was said beside it."""
    done = CliRunner().invoke(run, ["--list", *map(str, arguments)], env={"GPUSHARE_STATE_DIR": ""})
    return done.exit_code, done.stdout, done.stderr


def published(store, ident):
    """A hold, and the descriptor that keeps it alive."""
    slices = (Slice("GPU-0", 0, gib(5)),)
    entry = HostAllocation(ident, "n", process.boot(), 1.0, os.geteuid(), Process(1, 1), ("true",), slices, "fixed")
    with store.locked():
        draft = store.draft(ident)
        store.publish(draft, entry)
    return draft.lock


def names(folder):
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_where_nothing_ever_ran_nothing_is_held_and_nothing_is_made(box):
    """
    The usual store comes with the first run.
    """
    assert (0, "no allocations\n", "") == asked("--simgpu", box)
    assert ["box"] == names(box.parent)


def test_a_store_that_was_named_and_is_not_there_is_a_wrong_name(box):
    """
    No empty list, and no folder of that name afterwards.
    """
    status, said, wrong = asked("--state-dir", box.parent / "typo")

    assert (125, "") == (status, said)
    assert f"{box.parent / 'typo'} does not exist: gpushare run creates it" in wrong
    assert ["box"] == names(box.parent)


def test_cards_that_are_not_there_are_a_wrong_name_too(tmp_path):
    """
    As with a command, with how to make them.
    """
    status, said, wrong = asked("--simgpu", tmp_path / "typo")

    assert (125, "") == (status, said)
    assert f"gpushare simgpu create {tmp_path / 'typo'}" in wrong


def test_who_lives_is_reported_and_the_dead_are_left_where_they_are(tmp_path):
    """
    The next run that decides sweeps.
    """
    store = AllocationStore(tmp_path / "store")
    lock = published(store, "run-1")
    os.close(published(store, "run-2"))

    status, said, _ = asked("--state-dir", store.home, "--json")

    os.close(lock)
    assert (0, ["run-1"]) == (status, [one["id"] for one in json.loads(said)["allocations"]])
    assert ["run-1", "run-2"] == names(store.home)
