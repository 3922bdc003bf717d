"""
The engine's scores as the points of the extender protocol. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

BEST: Final = 10
"""The extender protocol's highest score."""
_ALIKE: Final = 1e-12
"""Scores closer than this are one score: rounding."""


def steered(scores: np.ndarray[Any, np.dtype[np.float64]], names: Sequence[str], kept: frozenset[str]) -> list[int]:
    """Points by node; where room is kept for the pod somewhere, that place comes before every other."""
    found = points(scores, BEST - 1 if kept else BEST)
    return [BEST if name in kept and point >= 0 else max(0, point) for name, point in zip(names, found, strict=True)]


def points(scores: np.ndarray[Any, np.dtype[np.float64]], most: int) -> list[int]:
    """
    Points 0 to `most` by the engine's scores, of which smaller is better; -1: it does not fit.

    Only the best get the highest, and those within rounding of them; the others in proportion.
    """
    fitting = np.isfinite(scores)
    points = np.full(len(scores), -1, np.int64)
    if fitting.any():
        best, worst = scores[fitting].min(), scores[fitting].max()
        span = worst - best
        if span <= _ALIKE:
            points[fitting] = most
        else:
            part = (worst - scores[fitting]) / span
            points[fitting] = np.where(scores[fitting] - best <= _ALIKE, most, np.floor(part * (most - 1)))
    return [int(point) for point in points.tolist()]
