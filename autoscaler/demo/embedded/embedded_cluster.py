# SPDX-License-Identifier: Apache-2.0
"""
A simulated cluster and its autoscaler, on a clock that the caller advances.

Behind it are `fake_cluster` (what happens), `readings` (what an exporter would measure) and the loop of the real
autoscaler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from autoscaler.core.decide import decide
from autoscaler.core.fragmentation import find_fragmented
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import list_names
from autoscaler.core.reconcile import reconcile
from autoscaler.core.scale_up import shorten
from autoscaler.core.state import AutoscalerState
from autoscaler.demo.embedded.fake_cluster import FakeCluster
from autoscaler.demo.embedded.pod_life import used_byte_seconds
from autoscaler.demo.embedded.readings import ReadingCache
from isolation.contract.reading import Frame, PendingReading

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from autoscaler.core.plan import Plan
    from autoscaler.core.reconcile import Decider
    from autoscaler.demo.embedded.node_pools import SimulatedFleet
    from autoscaler.demo.embedded.workload import PodArrival
    from isolation.contract.model import Pod


class EmbeddedCluster:
    """A simulated cluster and its autoscaler, advanced by the caller; no clock and no thread of its own."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        workload: Iterable[PodArrival],
        *,
        seed: int,
        limits: ScalingLimits | None = None,
        policy: str = "potential",
        decider: Decider = decide,
        done: Callable[[Plan], None] = lambda _plan: None,
    ) -> None:
        # a trace names no controllers: each of its pods stands for a replica that may move
        self.limits = limits or ScalingLimits(min_replicas=1)
        self.cluster = FakeCluster(fleet, workload, seed=seed, policy=policy)
        self.memory = AutoscalerState()
        self._decider, self._done = decider, done
        self._readings = ReadingCache(self.cluster)
        self._reconciling: Coroutine[Any, Any, tuple[Plan, AutoscalerState]] | None = None
        self._reported: set[str] = set()
        self.cluster.clock.after(self.limits.scan_interval_seconds, self._start_reconcile)

    @property
    def now(self) -> float:
        """Seconds of the fleet's clock."""
        return self.cluster.clock.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` of the fleet's time pass."""
        self.cluster.clock.run_until(self.now + seconds)

    def frame(self) -> Frame:
        """What a person is shown now."""
        return Frame(
            at=self.now,
            nodes=self._readings.nodes(),
            pools=self._readings.pools(),
            waiting=tuple(self._waiting(pod) for pod in self.cluster.scheduler.pending),
            events=self.cluster.accounting.latest,
            counts=self.cluster.accounting.counts,
            fragmented=self._count_fragmented(),
        )

    def summary(self) -> Mapping[str, int | float]:
        """Totals since the start, and how things stand."""
        pods, lives = self.cluster.state.pods, self.cluster.lives
        used = sum(used_byte_seconds(pod, lives[uid], self.now) for uid, pod in pods.items())
        waiting = self.cluster.scheduler.pending
        return {
            **self.cluster.accounting.summary(used),
            "pods_running": len(pods) - len(waiting),
            "pods_waiting": len(waiting),
            "pending_fragmented_pods": self._count_fragmented(),
            "unserved_pods": self._unserved(),
            "nodes": len(self.cluster.state.on),
            "seconds": self.now,
        }

    def _start_reconcile(self) -> None:
        """One turn of the loop begins, unless the last one has not ended."""
        self.cluster.clock.after(self.limits.scan_interval_seconds, self._start_reconcile)
        # with a settle time longer than the period a turn may still wait: turns never overlap
        if self._reconciling is None:
            self._reconciling = reconcile(self.cluster, self.limits, self.memory, self._decider)
            self._resume_reconcile(self._reconciling)

    def _resume_reconcile(self, reconcile: Coroutine[Any, Any, tuple[Plan, AutoscalerState]]) -> None:
        """Run a turn to its next wait, which takes the fleet's time."""
        try:
            seconds = reconcile.send(None)
        except StopIteration as end:
            plan, self.memory = end.value
            self._done(plan)
            self._reconciling = None
            self._report_refusals()
        else:
            self.cluster.clock.after(seconds, partial(self._resume_reconcile, reconcile))

    def _report_refusals(self) -> None:
        """Record once for each pod that no pool can ever host it, or that none may grow for it now."""
        want = self.memory.demand
        if want is None:
            return
        for kind, found, counted in (("refuse", want.unplaceable, ("pods_refused",)), ("wait", want.capped, ())):
            # one line for all that wait for the same reason: a thousand replicas are one piece of news
            news: dict[str, list[Pod]] = {}
            for uid, refusal in found.items():
                if uid not in self._reported and uid in self.cluster.state.pods:
                    self._reported.add(uid)
                    news.setdefault(refusal.reason, []).append(self.cluster.state.pods[uid])
            for reason, pods in news.items():
                self.cluster.accounting.record(kind, list_names(pods), reason, *counted * len(pods))

    def _waiting(self, pod: Pod) -> PendingReading:
        seconds, want = self.now - pod.created, self.memory.demand
        refusal = self.cluster.scheduler.refusal(pod.request)
        if want is not None:
            refusal = want.unplaceable.get(pod.uid) or want.capped.get(pod.uid) or refusal
        if refusal is None:
            return PendingReading(pod.key, seconds, "scheduling", "waiting for the next scheduling cycle")
        home = None if want is None else want.nominations.get(pod.uid)
        reason = refusal.reason if home is None else f"node {home.machine} is being added for it: {shorten(refusal)}"
        return PendingReading(pod.key, seconds, refusal.why.value, reason)

    def _count_fragmented(self) -> int:
        return len(find_fragmented(self.cluster.snapshot(), self.cluster.scheduler.pending))

    def _unserved(self) -> int:
        """Pods that some pool could host and for which nothing is coming: must never be."""
        want = self.memory.demand
        patience = 2 * (self.limits.scan_interval_seconds + self.limits.action_validation_delay_seconds)
        late = (pod.uid for pod in self.cluster.scheduler.pending if self.now - pod.created > patience)
        if want is None:
            return 0
        return len(set(late) - want.answered_pods() - (set(want.fits) if self.cluster.pass_due else set()))
