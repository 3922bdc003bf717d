# SPDX-License-Identifier: Apache-2.0
"""
What the autoscaler tells Prometheus: counters of what it did, and gauges read when somebody scrapes.

Names, labels and help come from the catalogue (`isolation.contract.metrics.autoscaler`, and `metrics` for what the
embedded cluster shows too); what the process costs has the names that every Prometheus client uses. What counts as a
flap is decided in `autoscaler.core.flapping`, what the gauges say in `telemetry_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from autoscaler.core.flapping import FlapDetector
from autoscaler.core.plan import (
    CancelDrain,
    CancelScaleUp,
    Drain,
    Evict,
    Move,
    RemoveFailedNode,
    RemoveNode,
    ResizePod,
    ScaleUp,
    get_action,
)
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler as catalogue
from isolation.contract.metrics.autoscaler import ACTIONS
from isolation.kube.gauges import Gauges, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan, Step
    from isolation.contract.metrics import MetricSpec


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES: Final = ("done", "idle", "inhibited", "standby", "dry_run", "failed")
_EVENTS: Final = {
    ScaleUp: "scale_up",
    CancelScaleUp: "cancel_scale_up",
    CancelDrain: "cancel_drain",
    Drain: "drain",
    Evict: "move",
    Move: "move",
    RemoveNode: "scale_down",
}
"""As the embedded cluster calls what happens; a machine given up is a `provisioning_failed`."""
_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
"""Seconds; deciding for 1,213 nodes is promised within 1 s, a provider answers within 20 s or not at all."""
_CALL_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def _name_event(step: Step) -> str:
    if isinstance(step, RemoveFailedNode):
        return "provisioning_failed"
    return step.kind if isinstance(step, ResizePod) else _EVENTS[type(step)]


class Telemetry:
    """One registry per process; also the tally of the gRPC ports."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._cycles = self._counter(catalogue.CYCLES)
        self._steps = self._counter(ACTIONS)
        self._writes = self._counter(catalogue.STATE_WRITES)
        self._bought = self._counter(catalogue.SCALED_UP_CARDS)
        self._returned = self._counter(catalogue.SCALED_DOWN_CARDS)
        self._flaps = self._counter(catalogue.FLAPS)
        self._calls = self._counter(catalogue.GRPC_REQUESTS)
        self._events = self._counter(metrics.AUTOSCALER_EVENTS)
        self._stages = self._histogram(catalogue.CYCLE_DURATION, _BUCKETS)
        self._call_times = self._histogram(catalogue.GRPC_REQUEST_DURATION, _CALL_BUCKETS)
        self._undoing = FlapDetector()
        for outcome in OUTCOMES:
            self._cycles.labels(outcome)

    def _counter(self, spec: MetricSpec) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self._registry)

    def _histogram(self, spec: MetricSpec, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(spec.name, spec.help, spec.labels, buckets=buckets, registry=self._registry)

    def reconciled(self, outcome: str) -> None:
        """One cycle."""
        self._cycles.labels(outcome).inc()

    def took(self, stage: str, seconds: float) -> None:
        """One part of a cycle."""
        self._stages.labels(stage).observe(seconds)

    def decided(self, seen: Observation, plan: Plan, limits: ScalingLimits) -> None:
        """What a cycle's steps will be taken on; too soon is what the limits say, usually an hour."""
        self._undoing.observe(seen, plan, limits.min_node_age_seconds)

    def stepped(self, step: Step, outcome: str, seen: Observation | None = None) -> None:
        """One step; `seen` is what it was taken on."""
        self._steps.labels(get_action(step), outcome).inc()
        if outcome != "done":
            return
        self._events.labels(_name_event(step)).inc()
        if seen is None:
            return
        pool = self._undoing.record(step, seen.at)
        if pool is not None:
            self._flaps.labels(pool).inc()
        if isinstance(step, ScaleUp | RemoveNode):
            self._sized(step, seen)

    def _sized(self, step: ScaleUp | RemoveNode, seen: Observation) -> None:
        """A node more or less."""
        if isinstance(step, ScaleUp):
            known = seen.pools.get(step.pool)
            self._bought.labels(step.pool).inc(len(known.template.cards) if known is not None else 0)
        else:
            machine, node = seen.machines.get(step.node), seen.engine.nodes.get(step.node)
            pool = machine.pool if machine is not None else ""
            known = seen.pools.get(pool)
            cards = node.cards if node is not None else known.template.cards if known is not None else ()
            self._returned.labels(pool).inc(len(cards))

    def wrote(self, outcome: str) -> None:
        """The state."""
        self._writes.labels(outcome).inc()

    def answered(self, method: str, code: str, seconds: float) -> None:
        """See `autoscaler.apis.rpc.handler.Tally`; no two services have a method of one name."""
        method = method.rpartition("/")[2]
        self._calls.labels(method, code).inc()
        self._call_times.labels(method).observe(seconds)

    def watch(self, read: Callable[[], Rows]) -> None:
        """Gauges, read at every scrape."""
        self._registry.register(Gauges(read))

    def page(self) -> bytes:
        """For a scraper."""
        return generate_latest(self._registry)
