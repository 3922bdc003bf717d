# SPDX-License-Identifier: Apache-2.0
"""
How long to wait after a failure: longer each time, never in step with the others.

Pure: the number of failures and a random draw come in, seconds come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of a wait, in seconds."""

    first: float = 0.25
    longest: float = 30.0


def delay(failures: int, draw: float, pace: Pace | None = None, asked: float | None = None) -> float:
    """
    Seconds to wait after `failures` in a row; 0 after none.

    `draw` (0 to 1) spreads the waits of many over the upper half of the span. What the server
    `asked` for (which `errors` bounds) is kept, and spread upwards, so that all do not come back at the same moment.
    """
    if failures <= 0:
        return 0.0
    pace = pace or Pace()
    span = min(pace.longest, pace.first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    own = span * (0.5 + 0.5 * draw)
    return own if asked is None else max(own, asked * (1.0 + 0.5 * draw))
