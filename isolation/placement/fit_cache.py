# SPDX-License-Identifier: Apache-2.0
"""
The fit cache: score and cards of every node for the request shapes used last, valid until the node changes.

Rows point into arrays of one size: a fleet whose arrays have moved needs a new `FitCache`.
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
"""Shapes in the cache; 20 bytes per node each."""


class FitRow:
    """Score and cards of every node for one shape."""

    def __init__(self, cache: FitCache) -> None:
        fleet = cache.fleet
        self.score = np.empty(fleet.capacity, np.float64)
        self.mask = np.zeros(fleet.capacity, np.uint64)
        self.version = fleet.node["version"] - np.uint32(1)
        arrays = (self.score, self.mask, self.version, cache.phi, cache.phi_version)
        self.struct = native.RowStruct(*(native.pointer(a) for a in arrays))


class FitCache:
    """One row for each of the shapes used last."""

    def __init__(self, fleet: FleetArrays) -> None:
        self.fleet = fleet
        self.phi = np.zeros(fleet.capacity, np.float64)
        """The potential of each node as it stands, the same for every shape."""
        self.phi_version = fleet.node["version"] - np.uint32(1)
        self._rows: OrderedDict[RequestShape, FitRow] = OrderedDict()

    def copy(self, fleet: FleetArrays) -> FitCache:
        """For a copy of the fleet: its nodes have the same potential; the rows are not copied."""
        twin = FitCache(fleet)
        twin.phi, twin.phi_version = self.phi.copy(), self.phi_version.copy()
        return twin

    def row(self, shape: RequestShape, *, anew: bool = False) -> FitRow:
        """The row of a shape; `anew`: with no score valid."""
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = FitRow(self)
            if len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)
        elif anew:
            row.version[:] = self.fleet.node["version"] - np.uint32(1)
        self._rows.move_to_end(shape)
        return row
