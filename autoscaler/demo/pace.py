# SPDX-License-Identifier: Apache-2.0
"""
How far to advance a simulated cluster for the wall-clock time that has passed, and when to draw it.

A machine that cannot keep up makes the cluster run slower and the display says so: lost time is given up, never caught
up, so one slow moment does not slow the next one. The clock and the wait are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

FRAME_SECONDS: Final = 0.25
"""Between two frames, of the wall clock: what an eye needs."""
LONGEST_FRAME_SECONDS: Final = 2.0
"""Also the longest that a request to stop has to wait for an ordinary step."""
DRAWING_SHARE: Final = 4
"""One part in so many of the time may go into drawing."""
SLICE_SECONDS: Final = 10.0
"""Of the fleet's clock, advanced at once: the period of the autoscaler."""


class Advancing(Protocol):
    """What can be advanced."""

    @property
    def now(self) -> float:
        """Seconds of its own clock."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run stands: seconds of the wall clock, of the fleet's clock, and those given up as too slow."""

    wall_seconds: float
    simulated_seconds: float
    lag_seconds: float
    late: bool = False
    """Time was given up just now."""


def run_paced(
    world: Advancing,
    draw: Callable[[Progress], None],
    *,
    speed: float,
    seconds: float | None,
    clock: Callable[[], float],
    wait: Callable[[float], bool],
) -> Progress:
    """
    Advance and draw until `seconds` have passed (None: for ever) or `wait` says to stop.

    `wait(s)` sleeps up to `s` seconds and is true if the run is to end. Draws at least the first
    and the last frame. A run that keeps up ends at exactly `seconds * speed` of the fleet's clock.
    """
    begun, start = clock(), world.now
    behind, lost, frame_seconds = 0.0, 0.0, FRAME_SECONDS
    draw(Progress(0.0, 0.0, 0.0))
    while True:
        cycle = clock()
        # Who has just given time up does not sleep on top of it.
        pause = 0.0 if lost else frame_seconds
        stop = wait(pause if seconds is None else max(0.0, min(pause, begun + seconds - cycle)))
        now = clock()
        wall = now - begun if seconds is None else min(now - begun, seconds)
        owed = start + wall * speed - behind - world.now
        lost = _catch_up(world, owed, now + frame_seconds, clock)
        behind += lost
        drawn = clock()
        ended = seconds is not None and drawn >= begun + seconds
        if seconds is not None and ended:
            behind = max(0.0, seconds * speed - (world.now - start))
        draw(Progress(clock() - begun, world.now - start, behind, lost > 0))
        if stop or ended:
            return Progress(clock() - begun, world.now - start, behind)
        frame_seconds = min(LONGEST_FRAME_SECONDS, max(FRAME_SECONDS, (DRAWING_SHARE - 1) * (clock() - drawn)))


def _catch_up(world: Advancing, owed: float, deadline: float, clock: Callable[[], float]) -> float:
    """Advance what is owed, until the deadline; returns what is given up."""
    while owed > 0:
        step = min(owed, SLICE_SECONDS)
        world.advance(step)
        owed -= step
        if clock() >= deadline:
            break
    return max(0.0, owed)
