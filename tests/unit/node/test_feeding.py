# SPDX-License-Identifier: Apache-2.0
"""
Which containers are told their own GPU time, and whose processes count for it.
"""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import pytest

from isolation.contract import abi
from isolation.contract.host_allocation import HostAllocation, Process, Tenant, dump
from isolation.contract.model import Slice
from isolation.host.machine import Sample
from isolation.lib import files
from isolation.node.feeding import IDLE_SECONDS, Feeding

CARD = "GPU-b3dcaf1a-c22c-487c-8000-000000000001"
BOOT = "this-boot"


class Samples:
    """A machine on which one process computes, ten samples a second of 40 %."""

    def __init__(self, pid):
        self.pid, self.micros = pid, int(time.time() * 1e6)

    def samples(self, uuid, since):
        """See `Machine`."""
        assert (uuid, True) == (CARD, since >= 0)
        self.micros += 100_000
        return (Sample(self.pid, self.micros, 40),)

    def memory(self, uuid):
        """See `Machine`: the driver cannot tell."""
        assert uuid == CARD


@pytest.fixture
def alloc(tmp_path):
    folder = tmp_path / "alloc"
    folder.mkdir()
    return folder


def container(alloc, name, core=30, boot=BOOT, *, enforced=True):
    """What the agent leaves for a container."""
    folder = alloc / name
    (folder / "limits").mkdir(parents=True)
    (folder / "region").mkdir()
    hold = HostAllocation(
        id=f"uid-{name}.main",
        name=name,
        boot=boot,
        created=1.0,
        uid=0,
        runner=Process(1, 1),
        command=(),
        slices=(Slice(CARD, 0, 1 << 30, core),),
        policy="fixed",
        enforced=enforced,
        tenant=Tenant("ml", name, f"uid-{name}", "main"),
    )
    (folder / "promise.json").write_text(dump(hold))
    files.write_feed(folder / "limits/feed", [abi.CardFeed(0, 0)], now_ns=1)
    return folder, hold


def own_ns(folder):
    """What the container is reported: its own GPU time."""
    raw = (folder / "limits/feed").read_bytes()
    return struct.unpack_from("<Q", raw, 64)[0]


def test_a_container_gets_the_time_of_its_own_processes(alloc):
    """
    Samples of its control group count, a neighbour's do not.
    """
    mine, _ = container(alloc, "mine")
    other, _ = container(alloc, "other")
    pids = {"uid-mine": frozenset({7}), "uid-other": frozenset({8})}
    feeding = Feeding(alloc, Samples(7), lambda hold: pids[hold.tenant.uid], BOOT)

    for turn in range(5):
        assert 0 < feeding.turn(turn * 0.1) < IDLE_SECONDS

    assert 2 == len(feeding)
    assert 0 < own_ns(mine)
    assert 0 == own_ns(other)


@pytest.mark.parametrize("fields", [{"enforced": False}, {"boot": "another"}], ids=["none", "boot"])
def test_who_has_nothing_enforced_is_not_fed(alloc, fields):
    """
    A promise that is placed only, or one of a former boot.
    """
    container(alloc, "mine", **fields)
    feeding = Feeding(alloc, Samples(7), lambda _: frozenset({7}), BOOT)

    assert IDLE_SECONDS == feeding.turn(0.0)
    assert 0 == len(feeding)


def test_containers_come_and_go(alloc):
    """
    A hold that is withdrawn ends its feed, and a broken one stops nobody else's.
    """
    mine, _ = container(alloc, "mine")
    other, hold = container(alloc, "other")
    (alloc / "broken").mkdir()
    (alloc / "broken" / "promise.json").write_text("{")
    feeding = Feeding(alloc, Samples(7), lambda _: frozenset({7}), BOOT)
    feeding.turn(0.0)
    assert 2 == len(feeding)

    (mine / "promise.json").unlink()
    (other / "promise.json").write_text(dump(replace(hold, slices=(replace(hold.slices[0], core=50),))))
    feeding.turn(2.0)
    assert 1 == len(feeding)


def test_where_processes_are_unknown_nothing_is_claimed(alloc):
    """
    Unfed, the library goes by its promise; a feed of 0 would be a lie.
    """
    mine, _ = container(alloc, "mine")
    before = (mine / "limits/feed").read_bytes()
    feeding = Feeding(alloc, Samples(7), lambda _: None, BOOT)
    feeding.turn(0.0)

    assert before == (mine / "limits/feed").read_bytes()
