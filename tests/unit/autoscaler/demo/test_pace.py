# SPDX-License-Identifier: Apache-2.0
"""
Pacing: the wall clock drives the fleet, slow machines fall behind openly and never spiral.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples

from autoscaler.demo.pace import FRAME_SECONDS, LONGEST_FRAME_SECONDS, SLICE_SECONDS, run_paced


class Bench:
    """A wall clock, a world whose advancing costs wall time, and drawing that costs wall time."""

    def __init__(self, *, cost=0.0, drawing=0.0, stop_at=None):
        self.wall = 100.0
        self.now = 0.0
        self.cost, self.drawing, self.stop_at = cost, drawing, stop_at
        self.steps, self.frames, self.waits = [], [], []

    def clock(self):
        """Seconds of the wall clock."""
        return self.wall

    def wait(self, seconds):
        """Sleep, and say whether it is time to stop."""
        self.waits.append(seconds)
        self.wall += seconds
        return self.stop_at is not None and self.wall - 100.0 >= self.stop_at

    def advance(self, seconds):
        """Let the fleet's time pass."""
        assert seconds > 0
        self.steps.append(seconds)
        self.now += seconds
        self.wall += seconds * self.cost

    def draw(self, progress):
        """Note what would be drawn."""
        self.frames.append((self.wall - 100.0, progress))
        self.wall += self.drawing

    def run(self, *, speed, seconds=None):
        """Pace this bench."""
        return run_paced(self, self.draw, speed=speed, seconds=seconds, clock=self.clock, wait=self.wait)


@pytest.mark.parametrize(("speed", "seconds"), [(60, 20), (3600, 3), (0.5, 4), (7, 0.1)])
def test_a_machine_that_keeps_up_ends_exactly(speed, seconds):
    """After so many seconds the fleet's clock shows so many times the speed, and nothing was given up."""
    bench = Bench()

    ran = bench.run(speed=speed, seconds=seconds)

    assert pytest.approx(speed * seconds) == bench.now
    assert pytest.approx(seconds) == ran.wall_seconds
    assert pytest.approx(0, abs=1e-6) == ran.lag_seconds


def test_frames_come_as_fast_as_an_eye_needs():
    """About four frames a second while drawing is cheap."""
    bench = Bench()

    bench.run(speed=60, seconds=10)

    assert 10 / FRAME_SECONDS + 1 == pytest.approx(len(bench.frames), abs=1)


def test_no_time_at_all_still_shows_the_beginning_and_the_end():
    """A run of zero seconds draws, advances nothing and ends."""
    bench = Bench()

    ran = bench.run(speed=60, seconds=0)

    assert (2, 0.0, 0.0) == (len(bench.frames), bench.now, ran.lag_seconds)


def test_slow_machine_falls_behind_openly():
    """A world that costs more than it is worth ends in time, slower, and the missing time is reported."""
    bench = Bench(cost=1 / 20)

    ran = bench.run(speed=60, seconds=30)

    assert pytest.approx(30, abs=2) == ran.wall_seconds
    assert pytest.approx(20 * 30, rel=0.2) == ran.simulated_seconds
    assert pytest.approx(60 * 30 - ran.simulated_seconds, abs=60 * 2) == ran.lag_seconds


def test_slow_machine_does_not_hoard_time():
    """What is owed is given up each time: the cycles of a slow machine do not grow."""
    bench = Bench(cost=1 / 20)

    bench.run(speed=600, seconds=30)

    gaps = [b[0] - a[0] for a, b in zip(bench.frames[1:], bench.frames[2:], strict=False)]
    assert max(gaps) < 2 * FRAME_SECONDS + SLICE_SECONDS / 20 + 0.01


def test_one_stall_is_not_paid_back_at_once():
    """After the machine slept for an hour the fleet goes on from where it was."""
    bench = Bench(cost=1 / 1000)
    sleepless = bench.wait

    def wait(seconds):
        bench.wall += 3600 if len(bench.waits) == 5 else 0
        return sleepless(seconds)

    ran = run_paced(bench, bench.draw, speed=60, seconds=3700, clock=bench.clock, wait=wait)

    assert ran.lag_seconds > 3500 * 60
    assert max(b[0] - a[0] for a, b in zip(bench.frames[8:], bench.frames[9:], strict=False)) < 1


def test_costly_drawing_becomes_rarer():
    """Drawing takes a quarter of the time at most, and frames still come."""
    bench = Bench(drawing=0.4)

    bench.run(speed=60, seconds=60)

    assert len(bench.frames) * 0.4 < 60 / 3
    gaps = [b[0] - a[0] for a, b in zip(bench.frames, bench.frames[1:], strict=False)]
    assert max(gaps) <= LONGEST_FRAME_SECONDS + 0.41


def test_stop_is_obeyed_and_the_last_frame_drawn():
    """When it is time to stop there is one more frame, with what has passed until then."""
    bench = Bench(stop_at=3)

    ran = bench.run(speed=10)

    assert pytest.approx(3, abs=FRAME_SECONDS) == ran.wall_seconds
    assert ran.simulated_seconds == bench.frames[-1][1].simulated_seconds == bench.now


@settings(max_examples=examples(50))
@given(st.floats(0.01, 5000), st.floats(0, 8), st.floats(0, 0.5), st.floats(0, 0.5))
def test_every_run_ends_and_accounts_for_its_time(speed, seconds, cost, drawing):
    """However slow: it ends soon after its time, and what passed and what was given up explain the speed."""
    bench = Bench(cost=cost, drawing=drawing)

    ran = bench.run(speed=speed, seconds=seconds)

    assert (
        seconds
        <= ran.wall_seconds + 1e-9
        <= seconds + 2 * LONGEST_FRAME_SECONDS + SLICE_SECONDS * cost + 2 * drawing + 1
    )
    assert bench.now == pytest.approx(ran.simulated_seconds)
    assert speed * seconds == pytest.approx(ran.simulated_seconds + ran.lag_seconds, rel=1e-6, abs=1e-6)
    assert all(step <= SLICE_SECONDS for step in bench.steps)
