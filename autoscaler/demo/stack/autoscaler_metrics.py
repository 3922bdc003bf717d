# SPDX-License-Identifier: Apache-2.0
"""
What the embedded cluster's autoscaler tells Prometheus of itself: the same families as on Kubernetes.

The loop and its deciders are the same ones, so turns, steps, pools and waiting pods are counted as they
happen. What only a process on Kubernetes has (watches, a configuration file, measured figures with an
age) is absent here. Gauges are taken by the thread that owns the world, at most once a second; a
scrape gets what was taken last.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.core.pressure import rooms_of, waiting_of
from autoscaler.apis.metrics.core.readings import Picture
from autoscaler.core.decide import decide
from autoscaler.kube.core.telemetry_rows import Reading, rows_of
from autoscaler.kube.telemetry.metrics import Telemetry
from isolation.contract.metrics import autoscaler as catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.limits import Limits
    from autoscaler.core.plan import Plan
    from autoscaler.core.snapshot import Observation
    from autoscaler.core.state import Memory
    from autoscaler.demo.embedded.fleet import Embedded
    from isolation.contract.metrics import MetricSpec

    Rows = Mapping[MetricSpec, Mapping[tuple[str, ...], float]]

PROVIDER: Final = "embedded"
LOOK_SECONDS: Final = 1.0


class Turns:
    """Watches an embedded cluster's loop: give it `decide` and `done`, and let it `look` now and then."""

    def __init__(self) -> None:
        self._telemetry = Telemetry()
        self._telemetry.watch(lambda: self._rows)
        self._rows: Rows = {}
        self._looked = float("-inf")
        self._ended: float | None = None
        self._before: Observation | None = None

    def decide(self, seen: Observation, limits: Limits, memory: Memory) -> tuple[Plan, Memory]:
        """The autoscaler's own decision, timed."""
        begun = time.perf_counter()
        plan, after = decide(seen, limits, memory)
        self._telemetry.took("decide", time.perf_counter() - begun)
        self._telemetry.decided(seen, plan, limits)
        # A machine that is given back is not there any more when the turn has ended.
        self._before = replace(seen, machines=dict(seen.machines)) if plan.steps else None
        return plan, after

    def done(self, plan: Plan) -> None:
        """A turn has ended with these steps taken."""
        for step in plan.steps:
            self._telemetry.stepped(step, "done", self._before)
        self._telemetry.reconciled("done" if plan.steps else "idle")
        self._ended = time.time()

    def look(self, world: Embedded, now: float) -> None:
        """Take the gauges, unless that was done just now; `now` is monotonic."""
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        seen = world.world.seen()
        picture = Picture(now, {}, rooms_of(seen), waiting_of(seen))
        budget = world.memory.budget(seen, world.limits, {})
        reading = Reading(seen, world.memory, world.limits, picture, targets=seen.sizes(), left=budget.left)
        yes, no = _one(1.0), _one(0.0)
        ended: Rows = {} if self._ended is None else {catalogue.LAST_TURN: _one(self._ended)}
        self._rows = {
            **rows_of(reading),
            **ended,
            catalogue.LEADS: yes,
            catalogue.ENABLED: yes,
            catalogue.SYNCED: yes,
            catalogue.DRY_RUN: no,
            catalogue.PROVIDER_UP: {(name, PROVIDER): 1.0 for name in seen.pools},
        }

    def page(self) -> bytes:
        """For a scraper."""
        return self._telemetry.page()


def _one(value: float) -> Mapping[tuple[str, ...], float]:
    """The only sample of a metric without labels."""
    return {(): value}
