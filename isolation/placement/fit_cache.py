# SPDX-License-Identifier: Apache-2.0
"""
What nodes answered to shapes of pods, remembered until the node changes.

The rows point at arrays of one size: a fleet whose arrays have moved needs new `Answers`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.placement import native

if TYPE_CHECKING:
    from isolation.placement.arrays import FleetArrays
    from isolation.placement.workload_mix import RequestShape

ROWS_KEPT: Final = 192
"""Shapes whose answers are remembered; 20 bytes per node each."""


class FitRow:
    """Every node's answer to one shape."""

    def __init__(self, answers: FitCache) -> None:
        fleet = answers.fleet
        self.score = np.empty(fleet.capacity, np.float64)
        self.mask = np.zeros(fleet.capacity, np.uint64)
        self.version = fleet.node["version"] - np.uint32(1)
        arrays = (self.score, self.mask, self.version, answers.phi, answers.phi_version)
        self.struct = native.RowStruct(*(native.pointer(a) for a in arrays))


class FitCache:
    """The answers to the shapes asked for last."""

    def __init__(self, fleet: FleetArrays) -> None:
        self.fleet = fleet
        self.phi = np.zeros(fleet.capacity, np.float64)
        """The potential of each node as it stands, the same for every shape."""
        self.phi_version = fleet.node["version"] - np.uint32(1)
        self._rows: OrderedDict[RequestShape, FitRow] = OrderedDict()

    def copy(self, fleet: FleetArrays) -> FitCache:
        """For a copy of the fleet: nodes stand as they stood, so their potential holds; the rows are not copied."""
        twin = FitCache(fleet)
        twin.phi, twin.phi_version = self.phi.copy(), self.phi_version.copy()
        return twin

    def row(self, shape: RequestShape, *, anew: bool = False) -> FitRow:
        """The row of a shape; `anew`: whatever was answered does not count."""
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = FitRow(self)
            if len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)
        elif anew:
            row.version[:] = self.fleet.node["version"] - np.uint32(1)
        self._rows.move_to_end(shape)
        return row
