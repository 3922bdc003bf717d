# SPDX-License-Identifier: Apache-2.0
"""The length of time slices on simulated cards: the hardware changes processes as often as the label says."""

from __future__ import annotations

import time

import pytest
from support.simbox import LOAD, Program, boxes

from isolation.node.time_slices import SimulatedDriver, TimeSliceError, TimeSlices


def changes(box, seconds=1.0):
    """How often a process got the card, by GPU seconds of both: 1 over the mean length of a turn."""
    before = box.clients(0)
    time.sleep(seconds)
    box.settle()
    after = box.clients(0)
    turns = sum(b.slices - a.slices for a, b in zip(before, after, strict=True))
    return turns, sum(b.own_ns - a.own_ns for a, b in zip(before, after, strict=True))


def test_longer_slices_mean_fewer_changes():
    """Two busy processes: their mean turn grows with the length, on the hardware's own account."""
    with boxes("t4", switch_ns=0) as box:
        running = [Program(box.path, LOAD, PART="1.0") for _ in range(2)]
        try:
            assert ["up", "up"] == [one.line() for one in running]
            slices, turns = TimeSlices(SimulatedDriver(box.path)), {}
            for length in ("short", "long"):
                slices.keep(length, ["GPU-any"])
                number, own = changes(box)
                turns[length] = own / max(1, number)
        finally:
            for one in running:
                one.kill()
    assert turns["long"] > 2 * turns["short"]


def test_simulated_cards_that_are_gone_are_told(tmp_path):
    with pytest.raises(TimeSliceError, match="cannot open"):
        TimeSlices(SimulatedDriver(tmp_path / "none")).keep("short", ["GPU-any"])
