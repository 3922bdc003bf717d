# SPDX-License-Identifier: Apache-2.0
"""
An autoscaler that has bought nodes for some of the pods: places are kept for them, late, for nobody, and taken back.

Decides only what is stored when; which node each place is on is our scheduler's decision, under judgement here.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final

from interleave.server import EPOCH

from isolation.contract.model import Placement, Slice
from isolation.contract.quantity import GIB
from isolation.contract.reservation import PURCHASE, RESERVATIONS_PATH, Reservation, manifest_of
from isolation.kube.core.errors import RefusedError

if TYPE_CHECKING:
    from interleave.objects import Plan
    from interleave.wire import Net

POOL_NAME: Final = "p"
_AT_A_TIME: Final = 3
"""Pods of one planned node."""


class Purchases:
    """See the module; all are over when the storm is."""

    def __init__(self, net: Net, seed: int, horizon: float) -> None:
        self._net, self._horizon = net, horizon
        self._draw = random.Random(f"purchases {seed}")  # noqa: S311 (chance, no secret)
        self._ordered = self.stored = 0

    def ordered(self, plan: Plan) -> None:
        """Perhaps a place for this pod, soon; perhaps taken back later."""
        if self._draw.random() < 0.4:
            return
        self._ordered += 1
        positions = self._draw.sample(range(4), plan.cards)
        part = plan.units * GIB
        until = EPOCH + min(self._net.loop.time() + self._draw.uniform(3.0, 40.0), self._horizon)
        made = Reservation(
            f"purchase-{plan.uid}",
            plan.uid,
            Placement("", tuple(Slice("", position, part) for position in positions)),
            until,
            plan.key[0],
            PURCHASE,
            pool=POOL_NAME,
            planned_node=f"planned-{self._ordered // _AT_A_TIME}",
        )
        self._net.loop.later(self._draw.uniform(0.0, 4.0), self._store, made)
        if self._draw.random() < 0.2:
            self._net.loop.later(self._draw.uniform(4.0, 30.0), self._take_back, made.name)

    def _store(self, made: Reservation) -> None:
        self.stored += 1
        self._net.server.handle("autoscaler", "POST", RESERVATIONS_PATH, manifest_of(made))

    def _take_back(self, name: str) -> None:
        with contextlib.suppress(RefusedError):
            self._net.server.handle("autoscaler", "DELETE", f"{RESERVATIONS_PATH}/{name}", None)
