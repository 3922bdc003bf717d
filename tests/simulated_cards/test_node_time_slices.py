# SPDX-License-Identifier: Apache-2.0
"""The length of time slices on simulated cards: the hardware changes processes as often as the label says."""

from __future__ import annotations

import pytest
from support.simbox import Program, boxes, programs

from isolation.node.time_slices import SimulatedDriver, TimeSliceError, TimeSlices

QUEUED = """
(busy,) = functions(b"busy")
for _ in range(200):
    launch(busy, 50_000_000)
say("up"); wait()
"""


def changes(box):
    """In one second of the card: how often a process got it, and GPU time of both in ns."""
    before = box.clients(0)
    box.step(1_000_000_000)
    after = box.clients(0)
    turns = sum(b.slices - a.slices for a, b in zip(before, after, strict=True))
    return turns, sum(b.own_ns - a.own_ns for a, b in zip(before, after, strict=True))


def test_longer_slices_mean_fewer_changes():
    """Two processes with work queued: their mean turn grows with the length, on the hardware's own account."""
    with boxes("t4", switch_ns=0) as box, programs() as running:
        box.stop()
        running += [Program(box.path, QUEUED) for _ in range(2)]
        assert ["up", "up"] == [one.line() for one in running]
        slices, turns = TimeSlices(SimulatedDriver(box.path)), {}
        for length in ("short", "long"):
            slices.keep(length, ["GPU-any"])
            number, own = changes(box)
            turns[length] = own / number
    assert turns["long"] > 2 * turns["short"]


def test_simulated_cards_that_are_gone_are_told(tmp_path):
    with pytest.raises(TimeSliceError, match="cannot open"):
        TimeSlices(SimulatedDriver(tmp_path / "none")).keep("short", ["GPU-any"])
