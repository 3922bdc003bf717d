# SPDX-License-Identifier: Apache-2.0
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


def to_points(scores: np.ndarray[Any, np.dtype[np.float64]], names: Sequence[str], kept: frozenset[str]) -> list[int]:
    """Points by node; where room is kept for the pod somewhere, that place comes before every other."""
    if not kept:
        return [*map(int, np.maximum(points(scores, BEST), 0).tolist())]
    found = points(scores, BEST - 1).tolist()
    return [BEST if name in kept and point >= 0 else max(0, point) for name, point in zip(names, found, strict=True)]


def shortlist(
    scores: np.ndarray[Any, np.dtype[np.float64]], names: Sequence[str], kept: frozenset[str], most: int
) -> list[str]:
    """The nodes that `steered` gives the highest points, so many at most; empty: none fits."""
    fitting = np.isfinite(scores)
    found = [name for name, fits in zip(names, fitting.tolist(), strict=True) if fits and name in kept] if kept else []
    if not found and fitting.any():
        alike = np.flatnonzero(scores <= scores[fitting].min() + _ALIKE)
        found = [names[at] for at in alike[:most].tolist()]
    return found[:most]


def points(scores: np.ndarray[Any, np.dtype[np.float64]], most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """
    Points 0 to `most` by the engine's scores, of which smaller is better; -1: it does not fit.

    Only the best get the highest, and those within rounding of them; the others in proportion.
    """
    fitting = np.isfinite(scores)
    found = np.full(len(scores), -1, np.int64)
    if fitting.any():
        best, worst = scores[fitting].min(), scores[fitting].max()
        span = worst - best
        if span <= _ALIKE:
            found[fitting] = most
        else:
            part = (worst - scores[fitting]) / span
            found[fitting] = np.where(scores[fitting] - best <= _ALIKE, most, np.floor(part * (most - 1)))
    return found
